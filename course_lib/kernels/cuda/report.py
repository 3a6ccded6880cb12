"""What the runner reports of a launch, and the sentences in which it says what is wrong with a kernel."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

MAX_STATIC_SHARED_BYTES = 48 << 10  # nvcc compiles no more; dynamic shared memory may be larger
MAX_FINDINGS = 20
WARP = 32
SHARED, NOWHERE = -1, -2  # where the program writes the number of an array


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
    """Something that is wrong with a kernel. text: a sentence or two for whoever wrote it; code: the line in question.

    kind: "race", "unwritten", "out of bounds", "misaligned", "global variable", "barrier", "shuffle", "shared memory",
        "time limit", "division by zero", "stack overflow", "aborted", "printed too much" or "crash".
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

    tensors: {name: Memory} of the arrays among the arguments. shared: Memory. shared_bytes: of a block, in the arrays
        that it uses. barriers: __syncthreads that a block has passed, of all blocks. shuffles: and votes, of all warps.
    stack_bytes: of a thread's own variables, as the CPU's compiler lays them out; some 200 more than they have.
    findings: after a race or a read of unwritten memory, the kernel goes on; at any other finding it is stopped.
    complete: whether it ran to its end. If not, the counts are those of a part. printed: what it printed.
    """

    tensors: dict
    shared: Memory = field(default_factory=Memory)
    shared_bytes: int = 0
    barriers: int = 0
    shuffles: int = 0
    stack_bytes: int = 0
    findings: list = field(default_factory=list)
    complete: bool = False
    printed: str = ""


class Reader:
    """Makes a Report of what the program writes: names and lines of the source instead of addresses."""

    def __init__(self, source, program, arguments, shared, block):
        self.source_lines = source.splitlines()
        self.program, self.names, self.shared, self.block = program, list(arguments), shared, block
        self.arrays = [(name, value) for name, value in arguments.items() if isinstance(value, np.ndarray)]

    def read(self, rows, printed):
        of = defaultdict(list)
        for kind, *fields in rows:
            of[kind].append([int(text, 16) if text.startswith("0x") else text for text in fields])
        for index, wanted in of["refused"]:
            self._refuse(int(index), wanted)
        ((begin,),) = of["begin"]
        addresses = {field for rows in of.values() for row in rows for field in row if isinstance(field, int)}
        self.line_at = defaultdict(lambda: None, self.program.lines([x for x in addresses if x > begin], begin))

        report = Report({name: Memory() for name, _ in self.arrays}, printed=printed)
        for code, array, access, *counts in of["site"]:
            memory = report.shared if int(array) == SHARED else report.tensors[self.arrays[int(array)][0]]
            for accesses in (getattr(memory, access + "s"), memory.by_line[self.line_at[code], access]):
                accesses.add(*map(int, counts))
        ((complete, barriers, shuffles, stack_bytes, *used),) = of["end"]
        report.complete, report.barriers, report.shuffles = complete == "complete", int(barriers), int(shuffles)
        report.stack_bytes = int(stack_bytes)
        report.shared_bytes = sum(self.shared[int(index)][2] for index in used)
        report.findings = [
            *self._static_shared_memory(used),
            *self._races_between_warps_first(map(self._of_access, of["finding"])),
            *map(self._of_waiting, of["waiting"]),
            *map(self._of_lane, of["lane"]),
            *map(self._of_stop, of["stopped"]),
        ][:MAX_FINDINGS]
        return report

    def _refuse(self, index, wanted):
        if index == len(self.names):
            raise TypeError(f"the kernel takes more arguments than these {index}: {', '.join(self.names)}")
        if not wanted:
            raise TypeError(f"{self.names[index]} is one argument too many: the kernel takes {index}")
        raise TypeError(f"{self.names[index]} does not fit the kernel's parameter, which takes {wanted}")

    def _static_shared_memory(self, used):
        static_bytes = sum(self.program.shared[int(index)][2] or 0 for index in used)
        if static_bytes > MAX_STATIC_SHARED_BYTES:
            text = (
                f"The kernel declares {static_bytes:,} bytes of shared memory, and nvcc accepts at most "
                f"{MAX_STATIC_SHARED_BYTES:,}. More than that must be dynamic: extern __shared__."
            )
            yield Finding("shared memory", text)

    def _of_access(self, row):
        kind, code, block, thread, array, offset, size, access, *other = row
        line, (block, thread, array, offset, size) = self.line_at[code], map(int, (block, thread, array, offset, size))
        text = f"{self._thread(thread)} of block {block} {access}s {self._element(array, offset, size)}"
        if kind == "global variable":
            text = f"{self._thread(thread)} of block {block} stores to a variable outside the kernel. "
            text += "The runner counts accesses to shared memory and to arrays among the arguments only."
        elif kind == "out of bounds":
            text += f", outside {self._extent(array, offset)}."
        elif kind == "misaligned":
            text += f" and what follows, {size} bytes at once, from an address that is no multiple of {size}."
        elif kind == "unwritten":
            text += ", which no thread of the block has stored."
        else:
            other_code, other_block, other_thread, other_access = other
            text += f", which {self._thread(int(other_thread))}"
            text += f" of block {other_block}" if int(other_block) != block else ""
            text += f" {other_access}s in line {self.line_at[other_code]}"
            if int(other_block) != block:
                text += ". Blocks run in any order, and none can wait for another."
            elif int(other_thread) // WARP == thread // WARP:
                text += ", and nothing decides which is first. Both are in one warp: __syncwarp() would order them."
            else:
                text += ", and no barrier decides which is first."
        return self._finding(kind, text, line, block, thread)

    def _races_between_warps_first(self, findings):
        """Races within a warp only where the same lines do not race between warps, which takes a barrier to cure."""
        findings = list(findings)
        cured = {(finding.kind, finding.line) for finding in findings if "__syncwarp" not in finding.text}
        return [x for x in findings if "__syncwarp" not in x.text or (x.kind, x.line) not in cured]

    def _of_waiting(self, row):
        block, *groups = row
        parts, lines = [], []
        for state, line, count, first in (group.split(",") for group in groups):
            who = self._thread(int(first)) + (f" and {int(count) - 1} more" if count != "1" else "")
            verb = "waits" if count == "1" else "wait"
            parts.append({
                "exchange": f"{who} {verb} for other lanes of the warp in line {line}",
                "barrier": f"{who} {verb} at __syncthreads() in line {line}",
                "returned": f"{who} returned",
            }[state])  # fmt: skip
            if state != "returned":
                lines.append(int(line))
        kind = "shuffle" if any(group.startswith("exchange") for group in groups) else "barrier"
        rule = {
            "barrier": "All threads of a block that have not returned must reach the same barrier.",
            "shuffle": "All lanes that the mask names must take part, unless they have returned.",
        }[kind]
        return self._finding(kind, f"in block {block}, {', '.join(parts)}. {rule}", lines[0], int(block), None)

    def _of_lane(self, row):
        what, block, thread, line, other = row
        did = {
            "not in its own mask": "calls this with a mask that does not name its own lane",
            "its source takes no part": f"reads from lane {other}, which takes no part",
        }[what]
        text = f"{self._thread(int(thread))} of block {block} {did}."
        return self._finding("shuffle", text, int(line), int(block), int(thread))

    def _of_stop(self, row):
        kind, code, latest_call, block, thread = row
        did = {
            "time limit": "was running when the time limit was reached",
            "division by zero": "divides an integer by zero",
            "stack overflow": "has more variables than fit into its memory",
            "aborted": "failed an assertion",
            "printed too much": "printed more than the runner keeps",
        }.get(kind, "crashed")
        line = self.line_at[code] or self.line_at[latest_call]
        text = f"{self._thread(int(thread))} of block {block} {did}."
        return self._finding(kind, text, line, int(block), int(thread))

    def _finding(self, kind, text, line, block, thread):
        if not line:
            return Finding(kind, text, None, None, block, thread)
        return Finding(kind, f"Line {line}: {text}", self.source_lines[line - 1].strip(), line, block, thread)

    def _thread(self, number):
        x, y, z = self.block
        index = number % x, number // x % y, number // x // y
        return f"thread {index[: 3 if z > 1 else 2]}" if y > 1 or z > 1 else f"thread {number}"

    def _element(self, array, offset, size):
        """The name of what lies in an array, `offset` bytes behind its beginning."""
        if array == NOWHERE:
            return f"from address {offset % 2**64:#x}"
        if array == SHARED:
            name, begin = self._shared_array(offset)
            return f"element {(offset - begin) // min(size, 4)} of {name}"
        name, values = self.arrays[array]
        index, indices = offset // values.itemsize, []
        for extent in values.shape[:0:-1]:
            index, last = divmod(index, extent)
            indices.insert(0, last)
        return f"{name}{[index, *indices]}"  # the first index takes the excess

    def _extent(self, array, offset):
        if array == NOWHERE:
            return "every array"
        if array == SHARED:
            return self._shared_array(offset)[0]
        name, values = self.arrays[array]
        return f"{name}, whose shape is {list(values.shape)}"

    def _shared_array(self, offset):
        """Name and offset of the array in shared memory in which, or behind which, an offset lies."""
        return max((row for row in self.shared if row[1] <= offset), key=lambda row: row[1], default=self.shared[0])[:2]
