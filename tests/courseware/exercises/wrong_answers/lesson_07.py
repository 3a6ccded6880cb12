"""Lesson 07: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

import inspect
import textwrap

from courseware.exercises.lesson_07.scores_tile import scores_tile

LOOP = "    for start in range(0, n_cols, BLOCK):\n"


def with_body(answer, body):
    """Edits that put a body in place of the answer's."""
    source = textwrap.dedent(inspect.getsource(answer))
    return {source.split('"""\n', 2)[-1]: textwrap.indent(textwrap.dedent(body), "    ")}


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
    },
    "row_softmax": {
        "the max of absolute values": ({"tl.max(x, axis=0)": "tl.max(tl.abs(x), axis=0)"}, "out is NaN at every row"),
        "log-softmax": ({"p / tl.sum(p, axis=0)": "tl.log(p / tl.sum(p, axis=0))"}, "out is wrong at every row"),
    },
    "scores_tile": {
        "program (0, 0) does all tiles": (with_body(scores_tile, ONE_DOES_ALL_TILES), "1 of 4 programs store s"),
        "divided by scale": ({'input_precision="ieee") * scale': 'input_precision="ieee") / scale'}, "with another operator in"),
    },
    "online_row_stats": {
        "the last block is always dropped": ({LOOP: "    for start in range(0, n_cols - BLOCK, BLOCK):\n"}, "columns 2 to 3 of x are never loaded"),
        "one element at a time": (
            {LOOP: "    for start in range(0, n_cols):\n", "start + tl.arange(0, BLOCK)": "start + tl.arange(0, 1)"},
            "a program makes 5 loads of x, where 3 of a whole block would do",
        ),
    },
}  # fmt: skip
