"""Lesson 08, the forward kernel.

The kernel is FlashAttention-2 (Dao, 2023), Alg. 1: lesson 05's update inside lesson 06's loop.
"""

TITLE = "The forward kernel"
EXERCISES = ("kv_loop_bounds", "lse_epilogue", "flash_forward", "find_failing_input")
