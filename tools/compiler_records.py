"""Writes what the compiler makes of the kernels into records: `python -m tools.compiler_records resources`, for one.

`resources` compiles every block size of the block-size explorer for every GPU in `hardware`, and goes on where an
earlier run stopped. `rungs` compiles every rung of the ladder for an H100, and `hopper-rungs` the kept ones of lesson
15's. None needs a GPU.
"""

import argparse
import ast
import concurrent.futures
import hashlib
import inspect
import itertools
import json
import math
import os
import textwrap
from dataclasses import astuple, fields
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from course_lib import runtime
from courseware.bench import records
from courseware.bench.ladder_model import GPU, HEAD_DIM, ROWS
from courseware.worker.compile_for_gpu import instructions_of, loops_of, registers_and_stack
from tools import resources
from tools.resources import ARCHS, DTYPES, LENGTH, Request, Resources

# What is compiled: everything that the block-size explorer can be set to.
BLOCK_SIZES = (16, 32, 64, 128)
HEAD_DIMS = (32, 64, 128)
COLUMNS = (
    "arch", "dtype", "head_dim", "causal", "block_q", "block_k", "num_warps", "num_stages",
    *(field.name for field in fields(Resources)[:5]),
)  # fmt: skip


def kernel_sha256():
    """Hash of what is compiled: the forward kernel, and all the jitted functions and constants that it reaches.

    Comments, docstrings and host code do not count; configurations are in the rows themselves.
    """
    import triton.language as tl

    from course_lib.kernels.forward import flash_forward_kernel

    found, pending = {}, [flash_forward_kernel]
    while pending:
        function = pending.pop().fn
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if ast.get_docstring(tree) is not None:
            tree.body = tree.body[1:]
        found[function.__name__] = ast.unparse(tree)
        for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - found.keys():
            value = function.__globals__.get(name)
            if hasattr(value, "fn"):
                pending.append(value)
            elif isinstance(value, tl.constexpr) and name != "INTERPRETED":  # false wherever kernels are compiled
                found[name] = repr(value.value)
    return hashlib.sha256("\n".join(f"{name}: {found[name]}" for name in sorted(found)).encode()).hexdigest()


def record_resources(path):
    """Compile the forward kernel as `flash_attention(block_q=, block_k=)` launches it, and write JSON to `path`.

    Rows that the file already has, of the same kernel and Triton, are kept: an interrupted run continues, and a GPU
    that is new in `hardware` adds to the file. As many compilers run at a time as there are cores. A row takes about a
    second, and up to 40 for sm_75, whose products are unrolled. Raises RuntimeError if one does not compile.
    """
    runtime.choose()  # interpreted: this process reads kernels, and others compile them
    import triton

    from tools.compiled import shipped

    path = Path(path)
    header = {"triton": triton.__version__, "kernel_sha256": kernel_sha256(), "columns": list(COLUMNS)}
    before = json.loads(path.read_text()) if path.exists() else {}
    rows = {tuple(row[:8]): row for row in before["rows"]} if header.items() <= before.items() else {}

    batches = []
    for shape in itertools.product(ARCHS, DTYPES, HEAD_DIMS, (False, True)):
        arch, dtype, head_dim, causal = shape
        pairs = [{"block_q": q, "block_k": k} for q, k in itertools.product(BLOCK_SIZES, repeat=2)]
        configs = [shipped(head_dim, arch, dtype, causal, n_k=LENGTH, **pair) for pair in pairs]
        missing = [config for config in configs if (*shape, *config) not in rows]
        batches.append([Request(head_dim, arch, dtype, causal, config) for config in missing])
    batches = list(filter(None, batches))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, results in enumerate(pool.map(resources.forward_resources, batches), start=1):
            for request, used in zip(batches[done - 1], results, strict=True):
                key = (request.arch, request.dtype, request.head_dim, request.causal, *request.config)
                rows[key] = [*key, *astuple(used)[:5]]
            in_order = [rows[key] for key in sorted(rows)]
            records.write(path, header | {"date": records.today(), "rows": in_order})
            print(f"{done} of {len(batches)} batches, {len(rows)} rows", flush=True)


def rung_rows():
    """A row for each rung, length and mask of the record ladder-h100."""
    from courseware.bench.triton_ladder import RUNGS

    for rung, n, causal in itertools.product(RUNGS, (4096, 1024), (False, True)):
        compiled, keywords = compiled_rung(rung, (ROWS // n // 16, 16, n, HEAD_DIM), causal)
        block_q, block_k, *_ = resources.resources_of(compiled, keywords).config
        yield {
            "rung": rung.name, "n": n, "causal": causal, "programs": math.prod(keywords["grid"]),
            "block_q": block_q, "block_k": block_k, **used_by(compiled),
            "loops": loops_of(instructions_of(compiled.asm["cubin"])),
        }  # fmt: skip


def hopper_rows():
    """A row for each rung of lesson 15 that was kept, and each of its head dimensions: fp16, without a mask."""
    from courseware.bench.hopper_ladder import rungs

    for rung, head_dim in itertools.product(rungs().values(), (64, 128)):
        if rung.kept:
            compiled, _ = compiled_rung(rung, (2, 2, LENGTH, head_dim), causal=False)
            yield {"rung": rung.name, "head_dim": head_dim, **used_by(compiled)}


def used_by(compiled):
    registers, stack_bytes = registers_and_stack(compiled.asm["cubin"])
    return {
        "num_warps": compiled.metadata.num_warps, "registers": registers, "stack_bytes": stack_bytes,
        "shared_bytes": compiled.metadata.shared,
    }  # fmt: skip


def compiled_rung(rung, shape, causal):
    """(the compiled kernel, the keywords of its launch) of a rung for an H100, in fp16."""
    import torch

    from course_lib.kernels import checks

    q = torch.empty(shape, dtype=torch.float16, device="meta")
    properties = SimpleNamespace(multi_processor_count=GPU["sms"])
    with (
        mock.patch.object(checks, "COMPILED", False),  # which would refuse tensors that are on no GPU
        mock.patch.object(torch.cuda, "get_device_properties", lambda device: properties),
        resources.compiling_for(90) as launches,
    ):
        rung.launch(q, q, q, causal=causal)
    return launches[-1]


def main(argv=None):
    parser = argparse.ArgumentParser("python -m tools.compiler_records", description=__doc__.splitlines()[0])
    parser.add_argument("record", choices=("resources", "rungs", "hopper-rungs"))
    parser.add_argument("--file", type=Path, help="to write, without it the committed one")
    options = parser.parse_args(argv)
    path = options.file or records.FOLDER / f"{options.record}.json"
    if options.record == "resources":
        record_resources(path)
    else:
        os.environ["TRITON_INTERPRET"] = "0"  # this process compiles, and there need be no GPU
        runtime.choose()
        import triton

        rows = list(rung_rows() if options.record == "rungs" else hopper_rows())
        records.write(path, {"triton": triton.__version__, "date": records.today(), "rows": rows})


if __name__ == "__main__":
    main()
