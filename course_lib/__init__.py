"""FlashAttention, from a dot product to a GPU's kernels: what the course teaches. It imports nothing of courseware.

reference/   the mathematics in NumPy, float64-capable, clarity first: softmax, attention, tiled, backward
masks        which query sees which key, and so which tiles are visited
machine      a memory of two levels that counts every byte moved and refuses a tile that does not fit
traffic      the same counts as closed forms: bytes, FLOPs, peak memory
integers     NumPy's integers as Python's, for sizes that a caller read off an array
hardware     GPU specifications, each with its source
kernels/     the same mathematics on a GPU: in Triton, for Hopper in Gluon, in cuda/ thread by thread
distributed  attention over the ranks of a process group: a ring, all-gather, all-to-all over heads
serving/     a cache of keys and values in pages, a small language model, and a server that batches requests
huggingface  the kernels as an attention implementation of Hugging Face's transformers
runtime      decides where kernels run, on a GPU or in an interpreter, before Triton is imported
language     Triton's names where it is installed, and stand-ins to write kernels with where it is not
"""
