"""Lesson 07, first Triton kernels.

Every answer is a kernel. It is launched in Triton's interpreter under the tracer, so each access is judged besides the
result: whether it stays inside the tensors, whether every output is written, and how many bytes are requested.
`online_row_stats` is Milakov and Gimelshein (2018), Alg. 3, block by block.
"""

TITLE = "First Triton kernels"
EXERCISES = ("vector_add", "row_softmax", "scores_tile", "online_row_stats")
