"""The forward kernel as a ladder: from the plain kernel to the shipped one, one idea a rung.

The first rungs launch `kernels.plain_forward`, the last one `kernels.flash_forward`. Between them, `ladder_kernel` has
every idea as a constexpr flag; without flags it is the plain kernel with cheaper addresses. RUNGS lists the rungs in
the order of lesson 10's worklog, each with the speed that was predicted before it was measured.

Reading order: the update, the loop over tiles, the kernels, their launches, the rungs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.configs import select
from course_lib.kernels.flash import check_tensors
from course_lib.kernels.flash1_forward import flash1_attention
from course_lib.kernels.flash_forward import flash_forward
from course_lib.kernels.launch import descriptor
from course_lib.kernels.masks import kv_loop_bounds, visible
from course_lib.kernels.plain_forward import plain_attention
from course_lib.kernels.primitives import LOG2_E, round_to
from course_lib.kernels.tiles import load_tile, store_tile


@triton.jit
def update(
    m_i, l_i, acc, scores, v, scale,
    EXP: tl.constexpr, FUSED_SCALE: tl.constexpr, LAZY_RESCALE: tl.constexpr, DIVIDE_ALWAYS: tl.constexpr,
):  # fmt: skip
    """The online-softmax update: m_i, l_i fp32 [BLOCK_M]; scores fp32 [BLOCK_M, BLOCK_N], not yet scaled.

    scale is the softmax scale, times log2(e) unless EXP. Every row has seen a key, because there are as many queries as
    keys and the first key tile comes first.
    EXP: natural exponentials. FUSED_SCALE: scale and subtract in one instruction, as the shipped kernel does.
    LAZY_RESCALE: keep m_i, and with it acc, unless a row's maximum has grown by more than 8 (log2), so p <= 256.
    DIVIDE_ALWAYS: acc is divided by l_i after every tile, as FA1 Alg. 1, line 12, keeps it.
    """
    if FUSED_SCALE:
        m_new = tl.maximum(m_i, tl.max(scores, axis=1) * scale)
        if LAZY_RESCALE:
            has_grown = tl.max(m_new - m_i, axis=0) > 8.0
            m_new = tl.where(has_grown, m_new, m_i)
        exponents = scores * scale - m_new[:, None]
    else:
        scores = scores * scale
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        exponents = scores - m_new[:, None]
    if EXP:
        p, alpha = tl.exp(exponents), tl.exp(m_i - m_new)
    else:
        p, alpha = tl.exp2(exponents), tl.exp2(m_i - m_new)
    l_new = l_i * alpha + tl.sum(p, axis=1)
    # [BLOCK_M, BLOCK_N] @ [BLOCK_N, HEAD_DIM]
    if LAZY_RESCALE:
        if has_grown:
            acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
    elif DIVIDE_ALWAYS:
        acc = tl.dot(p.to(v.dtype), v, acc * (l_i * alpha)[:, None], input_precision="ieee") / l_new[:, None]
    else:
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_new, l_new, acc


@triton.jit
def attend(
    m_i, l_i, acc, q, k_ptr, v_ptr, k_desc, v_desc, head, offs_m, start, end, n, scale,
    MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    EXP: tl.constexpr, FUSED_SCALE: tl.constexpr, LAZY_RESCALE: tl.constexpr, DIVIDE_ALWAYS: tl.constexpr,
):  # fmt: skip
    """The loop over the keys [start, end), whose tiles need a mask if MASKED."""
    # When tiles are loaded by pointer and both loops are prefetched, ptxas serializes every wgmma (C7515).
    for start_n in tl.range(start, end, BLOCK_N, num_stages=1 if MASKED and k_desc is None else None):
        k = load_tile(k_ptr, k_desc, 0, head, start_n, n, HEAD_DIM, MASKED, HEAD_DIM, BLOCK_N, HEAD_DIM)
        v = load_tile(v_ptr, v_desc, 0, head, start_n, n, HEAD_DIM, MASKED, HEAD_DIM, BLOCK_N, HEAD_DIM)
        # [BLOCK_M, HEAD_DIM] @ [HEAD_DIM, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            offs_n = start_n + tl.arange(0, BLOCK_N)
            scores = tl.where(visible(offs_m[:, None], offs_n[None, :], n, n, IS_CAUSAL), scores, float("-inf"))
        m_i, l_i, acc = update(m_i, l_i, acc, scores, v, scale, EXP, FUSED_SCALE, LAZY_RESCALE, DIVIDE_ALWAYS)
    return m_i, l_i, acc


@triton.jit
def ladder_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, q_desc, k_desc, v_desc, o_desc, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIVIDE_ALWAYS: tl.constexpr = False, VISIT_HIDDEN: tl.constexpr = False, EXP: tl.constexpr = False,
    MASK_ENDS: tl.constexpr = False, FUSED_SCALE: tl.constexpr = False, LONGEST_FIRST: tl.constexpr = False,
    SCALE_Q: tl.constexpr = False, LAZY_RESCALE: tl.constexpr = False, HEADS_FASTEST: tl.constexpr = False,
    GROUPED_HEADS: tl.constexpr = False,
):  # fmt: skip
    """Program (i, h) computes query tile i of head h. q, k, v, o: [heads, n, HEAD_DIM], contiguous.

    q_desc, k_desc, v_desc, o_desc: descriptors by which the tensor is loaded or stored, or None.
    VISIT_HIDDEN: visit tiles that no query of the program sees, too. MASK_ENDS: mask only the tiles that hide something
    from a query. LONGEST_FIRST: program 0 takes the last query tile, which under a causal mask sees the most keys.
    SCALE_Q: multiply q by the scale, and round it, instead of the scores. HEADS_FASTEST: the grid is (heads, tiles), so
    that one tile of every head comes before the next tile. GROUPED_HEADS: the same for eight heads at a time.
    DIVIDE_ALWAYS, EXP, FUSED_SCALE, LAZY_RESCALE: see `update`.
    """
    # The first axis of the grid runs fastest.
    pid_m = tl.program_id(1 if HEADS_FASTEST else 0)
    head = tl.program_id(0 if HEADS_FASTEST else 1)
    if GROUPED_HEADS:
        heads_here = tl.minimum(8, tl.num_programs(1) - head // 8 * 8)
        pid_in_group = head % 8 * tl.num_programs(0) + pid_m
        pid_m = pid_in_group // heads_here
        head = head // 8 * 8 + pid_in_group % heads_here
    if LONGEST_FIRST:
        pid_m = tl.cdiv(n, BLOCK_M) - 1 - pid_m
    head_elems = tl.cast(head, tl.int64) * n * HEAD_DIM
    start_m = pid_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)

    q = load_tile(q_ptr + head_elems, q_desc, 0, head, start_m, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)
    if not EXP:
        scale *= LOG2_E
    if SCALE_Q:
        q = (q * scale).to(q.dtype)
        scale = 1.0
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    full_end, kv_end = kv_loop_bounds(start_m, n, n, IS_CAUSAL, BLOCK_M, BLOCK_N)
    if VISIT_HIDDEN:
        kv_end = n
    if MASK_ENDS:
        m_i, l_i, acc = attend(
            m_i, l_i, acc, q, k_ptr + head_elems, v_ptr + head_elems, k_desc, v_desc, head, offs_m,
            0, full_end, n, scale, False, IS_CAUSAL, HEAD_DIM, BLOCK_N,
            EXP, FUSED_SCALE, LAZY_RESCALE, DIVIDE_ALWAYS,
        )  # fmt: skip
    else:
        full_end = 0
    m_i, l_i, acc = attend(
        m_i, l_i, acc, q, k_ptr + head_elems, v_ptr + head_elems, k_desc, v_desc, head, offs_m,
        full_end, kv_end, n, scale, True, IS_CAUSAL, HEAD_DIM, BLOCK_N,
        EXP, FUSED_SCALE, LAZY_RESCALE, DIVIDE_ALWAYS,
    )  # fmt: skip

    o = acc if DIVIDE_ALWAYS else acc / l_i[:, None]
    if o_desc is not None:
        o_desc.store([0, head, start_m, 0], round_to(o, o_ptr.dtype.element_ty).reshape(1, 1, BLOCK_M, HEAD_DIM))
    else:
        store_tile(o_ptr + head_elems, o, start_m, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)


@triton.jit
def load_queries(q_ptr, place, n_heads, n, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """(head, start_m, tile of q) at a place in the order of `ladder_kernel`'s programs; zeros after the last."""
    n_tiles = tl.cdiv(n, BLOCK_M)
    head = place // n_tiles
    start_m = (n_tiles - 1 - place % n_tiles) * BLOCK_M
    head_ptr = q_ptr + tl.cast(head, tl.int64) * n * HEAD_DIM
    n_rows = tl.where(head < n_heads, n, 0)
    q = load_tile(head_ptr, None, 0, head, start_m, n_rows, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)
    return head, start_m, q


