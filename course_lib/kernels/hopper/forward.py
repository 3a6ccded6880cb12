"""FlashAttention forward for compute capability 9.0 in Gluon, where each group of warps has a job of its own.

Triton decides by itself which warp does what, and what waits for what. Gluon, its lower level, leaves that to us:

    a producer, one warp      the copy engine (TMA) fills tiles in shared memory while others compute
    groups compute            64 query rows each, from the same tiles; one's softmax runs under the others' products
    the next scores early     S = Q K^T of the next tile before P V of this one, under which the next softmax can run
    one barrier a step        a tile of K and the V of the tile before it come together
    one masked tile           a group's first, before the loop; a second only where the diagonal crosses two tiles
    groups change places      under a causal mask, a group's rows are early ones as often as late ones
    registers move            from the warp that fetches, which needs few, to the groups that compute
    programs stay             as many as there are multiprocessors; each computes one query tile after the other

A program's key tiles are counted through all its query tiles, and step s brings K of key tile s and V of key tile
s - 1. They wait in a stage of shared memory, which has two barriers: "ready" says that they are there, "empty" that all
groups have read them. A barrier goes through phases, 0, 1, 0, 1 and so on, one for each time that the stage is used.
`wait(phase)` waits for the end of that phase; a new barrier behaves as if phase 1 had completed.

Reading order: query tiles, the fetching warp, softmax, one step, the computing groups, the kernel, launch.
"""

import functools
from typing import NamedTuple

import torch

from course_lib import runtime
from course_lib.kernels.checks import check_flag, check_not_differentiated, check_scale, check_tensors
from course_lib.kernels.gluon import (
    TensorDescriptor,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from course_lib.kernels.launch import (
    MAX_CACHED_LAUNCHES,
    Launch,
    addressable,
    takes_descriptors,
    tensor_meta,
    with_base,
    with_positive_scale,
)


class Config(NamedTuple):
    groups: int  # that compute; with more, there is more to do while one waits
    block_n: int  # keys of a tile
    stages: int  # tiles of K, and of V, in shared memory
    registers: int  # of a thread that computes


# By columns in shared memory. A multiprocessor hands out 65,536 registers, to whole groups of 128 threads.
CONFIGS = {64: Config(4, 64, 8, 112), 128: Config(2, 128, 2, 240)}
PRODUCER_REGISTERS = 24
ROWS = gl.constexpr(64)  # query rows of a computing group, the fewest that Hopper's matrix product takes
HOPPER = (9, 0)  # compute capability
LOG2_E, LN_2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)


