"""What the compiler uses for an attention kernel on any GPU generation: shared memory, registers, stack. No GPU needed.

Triton compiles for GPUs that are not there, but not in a process where it interprets, so `forward_resources` asks a
subprocess. That subprocess calls the same functions that launch the kernels on a GPU, and compiles where they would
launch: no second description of a launch can disagree with the first. Stack bytes beyond the 24 that a division may
take are register spills.
"""

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from unittest import mock

from course_lib import runtime
from course_lib.hardware import GPUS
from courseware.worker.compile_for_gpu import instructions_of, registers_and_stack

DTYPES = ("float16", "bfloat16", "float32")
ARCHS = tuple(10 * major + minor for major, minor in (gpu.compute_capability for gpu in GPUS.values()))
LENGTH = 4096  # of the sequences whose kernels are compiled; a multiple of every tile size


@dataclass(frozen=True)
class Request:
    """One compilation. dtype: torch's name. arch: 75 for sm_75.

    kernel: "forward", of the backward "dkdv" or "dq", of decoding "decode" or, with num_splits > 1, "merge"; with tiles
    from a list "list_forward", "list_dkdv" or "list_dq"; those for sm_90 alone, in Gluon, "hopper", "hopper_dkdv",
    "hopper_dq" or "hopper_fused".
    config: (BLOCK_M, BLOCK_N, num_warps, num_stages), or None for the shipped one. tail: whether the last tiles end
    beyond the sequences. by_descriptor: whether the tiles in the loop come by tensor descriptor; None for what a launch
    on that GPU would do.
    everything: of kernels whose tiles come from a list, whether there are blocks, a soft cap and dropout, or only a
    causal mask; causal does not count.
    Of decoding: n_new: new tokens of each sequence, in 4 heads that share keys; page_size: None without pages.
    """

    head_dim: int
    arch: int
    dtype: str = "float16"
    causal: bool = False
    config: tuple | None = None
    tail: bool = True
    kernel: str = "forward"
    by_descriptor: bool | None = None
    everything: bool = False
    n_new: int = 1
    page_size: int | None = None
    num_splits: int = 1


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel uses.

    Per program: shared memory, and columns of Blackwell's tensor memory (an SM has 512; older GPUs have none). Per
    thread: registers and stack. tensor_cores: whether the code uses them. serialized: whether it waits for each of
    Hopper's matrix products before it starts the next instruction. ptxas does that when it cannot keep their registers
    apart (warnings C7510 to C7520 of `ptxas -v`, which Triton does not show). fused_exponents: how many exponentials
    are taken of a fused multiply-add. config: what was launched.
    """

    shared_bytes: int
    tensor_memory_columns: int
    registers: int
    stack_bytes: int
    tensor_cores: bool
    serialized: bool
    fused_exponents: int
    config: tuple


def forward_resources(requests):
    """Compile the kernel of every Request, in a subprocess; returns a Resources for each.

    About a second each. Raises RuntimeError with the compiler's message when one does not compile.
    """
    run = subprocess.run(
        [sys.executable, "-m", "tools.resources"],
        input=json.dumps([asdict(request) for request in requests]),
        env=runtime.environment(interpreting=False), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"the compiler failed:\n{run.stderr.strip()}")
    return [Resources(**{**item, "config": tuple(item["config"])}) for item in json.loads(run.stdout)]


@contextlib.contextmanager
def compiling_for(arch):
    """Inside, launching a kernel compiles it for sm_<arch> and runs nothing; meta tensors will do.

    Yields a list that collects (compiled kernel, grid and keyword arguments of each launch). Works only where kernels
    are not interpreted.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import JITFunction, driver

    launches = []
    run = JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **kwargs):
        launches.append((run(kernel, *args, grid=grid, warmup=True, **kwargs), {"grid": grid, **kwargs}))

    # What Triton asks of a driver before it compiles. It caches by device, so every arch is a device of its own.
    gpu = SimpleNamespace(
        get_current_device=lambda: arch, get_current_stream=lambda device: None,
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
    )  # fmt: skip
    driver.set_active(gpu)
    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(runtime, "capability", lambda device: divmod(arch, 10)),
        mock.patch.object(runtime, "multiprocessors", lambda device: 1),
    ):
        yield launches


