"""The kernel for dK and dV: FlashAttention-2 (Dao, 2023), Alg. 2, with keys in the outer loop."""

import functools
from dataclasses import replace

import numpy as np

from course_lib import reference, traffic
from course_lib.kernels import plain_backward
from courseware.checks import Exercise, case_of
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees, plain
from courseware.exercises.common.parts import setting_aside
from courseware.exercises.common.precision import rounds_products
from courseware.exercises.lesson_09.gradients import expected_gradients

dkdv_tile = plain(plain_backward.dkdv_tile)

INPUTS = """\
from course_lib import reference
rng = np.random.default_rng(0)
q, k, v, do = (rng.standard_normal((n, d)) for n in (n_q, n_k, n_k, n_q))
"""
# Of one sign, so that the sums grow from tile to tile.
GROWING = "q, k, v, do = (x.astype(np.float16) for x in (abs(q), k, v, abs(do)))\n"
LAUNCH = """\
exact = (x.astype(np.float64) for x in (q, k, v))
o, lse = reference.attention(*exact, causal=causal, scale=scale, return_lse=True)
given = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "do_ptr": do, "lse_ptr": lse, "delta_ptr": (o * do).sum(axis=1)}
strides = {"q_ptr": ("stride_qm",), "k_ptr": ("stride_kn",), "v_ptr": ("stride_vn",), "do_ptr": ("stride_dom",)}
strides |= {"dk_ptr": ("stride_dkn",), "dv_ptr": ("stride_dvn",)}
sizes = {"n_q": n_q, "n_k": n_k, "scale": scale, "IS_CAUSAL": causal, "HEAD_DIM": d, "BLOCK_M": block_m}
sizes |= {"BLOCK_N": block_n, "BLOCK_D": max(16, 1 << (d - 1).bit_length())}
made = {"dk_ptr": k.shape, "dv_ptr": v.shape}
launched(dkdv_tile, (-(-n_k // block_n),), made, strides=strides, **given, **sizes)"""


def dk_and_dv(q, k, v, do, causal, scale, **_):
    parts = expected_gradients(q, k, v, do, causal, scale=scale)[1:]
    return [replace(part, name=part.name.lower()) for part in parts]


def dk_and_dv_from_float16(q, k, v, do, scale, **_):
    """float16 weights, gradients of scores and results, each rounded once, may be; a float16 accumulator may not."""
    q, k, v, do = (x.astype(np.float64) for x in (q, k, v, do))
    P = reference.stable_softmax(reference.scores(q, k, scale))
    dS = reference.softmax_vjp(P, do @ v.T)
    rounded = scale * dS.astype(np.float16).T @ q, P.astype(np.float16).T @ do
    rounded = [x.astype(np.float16) for x in rounded]
    parts = dk_and_dv(q, k, v, do, False, scale)
    # terms: beside the rounding of float16, that of float32 is next to nothing.
    return [replace(part, plain=plain, terms=part.expected) for part, plain in zip(parts, rounded, strict=True)]


def closed_form(n_q, n_k, d, causal, block_m, block_n, **_):
    # With keys outermost, Q passes by as in FlashAttention-1's forward, and lse and delta as l does there.
    sizes = {"block_q": block_m, "block_k": block_n, "dtype_bytes": 4, "causal": causal}
    forward = traffic.flash_attention(n_q, n_k, d, order="kv_outer", **sizes).by_tensor
    rows, statistics, once = forward["Q"].read_bytes, forward["l"].read_bytes, forward["K"].read_bytes
    loads = {"q": rows, "do": rows, "lse": statistics, "delta": statistics, "k": once, "v": once}
    return {name: (n_bytes, 0) for name, n_bytes in loads.items()} | {"dk": (0, once), "dv": (0, once)}


right, reads_once = launch_agrees(dk_and_dv), launch_agrees(dk_and_dv, closed_form)
case = case_of("n_q n_k d causal block_m block_n scale", d=16, causal=False, block_m=16, block_n=16, scale=0.3)
causal = functools.partial(case, causal=True)
check = kernel_checks(INPUTS + LAUNCH, right, case)

check(
    "one tile: dV = P^T dO, with P = exp(scale q k^T - lse)",
    [case(16, 16, scale=0.25)],
    test=setting_aside(right, "dk"),
)
check("all values alike: dP is delta, and dK is 0", [case(16, 16, scale=0.25)], call=INPUTS + "v[:] = v[0]\n" + LAUNCH)
check("one tile: dK = scale dS^T q", [case(16, 16, scale=0.25)])
check("scale is what it is called with, not 1/sqrt(HEAD_DIM)", [(16, 16)])
check("scores of some hundred: no exponential overflows", [case(16, 16, scale=30.0)])
check("several tiles of queries pass by", [(48, 16), case(32, 32, block_n=32)])
check("several programs: each has key tile program_id", [(16, 48), case(32, 32, block_m=32)])
check(
    "any lengths: nothing beyond n_q and n_k is read, written or counted",
    [(20, 16), (16, 23), (1, 1), case(20, 23, block_m=32)],
)
check("any HEAD_DIM: columns beyond it are neither read nor written", [(16, 16, 5), (20, 23, 24)])
check(
    "causal: query i sees keys 0 to i + n_k - n_q",
    [causal(16, 16), causal(24, 24), causal(20, 40), causal(40, 40, block_n=32), causal(64, 64, block_m=32)],
)
check(
    "causal, more queries than keys: those that see no key have no part in it, and nothing is NaN",
    [causal(20, 16), causal(34, 17), causal(31, 16)],
)
check(
    "float16 inputs: scores and sums are float32",
    [(512, 16), case(16, 16, scale=3.0)],  # the second: scores near 30, to which float16 gives two decimals
    test=launch_agrees(dk_and_dv_from_float16),
    call=INPUTS + GROWING + LAUNCH,
)
check("K and V are read once, the rest once for each key tile", [(32, 32), (20, 23, 24)], test=reads_once)
check(
    "causal: query tiles that see none of the keys are not read",
    [causal(32, 32), causal(24, 20), causal(64, 64, block_n=32), causal(48, 32, block_n=32)],
    test=reads_once,
)
check("float32 products: nothing is rounded to TF32 on a GPU", [(32, 16)], test=rounds_products(right))
compiles(check, 20, 23, 24, True)

EXERCISE = Exercise(__file__, dkdv_tile, check, points=5, minutes=20, difficulty="hard", imports=TRITON)
