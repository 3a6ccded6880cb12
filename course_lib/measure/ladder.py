"""The forward kernel as a ladder: from the plainest correct kernel to the shipped one, one idea a rung.

`ladder_kernel` holds every idea as a constexpr flag, so that two rungs are two readings of one source. RUNGS lists
them in the order of lesson 10's worklog, each with the speed that was predicted before it was measured.

Reading order: the update, the loop over tiles, the kernel, the rungs, launch.
"""

import math
from dataclasses import dataclass, field, replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib import runtime
from course_lib.kernels.flash import check_tensors
from course_lib.kernels.flash1_forward import flash1_attention
from course_lib.kernels.flash_forward import NO_KEY, default_config, flash_forward, kv_loop_bounds, set_aside_nonfinite
from course_lib.kernels.primitives import LOG2_E, narrow, widen


@triton.jit
def update(m_i, l_i, acc, scores, v, scale, DIVIDE_ONCE: tl.constexpr, EXP2: tl.constexpr, RARELY: tl.constexpr):
    """Lesson 05's update on tiles: m_i, l_i fp32 [BLOCK_M]; scores fp32 [BLOCK_M, BLOCK_N], not yet scaled.

    DIVIDE_ONCE: acc is the sum of p v; otherwise acc is divided by l_i, as FA1 Alg. 1, line 12, keeps it.
    EXP2: m_i is in units of log2(e), and scale is softmax scale times log2(e).
    RARELY: m_i stays what it was, and acc with it, unless a row's maximum has grown by more than 8: p is 256 at most.
    Every row has seen a key: as many queries as keys, and the first key tile comes first.
    """
    if EXP2:
        m_new = tl.maximum(m_i, tl.max(scores, axis=1) * scale)
        if RARELY:
            has_grown = tl.max(m_new - m_i, axis=0) > 8.0
            m_new = tl.where(has_grown, m_new, m_i)
        p = tl.exp2(scores * scale - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
    else:
        scores = scores * scale
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        p = tl.exp(scores - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
    l_new = l_i * alpha + tl.sum(p, axis=1)
    # [BLOCK_M, BLOCK_N] @ [BLOCK_N, HEAD_DIM]
    if RARELY:
        if has_grown:
            acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
    elif DIVIDE_ONCE:
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    else:
        acc = tl.dot(p.to(v.dtype), v, acc * (l_i * alpha)[:, None], input_precision="ieee") / l_new[:, None]
    return m_new, l_new, acc


@triton.jit
def attend(
    m_i, l_i, acc, first_nonfinite, q, k_ptr, v_ptr, k_desc, v_desc, head, offs_m, start, end, n, scale,
    MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    DIVIDE_ONCE: tl.constexpr, EXP2: tl.constexpr, TMA: tl.constexpr, FP32: tl.constexpr, CONTAIN: tl.constexpr,
    RARELY: tl.constexpr,
):  # fmt: skip
    """The loop over key tiles [start, end), with or without a mask."""
    offs_d = tl.arange(0, HEAD_DIM)
    for start_n in range(start, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        if TMA:
            k = k_desc.load([head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
            v = v_desc.load([head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
        else:
            offs_nd = offs_n[:, None] * HEAD_DIM + offs_d[None, :]
            if MASKED:
                k = tl.load(k_ptr + offs_nd, mask=(offs_n < n)[:, None], other=0.0)
                v = tl.load(v_ptr + offs_nd, mask=(offs_n < n)[:, None], other=0.0)
            else:
                k = tl.load(k_ptr + offs_nd)
                v = tl.load(v_ptr + offs_nd)
        k, v = widen(k), widen(v)
        if FP32:
            k, v = k.to(tl.float32), v.to(tl.float32)

        # [BLOCK_M, HEAD_DIM] @ [HEAD_DIM, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            visible = (offs_n < n)[None, :]
            if IS_CAUSAL:
                visible = visible & (offs_n[None, :] <= offs_m[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        if CONTAIN and IS_CAUSAL:
            v, first_nonfinite = set_aside_nonfinite(v, offs_n, first_nonfinite)
        m_i, l_i, acc = update(m_i, l_i, acc, scores, v, scale, DIVIDE_ONCE, EXP2, RARELY)
    return m_i, l_i, acc, first_nonfinite


@triton.jit
def ladder_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, q_desc, k_desc, v_desc, o_desc, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIVIDE_ONCE: tl.constexpr, SKIP_HIDDEN: tl.constexpr, MASK_ENDS: tl.constexpr, EXP2: tl.constexpr,
    LAST_FIRST: tl.constexpr, TMA: tl.constexpr, FP32: tl.constexpr, PRESCALE: tl.constexpr, CONTAIN: tl.constexpr,
    Q_TMA: tl.constexpr, O_TMA: tl.constexpr, HEADS_FASTEST: tl.constexpr, HEADS_IN_TURNS: tl.constexpr,
    RARELY: tl.constexpr,
):  # fmt: skip
    """Program (i, h) computes query tile i of head h. q, k, v, o: [heads, n, HEAD_DIM], contiguous.

    SKIP_HIDDEN: no tile is visited that no query of the program sees. MASK_ENDS: only tiles that hide something from
    a query are masked. LAST_FIRST: program 0 takes the last query tile. TMA, Q_TMA, O_TMA: k and v, or q, come by
    tensor descriptor, or o goes by one. FP32: products of fp32 tiles. PRESCALE: q is multiplied by the scale, and
    rounded, instead of the scores. CONTAIN: a NaN or inf among the values stays away from the queries that do not see
    it. HEADS_FASTEST: the grid is (heads, tiles), so that one tile of every head comes before the next tile.
    HEADS_IN_TURNS: the same for eight heads at a time. DIVIDE_ONCE, EXP2, RARELY: see `update`.
    """
    # The axis that comes first runs fastest.
    pid_m = tl.program_id(1 if HEADS_FASTEST else 0)
    head = tl.program_id(0 if HEADS_FASTEST else 1)
    if HEADS_IN_TURNS:
        together = tl.minimum(8, tl.num_programs(1) - head // 8 * 8)
        pid_of_turn = head % 8 * tl.num_programs(0) + pid_m
        pid_m = pid_of_turn // together
        head = head // 8 * 8 + pid_of_turn % together
    if LAST_FIRST:
        pid_m = tl.cdiv(n, BLOCK_M) - 1 - pid_m
    head_elems = tl.cast(head, tl.int64) * n * HEAD_DIM
    start_m = pid_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_md = offs_m[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    mask_m = (offs_m < n)[:, None]

    if Q_TMA:
        q = q_desc.load([head, start_m, 0]).reshape(BLOCK_M, HEAD_DIM)
    else:
        q = tl.load(q_ptr + head_elems + offs_md, mask=mask_m, other=0.0)
    q = widen(q)
    if FP32:
        q = q.to(tl.float32)
    if EXP2:
        scale *= LOG2_E
    if PRESCALE:
        q = (q * scale).to(q.dtype)
        scale = 1.0
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    first_nonfinite = tl.full([HEAD_DIM], NO_KEY, tl.int32)

    full_end, kv_end = kv_loop_bounds(start_m, n, n, IS_CAUSAL, BLOCK_M, BLOCK_N)
    if not SKIP_HIDDEN:
        kv_end = n
    if MASK_ENDS:
        m_i, l_i, acc, first_nonfinite = attend(
            m_i, l_i, acc, first_nonfinite, q, k_ptr + head_elems, v_ptr + head_elems, k_desc, v_desc, head, offs_m,
            0, full_end, n, scale, MASKED=False, IS_CAUSAL=IS_CAUSAL, HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,
            DIVIDE_ONCE=DIVIDE_ONCE, EXP2=EXP2, TMA=TMA, FP32=FP32, CONTAIN=CONTAIN, RARELY=RARELY,
        )  # fmt: skip
    else:
        full_end = 0
    m_i, l_i, acc, first_nonfinite = attend(
        m_i, l_i, acc, first_nonfinite, q, k_ptr + head_elems, v_ptr + head_elems, k_desc, v_desc, head, offs_m,
        full_end, kv_end, n, scale, MASKED=True, IS_CAUSAL=IS_CAUSAL, HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,
        DIVIDE_ONCE=DIVIDE_ONCE, EXP2=EXP2, TMA=TMA, FP32=FP32, CONTAIN=CONTAIN, RARELY=RARELY,
    )  # fmt: skip

    if DIVIDE_ONCE:
        acc = acc / l_i[:, None]
    if CONTAIN and IS_CAUSAL:
        acc = tl.where(offs_m[:, None] >= first_nonfinite[None, :], float("nan"), acc)
    o = narrow(acc, o_ptr.dtype.element_ty)
    if O_TMA:
        o_desc.store([head, start_m, 0], o.reshape(1, BLOCK_M, HEAD_DIM))
    else:
        tl.store(o_ptr + head_elems + offs_md, o, mask=mask_m)


@triton.jit
def queries_in_turn(q_ptr, place, n_heads, n, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """(head, start_m, tile of q) at a place in the order of `ladder_kernel`'s programs; zeros after the last."""
    n_tiles = tl.cdiv(n, BLOCK_M)
    head = place // n_tiles
    start_m = (n_tiles - 1 - place % n_tiles) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    ptrs = offs_m[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    mask_m = (offs_m < n) & (head < n_heads)
    return (
        head,
        start_m,
        tl.load(q_ptr + tl.cast(head, tl.int64) * n * HEAD_DIM + ptrs, mask=mask_m[:, None], other=0.0),
    )


@triton.jit
def persistent_kernel(
    q_ptr, o_ptr, k_desc, v_desc, n_heads, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As `ladder_kernel` with the flags of the rung "shipped tiles", but a program computes one tile after another.

    From each to its next it is the number of programs. q, k, v, o: [n_heads, n, HEAD_DIM].
    """
    scale *= LOG2_E
    head, start_m, q_coming = queries_in_turn(q_ptr, tl.program_id(0), n_heads, n, HEAD_DIM, BLOCK_M)
    for place in tl.range(tl.program_id(0), tl.cdiv(n, BLOCK_M) * n_heads, tl.num_programs(0), num_stages=1):
        this_head, this_start, q = head, start_m, widen(q_coming)
        head, start_m, q_coming = queries_in_turn(q_ptr, place + tl.num_programs(0), n_heads, n, HEAD_DIM, BLOCK_M)
        offs_m = this_start + tl.arange(0, BLOCK_M)
        m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        unused = tl.full([HEAD_DIM], NO_KEY, tl.int32)
        full_end, kv_end = kv_loop_bounds(this_start, n, n, IS_CAUSAL, BLOCK_M, BLOCK_N)
        m_i, l_i, acc, unused = attend(
            m_i, l_i, acc, unused, q, None, None, k_desc, v_desc, this_head, offs_m, 0, full_end, n, scale,
            MASKED=False, IS_CAUSAL=IS_CAUSAL, HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,
            DIVIDE_ONCE=True, EXP2=True, TMA=True, FP32=False, CONTAIN=False, RARELY=False,
        )  # fmt: skip
        m_i, l_i, acc, unused = attend(
            m_i, l_i, acc, unused, q, None, None, k_desc, v_desc, this_head, offs_m, full_end, kv_end, n, scale,
            MASKED=True, IS_CAUSAL=IS_CAUSAL, HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,
            DIVIDE_ONCE=True, EXP2=True, TMA=True, FP32=False, CONTAIN=False, RARELY=False,
        )  # fmt: skip
        offs_md = offs_m[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        o = narrow(acc / l_i[:, None], o_ptr.dtype.element_ty)
        tl.store(o_ptr + tl.cast(this_head, tl.int64) * n * HEAD_DIM + offs_md, o, mask=(offs_m < n)[:, None])


FLAGS = tuple(name for name in ladder_kernel.arg_names[14:])


@dataclass(frozen=True)
class Rung:
    """One step of the worklog: one idea, and what it was expected to do before it was measured.

    idea, because: a sentence each, the second for predicted_gain: the speed relative to the rung named builds_on, for
    a "full" and a "causal" mask; None for the first rung. kept: whether later rungs build on it.
    flags: those of `ladder_kernel` that are on. config: (BLOCK_M, BLOCK_N, num_warps, num_stages), None for the
    shipped one of the GPU, `default_config`. kernel: "ladder", or the whole of another one, "persistent", "flash1",
    "flash_forward" (the shipped) or "unmasked" (that one without a mask on Q). timed_before: the masks with which
    something like it had been timed before its gain was counted; the count was left as it came out.
    """

    name: str
    idea: str
    because: str
    predicted_gain: dict | None
    config: tuple | None
    builds_on: str | None = None
    kept: bool = True
    flags: dict = field(default_factory=dict)
    kernel: str = "ladder"
    timed_before: tuple = ()

    def then(self, name, idea, because, *, full, causal, kept=True, flag=None, timed_before=(), **changed):
        """The rung that turns on one flag over this one, or changes its config or kernel."""
        flags = self.flags | ({flag: True} if flag else {})
        return replace(
            self, name=name, idea=idea, because=because, predicted_gain={"full": full, "causal": causal},
            builds_on=self.name, kept=kept, flags=flags, timed_before=timed_before, **changed,
        )  # fmt: skip


# How the gains were predicted, for head_dim 128 and N = 4096 in fp16 on an H100: in clocks that one of its SMs spends
# on 64 x 64 scores. The two products take 512 at the tensor cores' peak, 640 at the 80 % that fast matrix products
# reach. Every other instruction takes one issue slot of the warp's scheduler; they were counted in the loops that
# Triton 3.7.1 compiles for sm_90. A tile that is not prefetched takes about 1000 clocks to come from L2, in which
# the SM's other programs may run. Nothing else is taken to overlap.
PLAIN = Rung(
    "plain",
    "One program for 32 queries of one head: lesson 05's update as it is written, a mask on every tile.",
    "The first rung is measured against none.",
    None,
    config=(32, 32, 4, 1),
)
TILES_64 = PLAIN.then(
    "tiles of 64",
    "Tiles of 64 x 64: half the bytes from L2 for each product, and sides long enough for Hopper's wgmma.",
    "Four tiles of 32 x 32 take 830 clocks of mma.sync (62 % of wgmma's rate), 4 x 458 instructions and 4 x 1000 / 3 "
    "of waiting with three programs on an SM; one of 64 x 64 takes 640, 838 and 1000 / 2: 4000 clocks become 1980.",
    full=2.0,
    causal=2.0,
    config=(64, 64, 4, 1),
)
DIVIDE_ONCE = TILES_64.then(
    "divide once",
    "Divide by the row sums once, after the loop (FlashAttention-2), and not in every tile (FlashAttention-1).",
    "The 64 divisions a thread does in every tile are 270 of 838 instructions, and without them the registers of a "
    "third program fit: 640 + 838 + 1000 / 2 clocks become 640 + 568 + 1000 / 3.",
    full=1.28,
    causal=1.27,
    flag="DIVIDE_ONCE",
)
SKIP_HIDDEN = DIVIDE_ONCE.then(
    "skip hidden tiles",
    "Do not visit tiles beyond the diagonal.",
    "Of 64 key tiles a query tile then visits 32.5 on average, which is 1.97; the loop's end must be computed, and "
    "programs of unequal length fill the SMs less evenly.",
    full=1.0,
    causal=1.8,
    flag="SKIP_HIDDEN",
)
MASK_ENDS = SKIP_HIDDEN.then(
    "mask the ends only",
    "Two loops: one without a mask for the tiles that every query sees, one with it for the rest.",
    "568 instructions a tile become 488 (causal: 693 become 488 in all tiles but one in 32): 1541 clocks become 1461, "
    "1666 become 1470.",
    full=1.05,
    causal=1.13,
    flag="MASK_ENDS",
)
EXP2 = MASK_ENDS.then(
    "exp2",
    "Scale and log2(e) in one factor, multiplied and subtracted in one FMA, then the GPU's own exp2.",
    "exp costs five instructions more for each of a thread's 32 scores, for it also looks after tiny results: 488 "
    "instructions become 321, 1461 clocks 1294.",
    full=1.13,
    causal=1.13,
    flag="EXP2",
)
PIPELINED = EXP2.then(
    "prefetch",
    "Software pipelining: tiles of K and V are fetched two rounds ahead, straight into shared memory.",
    "The 1000 / 3 clocks of waiting shrink to about 50, although 112 KiB of shared memory leave room for two programs "
    "where there were three: 1294 clocks become 1026.",
    full=1.25,
    causal=1.25,
    config=(64, 64, 4, 3),
)
LAST_FIRST = PIPELINED.then(
    "last tiles first",
    "Within a head, the query tiles that see the most keys start first.",
    "Handing 4096 programs of these lengths to 264 places, always to the one free first, ends 1 % earlier: only the "
    "last head's order matters.",
    full=1.0,
    causal=1.01,
    flag="LAST_FIRST",
)
TMA = LAST_FIRST.then(
    "tensor descriptors",
    "K and V by tensor descriptor: one thread asks Hopper's TMA unit for a whole tile.",
    "A tile's 32 KiB no longer pass through the load units, at 128 bytes a clock 256 of 1026 clocks, of which half "
    "may have been hidden: 1026 clocks become 900.",
    full=1.15,
    causal=1.15,
    flag="TMA",
)
BLOCKS = TMA.then(
    "shipped tiles",
    "Tile sizes fastest in a sweep, or within 3 % of it: 128 x 128 on 8 warps.",
    "acc is rescaled half as often, 244 instructions for 64 x 64 scores where there were 337: 977 clocks become 884; "
    "half the bytes come from L2. Causal, 1.5 % more hidden scores are computed.",
    full=1.1,
    causal=1.09,
    timed_before=("causal",),
    config=None,
)
SHIPPED = BLOCKS.then(
    "shipped kernel",
    "The kernel that flash_attention calls: any strides, lengths and head dimensions, grouped heads, NaN kept away "
    "from queries that do not see it.",
    "All of it is outside the loop; causal, the result is searched for NaN once, and nothing overlaps with that.",
    full=0.99,
    causal=0.97,
    timed_before=("causal",),
    kernel="flash_forward",
)

# Every kept rung builds on the kept one before it; a rejected one stands behind the rung that it builds on.
RUNGS = (
    PLAIN,
    PLAIN.then(
        "fp32 products",
        "Convert the tiles to fp32 and multiply in IEEE fp32.",
        "No tensor cores: 2048 FMAs a thread in a tile of 32 x 32, and the registers spill, so 3195 instructions stand "
        "where 458 and 206 clocks of mma.sync stood, beside 1000 / 3 of waiting.",
        full=0.28,
        causal=0.28,
        kept=False,
        flag="FP32",
    ),
    TILES_64,
    DIVIDE_ONCE,
    SKIP_HIDDEN,
    MASK_ENDS,
    EXP2,
    EXP2.then(
        "keys outermost",
        "FlashAttention-1's order: one program a head, each key tile meets every query tile, O goes out and back.",
        "64 programs leave half of 132 SMs idle, and on the others one program of four warps waits alone for K, V, Q "
        "and O: about 3500 clocks where 1294 were, times 132 / 64.",
        full=0.18,
        causal=0.18,
        kept=False,
        kernel="flash1",
    ),
    PIPELINED,
    PIPELINED.then(
        "128 queries",
        "Tiles of 128 x 64 on 8 warps: half the bytes from L2 for each product.",
        "The same instructions a score, but 128 KiB of shared memory leave room for one program an SM, and nothing "
        "runs while its warps wait for each other.",
        full=0.95,
        causal=0.95,
        kept=False,
        config=(128, 64, 8, 3),
    ),
    LAST_FIRST,
    TMA,
    BLOCKS,
    BLOCKS.then(
        "256 queries",
        "Tiles of 256 x 64 on 8 warps, fetched one round ahead: one reading of K and V serves 256 queries.",
        "128 numbers of acc and 64 scores a thread exceed its registers: over 100 bytes spill, 310 instructions for "
        "64 x 64 scores stand where 244 were, and the causal diagonal cuts away half of a longer tile.",
        full=0.9,
        causal=0.85,
        timed_before=("causal",),
        kept=False,
        config=(256, 64, 8, 2),
    ),
    BLOCKS.then(
        "scale in Q",
        "Multiply Q by the scale once and not the scores.",
        "A subtraction costs what multiply and subtract in one FMA cost, so nothing is saved; and Q is rounded to "
        "fp16 a second time.",
        full=1.0,
        causal=1.0,
        timed_before=("causal",),
        kept=False,
        flag="PRESCALE",
    ),
    BLOCKS.then(
        "Q by descriptor",
        "Q through the TMA unit as well.",
        "Q is one tile where K and V are 64: its way into the program is 1 % of all.",
        full=1.0,
        causal=1.0,
        timed_before=("causal",),
        kept=False,
        flag="Q_TMA",
    ),
    BLOCKS.then(
        "O by descriptor",
        "O through the TMA unit as well.",
        "O too is one tile where K and V are 64, and nothing waits for it but the program's end.",
        full=1.0,
        causal=1.0,
        timed_before=("full", "causal"),
        kept=False,
        flag="O_TMA",
    ),
    BLOCKS.then(
        "rescale rarely",
        "Keep the old maximum while the new one is at most 8 above it: then acc need not be multiplied.",
        "64 of 489 instructions for 128 x 128 scores are seldom executed, and 27 new ones always: 884 clocks for "
        "64 x 64 become 866.",
        full=1.02,
        causal=1.02,
        timed_before=("full", "causal"),
        kept=False,
        flag="RARELY",
    ),
    BLOCKS.then(
        "NaN in every tile",
        "Search every tile of V for NaN and inf, which a causal mask's zeros would let through.",
        "879 instructions for 128 x 128 scores where 489 were: 884 clocks for 64 x 64 become 1080. Without a causal "
        "mask nothing is searched.",
        full=1.0,
        causal=0.82,
        timed_before=("causal",),
        kept=False,
        flag="CONTAIN",
    ),
    BLOCKS.then(
        "heads fastest",
        "The same query tile of all heads first: the longest programs of every head start before any shorter one.",
        "Handed out so, the causal programs end 7 % earlier; but all 64 heads' K and V, 128 MiB, are then in use at "
        "once, more than the 50 MB of L2.",
        full=0.95,
        causal=1.04,
        timed_before=("causal",),
        kept=False,
        flag="HEADS_FASTEST",
    ),
    BLOCKS.then(
        "heads in turns",
        "The same query tile of eight heads first, then the next tile of the eight.",
        "Handed out so, the causal programs end 7 % earlier, as with all heads at once; but the K and V of eight heads "
        "are 16 MiB and stay in L2.",
        full=1.0,
        causal=1.07,
        timed_before=("full", "causal"),
        kept=False,
        flag="HEADS_IN_TURNS",
    ),
    BLOCKS.then(
        "persistent",
        "As many programs as run at once, each for one query tile after another; the next Q is fetched ahead.",
        "Q's way from memory, about 1000 clocks of a program's 110,000, is hidden. But tiles are dealt out beforehand: "
        "causal, the last program ends 5 % later than if each free place took the next.",
        full=1.01,
        causal=0.96,
        timed_before=("full", "causal"),
        kept=False,
        kernel="persistent",
    ),
    SHIPPED,
    SHIPPED.then(
        "no mask on Q",
        "Q loaded and O stored without masks where no tile reaches beyond them: shipped with tiles of 64 queries only.",
        "A few dozen instructions at a program's beginning and end: nothing beside 32 tiles of 128 keys.",
        full=1.0,
        causal=1.0,
        timed_before=("full", "causal"),
        kept=False,
        kernel="unmasked",
    ),
)


def run(rung, q, k, v, *, causal):
    """Attention by one rung: o, as q, k and v [batch, heads, n, head_dim], fp16 or bf16, contiguous, of one shape.

    n is any from 1 up, head_dim a power of two from 16 to 256, the scale 1/sqrt(head_dim). Raises TypeError or
    ValueError for other inputs, Triton's OutOfResources where the tiles do not fit the GPU.
    """
    check_tensors(q, k, v)
    batch, heads, n, head_dim = q.shape
    if q.shape != k.shape or not all(x.is_contiguous() for x in (q, k, v)):
        raise ValueError("q, k and v must be contiguous and have one shape")
    if q.dtype == torch.float32 or head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"rungs take fp16 or bf16, head_dim 16, 32, 64, 128 or 256, not {q.dtype}, {head_dim}")
    scale = 1.0 / math.sqrt(head_dim)
    if rung.kernel in ("flash_forward", "unmasked"):
        mask_q = False if rung.kernel == "unmasked" else None
        return flash_forward(
            q, k, v, causal=causal, scale=scale, store_lse=False, config=rung.config, mask_q=mask_q
        )[0]  # fmt: skip
    if rung.kernel == "flash1":
        return flash1_attention(q, k, v, causal=causal, block_q=rung.config[0], block_k=rung.config[1])[0]
    tma = rung.flags.get("TMA", False)
    config = rung.config or default_config(q.dtype, head_dim, causal, runtime.capability(q.device), n, tma)
    block_m, block_n, num_warps, num_stages = config
    o = torch.empty_like(q)

    def descriptor(x, rows):
        x = x.view(batch * heads, n, head_dim)
        return TensorDescriptor(x, x.shape, x.stride(), [1, rows, head_dim])

    if rung.kernel == "persistent":
        # As many programs as find room at once: one of 8 warps, or two of 4, on a multiprocessor.
        on_gpu = runtime.mode() == "gpu"
        places = torch.cuda.get_device_properties(q.device).multi_processor_count * 8 // num_warps if on_gpu else 3
        persistent_kernel[(places,)](
            q, o, descriptor(k, block_n), descriptor(v, block_n), batch * heads, n, scale, IS_CAUSAL=causal,
            HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
        )  # fmt: skip
        return o
    grid = (triton.cdiv(n, block_m), batch * heads)
    ladder_kernel[grid[::-1] if rung.flags.get("HEADS_FASTEST") else grid](
        q, k, v, o,
        descriptor(q, block_m) if rung.flags.get("Q_TMA") else None,
        descriptor(k, block_n) if tma else None,
        descriptor(v, block_n) if tma else None,
        descriptor(o, block_m) if rung.flags.get("O_TMA") else None,
        n, scale, IS_CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
        **(dict.fromkeys(FLAGS, False) | rung.flags), num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return o