def compile_request(request):
    """The Resources of a Request, compiled in this process, which must not interpret."""
    import torch

    from course_lib.kernels.backward import flash_backward
    from course_lib.kernels.decode import decode
    from course_lib.kernels.forward import flash_forward

    config = request.config and tuple(request.config)  # JSON has made a list of it
    n = LENGTH - request.tail
    on_gpu = {"dtype": getattr(torch, request.dtype), "device": "meta"}
    q = torch.empty(2, 2, n, request.head_dim, **on_gpu)
    how = {"causal": request.causal, "scale": 1.0, "by_descriptor": request.by_descriptor}
    with compiling_for(request.arch) as launches:
        if request.kernel.startswith("list_"):
            _launch_variant(request, q, config)
        elif request.kernel == "forward":
            flash_forward(q, q, q, store_lse=True, config=config, **how)
        elif request.kernel == "hopper":
            from course_lib.kernels.hopper.forward import CONFIGS, ROWS, columns, hopper_forward

            hopper_forward(q, q, q, causal=request.causal, scale=1.0, store_lse=True)
            tiles = CONFIGS[columns(q.shape)]
            launches[-1][1].update(BLOCK_M=tiles.groups * ROWS.value, BLOCK_N=tiles.block_n)
        elif request.kernel.startswith("hopper_"):
            from course_lib.kernels.hopper.backward import BLOCK, BLOCK_N, block_m, hopper_backward

            by_query, fused = request.kernel == "hopper_dq", request.kernel == "hopper_fused"
            hopper_backward(
                q, q, q, q, torch.empty(2, 2, n, device="meta"), q, causal=request.causal, scale=1.0, fused=fused,
                need_dq=by_query or fused, need_dkdv=not by_query,
            )  # fmt: skip
            del launches[2:]  # of what rounds the sums
            tiles = (BLOCK.value, BLOCK_N.value) if by_query else (block_m(request.head_dim, fused), BLOCK.value)
            launches[-1][1].update(zip(("BLOCK_M", "BLOCK_N"), tiles, strict=True))
        elif request.kernel in ("decode", "merge"):
            lengths, table = torch.empty(2, dtype=torch.int32, device="meta"), None
            cache = torch.empty(2, 1, n, request.head_dim, **on_gpu)
            if request.page_size:
                cache = torch.empty(9, 1, request.page_size, request.head_dim, **on_gpu)
                table = torch.empty(2, LENGTH // request.page_size, dtype=torch.int32, device="meta")
            decode(
                torch.empty(2, 4, request.n_new, request.head_dim, **on_gpu), cache, cache, lengths, table,
                causal=request.causal, scale=1.0, store_lse=True, num_splits=request.num_splits, config=config,
            )  # fmt: skip
            launches = launches[: 2 if request.kernel == "merge" else 1]
        else:
            lse = torch.empty(2, 2, n, device="meta")
            flash_backward(
                q, q, q, q, lse, q, need_dq=request.kernel == "dq", need_dkdv=request.kernel == "dkdv",
                config_dkdv=config, config_dq=config, **how,
            )  # fmt: skip
    return resources_of(*launches[-1])


def _launch_variant(request, q, config):
    import numpy as np
    import torch

    from course_lib import masks
    from course_lib.kernels.masked_attention import Variant, variant_backward, variant_forward
    from course_lib.kernels.score_mods import FUNCTIONS, SOFT_CAP

    variant = Variant(masks.causal(), (), None, None, 0.0, None)
    if request.everything:
        mask = masks.block_sparse(np.eye(-(-q.shape[2] // 100), dtype=bool), 100)
        w, seed = torch.empty(1, *q.shape[:2], device="meta"), torch.empty(1, dtype=torch.int64, device="meta")
        variant = Variant(mask, (FUNCTIONS[SOFT_CAP],), w, None, 0.1, seed)
    if request.kernel == "list_forward":
        variant_forward(q, q, q, variant, 1.0, config, request.by_descriptor)
        return
    lse = torch.empty(q.shape[:3], device="meta")
    variant_backward(
        q, q, q, q, lse, q, None, variant, 1.0, need_dq=request.kernel == "list_dq",
        need_dkdv=request.kernel == "list_dkdv", config_dkdv=config, config_dq=config,
        by_descriptor=request.by_descriptor,
    )  # fmt: skip


def resources_of(compiled, launched_with):
    """The Resources of one launch of `compiling_for`."""
    ptx, cubin, metadata = compiled.asm["ptx"], compiled.asm["cubin"], compiled.metadata
    registers, stack_bytes = registers_and_stack(cubin)
    # Listing what is unrolled for sm_75 takes longer than compiling it.
    serialized, instructions = False, instructions_of(cubin) if metadata.target.arch > 75 else ""
    if "wgmma" in ptx:
        # There is a wait (WARPGROUP.DEPBAR) for each product (HGMMA); otherwise one wait serves many products.
        serialized = instructions.count("WARPGROUP.DEPBAR") >= instructions.count("HGMMA")
    # A merge has a tile of BLOCK_S states and BLOCK_D columns.
    names = ("BLOCK_S", "BLOCK_D") if "BLOCK_S" in launched_with else ("BLOCK_M", "BLOCK_N")
    return Resources(
        shared_bytes=metadata.shared,
        tensor_memory_columns=getattr(metadata, "tmem_size", None) or 0,
        registers=registers,
        stack_bytes=stack_bytes,
        tensor_cores=any(word in ptx for word in ("mma.sync", "wgmma", "tcgen05.mma")),
        serialized=serialized,
        fused_exponents=fused_exponents(instructions),
        config=(*(launched_with[name] for name in names), metadata.num_warps, metadata.num_stages),
    )


def fused_exponents(instructions):
    """How many MUFU.EX2 have an argument that an FFMA has written, in a listing by cuobjdump."""
    writers, found = {}, 0
    for predicate, opcode, written, read in re.findall(
        r"(@!?U?P\w+ +)?([A-Z][A-Z0-9_.]+) (R\d+)(?:, [-|]*(R\d+))?", instructions
    ):
        if opcode == "MUFU.EX2":
            found += writers.get(read, "").startswith("FFMA")
        if not (predicate and opcode == "FMUL" and read == written):  # arguments beyond the smallest float are halved
            writers[written] = opcode
    return found


if __name__ == "__main__":
    requested = [Request(**item) for item in json.load(sys.stdin)]
    print(json.dumps([asdict(compile_request(request)) for request in requested]))
