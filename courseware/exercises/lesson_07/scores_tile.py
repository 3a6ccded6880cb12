"""Scores of queries and keys, one tile for each program."""

import numpy as np

from course_lib.kernels import triton_basics
from courseware.checks import Exercise, expected
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees, plain
from courseware.exercises.common.generators import drawn_case
from courseware.exercises.common.precision import rounds_products
from courseware.exercises.lesson_07.launches import shared_out

scores_tile = plain(triton_basics.scores_tile)


def scores(q, k, scale, **blocks):
    return expected("s", lambda q, k: q @ k.T * q.dtype.type(scale), q, k, terms=np.abs(q) @ np.abs(k).T * abs(scale))


def once(q, k, BLOCK_M, BLOCK_N, **_):
    tiles_m, tiles_n = -(-len(q) // BLOCK_M), -(-len(k) // BLOCK_N)
    return {"q": (q.size * 4 * tiles_n, 0), "k": (k.size * 4 * tiles_m, 0), "s": (0, len(q) * len(k) * 4)}


def a_tile_each(q, k, BLOCK_M, BLOCK_N, BLOCK_D, **_):
    tiles = -(-len(q) // BLOCK_M) * -(-len(k) // BLOCK_N)
    return tiles, BLOCK_M * BLOCK_N * BLOCK_D, {("s", "store"): 1}


def inputs(q, k, block_m, block_n, block_d=None, scale=0.5):
    block_d = block_d or 1 << (q.shape[1] - 1).bit_length()
    return {"q": q, "k": k, "scale": scale, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": block_d}


def case(n_q, n_k, d, *blocks, **scale):
    """Short numbers, each row and column of the product unlike the others."""
    q = (np.arange(n_q * d) * 7 % 11 - 4.1).reshape(n_q, d).round(1)
    k = (np.arange(n_k * d) * 5 % 13 - 5.0).reshape(n_k, d)
    return inputs(q, k, *blocks, **scale)


def queries_and_keys(n_q, n_k, d, block_d):
    drawn = drawn_case({"n_q": n_q, "n_k": n_k, "d": d}, q="n_q d", k="n_k d")
    return drawn.map(lambda case: inputs(**case, block_m=2, block_n=4, block_d=block_d))


CALL = """\
launched(scores_tile, (-(-len(q) // BLOCK_M), -(-len(k) // BLOCK_N)), {"s_ptr": (len(q), len(k))}, q_ptr=q, k_ptr=k,
         n_q=len(q), n_k=len(k), scale=scale, HEAD_DIM=q.shape[1], BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D,
         strides={"q_ptr": ("stride_qm", "stride_qd"), "k_ptr": ("stride_kn", "stride_kd"),
                  "s_ptr": ("stride_sm", "stride_sn")})"""
right = launch_agrees(scores)
check = kernel_checks(CALL, right, case)

check("one tile: Q K^T, with a scale of 1", [case(2, 4, 2, 2, 4, scale=1.0), case(4, 4, 4, 4, 4, scale=1.0)])
check("one tile: scale times Q K^T", [(2, 4, 2, 2, 4), case(4, 4, 4, 4, 4, scale=0.3), case(2, 4, 2, 2, 4, scale=3.0)])
check(
    "several tiles: axis 0 counts query tiles, axis 1 key tiles",
    [(4, 4, 2, 2, 4), (2, 8, 2, 2, 4), (6, 8, 2, 2, 4), queries_and_keys([2, 4], [4, 8], [2], 2)],
)
check(
    "lengths that no tile divides: every score, and nothing outside",
    [(3, 4, 2, 2, 4), (2, 5, 2, 2, 4), (5, 9, 2, 2, 4), queries_and_keys([1, 2, 3], [1, 2, 3, 5], [2], 2)],
)
check(
    "a head_dim that is no power of two",
    [(2, 4, 3, 2, 4), (2, 4, 1, 2, 4, 4), (18, 33, 20, 16, 16), queries_and_keys([2], [4], [1, 3], 4)],
)
check(
    "each program reads its rows once and writes its tile once",
    [(4, 8, 2, 2, 4), (5, 9, 3, 2, 4)],
    test=shared_out(scores, a_tile_each, once),
)
check("products by tl.dot, and nothing rounded to TF32 on a GPU", [(2, 4, 2, 2, 4)], test=rounds_products(right))
compiles(check, inputs(np.zeros((18, 20)), np.zeros((33, 20)), 16, 16))

EXERCISE = Exercise(__file__, scores_tile, check, points=3, minutes=12, difficulty="medium", imports=TRITON)
