"""What the compiler makes of the kernels that `test_resources` asks about: remembered, because compiling takes minutes.

    python -m tests.courseware.bench.compiled

writes compiled.json. What it says of a kernel counts as long as the kernel, what launches it and Triton are what they
were; otherwise the tests compile.
"""

import ast
import functools
import hashlib
import importlib.metadata
import json
from dataclasses import asdict
from pathlib import Path

from course_lib import runtime
from tools.resources import Request, Resources, forward_resources

FILE = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[3]
# Request.kernel -> the modules that it is made of; and what all of them use.
MODULES = {
    "forward": ("forward",), "dkdv": ("backward",), "dq": ("backward",),
    "hopper": ("hopper/forward",), "hopper_dkdv": ("hopper/backward", "hopper/forward"),
    "hopper_dq": ("hopper/backward", "hopper/forward"), "decode": ("decode",), "merge": ("decode",),
    "list_forward": ("masked_attention", "block_mask", "score_mods"),
    "list_dkdv": ("masked_attention", "block_mask", "score_mods", "backward"),
    "list_dq": ("masked_attention", "block_mask", "score_mods", "backward"),
}  # fmt: skip
SHARED = ("device", "launch", "configs")


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
    runtime.choose()  # before the tests import Triton
    from tests.courseware.bench.test_resources import EVERY

    rows = [json.dumps({"request": asdict(r), "used": asdict(used)}) for r, used in compiled(EVERY).items()]
    fingerprints, lines = json.dumps({kernel: fingerprint(kernel) for kernel in MODULES}), ",\n".join(rows)
    FILE.write_text(f'{{"fingerprints": {fingerprints}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
