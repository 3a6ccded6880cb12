"""Lesson 04, attention.

The stages are those of standard attention in Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022), Alg. 0; heads are
those of Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

TITLE = "Attention"
EXERCISES = ("causal_mask", "attention", "multi_head_attention", "standard_attention_bytes")
