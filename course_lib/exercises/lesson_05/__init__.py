"""Lesson 05, online softmax.

The update is Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), Alg. 3, with the weighted sum
of values carried along as in FlashAttention-2 (Dao, 2023), Alg. 1, lines 9 and 10. Slips called claim A, B and C are
widely copied versions of it that are wrong.
"""

TITLE = "Online softmax"
EXERCISES = ("online_normalizer", "online_softmax_update", "merge_states", "online_attention")
