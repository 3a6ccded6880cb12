"""What the runner reports of a launch, and the sentences in which it says what is wrong with a kernel."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

MAX_STATIC_SHARED_BYTES = 48 << 10  # nvcc compiles no more; dynamic shared memory may be larger


@dataclass
class Accesses:
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

    def add(self, *counts):
        for name, count in zip(self.__dataclass_fields__, counts, strict=True):
            setattr(self, name, getattr(self, name) + count)


@dataclass
class Memory:
    """Accesses to one array in device memory, or to all of shared memory.

    by_line: {(line, "load" or "store"): Accesses}.
    """

    loads: Accesses = field(default_factory=Accesses)
    stores: Accesses = field(default_factory=Accesses)
    by_line: dict = field(default_factory=lambda: defaultdict(Accesses))


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a kernel. text: a sentence for whoever wrote it.

    kind: "race", "out of bounds", "misaligned", "unwritten", "barrier", "shuffle", "shared memory", "time limit",
        "division by zero", "stack overflow", "aborted" or "crash".
    line: of the kernel's source. block: its number. thread: its number in the block. None where there is no one answer.
    """

    kind: str
    text: str
    line: int | None = None
    block: int | None = None
    thread: int | None = None

    def __str__(self):
        return self.text


@dataclass
class Report:
    """What one launch did.

    tensors: {name: Memory} of the arrays among the arguments. shared: Memory. shared_bytes: of a block.
    barriers: __syncthreads that a block has passed, of all blocks. shuffles: shuffles and votes, of all warps.
    findings: after a race or a read of unwritten memory, the kernel goes on; any other finding is its last.
    complete: whether it ran to its end. If not, the counts are those of a part. printed: what it printed.
    """

    tensors: dict
    shared: Memory = field(default_factory=Memory)
    shared_bytes: int = 0
    barriers: int = 0
    shuffles: int = 0
    findings: list = field(default_factory=list)
    complete: bool = False
    printed: str = ""


