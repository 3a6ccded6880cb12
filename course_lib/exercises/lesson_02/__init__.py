"""Lesson 02, softmax overflow.

The formats are IEEE 754's binary16 and binary32, and bfloat16, which keeps binary32's exponent. F19 and F21 are the
claims behind the exercises.
"""

TITLE = "Softmax overflow"
EXERCISES = ("largest_exp_input", "naive_softmax", "breaking_input")
