"""One new query of each sequence, with the keys split over programs and the heads that share them in one tile."""

import numpy as np
from hypothesis import strategies as st

from course_lib import traffic
from course_lib.language import WRITTEN
from courseware.checks import Exercise, ExpectedOutput, show, single_finding
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees
from courseware.exercises.common.precision import rounds_products

tl, triton = WRITTEN.tl, WRITTEN.triton


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, m_ptr, l_ptr, acc_ptr,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, scale,
    GROUP_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Decoding with split keys: program (b, h, s) has sequence b, kv head h and split s.

    q: [batch, heads, HEAD_DIM], one query of each sequence. k, v: [batch, heads / GROUP_SIZE, capacity, HEAD_DIM]. All
        float32; element [b, h, n, c] of k lies at k_ptr + b * stride_kb + h * stride_kh + n * stride_kn + c, and so on.
        Query heads h * GROUP_SIZE to (h + 1) * GROUP_SIZE - 1 use kv head h. Scores are q k^T times scale > 0.
    lengths: int32 [batch], how many keys each sequence has, 0 to capacity. Rows of k and v behind them may hold NaN.
    A sequence's tiles of BLOCK_N keys are dealt out in order, ceil(tiles / splits) to each split until none are left:
        of 7 tiles, three splits get 3, 3 and 1. tl.num_programs(1) is the number of kv heads, tl.num_programs(2) that
        of splits.
    Stores the state of each split for each query head: m, the largest score (not times log2(e)), l, the sum of
        exp(score - m), and acc, the sum of exp(score - m) * value; without keys -inf, 0 and 0. m and l: float32
        [batch, heads, splits]; acc: float32 [batch, heads, splits, HEAD_DIM]; contiguous.
    The query heads that share keys are rows of one tile of BLOCK_M rows, a power of two, 16 or more and at least
        GROUP_SIZE. BLOCK_D: likewise, at least HEAD_DIM. Each program loads its queries once (or not at all, if its
        split has no keys), loads its keys and values once, and stores its states once. It touches no other elements of
        q, k, v, m, l and acc.

    >>> from courseware.checks import launched
    >>> q, k, v = np.zeros((1, 2, 4)), np.zeros((1, 1, 3, 4)), np.ones((1, 1, 3, 4))
    >>> sizes = {"GROUP_SIZE": 2, "HEAD_DIM": 4, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16}
    >>> strides = {"q_ptr": ("stride_qb", "stride_qh"), "k_ptr": ("stride_kb", "stride_kh", "stride_kn"),
    ...            "v_ptr": ("stride_vb", "stride_vh", "stride_vn")}
    >>> arguments = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "lengths_ptr": np.array([3]), "scale": 0.5, **sizes}
    >>> outputs = {"m_ptr": 2, "l_ptr": 2, "acc_ptr": 8}
    >>> launched(decode_kernel, (1, 1, 1), outputs, strides=strides, **arguments).outputs["l_ptr"]
    array([3., 3.], dtype=float32)
    """
    batch, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    n_splits = tl.num_programs(2)
    length = tl.load(lengths_ptr + batch)
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    mask_m, mask_d = offs_m < GROUP_SIZE, offs_d < HEAD_DIM
    mask_md = mask_m[:, None] & mask_d[None, :]
    heads = kv_head * GROUP_SIZE + offs_m
    q_ptrs = q_ptr + batch * stride_qb + heads[:, None] * stride_qh + offs_d[None, :]
    q = tl.load(q_ptrs, mask=mask_md, other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    share = tl.cdiv(tl.cdiv(length, BLOCK_N), n_splits) * BLOCK_N
    end = tl.minimum((split + 1) * share, length)
    for start_n in range(split * share, end, BLOCK_N):
        offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask_n = offs_n < length
        mask_nd = mask_n[:, None] & mask_d[None, :]
        k_ptrs = k_ptr + batch * stride_kb + kv_head * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :]
        v_ptrs = v_ptr + batch * stride_vb + kv_head * stride_vh + offs_n[:, None] * stride_vn + offs_d[None, :]
        k = tl.load(k_ptrs, mask=mask_nd, other=0.0)
        v = tl.load(v_ptrs, mask=mask_nd, other=0.0)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(mask_n[None, :], scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))  # finite: every tile has a key
        alpha = tl.exp(m_i - m_new)
        p = tl.exp(scores - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        m_i = m_new

    states = (batch * tl.num_programs(1) * GROUP_SIZE + heads) * n_splits + split
    tl.store(m_ptr + states, m_i, mask=mask_m)
    tl.store(l_ptr + states, l_i, mask=mask_m)
    tl.store(acc_ptr + states[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=mask_md)


INPUTS = """\
rng = np.random.default_rng(seed)
batch, heads, capacity = len(lengths), kv_heads * group, max(lengths) + 2
q = rng.standard_normal((batch, heads, d))
k, v = rng.standard_normal((2, batch, kv_heads, capacity, d))
behind = np.arange(capacity) >= np.array(lengths)[:, None]
k.swapaxes(1, 2)[behind] = v.swapaxes(1, 2)[behind] = np.nan
"""
LAUNCH = """\
sizes = dict(GROUP_SIZE=group, HEAD_DIM=d, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=max(16, 1 << (d - 1).bit_length()))
states = batch * heads * splits
launched(
    decode_kernel, (batch, kv_heads, splits), {"m_ptr": states, "l_ptr": states, "acc_ptr": states * d},
    q_ptr=q, k_ptr=k, v_ptr=v, lengths_ptr=np.array(lengths, np.int32), scale=scale, **sizes,
    strides={"q_ptr": ("stride_qb", "stride_qh"), "k_ptr": ("stride_kb", "stride_kh", "stride_kn"),
             "v_ptr": ("stride_vb", "stride_vh", "stride_vn")},
)"""


def call(scores=None):
    """The call of a property. scores: those of every query, as an expression in capacity; None if they are random."""
    set_scores = f"q[:], q[..., 0], k[:] = 0, 1 / scale, np.where(np.isnan(k), k, ({scores})[:, None])\n"
    return INPUTS + (set_scores if scores else "") + LAUNCH


def states_of(dtype, q, k, v, lengths, splits, group, block_n, scale):
    """m, l and acc in this dtype, for each split of each head of each sequence, from all scores at once."""
    q, k, v = (x.astype(np.float32).astype(dtype) for x in (q, k, v))
    m = np.full((*q.shape[:2], splits), -np.inf, dtype)
    l, acc = np.zeros_like(m), np.zeros((*m.shape, q.shape[2]), dtype)
    for b, h, s in np.ndindex(m.shape):
        tiles = -(-lengths[b] // block_n)
        share = -(-tiles // splits) * block_n
        keys = slice(s * share, min((s + 1) * share, lengths[b]))
        if keys.start < keys.stop:
            scores = k[b, h // group, keys] @ q[b, h] * dtype(scale)
            m[b, h, s] = scores.max()
            p = np.exp(scores - m[b, h, s])
            l[b, h, s], acc[b, h, s] = p.sum(), p @ v[b, h // group, keys]
    return m, l, acc


def right_states(q, k, v, lengths, splits, group, block_n, scale, **_):
    k, v = np.nan_to_num(k), np.nan_to_num(v)
    given = q, k, v, lengths, splits, group, block_n, scale
    exact, plain = states_of(np.float64, *given), states_of(np.float32, *given)
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    size = scale * np.abs(k).max() * np.abs(q).sum(axis=-1).max()
    terms = size, (1 + size) * exact[1], (1 + size) * exact[1][..., None] * np.abs(v).max()
    parts = zip(("m", "l", "acc"), exact, plain, terms, strict=True)
    return [ExpectedOutput(*part, index="sequence") for part in parts]


gives_states = launch_agrees(right_states)


def counts_the_keys(launch, lengths, **inputs):
    """Every weight is exactly 1, and their sum is exact in float32."""
    if evidence := gives_states(launch, lengths=lengths, **inputs):
        return evidence
    l, right = launch.outputs["l_ptr"], np.repeat(lengths, len(launch.outputs["l_ptr"]) // len(lengths))
    if (l == right).all():
        return None
    text = "l is not exactly the number of keys, though every exponential is exactly 1"
    return single_finding("digits", text, *(show(np.float64(x), 9) for x in (l, right)), part="l")


def no_more(q, k, lengths, splits, **_):
    """Of each tensor at most what the closed form says, whose last queries, keys and values are read once."""
    (_, heads, d), kv_heads = q.shape, k.shape[1]
    by_tensor = traffic.decode(lengths, d, heads=heads, kv_heads=kv_heads, splits=splits, dtype_bytes=4).by_tensor
    enough = {name: (by_tensor[name.upper()].read_bytes, 0) for name in "qkv"}
    states_bytes = 4 * len(lengths) * heads * splits
    return enough | {"m": (0, states_bytes), "l": (0, states_bytes), "acc": (0, states_bytes * d)}


def step(lengths, kv_heads=1, group=1, d=16, splits=1, block_m=16, block_n=16, scale=0.3, seed=0):
    return locals()


STEPS = st.builds(
    step,
    st.lists(st.sampled_from([1, 16, 0, 5, 20]), min_size=1, max_size=2),
    group=st.integers(1, 3),
    d=st.sampled_from([1, 3, 16]),
    splits=st.integers(1, 2),
    scale=st.sampled_from([0.3, 1.5]),
    seed=st.integers(0, 99),
)
check = kernel_checks(call(), gives_states)

check("all scores 0: l counts the keys", [step([32])], call=call("0 * np.arange(capacity)"), test=counts_the_keys)
check("one tile of keys, one query: m, l and acc", [step([32], block_n=32, scale=0.7), step([16], scale=1.5, seed=1)])
check("tiles that leave the max alone", [step([48])], call=call("-np.arange(capacity) / 4"))
check("tiles that raise the max, each of them", [step([48])], call=call("np.arange(capacity) / 4"), credit=2)
check("scores near 1000 do not overflow", [step([32])], call=call("1000 - np.arange(capacity) % 2 / 4"))
check("the max falls by 1000 from tile to tile", [step([32])], call=call("-1000.0 * (np.arange(capacity) >= 16)"))
check("all scores strongly negative", [step([32])], call=call("-1000 - np.arange(capacity) % 2 / 4"))
check("lengths that no tile divides", [step([5]), step([39]), step([40], block_n=32)], credit=4)
check("a single key: l is 1", [step([1])], call=call("0 * np.arange(capacity)"), test=counts_the_keys)
check("lengths that no tile divides, all scores -4e6", [step([5])], call=call("-4e6 + np.zeros(capacity)"))
check("several sequences, each with its own keys and length", [step([16, 32]), step([33, 5, 16])])
check(
    "query heads that share keys are rows of one tile",
    [step([16], group=3), step([16, 5], kv_heads=2, group=3), step([16], group=20, block_m=32)],
)
check("head dimensions that are no power of two", [step([16], d=5), step([20, 7], kv_heads=2, group=3, d=24)])
check(
    "several splits, each with its own tiles",
    [step([32], splits=2), step([80, 61], group=3, splits=2), step([90], kv_heads=2, splits=3), step([100], splits=3)],
)
check(
    "splits without keys, and sequences without keys",
    [step([20], splits=4), step([0, 40], group=3, splits=2)],
    credit=5,
)
check(
    "q is loaded once by each program, k and v once for all heads that share them, each state stored once",
    [step([40, 21], kv_heads=2, group=3, splits=2, d=20)],
    test=launch_agrees(right_states, no_more),
)
check("float32 products: nothing is rounded to TF32 on a GPU", [step([32])], test=rounds_products(gives_states))
check.examples = 8
check("any step", [step([21, 0, 50], 2, 5, 6, splits=2, block_n=32, scale=0.7), STEPS])
compiles(check, step([21, 0, 50], 2, 5, 6, splits=2, block_n=32))

EXERCISE = Exercise(__file__, decode_kernel, check, points=7, minutes=25, difficulty="hard", imports=TRITON)
