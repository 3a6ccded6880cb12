"""What the compiler makes of the shipped kernels: remembered for `test_resources`, because compiling takes minutes.

    python -m tools.compiled

writes compiled.json. What it says of a kernel counts as long as the kernel, what launches it and Triton are what they
were; otherwise the tests compile.
"""

import ast
import functools
import hashlib
import importlib.metadata
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch

from course_lib.kernels.configs import select
from tools.resources import LENGTH, Request, Resources, forward_resources

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests/courseware/bench/compiled.json"
# Request.kernel -> the modules that it is made of; and what all of them use.
MODULES = {
    "forward": ("forward",), "dkdv": ("backward",), "dq": ("backward",),
    "hopper": ("hopper/forward",), "hopper_dkdv": ("hopper/backward", "hopper/forward"),
    "hopper_dq": ("hopper/backward", "hopper/forward"), "hopper_fused": ("hopper/backward", "hopper/forward"),
    "decode": ("decode",), "merge": ("decode",),
    "list_forward": ("masked_attention", "block_mask", "score_mods"),
    "list_dkdv": ("masked_attention", "block_mask", "score_mods", "backward"),
    "list_dq": ("masked_attention", "block_mask", "score_mods", "backward"),
}  # fmt: skip
SHARED = ("device", "launch", "configs")

# Compiling takes some seconds each: both ends, the usual ones, and one that is padded, which takes what 128 takes.
HEAD_DIMS = {"float16": (16, 64, 80, 128, 256), "float32": (16, 64, 128, 256)}


def shipped(head_dim, arch, dtype, causal, kernel="forward", n_k=LENGTH - 1, **blocks):
    """What a launch on such inputs takes."""
    return select(
        kernel, dtype=getattr(torch, dtype), head_dim=head_dim, causal=causal, capability=divmod(arch, 10),
        n_k=n_k, by_descriptor=arch >= 90 and kernel == "forward", **blocks,
    )  # fmt: skip


