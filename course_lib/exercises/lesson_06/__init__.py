"""Lesson 06, tiled attention.

The loop is FlashAttention-2 (Dao, 2023), Alg. 1. The second loop order and its bytes are FlashAttention (Dao et al.,
2022), Alg. 1. `tiled_attention` is graded on a memory machine that also notices who looks past it.
"""

TITLE = "Tiled attention"
EXERCISES = ("choose_block_sizes", "visited_tiles", "tiled_attention", "flash_attention_bytes")
