"""Compiles a kernel for an A100 or an H100: a script, because a process that interprets kernels cannot compile any.

`python compile_for_gpu.py NAME GPU` runs answer.py, in the current folder, and compiles its function NAME for the
arguments in arguments.json: parameter -> a type such as "*fp32", or the value of a constant. It prints as JSON why the
compiler refuses the kernel, with the line; if it does not, null for an A100, and for an H100 its `report`. Nothing but
Triton is imported: that alone takes most of the time.
"""

import json
import os
import re
import resource
import runpy
import subprocess
import sys
import tempfile
from collections import Counter

OPTIONS = {"num_warps": 4, "num_stages": 1}  # of what is compiled for an H100
OTHERS = "tl.max, tl.sum and the like"


def refusal_or_report(kernel, arguments, gpu):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, CompilationError

    constants = {p.name: arguments[p.name] for p in kernel.params if p.is_constexpr}
    types, target, how = arguments | dict.fromkeys(constants, "constexpr"), GPUTarget("cuda", 80, 32), {}
    source = ASTSource(kernel, types, constants)
    if gpu == "H100":  # with pointers and lengths that 16 divides, as a launch there finds them
        numbers = (place for place, p in enumerate(kernel.params) if str(types[p.name]).startswith(("*", "i")))
        source = ASTSource(kernel, types, constants, {(place,): [["tt.divisibility", 16]] for place in numbers})
        target, how = GPUTarget("cuda", 90, 32), {"options": OPTIONS}
    with open("answer.py") as file:
        written = file.read()
    try:
        compiled = triton.compile(source, target=target, **how)
    except CompilationError as error:
        own = cause = error
        while cause.__cause__ is not None:  # in a function that the kernel calls, perhaps one of Triton's own
            cause = cause.__cause__
            own = cause if isinstance(cause, CompilationError) and cause.src in written else own
        why = str(getattr(cause, "error_message", None) or cause).strip()
        return f"{why}\n  in the line:  {own.src.splitlines()[own.node.lineno - 1].strip()}"
    return report(compiled.asm["cubin"], written) if gpu == "H100" else None


def report(cubin, source):
    """Of a kernel: registers and bytes of stack of a thread; and `loops_of`, each with its "lines".

    These are [line of the source, its instructions], most first. OTHERS stands for Triton's own functions.
    """
    texts, line, lines = source.splitlines(), OTHERS, {}
    listing = output_of("nvdisasm", "-g", cubin)
    said = re.findall(r'//## File "([^"]*)", line (\d+)|^\s+/\*([0-9a-f]{4,})\*/', listing, re.MULTILINE)
    for file, number, address in said:
        if address:
            lines[address] = line
        else:
            line = texts[int(number) - 1].strip() if file.endswith("answer.py") else OTHERS
    registers, stack_bytes = registers_and_stack(cubin)
    loops = loops_of(instructions_of(cubin), lines)
    for loop in loops:
        loop["lines"] = loop["lines"].most_common()
    return {"registers": registers, "stack_bytes": stack_bytes, "loops": loops}


def registers_and_stack(cubin):
    """(registers, bytes of stack) of a thread of the first kernel in a cubin."""
    usage = re.search(r"REG:(\d+) STACK:(\d+)", output_of("cuobjdump", "-res-usage", cubin))
    return int(usage[1]), int(usage[2])


def instructions_of(cubin):
    """The machine code, as text."""
    return output_of("cuobjdump", "-sass", cubin)


def output_of(program, option, cubin):
    """What a program prints that Triton's package contains."""
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", program)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout


def loops_of(sass, lines=None):
    """What stands in the loops over key tiles, in their order: at most one without a mask, and one with it.

    sass: a listing by cuobjdump. A loop ends with a branch to an earlier address; those over key tiles are the ones
    with the fewest matrix products, or the longest where there is none. lines: {address: what to count it under}.
    """
    listed = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)([^;]*);", sass)
    places = {int(address, 16): place for place, (address, _, _) in enumerate(listed)}
    loops = []
    for end, (_, operation, operands) in enumerate(listed):
        target = re.search(r"0x([0-9a-f]+)\s*$", operands) if operation.startswith("BRA") else None
        start = places.get(int(target[1], 16), end) if target else end
        if start < end:
            operations = [operation for _, operation, _ in listed[start : end + 1]]
            names = Counter(operation.split(".")[0] for operation in operations)
            spilled = [re.search(r"\.(64|128)", name) for name in operations if name.startswith(("STL", "LDL"))]
            found = {"lines": Counter(lines.get(address) for address, *_ in listed[start : end + 1])} if lines else {}
            loops.append(
                found
                | {
                    "instructions": end + 1 - start, "products": names["HGMMA"] + names["HMMA"],
                    "unit": "wgmma" if names["HGMMA"] else "mma.sync", "barriers": names["BAR"],
                    "copies_ahead": names["LDGSTS"] + names["UTMALDG"],
                    "spilled_bytes": sum(int(width[1]) // 8 if width else 4 for width in spilled),
                }
            )  # fmt: skip
    with_products = [loop for loop in loops if loop["products"]]
    fewest = min((loop["products"] for loop in with_products), default=0)
    longest = max(loops, key=lambda loop: loop["instructions"])
    return [loop for loop in with_products if loop["products"] == fewest][:2] or [longest]


if __name__ == "__main__":
    _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (30 if most_s == resource.RLIM_INFINITY else min(30, most_s), most_s))
    name, gpu = sys.argv[1:]
    kernel = runpy.run_path("answer.py")[name]
    with open("arguments.json") as file:
        arguments = json.load(file)
    is_kernel = hasattr(kernel, "params")
    print(json.dumps(refusal_or_report(kernel, arguments, gpu) if is_kernel else "there is no @triton.jit above it"))
