"""FlashAttention from First Principles: the finished implementations that the notebooks import.

The map, in reading order:

    reference/   the mathematics in NumPy, float64-capable, clarity first: softmax, attention, tiled, backward
    machine      a memory of two levels that counts every byte moved and refuses a tile that does not fit
    masks        which query sees which key, and so which tiles are visited
    traffic      the same counts as closed forms: bytes, FLOPs, peak memory
    hardware     GPU specifications, each with its source
    kernels/     the same mathematics in Triton, compiled on a GPU or interpreted without one
    tracer       the bytes that a real Triton kernel requests, and what it touches out of bounds; tracing/ has its parts
    measure/     timing, experiments, the ladder, the compiler's reports, the error budget; the records are in data/
    exercises/   one module a lesson: answers, hints, properties and plausible wrong answers
    grading/     the engine behind check, hint, solution and progress
    explorers/   one module a widget: model, drawing, thin shell
    runtime      chooses GPU or interpreter before Triton is imported; `python -m course_lib doctor`
    language     Triton's names where it is installed, and stand-ins to write kernels with where it is not
    workspace    a learner's working copies of the notebooks
    authoring    stamps and builds the notebooks from their text twins

`reference` and `kernels` never import each other: they are two independent statements of one mathematics.

This module imports nothing but the standard library, so that a first cell is quick; everything above is
loaded when it is first used. What a symbol means is in `GLOSSARY`: one word for one thing, in code and prose.
"""

import importlib

