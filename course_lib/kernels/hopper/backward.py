"""FlashAttention backward for compute capability 9.0 in Gluon: `flash_backward`'s dK, dV and dQ by warps with roles.

The roles are `hopper_forward`'s: one warp fetches tiles, and two groups of warps have 64 rows each of the tile that
stays while tiles of the other kind stream past.

    dK and dV   keys and values stay; queries and the gradient of the output stream past, from every head of the group
    dQ          queries and the gradient of the output stay; keys and values stream past

Nothing is added up between programs, so the same call gives the same bits. But both kernels compute S and dP: seven
products for each pair of tiles, where five suffice. The first kernel can also compute dQ = dS K of its pairs, which the
copy engine adds to fp32 sums in global memory, in L2 as a rule; another kernel rounds them. Then whoever comes first
adds first, and dQ's last bits differ from call to call.

As in `flash_backward`, P^T and dS^T (here also dS) go from one matrix product to the next in registers. Products of dP
start from -delta instead of 0, which gives dP - delta without a subtraction.

Reading order: the order of tiles, the fetching warp, dQ in pieces, dK and dV, dQ, launch.
"""

import functools

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.backward import row_delta
from course_lib.kernels.gluon import (
    PROPAGATE_NAN,
    TensorDescriptor,
    async_add_shared_to_global,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)  # fmt: skip
from course_lib.kernels.hopper.forward import (
    LOG2_E,
    PRODUCER_REGISTERS,
    ROWS,
    barriers,
    can_take,
    descriptor,
    tiles_of_program,
)
from course_lib.kernels.launch import (
    MAX_CACHED_LAUNCHES,
    Launch,
    addressable,
    takes_descriptors,
    tensor_meta,
    with_base,
)

BLOCK = gl.constexpr(128)  # rows of both groups
BLOCK_N = gl.constexpr(128)  # keys of a tile that streams past
STAGES = gl.constexpr(2)  # tiles of each kind that are in shared memory to stream past
CONSUMER_REGISTERS = 240  # of a thread
PIECE = gl.constexpr(64)  # rows and columns of what a group adds to dQ at a time


@gluon.jit
def tile_schedule(
    i, shape, STREAMED: gl.constexpr, BY_KEY: gl.constexpr, IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr
):
    """(head, first row, tiles to visit, how many of them need no mask) of this program's i-th tile.

    Programs take tiles as `hopper_forward.query_tile` says, but those of a turn that has a pair for each move on by
    `shift_of_pairs`.

    BY_KEY, the tiles are of keys, and visit tiles of queries, the last one first; otherwise the other way round, and
    the first one first. So tiles without a mask come first. STREAMED: rows of a tile that is visited.
    """
    n_tiles, heads, group_size, n_q, n_k, shift = shape
    if PAIRED:
        turn, place, n_programs = i // 2, gl.program_id(0), gl.num_programs(0)
        if turn < n_tiles // 2 // n_programs:
            place = (place + turn * shift) % n_programs
        tile = place + turn * n_programs
        if i % 2 == 1:
            tile = n_tiles - 1 - tile
    else:
        tile = gl.program_id(0) + i * gl.num_programs(0)
    if BY_KEY:
        tiles_of_head = (n_k + BLOCK - 1) // BLOCK
        start = tile % tiles_of_head * BLOCK
        n_visits = (n_q + STREAMED - 1) // STREAMED
        n_full = n_visits
        if IS_CAUSAL:
            first_query = gl.maximum(start + n_q - n_k, 0)
            first_of_all = gl.maximum(gl.minimum(start + BLOCK, n_k) - 1 + n_q - n_k, 0)
            n_full = n_visits - (first_of_all + STREAMED - 1) // STREAMED
            n_visits = n_visits - first_query // STREAMED
    else:
        tiles_of_head = (n_q + BLOCK - 1) // BLOCK
        start = tile % tiles_of_head * BLOCK
        n_visits = (n_k + STREAMED - 1) // STREAMED
        n_full = n_k // STREAMED
        if IS_CAUSAL:
            n_visits = (gl.maximum(gl.minimum(start + BLOCK, n_q) + n_k - n_q, 0) + STREAMED - 1) // STREAMED
            n_full = gl.maximum(start + 1 + n_k - n_q, 0) // STREAMED
    return tile // tiles_of_head, start, n_visits, n_full