class Reader:
    """Makes a Report of the rows that the program writes: names instead of addresses, sentences instead of numbers."""

    def __init__(self, program, arguments, shared, block):
        self.program, self.names, self.shared, self.block = program, list(arguments), shared, block
        self.arrays = [(name, value) for name, value in arguments.items() if isinstance(value, np.ndarray)]

    def read(self, rows, printed):
        of = defaultdict(list)
        for kind, *fields in rows:
            of[kind].append([int(text, 16) if text.startswith("0x") else text for text in fields])
        for index, wanted in of["refused"]:
            self._refuse(int(index), wanted)
        report = Report({name: Memory() for name, _ in self.arrays}, printed=printed)
        addresses = {word for rows in of.values() for row in rows for word in row if isinstance(word, int)}
        self.line_at = self.program.lines(sorted(addresses))
        for code, array, access, *counts in of["site"]:
            memory = report.shared if array == "shared" else report.tensors[self.arrays[int(array)][0]]
            for accesses in (getattr(memory, access + "s"), memory.by_line[self.line_at[code], access]):
                accesses.add(*map(int, counts))
        for barriers, shuffles, complete, *touched in of["end"]:
            report.barriers, report.shuffles, report.complete = int(barriers), int(shuffles), complete == "complete"
            report.shared_bytes = sum(self.shared[int(index)][2] for index in touched)
            static_bytes = sum(self.program.shared[int(index)][2] or 0 for index in touched)
        if static_bytes > MAX_STATIC_SHARED_BYTES:
            report.findings.append(Finding("shared memory", (
                f"The kernel declares {static_bytes:,} bytes of shared memory. nvcc accepts at most "
                f"{MAX_STATIC_SHARED_BYTES:,}; beyond that it has to be dynamic (extern __shared__)."
            )))  # fmt: skip
        report.findings += map(self._of_access, of["finding"])
        report.findings += map(self._of_waiting, of["waiting"])
        report.findings += map(self._of_lane, of["lane"])
        report.findings += map(self._of_stop, of["stopped"])
        return report

    def _refuse(self, index, wanted):
        if index >= len(self.names):
            raise TypeError(f"the kernel takes more than these {len(self.names)} arguments: {', '.join(self.names)}")
        if wanted == "nothing":
            raise TypeError(f"the kernel takes {index} arguments, and {self.names[index]} is one more")
        raise TypeError(f"{self.names[index]} does not fit the kernel's parameter, which takes {wanted}")

    def _of_access(self, row):
        kind, code, block, thread, array, offset, size, access, *other = row
        line, block, thread, offset, size = self.line_at[code], int(block), int(thread), int(offset), int(size)
        who, what = self._thread(thread), self._element(array, offset, size)
        did = f"{self._line(line)}{who} of block {block} {access}s {what}"
        if kind == "out of bounds":
            text = f"{did}, outside {self._extent(array, offset)}."
        elif kind == "misaligned":
            text = (
                f"{did} and the elements after it, {size} bytes at once, from an address that {size} does not divide."
            )
        elif kind == "unwritten":
            text = f"{did}, which no thread of the block has stored before."
        else:
            text = did + self._race(*other, block, thread)
        return Finding(kind, text, line, block, thread)

    def _race(self, code, other_block, other_thread, other_access, block, thread):
        other_block, other_thread, line = int(other_block), int(other_thread), self.line_at[code]
        done = {"load": "loads", "store": "stores"}[other_access]
        if other_block != block:
            return (
                f", which {self._thread(other_thread)} of block {other_block} {done}{self._in_line(line)}. "
                "Blocks run in any order, and none can wait for another."
            )
        text = (
            f", which {self._thread(other_thread)} {done}{self._in_line(line)}, and no barrier decides which is first."
        )
        if thread // 32 == other_thread // 32:
            text += " Threads of one warp need one, too: __syncwarp()."
        return text

    def _of_waiting(self, row):
        block, *groups = row
        parts, line, kind = [], None, "barrier"
        for group in groups:
            state, at, *threads = map(int, group.split(","))
            who = self._thread(threads[0]) + (f" and {len(threads) - 1} more" if len(threads) > 1 else "")
            does = "wait" if len(threads) > 1 else "waits"
            if state == 2:
                parts.append(f"{who} returned")
                continue
            if state == 1:
                kind = "shuffle"
            where = ("at __syncthreads()", "for other lanes of the warp")[state]
            parts.append(f"{who} {does} {where} in line {at}")
            line = line or at
        rule = {
            "barrier": "All threads of a block that have not returned must reach the same barrier.",
            "shuffle": "All lanes that the mask names must take part, unless they have returned.",
        }[kind]
        return Finding(kind, f"{self._line(line)}in block {block}, {', '.join(parts)}. {rule}", line, int(block))

    def _of_lane(self, row):
        what, block, thread, line, other = row
        texts = {
            "not in its own mask": "exchanges values with a mask that does not name its own lane",
            "reads from a lane that takes no part": f"reads from lane {other}, which takes no part in the shuffle",
        }
        text = f"{self._line(int(line))}{self._thread(int(thread))} of block {block} {texts[what]}."
        return Finding("shuffle", text, int(line), int(block), int(thread))

    def _of_stop(self, row):
        kind, code, block, thread = row
        line = self.line_at[code]
        texts = {
            "time limit": "was still running when the time limit was reached",
            "division by zero": "divides an integer by zero",
            "stack overflow": "has more variables than fit on its stack",
            "aborted": "failed an assertion",
            "crash": "crashed",
        }
        text = f"{self._line(line)}{self._thread(int(thread))} of block {block} {texts[kind]}."
        return Finding(kind, text, line, int(block), int(thread))

    def _line(self, line):
        return f"Line {line}: " if line else ""

    def _in_line(self, line):
        return f" in line {line}" if line else ""

    def _thread(self, number):
        x, y, _ = self.block
        index = (number % x, number // x % y, number // x // y)
        index = index[: max(axis for axis in range(3) if axis == 0 or self.block[axis] > 1) + 1]
        return f"thread {index[0]}" if len(index) == 1 else f"thread {index}"

    def _element(self, array, offset, size):
        """The name of what lies in an array at an offset in bytes."""
        if array == "nowhere":
            return f"from address {offset % 2**64:#x}"
        if array == "shared":
            name, begin = self._shared_array(offset)
            return f"element {(offset - begin) // min(size, 4)} of {name}"
        name, values = self.arrays[int(array)]
        index, indices = offset // values.itemsize, []
        for extent in values.shape[:0:-1]:
            index, last = divmod(index, extent)
            indices.insert(0, last)
        return f"{name}{[index, *indices]}"  # the first index takes the excess

    def _extent(self, array, offset):
        if array == "nowhere":
            return "every array"
        if array == "shared":
            return self._shared_array(offset)[0]
        name, values = self.arrays[int(array)]
        return f"{name}, whose shape is {list(values.shape)}"

    def _shared_array(self, offset):
        """Name and offset of the array in shared memory that an offset lies in or behind."""
        name, begin, _ = [row for row in self.shared if row[1] <= offset][-1]
        return name, begin
