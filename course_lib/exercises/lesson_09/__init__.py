"""Lesson 09, FlashAttention backward.

The formulas and the tiles are those of FlashAttention-2 (Dao, 2023), section 2.3.2 and Alg. 2, in two passes instead
of one, so that every gradient is written once.
"""

TITLE = "FlashAttention backward"
EXERCISES = ("softmax_vjp", "attention_backward", "delta", "tiled_backward", "dkdv_tile")
