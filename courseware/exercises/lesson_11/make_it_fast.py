"""A kernel that computes attention and much else, made fast: judged by the tracer's bytes and the compiler's report."""

import functools

import numpy as np

from course_lib import traffic
from course_lib.language import tl, triton
from courseware.checks import Exercise, case_of, compare, single_finding
from courseware.checks.compile_calls import compile_report, compiles
from courseware.checks.kernel_calls import TRITON, compare_bytes, kernel_checks, plain, wrong_accesses
from courseware.exercises.common.oracles import output_from_float16

AT_MOST = 1.05  # instructions, of ours


@triton.jit
def make_it_fast(
    q_ptr, k_ptr, v_ptr, o_ptr, n, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Causal attention and nothing else: program (i, h) computes query tile i of head h.

    q, k, v: float16 [heads, n, HEAD_DIM], contiguous; o: like them, float16 or float32. BLOCK_M, BLOCK_N and HEAD_DIM
        are powers of two, 16 or more. Both blocks divide n.
    scale: positive, multiplies the scores. The scaled scores are finite in float32. Query i sees keys 0 to i.
    Stores softmax(scale q k^T) v in o. Statistics and accumulator are float32.
    Bytes: each program loads its queries once, once each tile of keys and of values in which one of its queries sees a
        key, and no others.
    Instructions: compiled for an H100, with 64 x 64 tiles, HEAD_DIM 64, four warps and num_stages=1, the loop over the
        tiles that every query sees has at most 5 % more than ours, multiplies on the tensor cores and spills nothing.
        What a branch skips counts, too. The loop is not unrolled.

    >>> q, v = np.zeros(32 * 16, np.float16), np.arange(32, dtype=np.float16).repeat(16)
    >>> arguments = dict(q_ptr=q, k_ptr=q, v_ptr=v, n=32, scale=0.5, HEAD_DIM=16, BLOCK_M=16, BLOCK_N=16)
    >>> launched(make_it_fast, (2, 1), {"o_ptr": 512}, **arguments).outputs["o_ptr"][::80]
    array([ 0. ,  2.5,  5. ,  7.5, 10. , 12.5, 15. ], dtype=float32)
    """
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * n * HEAD_DIM
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + head + offs_m[:, None] * HEAD_DIM + offs_d[None, :])
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    scale_log2 = scale * 1.4426950408889634
    full_end = start_m // BLOCK_N * BLOCK_N
    for MASKED in tl.static_range(2):
        start, end = (full_end, start_m + BLOCK_M) if MASKED else (0, full_end)
        for start_n in range(start, end, BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            tile = head + offs_n[:, None] * HEAD_DIM + offs_d[None, :]
            k = tl.load(k_ptr + tile)
            v = tl.load(v_ptr + tile)
            # [BLOCK_M, HEAD_DIM] @ [HEAD_DIM, BLOCK_N]
            scores = tl.dot(q, tl.trans(k))
            if MASKED:
                scores = tl.where(offs_n[None, :] <= offs_m[:, None], scores, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(scores, axis=1))
            p = tl.exp2((scores - m_new[:, None]) * scale_log2)
            alpha = tl.exp2((m_i - m_new) * scale_log2)
            l_i = l_i * alpha + tl.sum(p, axis=1)
            # [BLOCK_M, BLOCK_N] @ [BLOCK_N, HEAD_DIM]
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
            m_i = m_new
    o = acc / l_i[:, None]
    tl.store(o_ptr + head + offs_m[:, None] * HEAD_DIM + offs_d[None, :], o.to(o_ptr.dtype.element_ty))


make_it_fast = plain(make_it_fast)

CALL = """\
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((heads, n, d)).astype(np.float16) for _ in "qkv")
q[..., 0] += to_q
k[..., 0] += to_k
launched(make_it_fast, (n // block_m, heads), {"o_ptr": q.size}, q_ptr=q.ravel(), k_ptr=k.ravel(), v_ptr=v.ravel(),
         n=n, scale=scale, HEAD_DIM=d, BLOCK_M=block_m, BLOCK_N=block_n)"""


def output(q, k, v, scale):
    # A score's own rounding in float32 is a relative error of its weight.
    terms = (1 + scale * (np.abs(q) @ np.abs(k).T).max() / 100) * np.abs(v).max()
    return output_from_float16("o", q, k, v, terms, causal=True, scale=scale)


def gives_o(launch, q, k, v, scale, **_):
    heads = zip(launch.outputs["o_ptr"].reshape(q.shape), *np.float64([q, k, v]), strict=True)
    found = (compare(o, output(*inputs, scale)) for o, *inputs in heads)
    return wrong_accesses(launch) or next(filter(None, found), None)


def requests_the_closed_form(launch, heads, n, d, block_m, block_n, **_):
    requested = traffic.flash_attention(n, n, d, heads=heads, causal=True, block_q=block_m, block_k=block_n)
    return compare_bytes(launch, {name.lower(): tuple(requested.by_tensor[name]) for name in "QKV"})


@functools.cache
def fewest_instructions():
    """Of our loop, as the compiler at hand makes it."""
    arguments = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), np.zeros(1, np.float16))
    arguments |= {"n": 64, "scale": 0.1, "HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 64}
    return least_loop(compile_report(make_it_fast, (1, 1), {"o_ptr": 1}, **arguments))["instructions"]


def least_loop(report):
    return min(report["loops"], key=lambda loop: loop["instructions"])


def does_no_more_than_ours(report, **_):
    loop, ours = least_loop(report), fewest_instructions()
    most, found = int(AT_MOST * ours), loop["instructions"]
    if not loop["products"]:
        return single_finding("waste", "no product of the loop runs on the tensor cores: which dtype has each input?")
    if loop["spilled_bytes"]:
        text = f"for each tile, a thread spills {loop['spilled_bytes']} bytes to memory: it has too few registers"
        return single_finding("waste", text)
    if found > most:
        text = f"the loop over tiles of keys has {found} instructions; ours has {ours}, and {most} pass. Most are of"
        lines = [f"\n  {count:4}  {line}" for line, count in loop["lines"][:4]]
        return single_finding("waste", text + "".join(lines))
    return None


SIZES = {"d": 16, "heads": 1, "block_m": 16, "block_n": 16, "scale": 0.3}
case = case_of("n d heads block_m block_n scale to_q to_k", **SIZES, to_q=0, to_k=0)
check = kernel_checks(CALL, gives_o, case)

check("one tile of queries and one of keys: query i sees keys 0 to i", [(16,), case(32, 32, block_m=32, block_n=32)])
check("several tiles, each with a maximum of its own", [(48,), case(64, 32, heads=2)])
check("tiles of different sizes", [case(64, block_m=32), case(64, block_n=32)])
check("another scale", [case(48, scale=4.0)])
check("scores near 1000 and near -1000 leave nothing that overflows", [case(32, to_k=900), case(32, to_k=-900)])
check("all scores below -1e6, unscaled", [case(32, to_q=2000, to_k=-2000, scale=1e-4)])
check(
    "bytes: q once, k and v once for every tile of queries that sees some of them",
    [(48,), case(64, 32, 2, block_m=32), case(64, block_n=32)],
    test=requests_the_closed_form,
)
compiles(
    check, 128, 64, 1, 64, 64,
    name="instructions: the loop over tiles that every query sees has at most 5 % more than ours",
    test=does_no_more_than_ours,
)  # fmt: skip

EXERCISE = Exercise(__file__, make_it_fast, check, points=6, minutes=25, difficulty="hard", imports=TRITON)
