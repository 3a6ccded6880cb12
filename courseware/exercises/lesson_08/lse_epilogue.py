"""The lines after the forward kernel's loop: o and lse from the state."""

import numpy as np

from course_lib import reference
from course_lib.language import WRITTEN
from courseware.checks import Exercise, case_of, expected
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.precision import keeps_float32

tl, triton = WRITTEN.tl, WRITTEN.triton


@triton.jit
def lse_epilogue(
    m_ptr, l_ptr, acc_ptr, o_ptr, lse_ptr, n_q, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """What a forward kernel does after its loop: FA2 Alg. 1, lines 12 to 15.

    Launched with cdiv(n_q, BLOCK_M) programs, along axis 0; program i has BLOCK_M queries, from i * BLOCK_M on.
    m, l: float32 [n_q]; acc: float32 [n_q, HEAD_DIM], its rows without a gap; all contiguous. m is the running max in
        base 2: the largest score times log2(e). l is the sum of exp(score - largest score), and acc that of
        exp(score - largest score) times the key's values. A query that saw no key has m = -inf, l = 0, acc = 0.
    Stores o = acc / l, [n_q, HEAD_DIM], contiguous like acc, in o's dtype, and lse, float32 [n_q], the natural
        logarithm of the sum of exp(score). For a query that saw no key, o is 0 and lse is -inf. BLOCK_D: a power of
        two, at least HEAD_DIM. n_q and HEAD_DIM are any from 1 up. Nothing outside a tensor may be touched, and each
        element is read once and written once.

    >>> from courseware.checks import launched
    >>> state = dict(m_ptr=np.array([0.0]), l_ptr=np.array([2.0]), acc_ptr=np.array([6.0]))
    >>> outputs, sizes = {"o_ptr": (1,), "lse_ptr": (1,)}, dict(n_q=1, HEAD_DIM=1, BLOCK_M=16, BLOCK_D=16)
    >>> launched(lse_epilogue, (1,), outputs, **state, **sizes).outputs["lse_ptr"].round(3)
    array([0.693], dtype=float32)
    """
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < n_q
    mask = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    places = offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    m_i = tl.load(m_ptr + offs_m, mask=mask_m, other=0.0)
    l_i = tl.load(l_ptr + offs_m, mask=mask_m, other=1.0)
    acc = tl.load(acc_ptr + places, mask=mask, other=0.0)
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc / l_safe[:, None]
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)
    tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + offs_m, lse, mask=mask_m)


CALL = """\
from course_lib import reference
rng = np.random.default_rng(0)
scores, values = size * rng.standard_normal((n_q, 8)), rng.standard_normal((8, d))
scores[:empty_rows] = -np.inf
scores[:one_key_rows, 0], scores[:one_key_rows, 1:] = 0, -np.inf
no_keys = np.full(n_q, -np.inf), np.zeros(n_q), np.zeros((n_q, d))
m, l, acc = reference.online_softmax_update(*no_keys, scores, values)
launched(
    lse_epilogue, (-(-n_q // block_m),), {"o_ptr": n_q * d, "lse_ptr": n_q},
    m_ptr=m * np.log2(np.e), l_ptr=l, acc_ptr=acc.ravel(), n_q=n_q, HEAD_DIM=d, BLOCK_M=block_m, BLOCK_D=block_d,
)"""


def o(scores, values, **_):
    def weighted_values(scores, values):
        return reference.stable_softmax(scores) @ values

    return expected("o", weighted_values, scores, values, terms=np.abs(values).max())


def lse(scores, m, l, **_):
    return expected("lse", reference.logsumexp, scores, terms=np.where(l > 0, np.abs(m) + np.log(np.maximum(l, 1)), 0))


def terms_of_lse(_, m, l, **names):
    return f"in row 0, m is {m[0] * np.log2(np.e):.6g} and log2(l) is {np.log2(l[0]):.6g}; ln 2 is {np.log(2):.6g}"


def once(scores, values, **_):
    n_q, d = len(scores), values.shape[1]
    return {"m": (n_q * 4, 0), "l": (n_q * 4, 0), "acc": (n_q * d * 4, 0), "o": (0, n_q * d * 4), "lse": (0, n_q * 4)}


case = case_of(
    "n_q d empty_rows block_d block_m one_key_rows size", empty_rows=0, block_d=16, block_m=32, one_key_rows=0, size=3
)
gives_lse = explain(launch_agrees(lse), terms_of_lse)
check = kernel_checks(CALL, launch_agrees(o), case)

check("o is acc divided by l", [(32, 16)])
# The second: queries with an lse of 0, where a small number added to l shows. The third: largest scores of 0.
check(
    "lse is the natural log-sum-exp, of many keys and of one",
    [(32, 16), case(32, 16, one_key_rows=4), case(32, 16, size=0)],
    test=gives_lse,
)
check("lse of scores as large as 1000, of either sign", [case(32, 16, size=1000)], test=gives_lse)
check(
    "lse keeps the digits of float32",
    [case(32, 16, size=1000)],
    test=keeps_float32(lambda scores, **_: reference.logsumexp(scores)),
)
check(
    "any number of queries, any head dimension",
    [(5, 3), (70, 40, 0, 64), (37, 6, 0, 8, 16)],
    test=launch_agrees(lambda **inputs: o(**inputs) + lse(**inputs)),
)
check("a query that saw no key: o is 0", [(32, 16, 3)])
check("a query that saw no key: lse is -inf", [(32, 16, 3)], test=launch_agrees(lse))
check("each element is read once and written once", [(32, 16), (37, 6, 0, 8, 16)], test=launch_agrees(o, once))
compiles(check, 70, 40, 0, 64)

EXERCISE = Exercise(__file__, lse_epilogue, check, points=2, minutes=7, difficulty="medium", imports=TRITON)
