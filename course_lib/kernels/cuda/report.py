"""What the runner reports of a launch, and the sentences in which it says what is wrong with a kernel."""

import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from . import request

MAX_STATIC_SHARED_BYTES = 48 << 10  # nvcc compiles no more; dynamic shared memory may be larger
MAX_FINDINGS = 20
SHARED, NOWHERE = 0, -1  # in the place of an array's number; arguments are counted from 1


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


@dataclass
class Memory:
    """Accesses to one array in device memory, or to all of shared memory.

    by_line: {(line, "load" or "store"): Accesses}.
    """

    by_line: dict = field(default_factory=dict)

    @property
    def loads(self):
        return sum((accesses for (_, verb), accesses in self.by_line.items() if verb == "load"), Accesses())

    @property
    def stores(self):
        return sum((accesses for (_, verb), accesses in self.by_line.items() if verb == "store"), Accesses())


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a kernel. text: a sentence or two for whoever wrote it; code: the line in question.

    kind: "race", "unwritten", "out of bounds", "misaligned", "global variable", "barrier", "shuffle", "shared memory",
        "time limit", "division by zero", "stack overflow", "aborted" or "crash".
    line: its number. block: its number. thread: its number in the block. None where there is no one answer.
    """

    kind: str
    text: str
    code: str | None = None
    line: int | None = None
    block: int | None = None
    thread: int | None = None

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


# What the program calls a finding: its kind, and what the thread did.
BY_THREAD = {
    "race between warps": ("race", "{access}s {which}, and no barrier decides which is first"),
    "race between blocks": ("race", "{access}s {which}. Blocks run in any order, and none can wait for another"),
    "race within a warp": (
        "race", "{access}s {which}, and nothing decides which is first. Both are in one warp: __syncwarp() would order "
        "them",
    ),
    "unwritten": ("unwritten", "loads {element}, which no thread of the block has stored"),
    "out of bounds": ("out of bounds", "{access}s {element}, outside {array}"),
    "misaligned": (
        "misaligned", "{access}s {element} and what follows, {size} bytes at once, from an address that is no multiple "
        "of {size}",
    ),
    "global variable": (
        "global variable", "stores to a variable outside the kernel. The runner counts accesses to shared memory and "
        "to arrays among the arguments only",
    ),
    "not in its own mask": ("shuffle", "calls this with a mask that does not name its own lane"),
    "its source takes no part": ("shuffle", "reads from lane {lane}, which takes no part"),
    "time limit": ("time limit", "was running when the time limit was reached"),
    "Profiling timer expired": ("time limit", "was running when the time limit was reached"),
    "Floating point exception": ("division by zero", "divides an integer by zero"),
    "Aborted": ("aborted", "failed an assertion"),
    "stack overflow": ("stack overflow", "has more variables than fit into its memory"),
}  # fmt: skip
# Where a program has several of these mistakes, the later ones may follow from the first, and are not told.
ONE_AT_A_TIME = [{"race between warps", "race between blocks"}, {"race within a warp"}, {"unwritten"}]
BARRIER, EXCHANGE = 2, 3  # of State in device.h, where larger numbers are exchanges, too
WAITS = {EXCHANGE: "for other lanes of the warp", BARRIER: "at __syncthreads()"}
RULES = {
    EXCHANGE: ("shuffle", "All lanes that the mask names must take part, unless they have returned."),
    BARRIER: ("barrier", "All threads of a block that have not returned must reach the same barrier."),
}


class Reader:
    """Makes a Report of what the program writes: names and lines of the source instead of addresses."""

    def __init__(self, source, program, arguments, shared, block):
        self.source_lines, self.arguments = source.splitlines(), list(arguments.items())
        self.program, self.shared, self.block = program, shared, block

    def read(self, of, printed):
        """of: {kind: [(field, ...), ...]}, as threads.h, accesses.h and runner.cc write them."""
        fields = {field for row in of["requests"] + of["found"] for field in row if "0x" in field}
        self.line_at = self.program.lines({code for field in fields for code in field.split()})

        ((complete, barriers, shuffles, stack_bytes),) = (map(int, row) for row in of["end"])
        memories = [Memory() for _ in range(len(self.arguments) + 1)]
        for code, access, *numbers in of["requests"]:
            size, array, count, *addresses = map(int, numbers)
            one = _cost(array == SHARED, access, size, tuple(addresses))
            by_line, key = memories[array].by_line, (self.line_at[code], access)
            by_line[key] = by_line.get(key, Accesses()) + Accesses(*(count * number for number in one))
        told_of = next((names for names in ONE_AT_A_TIME if any(row[0] in names for row in of["found"])), set())
        not_told = set.union(*ONE_AT_A_TIME) - told_of
        findings = [self._of_thread(*row) for row in of["found"] if row[0] not in not_told]
        findings += map(self._of_waiting, of["waiting"])
        if (static_bytes := sum(size or 0 for *_, size in self.program.shared)) > MAX_STATIC_SHARED_BYTES:
            text = (
                f"The kernel declares {static_bytes:,} bytes of shared memory, and nvcc accepts at most "
                f"{MAX_STATIC_SHARED_BYTES:,}. More than that must be dynamic: extern __shared__."
            )
            findings.insert(0, Finding("shared memory", text))
        shared, *others = memories
        named = zip(self.arguments, others, strict=True)
        tensors = {name: memory for (name, value), memory in named if isinstance(value, np.ndarray)}
        found = findings[:MAX_FINDINGS]
        return Report(tensors, shared, barriers, shuffles, stack_bytes, found, bool(complete), printed)

    def _of_thread(self, name, places, block, thread, *more):
        words = {"lane": more[0]} if more else {}
        if len(more) > 1:
            array, offset, size, access, *other = more
            element, words["array"] = self._element(int(array), int(offset), int(size))
            words |= {"access": access, "element": element, "size": size}
            if other:
                code, other_block, other_thread, other_access = other
                who = self._thread(int(other_thread)) + (f" of block {other_block}" if other_block != block else "")
                words["which"] = f"{element}, which {who} {other_access}s in line {self.line_at[code]}"
        kind, did = BY_THREAD.get(name, ("crash", "crashed"))
        text = f"{self._thread(int(thread))} of block {block} {did.format(**words)}."
        # A place is a line, or an instruction and those that called it.
        lines = (self.line_at[place] if "0x" in place else int(place) for place in places.split())
        return self._finding(kind, text, next(filter(None, lines), None), int(block), int(thread))

    def _of_waiting(self, row):
        block, *threads = row
        groups = defaultdict(list)
        for thread, state_and_line in enumerate(threads):
            state, line = map(int, state_and_line.split(","))
            groups[-min(state, EXCHANGE), line].append(thread)
        parts = []
        for (state, line), group in sorted(groups.items()):
            who = self._thread(group[0]) + (f" and {len(group) - 1} more" if len(group) > 1 else "")
            wait = "waits" if len(group) == 1 else "wait"
            parts.append(f"{who} {wait} {WAITS[-state]} in line {line}" if -state in WAITS else f"{who} returned")
        (state, line), _ = min(groups.items())
        kind, rule = RULES[-state]
        return self._finding(kind, f"in block {block}, {', '.join(parts)}. {rule}", line, int(block), None)

    def _finding(self, kind, text, line, block, thread):
        if not line:
            return Finding(kind, text, None, None, block, thread)
        return Finding(kind, f"Line {line}: {text}", self.source_lines[line - 1].strip(), line, block, thread)

    def _thread(self, number):
        x, y, z = self.block
        index = number % x, number // x % y, number // x // y
        return f"thread {index[: 3 if z > 1 else 2]}" if y > 1 or z > 1 else f"thread {number}"

    def _element(self, array, offset, size):
        """What lies in an array, `offset` bytes behind its beginning, and what the array is called."""
        if array == NOWHERE:
            return f"from address {offset % 2**64:#x}", "every array"
        if array == SHARED:
            before = [row for row in self.shared if row[1] <= offset] or self.shared
            name, begin, _ = max(before, key=lambda row: row[1])  # in or behind which it lies
            return f"element {(offset - begin) // min(size, 4)} of {name}", name
        name, values = self.arguments[array - 1]
        index, indices = offset // values.itemsize, []
        for extent in values.shape[:0:-1]:
            index, last = divmod(index, extent)
            indices.insert(0, last)
        # The first index takes the excess.
        return f"{name}{[index, *indices]}", f"{name}, whose shape is {list(values.shape)}"


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
