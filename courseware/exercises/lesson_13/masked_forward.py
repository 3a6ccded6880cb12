"""Attention under any mask in one kernel, which is told the kind of each tile."""

import numpy as np

from course_lib.language import WRITTEN
from course_lib.masks import PARTIAL
from courseware.checks import Exercise, case_of, expected
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, compare_launch, kernel_checks, launch_agrees
from courseware.exercises.common.oracles import attention_output
from courseware.exercises.common.precision import rounds_products

tl, triton = WRITTEN.tl, WRITTEN.triton


@triton.jit
def masked_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, kinds_ptr, visible_ptr,
    stride_qm, stride_kn, stride_vn, stride_om, n_q, n_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Attention of one head under a mask: program i of cdiv(n_q, BLOCK_M) has query tile i.

    q, o: [n_q, HEAD_DIM]; k, v: [n_k, HEAD_DIM]; float32. Element [m, c] of q lies at q_ptr + m * stride_qm + c, and so
        on. scale: positive, multiplies the scores. A score may then be anything from -1e7 to 1e7.
    kinds: int32 [query tiles, key tiles], contiguous. 0: no pair of the tile is visible. 2: all the pairs that it has
        are. 1: in this tile, query m sees key n if visible[m, n] is 1. visible: int8 [n_q, n_k], contiguous; 0 or 1 in
        tiles of kind 1, and anything elsewhere.
    Stores o: the softmax over the visible scores, times their values; 0 for a query that sees no key.
    n_q, n_k and HEAD_DIM: any numbers from 1 up. BLOCK_M, BLOCK_N and BLOCK_D: powers of two, 16 or more; BLOCK_D is at
        least HEAD_DIM. k and v are loaded for tiles of kinds 1 and 2, and visible for those of kind 1, each once.
        Nothing outside a tensor is touched.

    >>> from courseware.checks import launched
    >>> q, k, v = np.zeros((2, 4)), np.zeros((3, 4)), np.array([[1.0] * 4, [3.0] * 4, [8.0] * 4])
    >>> visible = np.array([[1, 1, 0], [0, 0, 1]], np.int8)
    >>> sizes = {"n_q": 2, "n_k": 3, "HEAD_DIM": 4, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16, "scale": 0.5}
    >>> strides = {"q_ptr": ("stride_qm",), "k_ptr": ("stride_kn",), "v_ptr": ("stride_vn",), "o_ptr": ("stride_om",)}
    >>> arguments = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "kinds_ptr": np.array([1], np.int32), **sizes}
    >>> launch = launched(
    ...     masked_forward, (1,), {"o_ptr": (2, 4)}, strides=strides, visible_ptr=visible.ravel(), **arguments
    ... )
    >>> launch.outputs["o_ptr"].tolist()
    [[2.0, 2.0, 2.0, 2.0], [8.0, 8.0, 8.0, 8.0]]
    """
    i, n_tiles = tl.program_id(0), tl.cdiv(n_k, BLOCK_N)
    offs_m, offs_d = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64), tl.arange(0, BLOCK_D)
    mask_m, mask_d = offs_m < n_q, offs_d < HEAD_DIM
    mask_md = mask_m[:, None] & mask_d[None, :]
    q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :], mask=mask_md, other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    for j in range(0, n_tiles):
        kind = tl.load(kinds_ptr + i * n_tiles + j)
        if kind != 0:
            offs_n = (j * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
            mask_n = offs_n < n_k
            mask_nd = mask_n[:, None] & mask_d[None, :]
            k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :], mask=mask_nd, other=0.0)
            v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_nd, other=0.0)
            # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(mask_n[None, :], scores, float("-inf"))
            if kind == 1:
                pairs = offs_m[:, None] * n_k + offs_n[None, :]
                visible = tl.load(visible_ptr + pairs, mask=mask_m[:, None] & mask_n[None, :], other=0)
                scores = tl.where(visible != 0, scores, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(scores, axis=1))
            m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # a row may have seen no key yet
            alpha = tl.exp(m_i - m_ref)
            p = tl.exp(scores - m_ref[:, None])
            l_i = l_i * alpha + tl.sum(p, axis=1)
            # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
            acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
            m_i = m_new

    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    tl.store(o_ptr + offs_m[:, None] * stride_om + offs_d[None, :], acc / l_safe[:, None], mask=mask_md)


INPUTS = """\
from course_lib import masks
mask = MASK
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((n, d)) for n in (n_q, n_k, n_k))
"""
LAUNCH = """\
kinds, visible = mask.tiles(n_q, n_k, block_m, block_n).kinds.astype(np.int32), mask.dense(n_q, n_k).astype(np.int8)
launched(
    masked_forward, (len(kinds),), {"o_ptr": (n_q, d)},
    q_ptr=q, k_ptr=k, v_ptr=v, kinds_ptr=kinds.ravel(), visible_ptr=visible.ravel(), n_q=n_q, n_k=n_k, scale=scale,
    HEAD_DIM=d, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=max(16, 1 << (d - 1).bit_length()),
    strides={"q_ptr": ("stride_qm",), "k_ptr": ("stride_kn",), "v_ptr": ("stride_vn",), "o_ptr": ("stride_om",)},
)"""


def call(mask="masks.full()", scores=None, times="1"):
    """The call of a property. mask: in terms of the sizes. scores: those of every query, in n_k; None if random.

    times: what each query multiplies them by, in n_q.
    """
    set_scores = f"q[:], q[:, 0], k[:, 0] = 0, {times} / scale, {scores}\n" if scores else ""
    return INPUTS.replace("MASK", mask) + set_scores + LAUNCH


def right_o(q, k, v, visible, scale, **_):
    return attention_output("o", q, k, v, visible != 0, scale)


def gives_means(launch, v, n_q, **_):
    """All scores are -4e6, and nothing is hidden."""
    mean = np.tile(v.mean(axis=0), (n_q, 1))
    evidence = compare_launch(launch, expected("o", lambda mean: mean, mean, terms=1.0))
    said = "every score is -4e6, and float32 numbers of that size are 0.25 apart or more"
    return evidence and evidence.with_account(said)


def no_more(mask, kinds, d, n_q, n_k, block_m, block_n, **_):
    """Of k and v what the visited tiles have, of visible the pairs of partial tiles."""
    tiles = mask.tiles(n_q, n_k, block_m, block_n)
    pairs = sum(tiles.visible(i, j).size for i, j in zip(*(kinds == PARTIAL).nonzero(), strict=True))
    row_bytes, keys = 4 * d, tiles.visited.keys
    enough = {"q": (n_q * row_bytes, 0), "k": (keys * row_bytes, 0), "v": (keys * row_bytes, 0)}
    return enough | {"visible": (pairs, 0), "o": (0, n_q * row_bytes)}


case = case_of("n_q n_k d block_m block_n scale", d=16, block_m=16, block_n=16, scale=0.3)
gives_o = launch_agrees(right_o)
check = kernel_checks(call(), gives_o, case)

check("all scores 0: o is the mean of the values", [case(16, 64, block_n=32)], call=call(scores="0"))
check("one full tile", [(16, 16), case(32, 64, block_m=32, block_n=64)])
check("tiles that leave the max alone", [(16, 48)], call=call(scores="-np.arange(n_k) / 4"))
check("tiles that raise the max, each of them", [(16, 48)], call=call(scores="np.arange(n_k) / 4"), credit=2)
WINDOW = call("masks.sliding_window(n_k - 4, 3)")
check("partial tiles: a window", [(32, 32), case(32, 64, block_n=32)], call=WINDOW)
LAYOUT = "np.arange(n_q // 16 * (n_k // 16)).reshape(-1, n_k // 16) % 3 != 1"
check("hidden tiles between full ones", [(32, 64), (48, 64)], call=call(f"masks.block_sparse({LAYOUT}, 16)"))
check(
    "lengths that no tile divides, full tiles or partial ones",
    [(20, 40), (5, 7), case(40, 53, block_m=32)],
    call=call("masks.sliding_window(n_k, 4)"),
    credit=4,
)
check("head dimensions that are no power of two", [case(16, 16, d=5), case(32, 48, d=24)], call=WINDOW)
check("scores near 1000 do not overflow", [(16, 32)], call=call(scores="1000 - np.arange(n_k) % 2 / 4"))
check(
    "scores that are 1000 apart from row to row",
    [(16, 32)],
    call=call("masks.full()", "1 - np.arange(n_k) % 2 / 4", "np.where(np.arange(n_q) % 2, 1000, 1)"),
)
check(
    "a large hidden score beside small visible ones",
    [(16, 32)],
    call=call("masks.sliding_window(20, 0)", "1000.0 * (np.arange(n_k) == n_k - 1)"),
)
check("all scores strongly negative", [(16, 32), (16, 21)], call=call(scores="-1000 - np.arange(n_k) % 2 / 4"))
check("all scores -4e6: o is the mean of the values", [(5, 21), (5, 16)], test=gives_means, call=call(scores="-4e6"))
check(
    "rows that see nothing of a tile that others see",
    [case(32, 32, block_m=32), case(32, 64, block_m=32)],
    call=call("masks.sliding_window(5, 0)"),
)
check(
    "rows that see nothing at first, and then scores of -1000",
    [case(32, 32, block_m=32)],
    call=call("masks.sliding_window(5, 0)", "-1000 - np.arange(n_k) % 2 / 4"),
)
check("rows that see no key at all: o is 0", [(32, 16), (24, 12)], call=call("masks.causal()"), credit=5)
check(
    "k and v loaded once for tiles that are not hidden, visible for partial ones",
    [(64, 64), case(40, 72, d=20)],
    call=call("masks.sliding_window(40, 0)"),
    test=launch_agrees(right_o, no_more),
)
check("float32 products: nothing is rounded to TF32 on a GPU", [(16, 32)], test=rounds_products(gives_o))
check.call = call("masks.sliding_window(20, 0) & masks.documents(np.arange(max(n_q, n_k)) // 23)")
check("a window in documents", [case(50, 50, d=6), case(30, 61, d=6, block_m=32)])
compiles(check, 50, 50, 6)

EXERCISE = Exercise(__file__, masked_forward, check, points=7, minutes=25, difficulty="hard", imports=TRITON)
