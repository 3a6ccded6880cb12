"""What the runner reports of a launch."""

import functools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from . import request

MAX_FINDINGS = 20


class Accesses(NamedTuple):
    """What all loads, or all stores, come to.

    requests: instructions of warps. bytes: of their active lanes. sectors: of 32 bytes, in device memory, each counted
    once for a request. passes: how often the banks of shared memory had to deliver. conflicts: those of the passes that
    are due to several words in one bank.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    passes: int = 0
    conflicts: int = 0

    def __add__(self, other):
        return Accesses(*map(sum, zip(self, other, strict=True)))


class Memory(NamedTuple):
    """Accesses to one array in device memory, or to all of shared memory."""

    loads: Accesses = Accesses()
    stores: Accesses = Accesses()


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a kernel. text: a sentence or two for whoever wrote it; code: the line in question.

    kind: "race", "unwritten", "out of bounds", "misaligned", "global variable", "barrier", "shuffle", "time limit",
        "division by zero", "stack overflow", "aborted" or "crash".
    line: its number. None where there is no one answer.
    """

    kind: str
    text: str
    code: str | None = None
    line: int | None = None

    def __str__(self):
        return self.text + (f"\n    {self.code}" if self.code else "")


@dataclass
class Report:
    """What one launch did.

    tensors: {name: Memory} of the arrays among the arguments. shared: Memory. barriers: __syncthreads that a block has
        passed, of all blocks. shuffles: and votes, of all warps.
    stack_bytes: of a thread's own variables, as the CPU's compiler lays them out; some 200 more than they have.
    findings: after a race or a read of unwritten memory, the kernel goes on; at any other finding it is stopped.
    complete: whether it ran to its end. If not, the counts are those of a part. printed: what it printed.
    """

    tensors: dict
    shared: Memory
    barriers: int
    shuffles: int
    stack_bytes: int
    findings: list
    complete: bool
    printed: str


def read(text, printed, source, program, arrays, block):
    """The Report of what the program wrote, as the headers and runner.cc have it.

    arrays: {name: array}, of the arguments. block: threads in x, y and z.
    """
    line_at = program.lines({int(place) for place in re.findall(r"@(\d+)", text)})
    named = [*arrays.items(), *((name, None) for name, *_ in program.shared)]
    for pattern, name in (
        (r"@(\d+)", lambda place: str(line_at[place])),
        (r"<(\d+)>", lambda thread: _thread(thread, block)),
        (r"{(\d+)}", lambda n: _array(*named[n])),
        (r"{(\d+) (-?\d+) (\d+)}", lambda n, offset, size: _element(*named[n], offset, size)),
    ):
        text = re.sub(pattern, lambda found, name=name: name(*map(int, found.groups())), text)
    rows = defaultdict(list)
    for row in text.splitlines():
        kind, *fields = row.split("\t")
        rows[kind].append(fields)

    totals = defaultdict(Accesses)
    for access, *numbers in rows["requests"]:
        size, array, count, *addresses = map(int, numbers)
        cost = _cost(array < 0, access, size, tuple(addresses))
        totals[array, access] += Accesses(*(count * number for number in cost))
    shared, *tensors = (Memory(totals[n, "load"], totals[n, "store"]) for n in range(-1, len(arrays)))
    told = "0", min((rank for rank, *_ in rows["found"] if rank != "0"), default="")
    # Where a signal came: the innermost line of the kernel.
    called = next((line for row in rows["callers"] for line in row if line != "0"), "0")
    findings = []
    for rank, line, kind, sentence in rows["found"]:
        number = int(line if line != "0" else called)
        if rank in told and number:
            code = source.splitlines()[number - 1].strip()
            findings.append(Finding(kind, f"Line {number}: {sentence}", code, number))
        elif rank in told:
            findings.append(Finding(kind, sentence))
    ((complete, *counts),) = (map(int, row) for row in rows["end"])
    tensors = dict(zip(arrays, tensors, strict=True))
    return Report(tensors, shared, *counts, findings[:MAX_FINDINGS], bool(complete), printed)


def _thread(number, block):
    x, y, z = block
    index = number % x, number // x % y, number // x // y
    return f"thread {index[: 3 if z > 1 else 2]}" if y > 1 or z > 1 else f"thread {number}"


def _array(name, values):
    return name if values is None else f"{name}, whose shape is {list(values.shape)}"


def _element(name, values, offset, size):
    """What lies in an array, `offset` bytes behind its beginning, where `size` bytes are accessed."""
    if values is None:
        return f"element {offset // size} of {name}"
    index, indices = offset // values.itemsize, []
    for extent in values.shape[:0:-1]:
        index, last = divmod(index, extent)
        indices.insert(0, last)
    return f"{name}{[index, *indices]}"  # the first index takes the excess


@functools.lru_cache(maxsize=1 << 14)
def _cost(in_shared, access, size, addresses):
    """The Accesses of one request. addresses: of its lanes, 0 for one that is off."""
    # Elements of less than a word are served as the words in which they lie.
    words, width = [(address if size >= 4 else address // 4 * 4) or None for address in addresses], max(size, 4)
    moved_bytes = size * sum(map(bool, addresses))
    if not in_shared:
        return Accesses(1, moved_bytes, len(request.sectors(words, width)))
    passes = len(request.passes(words, width, access))
    return Accesses(1, moved_bytes, 0, passes, request.conflicts(words, width, access))
