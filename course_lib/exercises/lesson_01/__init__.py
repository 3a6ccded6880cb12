"""Lesson 01, dot products.

The scale 1/sqrt(d) is from Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1. F3 is a widely copied
count of attention's FLOPs that leaves out one of its two products.
"""

TITLE = "Dot products"
EXERCISES = ("dot", "cosine_similarity", "scores", "attention_flops")
