"""The ladder of lesson 15: `kernels.hopper_forward` with one idea after the other taken out.

hopper_ladder.toml lists the ideas. The first rung is a kernel of its own, which stands here.
"""

import functools
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from course_lib.kernels.gluon import fence_async_shared, gl, gluon, mbarrier, tma, warpgroup_mma
from course_lib.kernels.hopper import forward
from course_lib.kernels.hopper.forward import BLOCK_N, LOG2_E, ROWS, barriers, descriptor, softmax
from courseware.editing import edited_text, run_source, source_of_rung

FILE = Path(forward.__file__)


@gluon.jit
def fetch_keys(k_desc, v_desc, k_smem, v_smem, ready, batch, kv_head, start_n, stage):
    mbarrier.expect(ready.index(stage), 2 * k_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [batch, kv_head, start_n, 0], ready.index(stage), k_smem.index(stage))
    tma.async_copy_global_to_shared(v_desc, [batch, kv_head, start_n, 0], ready.index(stage), v_smem.index(stage))


@gluon.jit
def one_group(q_desc, k_desc, v_desc, o_desc, q_smem, k_smem, v_smem, q_ready, ready, shape, scale_log2,
              IS_CAUSAL: gl.constexpr):  # fmt: skip
    """FA2 Alg. 1 for 64 rows by four warps, which also ask for the next tile before they use this one."""
    n_tiles, heads, group_size, n_q, n_k = shape
    BLOCK_D: gl.constexpr = q_smem.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    batch = gl.program_id(1) // heads
    head = gl.program_id(1) % heads
    start_m = (n_tiles - 1 - gl.program_id(0)) * ROWS  # under a causal mask, those with the most keys start first
    rows = start_m + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
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
            m, alpha, p, sums = softmax(scores, m, rows, start_n, shape, scale_log2, IS_CAUSAL, True)
        else:
            m, alpha, p, sums = softmax(scores, m, rows, start_n, shape, scale_log2, IS_CAUSAL, False)
        l = l * alpha + gl.convert_layout(gl.sum(sums, 1), l.type.layout)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT))[:, None]
        p = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, O_LAYOUT, 2))
        acc = warpgroup_mma(p, v_smem.index(stage).reshape([BLOCK_N, BLOCK_D]), acc)
    o = acc * gl.convert_layout(1.0 / l, gl.SliceLayout(1, O_LAYOUT))[:, None]
    q.store(o.to(q.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [batch, head, start_m, 0], q_smem.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_tiles", "n_q", "n_k"])
def one_group_kernel(
    q_desc, k_desc, v_desc, o_desc, n_tiles, heads, group_size, n_q, n_k, scale_log2, IS_CAUSAL: gl.constexpr
):
    BLOCK_D: gl.constexpr = q_desc.block_type.shape[3]
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [1, 1, 1, ROWS, BLOCK_D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, BLOCK_N, BLOCK_D], v_desc.layout)
    q_ready = barriers(1, 1)
    ready = barriers(2, 1)
    fence_async_shared()
    one_group(
        q_desc, k_desc, v_desc, o_desc, q_smem, k_smem, v_smem, q_ready, ready,
        (n_tiles, heads, group_size, n_q, n_k), scale_log2, IS_CAUSAL,
    )  # fmt: skip


def run_one_group(q, k, v, *, causal, scale, store_lse=False):
    """The first rung, of as many queries as keys at least one; as `hopper_forward`, without lse."""
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


@dataclass(frozen=True)
class Rung:
    """idea and expected: sentences. diff: of forward.py, see hopper_ladder.toml."""

    name: str
    idea: str
    expected: str
    diff: str = ""
    kept: bool = True

    @functools.cached_property
    def source(self):
        """The text of forward.py at this rung; None for the first, which stands in this file."""
        if self.name == "one group":
            return None
        return source_of_rung(FILE.read_text(encoding="utf-8"), self, list(rungs().values()), FILE.name)

    @functools.cached_property
    def forward(self):
        """A function as `forward.hopper_forward`."""
        if self.source is None:
            return run_one_group
        return _forward_of(self.source, self.name)


@functools.cache
def rungs():
    """{name: Rung}, in the order of the lesson."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Rung(name, **keys | {"expected": " ".join(keys["expected"].split())}) for name, keys in found.items()}


def interpreted(edits):
    """`hopper_forward` of the kernel's source with these edits, {old: new}, interpreted: for tensors on the CPU."""
    on_cpu = {
        "course_lib.kernels.gluon import": "courseware.simulators.gluon_emulator import",
        "runtime.multiprocessors(q.device)": "1",
    }
    return _forward_of(edited_text(FILE.read_text(encoding="utf-8"), on_cpu | edits, "edits", FILE.name), "edited")


def _forward_of(source, name):
    module = ModuleType(f"{name} {zlib.crc32(source.encode()):08x}")
    run_source(source, f"<{module.__name__}>", module.__dict__)
    return module.hopper_forward