@triton.jit
def persistent_kernel(
    q_ptr, o_ptr, k_desc, v_desc, n_heads, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`ladder_kernel` as the rung "shipped tiles" has it, but each program computes many query tiles.

    Program i takes the tiles i, i + num_programs, ... of all heads. q, k, v, o: [n_heads, n, HEAD_DIM].
    """
    scale *= LOG2_E
    head, start_m, q_next = load_queries(q_ptr, tl.program_id(0), n_heads, n, HEAD_DIM, BLOCK_M)
    for place in tl.range(tl.program_id(0), tl.cdiv(n, BLOCK_M) * n_heads, tl.num_programs(0), num_stages=1):
        this_head, this_start, q = head, start_m, q_next
        head, start_m, q_next = load_queries(q_ptr, place + tl.num_programs(0), n_heads, n, HEAD_DIM, BLOCK_M)
        offs_m = this_start + tl.arange(0, BLOCK_M)
        m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        full_end, kv_end = kv_loop_bounds(this_start, n, n, IS_CAUSAL, BLOCK_M, BLOCK_N)
        m_i, l_i, acc = attend(
            m_i, l_i, acc, q, None, None, k_desc, v_desc, this_head, offs_m, 0, full_end, n, scale,
            False, IS_CAUSAL, HEAD_DIM, BLOCK_N, False, True, False, False,
        )  # fmt: skip
        m_i, l_i, acc = attend(
            m_i, l_i, acc, q, None, None, k_desc, v_desc, this_head, offs_m, full_end, kv_end, n, scale,
            True, IS_CAUSAL, HEAD_DIM, BLOCK_N, False, True, False, False,
        )  # fmt: skip
        o_head = o_ptr + tl.cast(this_head, tl.int64) * n * HEAD_DIM
        store_tile(o_head, acc / l_i[:, None], this_start, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)


def launch_plain(q, k, v, *, causal, config, dtype=None):
    inputs = (x.to(dtype or x.dtype) for x in (q, k, v))
    return plain_attention(*inputs, causal=causal, block_q=config[0], block_k=config[1])[0].to(q.dtype)


def launch_flash1(q, k, v, *, causal, config):
    return flash1_attention(q, k, v, causal=causal, block_q=config[0], block_k=config[1])[0]


def launch_shipped(q, k, v, *, causal, config):
    return flash_forward(q, k, v, causal=causal, scale=q.shape[-1] ** -0.5, store_lse=False, config=config)[0]


def launch_ladder(q, k, v, *, causal, config, descriptors="", **flags):
    """descriptors: the tensors that come and go by descriptor, "kv" for k and v."""
    flat, block_m, block_n, options = _prepared(q, k, v, causal, config, by_descriptor="k" in descriptors)
    rows = {"q": block_m, "k": block_n, "v": block_n, "o": block_m}
    described = (descriptor(x, rows[name]) if name in descriptors else None for name, x in flat.items())
    batch, heads, n, head_dim = q.shape
    grid = (triton.cdiv(n, block_m), batch * heads)
    ladder_kernel[grid[::-1] if flags.get("HEADS_FASTEST") else grid](
        *flat.values(), *described, n, head_dim**-0.5, causal, head_dim, block_m, block_n, **flags, **options
    )
    return flat["o"].view_as(q)


def launch_persistent(q, k, v, *, causal, config):
    flat, block_m, block_n, options = _prepared(q, k, v, causal, config, by_descriptor=True)
    # As many programs as run at once: one of 8 warps, or two of 4, on a multiprocessor.
    on_gpu = runtime.mode() == "gpu"
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count if on_gpu else 3
    _, _, n, head_dim = q.shape
    persistent_kernel[(sms * 8 // options["num_warps"],)](
        flat["q"], flat["o"], descriptor(flat["k"], block_n), descriptor(flat["v"], block_n), flat["q"].shape[1], n,
        head_dim**-0.5, causal, head_dim, block_m, block_n, **options,
    )  # fmt: skip
    return flat["o"].view_as(q)


def _prepared(q, k, v, causal, config, by_descriptor):
    """({"q", "k", "v", "o": [1, batch * heads, n, head_dim]}, block_m, block_n, other launch options)."""
    batch, heads, n, head_dim = q.shape
    flat = {name: x.view(1, batch * heads, n, head_dim) for name, x in zip("qkv", (q, k, v), strict=True)}
    flat["o"] = torch.empty_like(flat["q"])
    block_m, block_n, num_warps, num_stages = config or select(
        "forward", dtype=q.dtype, head_dim=head_dim, causal=causal, capability=runtime.capability(q.device), n_k=n,
        by_descriptor=by_descriptor, n_rows=batch * heads * n,
    )  # fmt: skip
    return flat, block_m, block_n, {"num_warps": num_warps, "num_stages": num_stages}


@dataclass(frozen=True)
class Rung:
    """One step of the worklog: one idea, and what it was expected to do before it was measured.

    idea, because: a sentence each, the second for predicted_gain: the speed relative to the rung named builds_on, for
    a "full" and a "causal" mask; None for the first rung. launch: computes o from q, k, v and causal; its config is
    (BLOCK_M, BLOCK_N, num_warps, num_stages), None for what `configs.select` says. kept: whether later rungs build on
    it. timed_before: the masks with which something like it had been timed before its gain was counted; the count was
    left as it came out.
    """

    name: str
    idea: str
    because: str
    predicted_gain: dict | None
    launch: Callable
    builds_on: str | None = None
    kept: bool = True
    timed_before: tuple = ()

    def then(self, name, idea, because, *, full, causal, kept=True, timed_before=(), launch=None, **changed):
        """The rung that changes one keyword of this one's launch, or has another launch."""
        launch = launch or partial(self.launch.func, **self.launch.keywords | changed)
        return Rung(
            name, idea, because, {"full": full, "causal": causal}, launch, builds_on=self.name, kept=kept,
            timed_before=timed_before,
        )  # fmt: skip


# How the gains were predicted, for head_dim 128 and N = 4096 in fp16 on an H100: in clocks that one of its SMs spends
# on 64 x 64 scores. The two products take 512 at the tensor cores' peak, 640 at the 80 % that fast matrix products
# reach. Every other instruction takes one issue slot of the warp's scheduler; they were counted in the loops that
# Triton 3.7.1 compiles for sm_90. A tile that is not prefetched takes about 1000 clocks to come from L2, during which
# the SM's other programs may run. Nothing else is assumed to overlap.
PLAIN = Rung(
    "plain",
    "Lesson 08's kernel: one program for 32 queries of one head, a mask on every tile.",
    "The first rung is measured against none.",
    None,
    partial(launch_plain, config=(32, 32, 4, 1)),
)
TILES_64 = PLAIN.then(
    "tiles of 64",
    "Tiles of 64 x 64: half the bytes from L2 for each product, and sides long enough for Hopper's wgmma.",
    "Four tiles of 32 x 32 take 830 clocks of mma.sync (62 % of wgmma's rate), 4 x 333 instructions and 4 x 1000 / 4 "
    "of waiting with four programs on an SM; one of 64 x 64 takes 640, 503 and 1000 / 3: 3162 clocks become 1476. "
    "Causal, its registers leave room for two programs: 3270 become 1753.",
    full=2.15,
    causal=1.85,
    timed_before=("full", "causal"),
    config=(64, 64, 4, 1),
)
OFFSETS = TILES_64.then(
    "32-bit offsets",
    "Find a tile's first row in 64 bits, but the places inside the tile in 32 bits.",
    "430 instructions a tile stand where 503 were: 1476 clocks become 1403. Causal, the mask takes as many more.",
    full=1.05,
    causal=1.0,
    launch=partial(launch_ladder, config=(64, 64, 4, 1)),
)
MASK_ENDS = OFFSETS.then(
    "mask the ends only",
    "Two loops: one without a mask for the tiles that every query sees, one with it for the rest.",
    "430 instructions a tile become 369, but two programs' registers fit where three did: 1403 clocks become 1509. "
    "Causal, 616 become 369 in all tiles but one in 32, and a third program fits: 1756 become 1347.",
    full=0.93,
    causal=1.3,
    timed_before=("full", "causal"),
    MASK_ENDS=True,
)
FUSED_SCALE = MASK_ENDS.then(
    "fused scale",
    "Multiply by the scale and subtract the maximum in one FMA.",
    "One multiplication less for each of a thread's 32 scores, and without a mask a third program fits again: 1509 "
    "clocks become 1310. Causal, 1347 become 1315.",
    full=1.15,
    causal=1.02,
    FUSED_SCALE=True,
)
PIPELINED = FUSED_SCALE.then(
    "prefetch",
    "Software pipelining: tiles of K and V are fetched two rounds ahead, straight into shared memory.",
    "The 1000 / 3 clocks of waiting shrink to about 50, although 112 KiB of shared memory leave room for two programs "
    "where there were three: 1294 clocks become 1026.",
    full=1.25,
    causal=1.25,
    config=(64, 64, 4, 3),
)
LONGEST_FIRST = PIPELINED.then(
    "longest first",
    "Within a head, the query tiles that see the most keys start first.",
    "Handing 4096 programs of these lengths to 264 places, always to the one free first, ends 1 % earlier: only the "
    "last head's order matters.",
    full=1.0,
    causal=1.01,
    LONGEST_FIRST=True,
)
TMA = LONGEST_FIRST.then(
    "tensor descriptors",
    "K and V by tensor descriptor: one thread asks Hopper's TMA unit for a whole tile.",
    "A tile's 32 KiB no longer pass through the load units, at 128 bytes a clock 256 of 1026 clocks, of which half "
    "may have been hidden: 1026 clocks become 900.",
    full=1.15,
    causal=1.15,
    descriptors="kv",
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
    "The kernel that flash_attention calls: any strides, lengths and head dimensions, grouped heads.",
    "All of it is outside the loop.",
    full=0.99,
    causal=0.99,
    timed_before=("full", "causal"),
    launch=partial(launch_shipped, config=None),
)

# Every kept rung builds on the kept one before it; a rejected one stands behind the rung that it builds on.
RUNGS = (
    PLAIN,
    PLAIN.then(
        "fp32 products",
        "Convert the inputs to fp32 and multiply in IEEE fp32.",
        "No tensor cores: 2048 FMAs a thread in a tile of 32 x 32, and the registers spill and leave room for two "
        "programs, so 3035 instructions and 1000 / 2 clocks of waiting stand where 333, 1000 / 4 and 206 clocks of "
        "mma.sync stood.",
        full=0.22,
        causal=0.22,
        timed_before=("full", "causal"),
        kept=False,
        dtype=torch.float32,
    ),
    TILES_64,
    OFFSETS,
    OFFSETS.then(
        "divide in every tile",
        "Divide by the row sums in every tile (FlashAttention-1), and not once, after the loop (FlashAttention-2).",
        "The 64 divisions a thread does in every tile are 270 instructions: 1403 clocks become 1673, causal 1756 "
        "become 2026.",
        full=0.84,
        causal=0.87,
        timed_before=("full", "causal"),
        kept=False,
        DIVIDE_ALWAYS=True,
    ),
    OFFSETS.then(
        "visit every tile",
        "Visit the tiles beyond the diagonal, too, and mask all of their scores.",
        "A query tile visits 64 key tiles instead of 32.5 on average. With a fixed end the loop takes 474 instructions "
        "where 616 were, and a third program fits: 1447 clocks a tile for 1756. Programs of equal length fill the SMs "
        "9 % better.",
        full=1.0,
        causal=0.67,
        timed_before=("full", "causal"),
        kept=False,
        VISIT_HIDDEN=True,
    ),
    OFFSETS.then(
        "exp instead of exp2",
        "Natural exponentials of scores in natural units, as lesson 05 writes them.",
        "exp costs four instructions more for each of a thread's 32 scores, because it also handles tiny results: 430 "
        "instructions become 566, 1403 clocks 1539; causal 1756 become 1893.",
        full=0.91,
        causal=0.93,
        timed_before=("full", "causal"),
        kept=False,
        EXP=True,
    ),
    MASK_ENDS,
    FUSED_SCALE,
    FUSED_SCALE.then(
        "keys outermost",
        "FlashAttention-1's order: one program a head, each key tile meets every query tile, O goes out and back.",
        "64 programs leave half of 132 SMs idle, and on the others one program of four warps waits alone for K, V, Q "
        "and O: about 3500 clocks where 1294 were, times 132 / 64.",
        full=0.18,
        causal=0.18,
        kept=False,
        launch=partial(launch_flash1, config=(64, 64, 4, 1)),
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
    LONGEST_FIRST,
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
        SCALE_Q=True,
    ),
    BLOCKS.then(
        "Q by descriptor",
        "Q through the TMA unit as well.",
        "Q is one tile where K and V are 64: its way into the program is 1 % of all.",
        full=1.0,
        causal=1.0,
        timed_before=("causal",),
        kept=False,
        descriptors="qkv",
    ),
    BLOCKS.then(
        "O by descriptor",
        "O through the TMA unit as well.",
        "O too is one tile where K and V are 64, and nothing waits for it but the program's end.",
        full=1.0,
        causal=1.0,
        timed_before=("full", "causal"),
        kept=False,
        descriptors="kvo",
    ),
    BLOCKS.then(
        "lazy rescale",
        "Keep the old maximum while the new one is at most 8 above it: then acc need not be multiplied.",
        "64 of 489 instructions for 128 x 128 scores are seldom executed, and 27 new ones always: 884 clocks for "
        "64 x 64 become 866.",
        full=1.02,
        causal=1.02,
        timed_before=("full", "causal"),
        kept=False,
        LAZY_RESCALE=True,
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
        HEADS_FASTEST=True,
    ),
    BLOCKS.then(
        "grouped heads",
        "The same query tile of eight heads first, then the next tile of the eight.",
        "Handed out so, the causal programs end 7 % earlier, as with all heads at once; but the K and V of eight heads "
        "are 16 MiB and stay in L2.",
        full=1.0,
        causal=1.07,
        timed_before=("full", "causal"),
        kept=False,
        GROUPED_HEADS=True,
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
        launch=partial(launch_persistent, config=None),
    ),
    SHIPPED,
)


def run(rung, q, k, v, *, causal):
    """Attention by one rung: o, like q, k and v [batch, heads, n, head_dim], fp16 or bf16, contiguous, of one shape.

    n is any length from 1 up, head_dim a power of two from 16 to 256, the scale 1/sqrt(head_dim). Raises TypeError or
    ValueError for other inputs, Triton's OutOfResources where the tiles do not fit the GPU.
    """
    check_tensors(q, k, v)
    head_dim = q.shape[-1]
    if q.shape != k.shape or not all(x.is_contiguous() for x in (q, k, v)):
        raise ValueError("q, k and v must be contiguous and have one shape")
    if q.dtype == torch.float32 or head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"rungs take fp16 or bf16, head_dim 16, 32, 64, 128 or 256, not {q.dtype}, {head_dim}")
    return rung.launch(q, k, v, causal=causal)
