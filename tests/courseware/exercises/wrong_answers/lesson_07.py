"""Lesson 07: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

import inspect
import textwrap

from courseware.exercises.lesson_07.scores_tile import scores_tile
from courseware.exercises.lesson_07.vector_add import vector_add

LOAD = "mask=offs_n < n_cols"
LOOP = "    for start in range(0, n_cols, BLOCK):\n"
UPDATE = "l_i * tl.exp(m_i - m_ref)"


def with_body(answer, body):
    """Edits that put a body in place of the answer's."""
    source = textwrap.dedent(inspect.getsource(answer))
    return {source.split('"""\n', 2)[-1]: textwrap.indent(textwrap.dedent(body), "    ")}


ONE_DOES_ALL_BLOCKS = """\
if tl.program_id(0) == 0:
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)
"""
ONE_BY_ONE = """\
start = tl.program_id(0) * BLOCK
for i in range(start, tl.minimum(start + BLOCK, n)):
    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))
"""
ONE_DOES_ALL_TILES = """\
if tl.program_id(0) + tl.program_id(1) == 0:
    for start in range(0, n_q, BLOCK_M):
        for first in range(0, n_k, BLOCK_N):
            offs_m, offs_n = start + tl.arange(0, BLOCK_M), first + tl.arange(0, BLOCK_N)
            offs_d = tl.arange(0, BLOCK_D)
            mask_m, mask_n, mask_d = offs_m < n_q, offs_n < n_k, offs_d < HEAD_DIM
            q_ptrs = q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd
            k_ptrs = k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd
            q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)
            k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            s_ptrs = s_ptr + offs_m[:, None] * stride_sm + offs_n[None, :] * stride_sn
            tl.store(s_ptrs, s, mask=mask_m[:, None] & mask_n[None, :])
"""

WRONG_ANSWERS = {
    "vector_add": {
        "the last block is always dropped": ({"mask = offs < n": "mask = offs < (n - 1) // BLOCK * BLOCK"}, "never written"),
        "y alone": ({"x + y, mask": "y, mask"}, "out is wrong at every element"),
        "one element at a time": (with_body(vector_add, ONE_BY_ONE), "a program makes 4 loads of x, where 1 of a whole block would do"),
        "program 0 does all blocks": (with_body(vector_add, ONE_DOES_ALL_BLOCKS), "1 of 2 programs load x"),
        "half of each block": ({"mask = offs < n": "mask = (offs < n) & (offs % 2 == 0)"}, "never written"),
        "in place": ({"tl.store(out_ptr + offs, x + y, mask=mask)": "tl.store(x_ptr + offs, x + y, mask=mask)"}, "never written"),
        "blocks run backwards": ({"tl.program_id(0) * BLOCK": "n - (tl.program_id(0) + 1) * BLOCK"}, "program 1 reads elements -3 to -1 of x"),
    },
    "row_softmax": {
        "the max of absolute values": ({"tl.max(x, axis=0)": "tl.max(tl.abs(x), axis=0)"}, "out is NaN at every row"),
        "log-softmax": ({"p / tl.sum(p, axis=0)": "tl.log(p / tl.sum(p, axis=0))"}, "out is wrong at every row"),
        "the store's columns are neighbours": ({"offs_n * stride_on": "offs_n"}, "program 0 writes between two elements of out: is each offset times its own stride?"),
        "an epsilon": ({"tl.sum(p, axis=0)": "(tl.sum(p, axis=0) + 1e-3)"}, "with 1.553 in its place this result would be right"),
        "x's strides for out": ({"row * stride_om": "row * stride_xm"}, "program 1 writes columns 1 to 24 of out, which has 4"),
        "the reverse row": ({"offs_n * stride_on": "(n_cols - 1 - offs_n) * stride_on"}, "out is wrong at every row"),
    },
    "scores_tile": {
        "program (0, 0) does all tiles": (with_body(scores_tile, ONE_DOES_ALL_TILES), "1 of 4 programs store s"),
        "divided by scale": ({'input_precision="ieee") * scale': 'input_precision="ieee") / scale'}, "s is the right result times scale**-2"),
        "Python's and": ({"mask=mask_m[:, None] & mask_n[None, :])": "mask=mask_m[:, None] and mask_n[None, :])"}, "program 1 writes row 3 of s, which has 3"),
        "q's strides for k": ({"offs_n[:, None] * stride_kn": "offs_n[:, None] * stride_qm"}, "program 0 reads columns 21 to 22 of k, which has 2"),
    },
    "online_row_stats": {
        "the last block is always dropped": ({LOOP: "    for start in range(0, n_cols - BLOCK, BLOCK):\n"}, "columns 2 to 3 of x are never loaded"),
        "one element at a time": (
            {LOOP: "    for start in range(0, n_cols):\n", "start + tl.arange(0, BLOCK)": "start + tl.arange(0, 1)"},
            "a program makes 5 loads of x, where 3 of a whole block would do",
        ),
        "the max starts at a number of its own": ({'m_i = float("-inf")': "m_i = -7e20"}, "m is not -inf"),
        "tl.max of two numbers": ({"tl.maximum(m_i, tl.max(x, axis=0))": "tl.max(m_i, tl.max(x, axis=0))"}, "in online_row_stats: m_new = tl.max(m_i, tl.max(x, axis=0))"),
        "alpha squared": ({UPDATE: "l_i * tl.exp(m_i - m_ref) * tl.exp(m_i - m_ref)"}, "l is too small by the factor 0.8969"),
        "a new max starts the sum again": ({UPDATE: "tl.where(tl.max(x, axis=0) > m_i, 0.0, l_i)"}, "the old sum is dropped"),
        "base 2": ({"tl.sum(tl.exp(x - m_ref), axis=0)": "tl.sum(tl.exp2(x - m_ref), axis=0)"}, "l is too large by the factor 1.207"),
        "l counts": ({"tl.sum(tl.exp(x - m_ref), axis=0)": "tl.sum((x > float('-inf')).to(tl.float32), axis=0)"}, "l is too large by the factor 2.576"),
        "m and l exchanged": ({"tl.store(m_ptr + row, m_i)": "tl.store(m_ptr + row, l_i)", "tl.store(l_ptr + row, l_i)": "tl.store(l_ptr + row, m_i)"}, "swapped"),
    },
}  # fmt: skip
