"""The ladder of lesson 15: `kernels/hopper/forward.py` with one idea after the other taken out.

hopper_ladder.toml lists the ideas. The first rung is a kernel of its own, which stands here.
"""

import functools
import zlib
from pathlib import Path
from types import ModuleType

import torch

from course_lib.kernels.gluon import fence_async_shared, gl, gluon, mbarrier, tma, warpgroup_mma
from course_lib.kernels.hopper import forward
from course_lib.kernels.hopper.forward import LOG2_E, ROWS, barriers, descriptor, softmax
from courseware.bench import ladder
from courseware.editing import edited_text, run_source

BLOCK_N = gl.constexpr(128)  # keys of a tile of the first rung


@gluon.jit
def fetch_keys(k_desc, v_desc, k_smem, v_smem, ready, batch, kv_head, start_n, stage):
    mbarrier.expect(ready.index(stage), 2 * k_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [batch, kv_head, start_n, 0], ready.index(stage), k_smem.index(stage))
    tma.async_copy_global_to_shared(v_desc, [batch, kv_head, start_n, 0], ready.index(stage), v_smem.index(stage))


@gluon.jit(do_not_specialize=["n_tiles", "n_q", "n_k"])
def one_group_kernel(
    q_desc, k_desc, v_desc, o_desc, n_tiles, heads, group_size, n_q, n_k, scale_log2, IS_CAUSAL: gl.constexpr
):
    """FA2 Alg. 1 for 64 rows by four warps, which also ask for the next tile before they use this one."""
    BLOCK_D: gl.constexpr = q_desc.block_type.shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [1, 1, 1, ROWS, BLOCK_D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, BLOCK_N, BLOCK_D], v_desc.layout)
    q_ready = barriers(1, 1)
    ready = barriers(2, 1)
    fence_async_shared()

    batch = gl.program_id(1) // heads
    head = gl.program_id(1) % heads
    start_m = (n_tiles - 1 - gl.program_id(0)) * ROWS  # under a causal mask, those with the most keys start first
    rows = start_m + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    last_key = rows + (n_k - n_q) if IS_CAUSAL else rows * 0 + (n_k - 1)
    n_seen = n_k
    unmasked_end = n_k // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        n_seen = gl.maximum(gl.minimum(start_m + ROWS, n_q) + n_k - n_q, 1)
        unmasked_end = start_m + 1 + n_k - n_q
    n_key_tiles = (n_seen + BLOCK_N - 1) // BLOCK_N
    mbarrier.expect(q_ready.index(0), q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [batch, head, start_m, 0], q_ready.index(0), q_smem.index(0))
    start_n = (n_key_tiles - 1) * BLOCK_N
    fetch_keys(k_desc, v_desc, k_smem, v_smem, ready, batch, head // group_size, start_n, 0)
    mbarrier.wait(q_ready.index(0), 0)
    q = q_smem.index(0).reshape([ROWS, BLOCK_D])

    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([ROWS, BLOCK_D], gl.float32, O_LAYOUT)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    for j in range(0, n_key_tiles):
        stage = j % 2
        start_n = (n_key_tiles - 1 - j) * BLOCK_N
        if j + 1 < n_key_tiles:
            fetch_keys(k_desc, v_desc, k_smem, v_smem, ready, batch, head // group_size, start_n - BLOCK_N, 1 - stage)
        mbarrier.wait(ready.index(stage), j // 2 & 1)
        k = k_smem.index(stage).reshape([BLOCK_N, BLOCK_D])
        scores = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False)
        if start_n + BLOCK_N > unmasked_end:
            m, alpha, p, sums = softmax(scores, m, last_key, start_n, scale_log2, IS_CAUSAL, True)
        else:
            m, alpha, p, sums = softmax(scores, m, last_key, start_n, scale_log2, IS_CAUSAL, False)
        l = l * alpha + gl.convert_layout(gl.sum(sums, 1), l.type.layout)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT))[:, None]
        p = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, O_LAYOUT, 2))
        acc = warpgroup_mma(p, v_smem.index(stage).reshape([BLOCK_N, BLOCK_D]), acc)
    o = acc * gl.convert_layout(1.0 / l, gl.SliceLayout(1, O_LAYOUT))[:, None]
    q.store(o.to(q.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [batch, head, start_m, 0], q_smem.index(0))
    tma.store_wait(0)


def run_one_group(q, k, v, *, causal, scale, store_lse=False):
    """The first rung, as `hopper_forward` without lse, for at least as many keys as queries."""
    batch, heads, n_q, _ = q.shape
    n_k = k.shape[2]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    n_tiles = -(-n_q // ROWS.value)
    one_group_kernel[(n_tiles, batch * heads)](
        descriptor(q, ROWS.value), descriptor(k, BLOCK_N.value), descriptor(v, BLOCK_N.value),
        descriptor(o, ROWS.value),
        n_tiles, heads, heads // k.shape[1], n_q, n_k, scale * LOG2_E.value,
        IS_CAUSAL=causal, num_warps=4,
    )  # fmt: skip
    return o, None


def launch(rung, q, k, v, *, causal):
    return forward_of(rung)(q, k, v, causal=causal, scale=q.shape[-1] ** -0.5, store_lse=False)[0]


rungs = functools.cache(functools.partial(ladder.read, Path(__file__).with_suffix(".toml"), launch))


@functools.cache
def forward_of(rung):
    """A function as `forward.hopper_forward`."""
    return run_one_group if rung.source is None else _forward_of(rung.source, rung.name)


def interpreted(edits, rung=None):
    """`hopper_forward` of the source of the kernel, or of a rung's, with these edits, {old: new}: on the CPU."""
    on_cpu = {
        "course_lib.kernels.gluon import": "courseware.simulators.gluon_emulator import",
        "runtime.multiprocessors(q.device)": "1",
    }
    source = rung.source if rung else Path(forward.__file__).read_text(encoding="utf-8")
    return _forward_of(edited_text(source, on_cpu | edits, "edits", "forward.py"), "edited")


def _forward_of(source, name):
    module = ModuleType(f"{name} {zlib.crc32(source.encode()):08x}")
    run_source(source, f"<{module.__name__}>", module.__dict__)
    return module.hopper_forward
