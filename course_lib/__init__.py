"""FlashAttention from First Principles: the finished implementations that the notebooks import.

The map, in reading order:

    reference/   the mathematics in NumPy, float64-capable, clarity first: softmax, attention, tiled, backward
    machine      a memory of two levels that counts every byte moved and refuses a tile that does not fit
    traffic      the same counts as closed forms: bytes, FLOPs, peak memory
    hardware     GPU specifications, each with its source
    kernels/     the same mathematics in Triton, compiled on a GPU or interpreted without one
    tracer       the bytes that a real Triton kernel asks for, and what it touches out of bounds
    bench        measures, and records what it measured with where and how; the records are in data/
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

GLOSSARY = {
    # The mathematics, in capitals in `reference`.
    "Q": "queries, [n_q, d]: what each position looks for",
    "K": "keys, [n_k, d]: what each position offers to be found by",
    "V": "values, [n_k, d]: what each position hands over when found",
    "S": "scores, scale * Q @ K.T, [n_q, n_k], -inf where masked",
    "P": "probabilities, the row-wise softmax of S, [n_q, n_k]",
    "O": "output, P @ V, [n_q, d]",
    "n_q": "number of queries; N when queries and keys are equally many",
    "n_k": "number of keys, and of values",
    "d": "head_dim, the length of one query, key or value",
    "scale": "what scores are multiplied by, 1 / sqrt(d) unless given",
    "causal": "query i sees key j only if j <= i + n_k - n_q, so that the last query sees every key",
    # The state of the online softmax: what has been learnt from the keys seen so far.
    "m": "running maximum of a row's scores, m_i in kernels; -inf before the first key",
    "l": "running normaliser, the sum of exp(score - m), l_i in kernels; 0 before the first key",
    "acc": "running weighted sum of values, the sum of exp(score - m) * value; the output is acc / l",
    "alpha": "exp(m_old - m_new), the factor that carries l and acc over to a new maximum",
    "state": "the tuple (m, l, acc) of a set of keys; two of them merge into the state of the union",
    "lse": "log-sum-exp of a row's scores, m + log(l), natural logarithm",
    "dO": "gradient of the loss with respect to O; dQ, dK, dV, dS, dP likewise",
    "delta": "rowsum(dO * O), which the backward pass needs of each row",
    # Tiles and memory.
    "B_r": "rows of a query tile in the papers; block_q in reference, BLOCK_M in kernels",
    "B_c": "rows of a key tile in the papers; block_k in reference, BLOCK_N in kernels",
    "tile": "a block of consecutive rows of one array, small enough for SRAM",
    "HBM": "the GPU's large, slow memory, where the arrays live",
    "SRAM": "the small, fast memory of one streaming multiprocessor, where tiles live",
    "q_outer": "queries in the outer loop: FlashAttention-2's order, each output row written once",
    "kv_outer": "keys and values in the outer loop: FlashAttention-1's order, the output rewritten each time",
    # How kernels name things.
    "q_ptr": "a pointer to an array; q without _ptr is the tile loaded from it",
    "offs_m": "offsets of a tile's query rows; offs_n of its key rows, offs_d of its columns",
    "mask_m": "which of offs_m are inside the array",
    "stride_qm": "elements between rows of q; stride_qb, stride_qh, stride_qd: batches, heads, columns",
}

_FROM_GRADING = {"check", "hint", "solution", "progress", "quiz"}
_SUBMODULES = {
    "authoring", "bench", "exercises", "explorers", "grading", "hardware", "kernels", "machine",
    "reference", "runtime", "tracer", "traffic", "workspace",
}  # fmt: skip

__all__ = ["GLOSSARY", *sorted(_FROM_GRADING), *sorted(_SUBMODULES)]


def __getattr__(name):
    if name in _FROM_GRADING:
        return getattr(importlib.import_module("course_lib.grading"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"course_lib.{name}")
    raise AttributeError(f"module 'course_lib' has no attribute {name!r}")


def __dir__():
    return __all__
