"""What the compiler makes of the kernels that the tests here ask about: remembered, because compiling takes minutes.

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
    "list_forward": ("masked_forward", "block_mask", "score_mods"),
    "list_dkdv": ("masked_backward", "masked_forward", "block_mask", "score_mods", "backward"),
    "list_dq": ("masked_backward", "masked_forward", "block_mask", "score_mods", "backward"),
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
    record = json.loads(FILE.read_text())
    return {
        Request(**{**row["request"], "config": _tuple(row["request"]["config"])}): Resources(
            **{**row["used"], "config": _tuple(row["used"]["config"])}
        )
        for row in record["rows"]
        if record["fingerprints"][row["request"]["kernel"]] == fingerprint(row["request"]["kernel"])
    }


def _tuple(config):
    return config and tuple(config)


def compiled(requests):
    """Request -> Resources: those that are not remembered are compiled, in one process."""
    unknown = [request for request in dict.fromkeys(requests) if request not in remembered()]
    return remembered() | (dict(zip(unknown, forward_resources(unknown), strict=True)) if unknown else {})


def main():
    runtime.choose()  # before the tests import Triton
    from tests.courseware.bench import (
        test_decode_resources,
        test_hopper_resources,
        test_resources,
        test_variant_resources,
    )

    modules = test_resources, test_decode_resources, test_variant_resources, test_hopper_resources
    requests = [request for module in modules for request in module.EVERY]
    rows = [json.dumps({"request": asdict(r), "used": asdict(used)}) for r, used in compiled(requests).items()]
    fingerprints, lines = json.dumps({kernel: fingerprint(kernel) for kernel in MODULES}), ",\n".join(rows)
    FILE.write_text(f'{{"fingerprints": {fingerprints}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