# Name: (lesson that introduces it, or "" for what only the kernels' code has so far, meaning in one sentence).
# notebooks/glossary.md is written from this by `python -m course_lib.authoring glossary`.
SYMBOLS = {
    # The mathematics, in capitals in `reference`.
    "Q": ("01", "queries, [n_q, d]: what each position looks for"),
    "K": ("01", "keys, [n_k, d]: what each position offers to be found by"),
    "V": ("01", "values, [n_k, d]: what each position hands over when found"),
    "S": ("01", "scores, scale * Q @ K.T, [n_q, n_k], -inf where masked"),
    "P": ("01", "weights or probabilities, the row-wise softmax of S, [n_q, n_k]"),
    "O": ("01", "output, P @ V, [n_q, d]"),
    "N": ("01", "number of queries and of keys when the two are equal"),
    "n_q": ("01", "number of queries"),
    "n_k": ("01", "number of keys, and of values"),
    "d": ("01", "head dimension, head_dim in code, the length of one query, key or value"),
    "scale": ("01", "what scores are multiplied by, 1 / sqrt(d) unless given"),
    "causal": ("04", "query i sees key j only if j <= i + n_k - n_q, so that the last query sees every key"),
    # The state of the online softmax: what has been learnt from the keys seen so far.
    "m": ("03", "running maximum of a row's scores, m_i in kernels; -inf before the first key"),
    "l": ("05", "running normaliser, the sum of exp(score - m), l_i in kernels; 0 before the first key"),
    "acc": ("05", "running weighted sum of values, the sum of exp(score - m) * value; the output is acc / l"),
    "alpha": ("05", "exp(m_old - m_new), the factor that carries l and acc over to a new maximum"),
    "state": ("05", "the tuple (m, l, acc) of a set of keys; two of them merge into the state of the union"),
    "lse": ("03", "log-sum-exp of a row's scores, m + log(l), natural logarithm"),
    "dO": ("09", "gradient of the loss with respect to O; dQ, dK, dV, dS, dP likewise"),
    "delta": ("09", "rowsum(dO * O), which the backward pass needs of each row"),
    # Tiles and memory.
    "B_r": ("06", "rows of a query tile in the papers; block_q in reference, BLOCK_M in kernels"),
    "B_c": ("06", "rows of a key tile in the papers; block_k in reference, BLOCK_N in kernels"),
    "M": ("06", "size of SRAM in the papers, in elements"),
    "q_outer": ("06", "queries in the outer loop: FlashAttention-2's order, each output row written once"),
    "kv_outer": ("06", "keys and values in the outer loop: FlashAttention-1's order, the output rewritten each time"),
    # How kernels name things.
    "q_ptr": ("07", "a pointer to an array; q without _ptr is the tile loaded from it"),
    "offs_m": ("07", "offsets of a tile's query rows; offs_n of its key rows, offs_d of its columns"),
    "mask_m": ("08", "which of offs_m are inside the array"),
    "stride_qm": ("07", "elements between rows of q; stride_qb, stride_qh, stride_qd: batches, heads, columns"),
}
TERMS = {
    # Similarity and softmax.
    "vector": ("01", "a row of d numbers, its components"),
    "dot product": ("01", "the sum of the products of two vectors' components"),
    "cosine similarity": ("01", "the dot product of two vectors over the product of their lengths, from -1 to 1"),
    "query": ("01", "the vector that says what a token looks for"),
    "key": ("01", "the vector that says what a token offers"),
    "value": ("01", "the vector that a token hands over, as far as its key is found"),
    "score": ("01", "the dot product of a query and a key, usually scaled"),
    "logit": ("02", "a number that goes into a softmax; in attention, a score"),
    "softmax": ("01", "what turns logits x into positive weights exp(x_i) / sum of exp(x_j), which add up to 1"),
    "weights": ("01", "what softmax makes of a query's scores: positive, and 1 in sum"),
    "entropy": ("01", "how evenly weights are spread: 0 if one has all, log n if n are equal"),
    "saturated": ("01", "said of a softmax in which one weight is nearly 1, so that it hardly responds to its scores"),
    "naive": ("02", "the softmax computed as its formula is written, with no maximum subtracted"),
    "stable": ("03", "the softmax of logits from which their maximum was subtracted, so that no exp overflows"),
    "shift invariance": ("03", "adding one number to all logits leaves their softmax as it was"),
    "normaliser": ("03", "the sum of a row's exponentials, by which each of them is divided"),
    "log-sum-exp": ("03", "the logarithm of the sum of a row's exponentials; maximum and normaliser in one number"),
    "mask": ("03", "what says which keys a query sees: a hidden score is -inf; in a kernel also which lanes are used"),
    # Floats.
    "float": ("02", "a binary number with a sign, an exponent and a mantissa of fixed numbers of bits"),
    "exponent": ("02", "the bits of a float that give its range"),
    "mantissa": ("02", "the bits of a float that give its precision"),
    "float16": ("02", "16 bits, fp16 for short: 5 of exponent, 10 of mantissa, up to 65504"),
    "bfloat16": ("02", "16 bits, bf16 for short: 8 of exponent, 7 of mantissa; float32's range with fewer digits"),
    "float32": ("02", "32 bits, fp32 for short: 8 of exponent, 23 of mantissa"),
    "subnormals": ("02", "numbers too small for a leading 1, which lose a bit at each halving"),
    "overflow": ("02", "a result larger than the format's largest number becomes inf"),
    "underflow": ("02", "a result smaller than half the format's smallest positive number becomes 0"),
    "inf": ("02", "infinity, what a float becomes that is too large for its format"),
    "NaN": ("02", "not a number: the result of inf / inf, 0 / 0 or inf - inf"),
    "stalls": ("03", "said of a sum so large that adding one more term no longer changes it"),
    "error budget": ("05", "how far a result may be from the one in float64 and still agree with it"),
    # Attention.
    "attention": ("01", "each query's average of the values, weighted by the softmax of its scores"),
    "standard attention": ("01", "attention in three passes that write S and P to HBM and read them back"),
    "head": ("04", "one attention of several that run side by side, each on its own d columns"),
    "multi-head attention": ("04", "attention by several heads, whose outputs are put side by side and mixed"),
    "batch": ("04", "several sequences, each of which attends by itself"),
    "causal mask": ("04", "lets a query see the keys up to its own position and none after it"),
    "bottom-right": ("04", "the alignment of the causal mask by which the last query sees every key"),
    "online softmax": ("05", "softmax over a stream of scores in one pass, by running maximum and running normaliser"),
    "rescale": ("05", "to multiply by alpha what was summed relative to an old maximum"),
    "merge": ("05", "to make of the states of two sets of keys the state of both together"),
    "split-KV": ("05", "the keys of one query are split over many workers, whose states are merged at the end"),
    "FlashAttention": ("05", "exact attention, tile by tile, by the online softmax, with S and P never in HBM"),
    # Measuring.
    "warm-up": ("10", "calls before the first that is timed, which pay for what only a first call has to do"),
    "median": ("10", "the value in the middle of the sorted ones, which a few disturbed calls do not move"),
    "cold": ("10", "said of a cache that holds nothing of what a call needs; warm if it does"),
    "asynchronous": ("10", "said of a launch that returns before its work is done"),
    "launch-bound": ("10", "said of a call whose launches take longer than its work"),
    "counters": ("10", "what the hardware itself counts, such as the bytes that DRAM read and wrote"),
    "sweep": ("10", "to measure every choice of some settings"),
    "rank agreement": ("10", "Spearman's coefficient: 1 if two lists rank alike, -1 if opposite, 0 if unrelated"),
    "rung": ("10", "one step of the worklog: one idea, its prediction, its measurement, its verdict"),
    # Machines, bytes and time.
    "FLOP": ("01", "one operation of floating point arithmetic: an addition or a multiplication"),
    "HBM": ("00", "the GPU's large, slow memory, where the arrays live"),
    "SRAM": ("03", "the small, fast memory of one streaming multiprocessor, where tiles live"),
    "shared memory": ("04", "the part of a streaming multiprocessor's SRAM that a program commands"),
    "L2": ("04", "the cache between HBM and all streaming multiprocessors"),
    "registers": ("04", "the memory that arithmetic works on, inside a streaming multiprocessor"),
    "streaming multiprocessor": ("04", "SM for short: one of a GPU's processors, with registers and SRAM of its own"),
    "tensor cores": ("04", "a streaming multiprocessor's units for products of small matrices"),
    "program": ("04", "one share of a kernel's work, which runs on one streaming multiprocessor"),
    "tile": ("00", "a block of consecutive rows of one array, small enough for SRAM"),
    "ragged": ("06", "said of edges where the last tile is shorter, since the tile size does not divide the length"),
    "pass": ("03", "one walk through the data: load a tile, compute, go on"),
    "asked for": ("01", "said of the bytes that programs load and store, before any cache serves part of them"),
    "closed form": ("01", "a count by formula, to compare with what the machine counted"),
    "arithmetic intensity": ("01", "FLOPs per byte moved"),
    "roofline": ("01", "the most FLOPs per second that bandwidth and peak rate allow at an arithmetic intensity"),
    "ridge": ("01", "the arithmetic intensity at which memory and arithmetic are busy equally long"),
    "memory-bound": ("01", "left of the ridge: moving the bytes takes longer than the arithmetic"),
    "compute-bound": ("01", "right of the ridge: the arithmetic takes longer than moving the bytes"),
    "lower bound": ("06", "the growth of traffic that no exact algorithm beats for every M: N^2 d^2 / M elements"),
    "warps": ("06", "groups of 32 threads that a program is made of"),
    "wave": ("06", "the programs that the whole GPU runs at one time"),
    "spill": ("06", "to keep in slow memory what the registers have no room for"),
    # Kernels in Triton.
    "kernel": ("07", "a function that a GPU runs many times at once; each run is a program"),
    "launch": ("07", "to start a kernel's programs, kernel[grid](arguments)"),
    "grid": ("07", "how many programs a launch has, along each of up to three axes"),
    "program id": ("07", "the number by which a program knows its share, one for each axis of the grid"),
    "block": ("07", "in a kernel, the elements that a program handles at once: a power of two, fixed when compiled"),
    "lane": ("07", "a place of a block; one that a mask switches off loads and stores nothing"),
    "pointer": ("07", "where in memory an array's first element lies; pointer plus offset is another element's place"),
    "stride": ("07", "the distance in elements from one row, or column, of an array to the next"),
    "tracer": ("07", "what counts the bytes that a kernel's programs ask for, and reports accesses out of bounds"),
    "interpreter": ("07", "what runs a kernel without a GPU, program after program, its blocks as NumPy arrays"),
    "compiler": ("07", "what turns a kernel into a GPU's machine code"),
    "epilogue": ("08", "what a kernel does after its loop: divide by l, store O and lse"),
    "TF32": ("08", "float32 with 10 bits of mantissa, in which tensor cores multiply float32 unless told otherwise"),
    # Gradients.
    "loss": ("09", "the number that training makes small"),
    "gradient": ("09", "an array's gradient dX says how the loss changes for each unit of a small change in X"),
    "backward pass": ("09", "the way from dO to dQ, dK and dV; what leads from Q, K and V to O is the forward pass"),
    "gradcheck": ("09", "the comparison of a gradient's formula with the slopes, found by small steps in float64"),
    "recomputed": ("09", "made once more from what was kept, as P from Q, K and lse"),
    "atomic addition": ("09", "one to memory that no other program can split; the order of several is not fixed"),
}
GLOSSARY = SYMBOLS | TERMS

_FROM_GRADING = {"check", "hint", "solution", "progress", "quiz"}
_SUBMODULES = {
    "authoring", "exercises", "explorers", "grading", "hardware", "kernels", "machine",
    "masks", "measure", "reference", "runtime", "tracer", "traffic", "workspace",
}  # fmt: skip

__all__ = ["GLOSSARY", "SYMBOLS", "TERMS", *sorted(_FROM_GRADING), *sorted(_SUBMODULES)]


def __getattr__(name):
    if name in _FROM_GRADING:
        return getattr(importlib.import_module("course_lib.grading"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"course_lib.{name}")
    raise AttributeError(f"module 'course_lib' has no attribute {name!r}")


def __dir__():
    return __all__