@gluon.jit
def turns_of_program(n):
    """How many of n things this program gets, if programs take them in turns."""
    return (n - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def tiles_of_program(n_tiles, PAIRED: gl.constexpr):
    """How many of the n_tiles query tiles of all heads this program computes."""
    if PAIRED:
        # From the front and from the end. Of an odd number, the tile in the middle counts from the front only.
        return turns_of_program((n_tiles + 1) // 2) + turns_of_program(n_tiles // 2)
    else:
        return turns_of_program(n_tiles)


@gluon.jit
def key_tiles(end_m, shape, BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """How many key tiles the rows before end_m see, but at least one: the first product is unconditional."""
    n_tiles, heads, group_size, n_q, n_k = shape
    n_seen = n_k
    if IS_CAUSAL:
        n_seen = gl.maximum(gl.minimum(end_m, n_q) + n_k - n_q, 1)
    return (n_seen + BLOCK_N - 1) // BLOCK_N


@gluon.jit
def query_tile(i, shape, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr):
    """(head, first row, key tiles to visit) of this program's i-th query tile.

    Programs take the tiles of all heads in turns. PAIRED, every other tile is counted from the end: under a causal mask
    all pairs see equally many keys, and programs differ by one pair at most.
    """
    n_tiles, heads, group_size, n_q, n_k = shape
    if PAIRED:
        tile = gl.program_id(0) + i // 2 * gl.num_programs(0)
        if i % 2 == 1:
            tile = n_tiles - 1 - tile
    else:
        tile = gl.program_id(0) + i * gl.num_programs(0)
    tiles_of_head = (n_q + BLOCK_M - 1) // BLOCK_M
    start_m = tile % tiles_of_head * BLOCK_M
    return tile // tiles_of_head, start_m, key_tiles(start_m + BLOCK_M, shape, BLOCK_N, IS_CAUSAL)


@gluon.jit
def first_row(start_m, i, GROUP: gl.constexpr, GROUPS: gl.constexpr):
    """A group's first row in the program's i-th query tile. In every other tile, the last group comes first."""
    return start_m + (GROUP + i % 2 * (GROUPS - 1 - 2 * GROUP)) * ROWS


@gluon.jit
def fetch(desc, batch, head, row, ready, smem):
    """Start a copy; the barrier is complete when its bytes are there."""
    mbarrier.expect(ready, desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, [batch, head, row, 0], ready, smem)


@gluon.jit
def producer(q_desc, k_desc, v_desc, smem, ready, empty, shape, IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr):
    """The fetching warp. For each query tile: Q once, then the steps, with the last keys first."""
    n_tiles, heads, group_size, n_q, n_k = shape
    q_smem, k_smem, v_smem = smem
    q_ready, kv_ready = ready
    q_empty, kv_empty = empty
    GROUPS: gl.constexpr = q_ready.shape[0]
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    step = 0
    v_batch, v_head, v_start = 0, 0, 0  # of the key tile before
    for i in range(0, tiles_of_program(n_tiles, PAIRED)):
        head, start_m, n_key_tiles = query_tile(i, shape, GROUPS * ROWS, BLOCK_N, IS_CAUSAL, PAIRED)
        batch = head // heads
        kv_head = head % heads // group_size
        for group in gl.static_range(GROUPS):
            mbarrier.wait(q_empty.index(group), (i & 1) ^ 1)
            q_stage = q_smem.index(i % 2 * GROUPS + group)
            row = first_row(start_m, i, group, GROUPS)
            fetch(q_desc, batch, head % heads, row, q_ready.index(group), q_stage)
        for j in range(0, n_key_tiles):
            stage = step % STAGES
            start_n = (n_key_tiles - 1 - j) * BLOCK_N
            mbarrier.wait(kv_empty.index(stage), (step // STAGES & 1) ^ 1)
            fetch(k_desc, batch, kv_head, start_n, kv_ready.index(stage), k_smem.index(stage))
            if i + j == 0:  # nothing is before the first
                mbarrier.arrive(kv_ready.index(stage), count=1)
            else:
                fetch(v_desc, v_batch, v_head, v_start, kv_ready.index(stage), v_smem.index(stage))
            v_batch, v_head, v_start = batch, kv_head, start_n
            step += 1
    stage = step % STAGES
    mbarrier.wait(kv_empty.index(stage), (step // STAGES & 1) ^ 1)
    mbarrier.arrive(kv_ready.index(stage), count=1)
    fetch(v_desc, v_batch, v_head, v_start, kv_ready.index(stage), v_smem.index(stage))


@gluon.jit
def softmax(scores, m, last_key, start_n, scale_log2, IS_CAUSAL: gl.constexpr, MASKED: gl.constexpr):
    """(m, alpha, p, row sums) of one tile: FA2 Alg. 1, line 9. scores: fp32 [ROWS, BLOCK_N], unscaled, like m.

    last_key: [ROWS], the last key that a row sees; start_n: the tile's first. Row sums are [ROWS, 8]: a thread adds up
    its own weights, and the sums of a row's threads are added up at the end.
    """
    BLOCK_N: gl.constexpr = scores.shape[1]
    if MASKED:
        keys = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(keys[None, :] <= last_key[:, None], scores, float("-inf"))
    m_new = gl.maximum(m, gl.max(scores, 1))
    m_ref = gl.where(m_new == float("-inf"), 0.0, m_new) if MASKED and IS_CAUSAL else m_new
    # Scaled after the subtraction: see `device.softmax_weights`.
    p = gl.exp2((scores - m_ref[:, None]) * scale_log2)
    alpha = gl.exp2((m - m_ref) * scale_log2)
    return m_new, alpha, p, gl.sum(p.reshape([ROWS, BLOCK_N // 8, 8]), 1)


@gluon.jit
def attend(
    q, p, m, l, acc, step, last_key, start_n, smem, ready, empty, scale_log2,
    IS_CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """FA2 Alg. 1, lines 8 to 10: the values of the tile whose p is given, and the softmax of the next tile, at start_n.

    step: of the next tile. m and l already include the tile of p; acc does not.
    """
    q_smem, k_smem, v_smem = smem
    q_ready, kv_ready = ready
    q_empty, kv_empty = empty
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    S_LAYOUT: gl.constexpr = m.type.layout.parent
    stage = step % STAGES
    mbarrier.wait(kv_ready.index(stage), step // STAGES & 1)
    k = k_smem.index(stage).reshape([BLOCK_N, k_smem.shape[4]])
    v = v_smem.index(stage).reshape([BLOCK_N, v_smem.shape[4]])
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    scores_to_come = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    acc_to_come = warpgroup_mma(p, v, acc, is_async=True)

    scores = warpgroup_mma_wait(1, deps=[scores_to_come])  # until only the last product is under way
    m, alpha, p_next, sums = softmax(scores, m, last_key, start_n, scale_log2, IS_CAUSAL, MASKED)
    l = l * gl.convert_layout(alpha, gl.SliceLayout(1, l.type.layout))[:, None] + sums

    acc, p = warpgroup_mma_wait(0, deps=[acc_to_come, p])
    mbarrier.arrive(kv_empty.index(stage), count=1)
    acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
    return gl.convert_layout(p_next.to(q.dtype), p.type.layout), m, l, acc


@gluon.jit
def consumer(
    given, GROUP: gl.constexpr, IS_CAUSAL: gl.constexpr, MASK_K_ROWS: gl.constexpr, TWO_MASKED: gl.constexpr,
    STORE_LSE: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """A computing group: FA2 Alg. 1 for its 64 rows of every query tile, with four warps."""
    o_desc, lse_ptr, smem, ready, empty, shape, scale_log2 = given
    n_tiles, heads, group_size, n_q, n_k = shape
    q_smem, k_smem, v_smem = smem
    q_ready, kv_ready = ready
    q_empty, kv_empty = empty
    GROUPS: gl.constexpr = q_ready.shape[0]
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    BLOCK_D: gl.constexpr = k_smem.shape[4]
    # Where a matrix product leaves its result: 16 rows in each warp, 2 neighbours of every 8 columns in each thread.
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    step = 0
    mbarrier.wait(kv_ready.index(0), 0)
    for i in range(0, tiles_of_program(n_tiles, PAIRED)):
        head, start_m, n_steps = query_tile(i, shape, GROUPS * ROWS, BLOCK_N, IS_CAUSAL, PAIRED)
        start_m = first_row(start_m, i, GROUP, GROUPS)
        rows = start_m + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        last_key = rows + (n_k - n_q) if IS_CAUSAL else rows * 0 + (n_k - 1)
        n_key_tiles = key_tiles(start_m + ROWS, shape, BLOCK_N, IS_CAUSAL)
        for _ in range(n_key_tiles, n_steps):  # tiles that only later rows see
            mbarrier.arrive(kv_empty.index(step % STAGES), count=1)
            step += 1
            mbarrier.wait(kv_ready.index(step % STAGES), step // STAGES & 1)
        mbarrier.wait(q_ready.index(GROUP), i & 1)
        q_stage = q_smem.index(i % 2 * GROUPS + GROUP)
        q = q_stage.reshape([ROWS, BLOCK_D])
        if GROUPS == 2:  # four groups have no registers for them
            q = q.load(gl.DotOperandLayout(0, S_LAYOUT, 2))

        # Only the sequence's last tile of keys, which comes first, can end beyond it. Its step has been waited for,
        # above or with the last V of the query tile before.
        stage = step % STAGES
        k = k_smem.index(stage).reshape([BLOCK_N, BLOCK_D])
        scores = warpgroup_mma(q, k.permute((1, 0)), gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT), use_acc=False)
        mbarrier.arrive(kv_empty.index(stage), count=1)
        step += 1
        m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        start_n = (n_key_tiles - 1) * BLOCK_N
        m, _, p, l = softmax(scores, m, last_key, start_n, scale_log2, IS_CAUSAL, IS_CAUSAL or MASK_K_ROWS)
        p = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, O_LAYOUT, 2))
        acc = gl.zeros([ROWS, BLOCK_D], gl.float32, O_LAYOUT)
        tma.store_wait(0)  # until the copy engine has read the last output: the next queries may come in its place
        mbarrier.arrive(q_empty.index(GROUP), count=1)
        n_masked = 1
        if TWO_MASKED:
            n_masked = gl.maximum(n_key_tiles - gl.maximum(start_m + 1 + n_k - n_q, 0) // BLOCK_N, 1)
            for j in range(1, n_masked):
                start_n = (n_key_tiles - 1 - j) * BLOCK_N
                p, m, l, acc = attend(
                    q, p, m, l, acc, step, last_key, start_n, smem, ready, empty, scale_log2, IS_CAUSAL, True
                )
                step += 1
        for j in range(n_masked, n_key_tiles):
            start_n = (n_key_tiles - 1 - j) * BLOCK_N
            p, m, l, acc = attend(
                q, p, m, l, acc, step, last_key, start_n, smem, ready, empty, scale_log2, IS_CAUSAL, False
            )
            step += 1
        stage = step % STAGES
        mbarrier.wait(kv_ready.index(stage), step // STAGES & 1)
        acc = warpgroup_mma(p, v_smem.index(stage).reshape([BLOCK_N, BLOCK_D]), acc)

        # FA2 Alg. 1, lines 12 to 15. A row that sees no key has l = 0, and gets 0 and -inf.
        l_row = gl.convert_layout(gl.sum(l, 1), m.type.layout)
        l_safe = gl.where(l_row == 0.0, 1.0, l_row)
        o = acc * gl.convert_layout(1.0 / l_safe, gl.SliceLayout(1, O_LAYOUT))[:, None]
        q_stage.reshape([ROWS, BLOCK_D]).store(o.to(q.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_desc, [head // heads, head % heads, start_m, 0], q_stage)
        if STORE_LSE:
            lse = gl.where(l_row == 0.0, float("-inf"), m * (scale_log2 * LN_2) + gl.log2(l_safe) * LN_2)
            gl.store(lse_ptr + gl.to_tensor(head).to(gl.int64) * n_q + rows, lse, mask=rows < n_q)
    tma.store_wait(0)


@gluon.jit
def barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers whose phases end with ARRIVALS arrivals, and with all the bytes that were announced."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit(do_not_specialize=["n_tiles", "n_q", "n_k"])
def hopper_forward_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, n_tiles, heads, group_size, n_q, n_k, scale_log2,
    IS_CAUSAL: gl.constexpr, MASK_K_ROWS: gl.constexpr, TWO_MASKED: gl.constexpr, STORE_LSE: gl.constexpr,
    PAIRED: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Each program computes query tiles of ROWS rows for each of GROUPS groups, as `query_tile` hands them out.

    q, o: [batch, heads, n_q, head_dim]; k, v: [batch, heads / group_size, n_k, head_dim], as descriptors. lse: fp32
    [batch, heads, n_q], contiguous, or None. n_tiles: query tiles of all heads and sequences. scale_log2: positive.
    MASK_K_ROWS: whether the last tile of keys ends beyond the tensor. TWO_MASKED: causal, and the diagonal of a group
    can cross two tiles of keys.
    """
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[2]
    BLOCK_D: gl.constexpr = q_desc.block_type.shape[3]
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [2 * GROUPS, 1, 1, ROWS, BLOCK_D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], v_desc.layout)
    smem = (q_smem, k_smem, v_smem)
    ready = (barriers(GROUPS, 1), barriers(STAGES, 2))
    empty = (barriers(GROUPS, 1), barriers(STAGES, GROUPS))
    shape = (n_tiles, heads, group_size, n_q, n_k)
    given = (o_desc, lse_ptr, smem, ready, empty, shape, scale_log2)
    fence_async_shared()
    if GROUPS == 2:
        gl.warp_specialize([
            (consumer, (given, gl.constexpr(0), IS_CAUSAL, MASK_K_ROWS, TWO_MASKED, STORE_LSE, PAIRED)),
            (consumer, (given, gl.constexpr(1), IS_CAUSAL, MASK_K_ROWS, TWO_MASKED, STORE_LSE, PAIRED)),
            (producer, (q_desc, k_desc, v_desc, smem, ready, empty, shape, IS_CAUSAL, PAIRED)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (given, gl.constexpr(0), IS_CAUSAL, MASK_K_ROWS, TWO_MASKED, STORE_LSE, PAIRED)),
            (consumer, (given, gl.constexpr(1), IS_CAUSAL, MASK_K_ROWS, TWO_MASKED, STORE_LSE, PAIRED)),
            (consumer, (given, gl.constexpr(2), IS_CAUSAL, MASK_K_ROWS, TWO_MASKED, STORE_LSE, PAIRED)),
            (consumer, (given, gl.constexpr(3), IS_CAUSAL, MASK_K_ROWS, TWO_MASKED, STORE_LSE, PAIRED)),
            (producer, (q_desc, k_desc, v_desc, smem, ready, empty, shape, IS_CAUSAL, PAIRED)),
        ], [4, 4, 4, 1], [REGISTERS, REGISTERS, REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def _descriptor(shape, strides, dtype, rows):
    block = [1, 1, rows, columns(shape)]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16 if dtype == torch.float16 else gl.bfloat16)
    x = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return TensorDescriptor(x, list(shape), list(strides), block, layout)


def columns(shape):
    """Columns of a tensor's tiles in shared memory."""
    return 64 if shape[3] <= 64 else 128


def descriptor(x, rows):
    """A descriptor of x [batch, heads, seq, head_dim] that copies `rows` rows of one head, in Gluon's layout."""
    return with_base(_descriptor(x.shape, x.stride(), x.dtype, rows), x)


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def plan(q, k, v, n_sms, causal, scale, store_lse):
    """The Launch for tensors of this metadata, on a GPU of n_sms multiprocessors. scale: positive."""
    batch, heads, n_q, _ = q.shape
    _, kv_heads, n_k, _ = k.shape
    config = CONFIGS[columns(q.shape)]
    n_tiles = -(-n_q // (config.groups * ROWS.value)) * heads * batch
    paired = causal and n_tiles > n_sms
    return Launch(
        hopper_forward_kernel, (min(n_sms, n_tiles), 1, 1),
        n_tiles, heads, heads // kv_heads, n_q, n_k, scale * LOG2_E.value,
        IS_CAUSAL=causal, MASK_K_ROWS=n_k % config.block_n != 0, TWO_MASKED=causal and (n_k - n_q) % ROWS.value != 0,
        STORE_LSE=store_lse, PAIRED=paired, GROUPS=config.groups, STAGES=config.stages, REGISTERS=config.registers,
        PRODUCER_REGISTERS=PRODUCER_REGISTERS, num_warps=4,
    )  # fmt: skip


def can_take(capability, q, k, v):
    """Whether the kernel takes these tensors, given as TensorMeta, on a GPU of this compute capability."""
    return (
        capability is not None and capability[0] == 9 and q.dtype != torch.float32 and 32 < q.shape[3] <= 128
        and takes_descriptors(capability, q, k, v)
    )  # fmt: skip


def prefers_hopper(capability, q, k, v, causal):
    """Whether `flash_attention` takes this kernel: where it was faster than the portable one on an H200.

    `tools.sweep dispatch` has measured it. The kernel takes long to fill its stages, and its query tiles are large:
    with fewer of them than multiprocessors, some have nothing to do.
    """
    batch, heads, n_q, _ = q.shape
    n_k, d = k.shape[2], columns(q.shape)
    n_tiles = -(-n_q // (CONFIGS[d].groups * ROWS.value)) * heads * batch
    if d == 64:
        pays = n_tiles >= 256 and n_k >= 1024 if causal else n_tiles >= 128
    elif causal:
        pays = n_k >= 4096 or n_tiles >= (128 if n_k >= 1024 else 256)
    else:
        pays = n_k >= 2048 or n_tiles >= 128
    return pays and can_take(capability, q, k, v)


def hopper_forward(q, k, v, *, causal, scale, store_lse):
    """Launch the kernel on checked inputs that it `can_take`; as `flash_forward.flash_forward`."""
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if store_lse else None
    if o.numel() == 0:
        return o, lse
    q, scale = with_positive_scale(q, scale)
    n_sms = runtime.multiprocessors(q.device)
    launch = plan(tensor_meta(q), tensor_meta(k), tensor_meta(v), n_sms, causal, scale, store_lse)
    keys = CONFIGS[columns(q.shape)].block_n
    launch(descriptor(q, ROWS.value), descriptor(k, keys), descriptor(v, keys), descriptor(o, ROWS.value), lse)
    return o, lse


def hopper_flash_attention(q, k, v, *, causal=False, scale=None, return_lse=False):
    """`flash_attention` by this kernel alone: those arguments that it has, results and precision are the same.

    It takes fp16 and bf16, head_dim 33 to 128 in multiples of 8, sequences of 512 and more, tensors whose rows begin
    at multiples of 16 bytes, and a GPU of compute capability 9.0, or the CPU, where an emulator runs it (see
    `runtime.emulators`). It has no derivatives, and refuses tensors that require a gradient.
    Raises TypeError or ValueError, naming the argument, and RuntimeError on another GPU.
    """
    causal, return_lse = check_flag("causal", causal), check_flag("return_lse", return_lse)
    check_tensors(q, k, v)
    check_not_differentiated("hopper_flash_attention", q=q, k=k, v=v)
    scale = check_scale(scale, q.shape[-1])
    q, k, v = addressable(q), addressable(k), addressable(v)
    capability = runtime.capability(q.device) or HOPPER  # interpreted, it is as on Hopper
    if capability[0] != 9:
        found = ".".join(map(str, capability))
        raise RuntimeError(f"hopper_flash_attention needs a GPU of compute capability 9.0, and this one has {found}")
    if not can_take(capability, tensor_meta(q), tensor_meta(k), tensor_meta(v)):
        raise ValueError(
            "hopper_flash_attention takes fp16 or bf16, head_dim 33 to 128, at least 512 rows, and rows that begin at "
            f"multiples of 16 bytes; got q {tuple(q.shape)}, k {tuple(k.shape)}, {q.dtype}, with strides {q.stride()}, "
            f"{k.stride()}, {v.stride()}"
        )
    o, lse = hopper_forward(q, k, v, causal=causal, scale=scale, store_lse=return_lse)
    return (o, lse) if return_lse else o