@gluon.jit
def producer(
    staying, streaming, statistics, smem, ready, empty, shape,
    BY_KEY: gl.constexpr, IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """The fetching warp. For each tile: what stays, 64 rows for each group; then what streams past; always in pairs."""
    n_tiles, heads, group_size, n_q, n_k, _ = shape
    staying_a, staying_b = staying
    streaming_a, streaming_b = streaming
    a_smem, b_smem, a_stages, b_stages, out_smem = smem
    tile_ready, stage_ready = ready
    tile_empty, stage_empty = empty
    STREAMED: gl.constexpr = a_stages.shape[3]
    fetched = 0
    for i in range(0, tiles_of_program(n_tiles, PAIRED)):
        head, start, n_visits, _ = tile_schedule(i, shape, STREAMED, BY_KEY, IS_CAUSAL, PAIRED)
        if BY_KEY:
            batch = head // (heads // group_size)
            own_head = head % (heads // group_size)
            first_head = own_head * group_size
            n_members = group_size
        else:
            batch = head // heads
            own_head = head % heads
            first_head = own_head // group_size
            n_members = 1
        mbarrier.wait(tile_empty.index(0), (i & 1) ^ 1)
        mbarrier.expect(tile_ready.index(0), 4 * staying_a.block_type.nbytes)
        for group in gl.static_range(2):
            at = [batch, own_head, start + group * ROWS, 0]
            tma.async_copy_global_to_shared(staying_a, at, tile_ready.index(0), a_smem.index(group))
            tma.async_copy_global_to_shared(staying_b, at, tile_ready.index(0), b_smem.index(group))
        for member in range(0, n_members):
            for j in range(0, n_visits):
                if BY_KEY:
                    row = ((n_q + STREAMED - 1) // STREAMED - 1 - j) * STREAMED
                else:
                    row = j * STREAMED
                stage = fetched % STAGES
                bar = stage_ready.index(stage)
                mbarrier.wait(stage_empty.index(stage), (fetched // STAGES & 1) ^ 1)
                mbarrier.expect(bar, 2 * streaming_a.block_type.nbytes)
                at = [batch, first_head + member, row, 0]
                tma.async_copy_global_to_shared(streaming_a, at, bar, a_stages.index(stage))
                tma.async_copy_global_to_shared(streaming_b, at, bar, b_stages.index(stage))
                if BY_KEY:
                    lse_ptr, delta_ptr, lse_stages, delta_stages = statistics
                    rows = row + gl.arange(0, STREAMED, gl.BlockedLayout([STREAMED // 32], [32], [1], [0]))
                    of_head = gl.to_tensor(head * group_size + member).to(gl.int64) * n_q
                    # As in flash_backward.load_statistics: rows beyond the last add nothing if all they have is 0.
                    lse = gl.load(lse_ptr + of_head + rows, mask=rows < n_q, other=0.0)
                    delta = gl.load(delta_ptr + of_head + rows, mask=rows < n_q, other=0.0)
                    lse_stages.index(stage).store(lse * LOG2_E)
                    delta_stages.index(stage).store(delta)
                    mbarrier.arrive(bar, count=1)
                fetched += 1


@gluon.jit
def store_rows(desc, smem, acc, batch, head, start, GROUP: gl.constexpr):
    """Have the copy engine store acc [ROWS, BLOCK_D], rounded, as rows of a head."""
    tma.store_wait(0)  # until the copy engine has read what was there
    smem.index(GROUP).reshape([ROWS, smem.shape[4]]).store(acc.to(smem.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [batch, head, start, 0], smem.index(GROUP))


@gluon.jit
def weights_of(log2_p):
    """As in device.py."""
    return gl.exp2(gl.minimum(log2_p, 0.0, propagate_nan=PROPAGATE_NAN))


@gluon.jit
def start_dq(k_smem, ds_smem, ds_ready, used, GROUP: gl.constexpr):
    """FA2 Alg. 2, line 15, for a group's half of dQ = dS K: start to sum over the keys of both groups.

    Half of 128 queries if dQ has 64 columns, half of the columns if it has 128. This group has stored its dS^T. The
    other's is there when both have arrived.
    """
    BLOCK_D: gl.constexpr = k_smem.shape[4]
    fence_async_shared()
    mbarrier.arrive(ds_ready.index(used % 2), count=1)
    mbarrier.wait(ds_ready.index(used % 2), used // 2 & 1)
    dq = gl.zeros([PIECE, PIECE], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16]))
    for half in gl.static_range(2):
        ds = ds_smem.index(used % 2 * 2 + half)
        k = k_smem.index(half).reshape([ROWS, BLOCK_D])
        if BLOCK_D == PIECE:
            ds = ds.slice(GROUP * PIECE, PIECE, 1)
        else:
            k = k.slice(GROUP * PIECE, PIECE, 1)
        dq = warpgroup_mma(ds.permute((1, 0)), k, dq, use_acc=half == 1, is_async=True)
    return dq


@gluon.jit
def in_thread_order(acc):
    """acc [64, 64], as a product leaves it, as [16, 256]: 4 neighbours of each thread, then their next 4, and so on.

    Threads then store side by side, and a piece is one block of memory.
    """
    return acc.reshape([4, 2, 8, 8, 4, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([16, 256])


@gluon.jit
def dkdv_step(
    dk, dv, dq_desc, smem, statistics, pieces, ready, empty, used, tile, start_m, keys, shape, scale_log2,
    GROUP: gl.constexpr, IS_CAUSAL: gl.constexpr, WITH_DQ: gl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, lines 8 to 17, for a tile of queries: (dk, dv) with it. Scores are transposed, [ROWS, BLOCK_M].

    dV is started only after dS, although it could be before: P and dP would be in registers beside P^T as an operand
    under way, and with dQ there are none for all three. tile: the tile of queries, counted through all heads.
    """
    n_tiles, heads, group_size, n_q, n_k, _ = shape
    k_smem, v_smem, q_stages, do_stages, out_smem = smem
    lse_stages, delta_stages = statistics
    ds_smem, dq_smem, ds_ready = pieces
    BLOCK_M: gl.constexpr = q_stages.shape[3]
    BLOCK_D: gl.constexpr = q_stages.shape[4]
    dtype: gl.constexpr = q_stages.dtype
    S_LAYOUT: gl.constexpr = keys.type.layout.parent
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, D_LAYOUT, 2)
    stage = used % STAGES
    rows = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, S_LAYOUT))
    zeros = gl.zeros([ROWS, BLOCK_M], gl.float32, S_LAYOUT)
    k = k_smem.index(GROUP).reshape([ROWS, BLOCK_D])
    v = v_smem.index(GROUP).reshape([ROWS, BLOCK_D])
    mbarrier.wait(ready.index(stage), used // STAGES & 1)
    q = q_stages.index(stage).reshape([BLOCK_M, BLOCK_D])
    do = do_stages.index(stage).reshape([BLOCK_M, BLOCK_D])
    s_to_come = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    delta = delta_stages.index(stage).load(gl.SliceLayout(0, S_LAYOUT))
    dp_to_come = warpgroup_mma(v, do.permute((1, 0)), zeros - delta[None, :], is_async=True)
    lse_log2 = lse_stages.index(stage).load(gl.SliceLayout(0, S_LAYOUT))
    s = warpgroup_mma_wait(1, deps=[s_to_come])
    log2_p = s * scale_log2 - lse_log2[None, :]
    if IS_CAUSAL:
        log2_p = gl.where(keys[:, None] <= (rows + n_k - n_q)[None, :], log2_p, float("-inf"))
    p = weights_of(log2_p)
    p_operand = gl.convert_layout(p.to(dtype), P_LAYOUT)
    dp = warpgroup_mma_wait(0, deps=[dp_to_come])
    ds = (p * dp).to(dtype)
    if WITH_DQ:
        ds_smem.index(used % 2 * 2 + GROUP).store(ds)
    ds_operand = gl.convert_layout(ds, P_LAYOUT)
    dv_to_come = warpgroup_mma(p_operand, do, dv, is_async=True)
    if WITH_DQ:
        dq_to_come = start_dq(k_smem, ds_smem, ds_ready, used, GROUP)
    dk_to_come = warpgroup_mma(ds_operand, q, dk, is_async=True)
    if WITH_DQ:
        dq, dv_to_come, p_operand = warpgroup_mma_wait(1, deps=[dq_to_come, dv_to_come, p_operand])
        tma.store_wait(0)  # until the copy engine has read the last piece
        dq_smem.index(GROUP).store(in_thread_order(dq))
        fence_async_shared()
        async_add_shared_to_global(dq_desc, [(tile * 2 + GROUP) * 16, 0], dq_smem.index(GROUP))
    dk, dv, ds_operand, p_operand = warpgroup_mma_wait(0, deps=[dk_to_come, dv_to_come, ds_operand, p_operand])
    mbarrier.arrive(empty.index(stage), count=1)
    return dk, dv


@gluon.jit
def dkdv_consumer(
    dk_desc, dv_desc, dq_desc, smem, statistics, pieces, ready, empty, shape, scale, scale_log2,
    GROUP: gl.constexpr, IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr, WITH_DQ: gl.constexpr,
):  # fmt: skip
    """A computing group: FA2 Alg. 2 for its 64 keys of every key tile, with four warps."""
    n_tiles, heads, group_size, n_q, n_k, _ = shape
    k_smem, v_smem, q_stages, do_stages, out_smem = smem
    tile_ready, stage_ready = ready
    tile_empty, stage_empty = empty
    BLOCK_M: gl.constexpr = q_stages.shape[3]
    BLOCK_D: gl.constexpr = q_stages.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    kv_heads = heads // group_size
    q_tiles = (n_q + BLOCK_M - 1) // BLOCK_M
    used = 0
    for i in range(0, tiles_of_program(n_tiles, PAIRED)):
        head, start, n_visits, n_full = tile_schedule(i, shape, BLOCK_M, True, IS_CAUSAL, PAIRED)
        start += GROUP * ROWS
        keys = start + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, D_LAYOUT)
        dv = gl.zeros([ROWS, BLOCK_D], gl.float32, D_LAYOUT)
        mbarrier.wait(tile_ready.index(0), i & 1)
        for member in range(0, group_size):
            last = (head * group_size + member + 1) * q_tiles - 1
            for j in range(0, n_full):
                dk, dv = dkdv_step(
                    dk, dv, dq_desc, smem, statistics, pieces, stage_ready, stage_empty, used, last - j,
                    (q_tiles - 1 - j) * BLOCK_M, keys, shape, scale_log2, GROUP, False, WITH_DQ,
                )  # fmt: skip
                used += 1
            if IS_CAUSAL:
                for j in range(n_full, n_visits):
                    dk, dv = dkdv_step(
                        dk, dv, dq_desc, smem, statistics, pieces, stage_ready, stage_empty, used, last - j,
                        (q_tiles - 1 - j) * BLOCK_M, keys, shape, scale_log2, GROUP, True, WITH_DQ,
                    )  # fmt: skip
                    used += 1
        mbarrier.arrive(tile_empty.index(0), count=1)
        store_rows(dv_desc, out_smem, dv, head // kv_heads, head % kv_heads, start, GROUP)
        store_rows(dk_desc, out_smem, dk * scale, head // kv_heads, head % kv_heads, start, GROUP)
    tma.store_wait(0)


@gluon.jit
def dq_step(
    q, do, dq, k_stages, v_stages, ready, empty, used, lse_log2, delta, start_n, rows, shape, scale_log2,
    IS_CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, lines 10, 11, 13 to 15, for 128 keys: dq with them."""
    n_tiles, heads, group_size, n_q, n_k, _ = shape
    BLOCK_D: gl.constexpr = k_stages.shape[4]
    S_LAYOUT: gl.constexpr = rows.type.layout.parent
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    stage = used % STAGES
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    mbarrier.wait(ready.index(stage), used // STAGES & 1)
    k = k_stages.index(stage).reshape([BLOCK_N, BLOCK_D])
    v = v_stages.index(stage).reshape([BLOCK_N, BLOCK_D])
    s_to_come = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    dp_to_come = warpgroup_mma(do, v.permute((1, 0)), zeros - delta[:, None], is_async=True)
    s = warpgroup_mma_wait(1, deps=[s_to_come])
    log2_p = s * scale_log2 - lse_log2[:, None]
    if MASKED:
        keys = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        if IS_CAUSAL:
            log2_p = gl.where(keys[None, :] <= (rows + n_k - n_q)[:, None], log2_p, float("-inf"))
        else:
            log2_p = gl.where((keys < n_k)[None, :], log2_p, float("-inf"))
    p = weights_of(log2_p)
    dp = warpgroup_mma_wait(0, deps=[dp_to_come])
    ds = gl.convert_layout((p * dp).to(k_stages.dtype), gl.DotOperandLayout(0, D_LAYOUT, 2))
    dq = warpgroup_mma(ds, k, dq)
    mbarrier.arrive(empty.index(stage), count=1)
    return dq


@gluon.jit
def dq_consumer(
    dq_desc, lse_ptr, delta_ptr, smem, ready, empty, shape, scale, scale_log2,
    GROUP: gl.constexpr, IS_CAUSAL: gl.constexpr, MASK_K_ROWS: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """A computing group: its 64 queries of every query tile, with four warps."""
    n_tiles, heads, group_size, n_q, n_k, _ = shape
    q_smem, do_smem, k_stages, v_stages, out_smem = smem
    tile_ready, stage_ready = ready
    tile_empty, stage_empty = empty
    BLOCK_D: gl.constexpr = k_stages.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    used = 0
    for i in range(0, tiles_of_program(n_tiles, PAIRED)):
        head, start, n_visits, n_full = tile_schedule(i, shape, BLOCK_N, False, IS_CAUSAL, PAIRED)
        start += GROUP * ROWS
        rows = start + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        row = gl.to_tensor(head).to(gl.int64) * n_q
        lse_log2 = gl.load(lse_ptr + row + rows, mask=rows < n_q, other=0.0) * LOG2_E
        delta = gl.load(delta_ptr + row + rows, mask=rows < n_q, other=0.0)
        q = q_smem.index(GROUP).reshape([ROWS, BLOCK_D])
        do = do_smem.index(GROUP).reshape([ROWS, BLOCK_D])
        dq = gl.zeros([ROWS, BLOCK_D], gl.float32, D_LAYOUT)
        mbarrier.wait(tile_ready.index(0), i & 1)
        for j in range(0, n_full):
            dq = dq_step(
                q, do, dq, k_stages, v_stages, stage_ready, stage_empty, used, lse_log2, delta, j * BLOCK_N, rows,
                shape, scale_log2, IS_CAUSAL, False,
            )  # fmt: skip
            used += 1
        if IS_CAUSAL or MASK_K_ROWS:
            for j in range(n_full, n_visits):
                dq = dq_step(
                    q, do, dq, k_stages, v_stages, stage_ready, stage_empty, used, lse_log2, delta, j * BLOCK_N, rows,
                    shape, scale_log2, IS_CAUSAL, True,
                )  # fmt: skip
                used += 1
        mbarrier.arrive(tile_empty.index(0), count=1)
        store_rows(dq_desc, out_smem, dq * scale, head // heads, head % heads, start, GROUP)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_tiles", "n_q", "n_k", "shift"])
def hopper_dkdv_kernel(
    q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, dq_desc, lse_ptr, delta_ptr,
    n_tiles, heads, group_size, n_q, n_k, shift, scale, scale_log2,
    IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr, WITH_DQ: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Each program computes dK and dV of key tiles, as `tile_schedule` hands them out.

    q, do: [batch, heads, n_q, head_dim]; k, v, dk, dv: [batch, heads / group_size, n_k, head_dim], as descriptors. lse,
    delta: fp32 [batch, heads, n_q], contiguous. n_tiles: key tiles of all heads and sequences. shift: see
    `shift_of_pairs`. WITH_DQ: whether they add to dq, too, a descriptor of fp32 [16 * pieces, 256]: see
    `in_thread_order`. A piece has 64 rows and 64 columns.
    """
    BLOCK_M: gl.constexpr = q_desc.block_type.shape[2]
    BLOCK_D: gl.constexpr = q_desc.block_type.shape[3]
    dtype: gl.constexpr = q_desc.dtype
    k_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, BLOCK_D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, BLOCK_D], v_desc.layout)
    q_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
    do_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], do_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, BLOCK_D], dk_desc.layout)
    STATISTICS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lse_stages = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], STATISTICS)
    delta_stages = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], STATISTICS)
    smem = (k_smem, v_smem, q_stages, do_stages, out_smem)
    statistics = (lse_stages, delta_stages)
    pieces = (None, None, None)
    if WITH_DQ:
        DS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        ds_smem = gl.allocate_shared_memory(dtype, [4, ROWS, BLOCK_M], DS)
        dq_smem = gl.allocate_shared_memory(gl.float32, [2, 16, 256], dq_desc.layout)
        pieces = (ds_smem, dq_smem, barriers(2, 2))
    ready = (barriers(1, 1), barriers(STAGES, 2))
    empty = (barriers(1, 2), barriers(STAGES, 2))
    shape = (n_tiles, heads, group_size, n_q, n_k, shift)
    fence_async_shared()
    gl.warp_specialize([
        (dkdv_consumer, (dk_desc, dv_desc, dq_desc, smem, statistics, pieces, ready, empty, shape, scale, scale_log2,
                        gl.constexpr(0), IS_CAUSAL, PAIRED, WITH_DQ)),
        (dkdv_consumer, (dk_desc, dv_desc, dq_desc, smem, statistics, pieces, ready, empty, shape, scale, scale_log2,
                        gl.constexpr(1), IS_CAUSAL, PAIRED, WITH_DQ)),
        (producer, ((k_desc, v_desc), (q_desc, do_desc), (lse_ptr, delta_ptr, lse_stages, delta_stages),
                    smem, ready, empty, shape, gl.constexpr(True), IS_CAUSAL, PAIRED)),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


@gluon.jit(do_not_specialize=["n_tiles", "n_q", "n_k", "shift"])
def hopper_dq_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, lse_ptr, delta_ptr,
    n_tiles, heads, group_size, n_q, n_k, shift, scale, scale_log2,
    IS_CAUSAL: gl.constexpr, MASK_K_ROWS: gl.constexpr, PAIRED: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Each program computes dQ of query tiles. Arguments as `hopper_dkdv_kernel`'s; n_tiles: of queries."""
    BLOCK_D: gl.constexpr = q_desc.block_type.shape[3]
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, BLOCK_D], q_desc.layout)
    do_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, BLOCK_D], do_desc.layout)
    k_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], v_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, BLOCK_D], dq_desc.layout)
    smem = (q_smem, do_smem, k_stages, v_stages, out_smem)
    ready = (barriers(1, 1), barriers(STAGES, 1))
    empty = (barriers(1, 2), barriers(STAGES, 2))
    shape = (n_tiles, heads, group_size, n_q, n_k, shift)
    fence_async_shared()
    gl.warp_specialize([
        (dq_consumer, (dq_desc, lse_ptr, delta_ptr, smem, ready, empty, shape, scale, scale_log2, gl.constexpr(0),
                      IS_CAUSAL, MASK_K_ROWS, PAIRED)),
        (dq_consumer, (dq_desc, lse_ptr, delta_ptr, smem, ready, empty, shape, scale, scale_log2, gl.constexpr(1),
                      IS_CAUSAL, MASK_K_ROWS, PAIRED)),
        (producer, ((q_desc, do_desc), (k_desc, v_desc), None, smem, ready, empty, shape, gl.constexpr(False),
                    IS_CAUSAL, PAIRED)),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


@triton.jit(do_not_specialize=["n_q", "pieces_of_head"])
def round_dq_kernel(sums_ptr, dq_ptr, n_q, pieces_of_head, scale, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """dq [batch * heads, n_q, HEAD_DIM] = scale * sums, rounded, of one piece: see `in_thread_order`."""
    pid = tl.program_id(0)
    in_head = pid % pieces_of_head
    rows = in_head // (BLOCK_D // 64) * 64 + tl.arange(0, 64)
    columns = in_head % (BLOCK_D // 64) * 64 + tl.arange(0, 64)
    sums = tl.load(sums_ptr + tl.cast(pid, tl.int64) * 4096 + tl.arange(0, 4096))
    dq = sums.reshape(8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(64, 64) * scale
    row = tl.cast(pid // pieces_of_head, tl.int64) * n_q + rows
    mask = (rows < n_q)[:, None] & (columns < HEAD_DIM)[None, :]
    tl.store(dq_ptr + row[:, None] * HEAD_DIM + columns[None, :], dq.to(dq_ptr.dtype.element_ty), mask=mask)


def block_m(head_dim, fused):
    """Queries of a tile that streams past: as many as dK and dV leave registers for."""
    return 128 if fused and head_dim <= 64 else 64


def shift_of_pairs(tiles_of_head, n_programs):
    """By how many tiles programs move on at each turn, under a causal mask.

    With fewer queries than keys, the pairs of key tiles differ. Where a head has about as many tiles as there are
    programs, or half as many, and so on, a program would get the longest pair of every head: half a head makes up for
    it. With equally many, all pairs are equal.
    """
    apart = n_programs % tiles_of_head
    return tiles_of_head // 2 if 8 * min(apart, tiles_of_head - apart) < tiles_of_head else 0


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def plan(q, k, v, lse, delta, do, capability, n_sms, causal, scale, fused):
    """The Launches of dK and dV, and of dQ for tensors of this metadata, and the number of pieces of dQ.

    fused: whether dQ is computed with dK and dV. The others are `backward.plan`'s.
    """
    batch, heads, n_q, head_dim = q.shape
    _, kv_heads, n_k, _ = k.shape

    def launch(kernel, n, heads_with_tiles, **constants):
        tiles_of_head = -(-n // BLOCK.value)
        n_tiles = tiles_of_head * heads_with_tiles * batch
        n_programs = min(n_sms, n_tiles)
        return Launch(
            kernel, (n_programs, 1, 1),
            n_tiles, heads, heads // kv_heads, n_q, n_k, shift_of_pairs(tiles_of_head, n_programs), scale,
            scale * LOG2_E.value,
            IS_CAUSAL=causal, PAIRED=causal and n_tiles > n_sms, **constants,
            CONSUMER_REGISTERS=CONSUMER_REGISTERS, PRODUCER_REGISTERS=PRODUCER_REGISTERS, num_warps=4,
        )  # fmt: skip

    block_d = 64 if head_dim <= 64 else 128
    pieces_of_head = -(-n_q // block_m(head_dim, fused)) * 2
    pieces = pieces_of_head * heads * batch
    return (
        launch(hopper_dkdv_kernel, n_k, kv_heads, WITH_DQ=fused),
        Launch(round_dq_kernel, (pieces, 1, 1), n_q, pieces_of_head, scale, HEAD_DIM=head_dim, BLOCK_D=block_d) if fused
        else launch(hopper_dq_kernel, n_q, heads, MASK_K_ROWS=n_k % BLOCK_N.value != 0),
        pieces,
    )  # fmt: skip


def prefers_hopper_backward(capability, q, k, v, do, causal, fused):
    """Whether `flash_attention` takes these kernels: where they were faster than the portable ones on an H200.

    `tools.sweep dispatch` has measured it: five products everywhere, seven not in a few small calls. Grouped heads have
    been measured from a tile for each multiprocessor on: with fewer, the heads that share keys wait for each other.
    """
    batch, heads, n_q, head_dim = q.shape
    _, kv_heads, n_k, _ = k.shape
    n_tiles = batch * min(-(-n_k // BLOCK.value) * kv_heads, -(-n_q // BLOCK.value) * heads)
    pays = n_tiles >= 128 or heads == kv_heads and (fused or causal or head_dim > 64)
    return pays and can_take(capability, q, k, v) and takes_descriptors(capability, do)


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def _descriptor_of_sums(rows):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(
        torch.empty_strided((rows, 256), (256, 1), device="meta"), [rows, 256], [256, 1], [16, 256], layout
    )


def hopper_backward(
    q, k, v, o, lse, do, dlse=None, *, causal, scale, delta=None, need_dq=True, need_dkdv=True, fused=False,
):  # fmt: skip
    """Launch the kernels on inputs that `hopper_forward.can_take`; as `flash_backward.flash_backward`.

    do begins its rows at multiples of 16 bytes, as q does. fused: in five products instead of seven, all gradients, but
    not the same bits of dq in every call. Its sums take fp32 memory of dq's size.
    """
    dq = torch.empty_like(q, memory_format=torch.contiguous_format) if need_dq else None
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) if need_dkdv else None for x in (k, v))
    if q.numel() == 0:
        return dq, dk, dv
    lse, do = lse.contiguous(), addressable(do)
    delta = row_delta(o, do, dlse) if delta is None else delta.contiguous()
    metas = map(tensor_meta, (q, k, v, lse, delta, do))
    launch_dkdv, launch_dq, pieces = plan(
        *metas, runtime.capability(q.device), runtime.multiprocessors(q.device), causal, scale, fused
    )
    sums = sums_desc = None
    if fused:
        sums = torch.zeros((16 * pieces, 256), dtype=torch.float32, device=q.device)
        sums_desc = with_base(_descriptor_of_sums(16 * pieces), sums)
    if need_dkdv:
        rows, streamed = ROWS.value, block_m(q.shape[3], fused)
        launch_dkdv(
            descriptor(q, streamed), descriptor(k, rows), descriptor(v, rows), descriptor(do, streamed),
            descriptor(dk, rows), descriptor(dv, rows), sums_desc, lse, delta,
        )  # fmt: skip
    if fused:
        launch_dq(sums, dq)
    elif need_dq:
        rows = BLOCK_N.value
        launch_dq(
            descriptor(q, ROWS.value), descriptor(k, rows), descriptor(v, rows), descriptor(do, ROWS.value),
            descriptor(dq, ROWS.value), lse, delta,
        )  # fmt: skip
    return dq, dk, dv