# Without the causal mask only where the tiles are others: in the same tiles, that is the same loop and one loop less.
FORWARD = [
    Request(d, arch, dtype, causal)
    for arch, dtype, causal in itertools.product((80, 90, 100), HEAD_DIMS, (True, False))
    for d in HEAD_DIMS[dtype]
    if causal or shipped(d, arch, dtype, False) != shipped(d, arch, dtype, True)
]
FORWARD += [Request(d, 75, dtype, True) for d in (64, 128, 256) for dtype in ("float16", "float32")]
BACKWARD = [
    Request(head_dim, arch, dtype, causal=True, kernel=kernel)
    for arch, dtype, head_dims in (
        (75, "float16", (64,)), (80, "float16", (64, 128)), (90, "float16", (32, 64, 128, 256)),
        (100, "float16", (64, 128)), *((arch, "float32", (64, 128, 256)) for arch in (80, 90, 100)),
    )
    for head_dim in head_dims
    for kernel in ("dkdv", "dq")
]  # fmt: skip
# Inputs too short, or too oddly aligned, for descriptors.
BACKWARD += [Request(64, 90, kernel=kernel, causal=kernel == "dkdv", by_descriptor=False) for kernel in ("dkdv", "dq")]
BF16 = [Request(128, arch, "bfloat16", True) for arch in (80, 90, 100)]
VARIANTS = [
    Request(d, arch, kernel=kernel, everything=everything)
    for arch, d, everything in itertools.product((80, 90), (64, 128), (False, True))
    for kernel in ("list_forward", "list_dkdv", "list_dq")
]
HOPPER = [
    Request(d, 90, dtype, causal, kernel=kernel)
    for d, dtype, causal in itertools.product((64, 128), ("float16", "bfloat16"), (False, True))
    for kernel in ("hopper", "hopper_dkdv", "hopper_dq", "hopper_fused")
]
# Decoding: (archs, dtype, head_dim, n_new, page_size, num_splits), with the pages and splits that each is launched
# with, not in every combination. 4 rows are one token of the 4 heads that share keys, 64 rows as many as a tile has.
NEWER = (80, 90, 100)
DECODE = [
    Request(d, arch, dtype, True, kernel="decode", n_new=n_new, page_size=page_size, num_splits=splits)
    for archs, dtype, d, n_new, page_size, splits in (
        ((75, *NEWER), "float16", 64, 1, None, 1), ((75, *NEWER), "float16", 128, 1, 16, 4),
        ((75,), "float16", 256, 1, 64, 1), ((75,), "float32", 256, 1, 256, 4),
        (NEWER, "float16", 80, 1, 64, 4), (NEWER, "float32", 128, 1, 64, 4), (NEWER, "float32", 256, 1, None, 1),
        (NEWER, "float16", 128, 16, 256, 1), (NEWER, "float16", 256, 16, None, 4),
    )
    for arch in archs
]  # fmt: skip
# The compiled caches have 4096 keys; on sm_90, longer ones are read in tiles of their own.
LONG_CACHE = shipped(128, 90, "float16", True, "decode", n_k=2**15)
DECODE += [
    replace(r, config=LONG_CACHE) for r in DECODE if (r.arch, r.dtype, r.head_dim) == (90, "float16", 128)
]  # fmt: skip
DECODE += [
    Request(d, arch, kernel="merge", num_splits=splits)
    for arch, (d, splits) in itertools.product((75, 80, 90, 100), ((128, 32), (256, 512)))
]
LAUNCHED = (*FORWARD, *BF16, *BACKWARD, *VARIANTS, *HOPPER, *DECODE)
# The registers are too few for these tiles.
SERIALIZED = Request(128, 90, causal=True, kernel="dkdv", config=(128, 128, 8, 2))
DIFFERENT = [
    Request(128, 90, causal=True),
    Request(64, 90, causal=True, config=(64, 32, 8, 1)),
    Request(128, 90),
    Request(128, 90, tail=False),
    Request(128, 90, by_descriptor=False),
]
EVERY = (*LAUNCHED, SERIALIZED, *DIFFERENT)


def code(path):
    """A file's lines, without comments and docstrings: the same for any Python."""
    text, docstrings = path.read_text(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = (line for number, line in enumerate(text.splitlines(), 1) if number not in docstrings)
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


@functools.cache
def fingerprint(kernel):
    """Of all that decides what the compiler makes of a Request of this kernel."""
    kernels = ROOT / "course_lib/kernels"
    texts = [importlib.metadata.version("triton"), (kernels / "configs.toml").read_text()]
    texts += [code(kernels / f"{module}.py") for module in (*MODULES[kernel], *SHARED)]
    texts += [code(ROOT / "tools/resources.py")]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@functools.cache
def remembered():
    """Request -> Resources, without those of a kernel that has changed."""

    def made(kind, fields):
        return kind(**fields | {"config": fields["config"] and tuple(fields["config"])})

    record = json.loads(FILE.read_text())
    return {
        made(Request, row["request"]): made(Resources, row["used"])
        for row in record["rows"]
        if record["fingerprints"][row["request"]["kernel"]] == fingerprint(row["request"]["kernel"])
    }


def compiled(requests):
    """Request -> Resources: those that are not remembered are compiled, in one process."""
    unknown = [request for request in dict.fromkeys(requests) if request not in remembered()]
    return remembered() | (dict(zip(unknown, forward_resources(unknown), strict=True)) if unknown else {})


def main():
    rows = [json.dumps({"request": asdict(r), "used": asdict(used)}) for r, used in compiled(EVERY).items()]
    fingerprints, lines = json.dumps({kernel: fingerprint(kernel) for kernel in MODULES}), ",\n".join(rows)
    FILE.write_text(f'{{"fingerprints": {fingerprints}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
