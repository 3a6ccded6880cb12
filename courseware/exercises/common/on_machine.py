"""What exercises on the memory machine share: the call, and what the machine has to say about it afterwards."""

import sys

import numpy as np

from course_lib.machine import HBMArray, Machine, Tile
from courseware.checks import Evidence, Finding, judging, show, single_finding


def on_machine(call, test):
    """The way of `Checks` for an answer on a memory machine, whose tests are test(machine, **names).

    call: makes `machine`, puts arrays in its HBM and calls the answer. The names are those of the inputs and of what
    the call defines. Before a test comes that the answer has stored every row of the arrays that were NaN.
    """

    def test_if_stored(_, machine, **names):
        return machine.unstored() or test(machine, **names)

    return judging(call, test_if_stored, Machine=WatchedMachine)


def own_work(test):
    """A test: the answer did all of the work, on tiles that it loaded, and then `test`."""
    return lambda machine, **names: machine.evidence() or test(machine, **names)


def compare_traffic(machine, allowed):
    """None if no tensor moved more bytes than `allowed`, {name: (read, write)}, and no other was put in HBM."""
    counted = machine.report().by_tensor
    findings = [
        Finding(name, "hbm", f"{name} is put in HBM beside what was given, and {moved.write_bytes:,} bytes written")
        for name, moved in counted.items()
        if name not in allowed
    ]
    for name, most in allowed.items():
        for kind, verb, moved, enough in zip(
            ("read", "written"), ("read from", "written to"), counted[name], most, strict=True
        ):
            if moved > enough:
                text = f"{moved:,} bytes are {verb} {name}, where {enough:,} are enough"
                findings.append(Finding(name, f"{kind} more", text))
    if not findings:
        return None
    wrong = {finding.part for finding in findings}
    return Evidence(
        tuple(findings), *(_shown({k: v for k, v in each.items() if k in wrong}) for each in (counted, allowed))
    )


def _shown(by_tensor):
    return "\n".join(
        f"{name:5}: {read:>7,} bytes read, {write:>7,} written" for name, (read, write) in by_tensor.items()
    )


class WatchedMachine(Machine):
    """A memory machine on which an answer cannot reach arrays unnoticed, nor let finished code work for it.

    made: the arrays that were NaN when they were put in HBM, by name. bypassed: names of the tensors and tiles whose
    arrays were touched from outside the machine. finished: the module of the course that made a load, if one did.
    """

    def __init__(self, *sram_bytes):
        super().__init__(*sram_bytes)
        self._given, self.made, self.bypassed, self.finished = {}, {}, [], ""

    def hbm(self, array, name=None):
        handle = super().hbm(array, name)
        if np.isnan(array).all():
            self.made[handle.name] = array
        self._given[handle.name] = array
        return _WatchedArray(self, array, handle.name)

    def load(self, handle, rows):
        frame = sys._getframe(1)
        while frame is not None and not self.finished:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(("course_lib.reference", "course_lib.kernels")):
                self.finished = module
            frame = frame.f_back
        return super().load(handle, rows)

    def _tile(self, array, name):
        tile = super()._tile(array, name)
        return _WatchedTile(tile._storage, array)

    def traces(self):
        """What an answer did: two that make the same mistake are recognised by it."""
        moved = {name: tuple(moved) for name, moved in self.report().by_tensor.items()}
        return *self.made.values(), moved

    def loads(self):
        """How often each row was loaded, {name: [rows, 1]}."""
        counts = {name: np.zeros((len(handle), 1), int) for name, handle in self._given.items()}
        for event in self.report().events:
            if event.kind == "load":
                counts[event.tensor][event.start : event.stop] += 1
        return counts

    def unstored(self):
        """Evidence of rows that are to be made and were never stored, or None."""
        stored = {name: np.zeros(len(array), bool) for name, array in self.made.items()}
        for event in self.report().events:
            if event.kind == "store" and event.tensor in stored:
                stored[event.tensor][event.start : event.stop] = True
        missing = {name: np.flatnonzero(~rows).tolist() for name, rows in stored.items() if not rows.all()}
        findings = [
            Finding(name, "not stored", f"these rows of {name} were never stored: {show(rows)}")
            for name, rows in missing.items()
        ]
        return Evidence(tuple(findings)) if findings else None

    def evidence(self):
        """Evidence that the work was not all done by the answer on tiles that it loaded, or None."""
        if self.bypassed:
            names = ", ".join(dict.fromkeys(name.split("[")[0] for name in self.bypassed))
            return single_finding("bypassed", f"the arrays of {names} were reached without the machine counting it")
        if self.finished:
            return single_finding("finished", f"the loads are made by a finished implementation, {self.finished}")
        return None


class _Watched:
    """Mixed into what holds an array: whoever reaches for `_array` from outside the machine's module is noted."""

    @property
    def _array(self):
        if sys._getframe(1).f_globals.get("__name__") != "course_lib.machine":
            self._watching.bypassed.append(self.name)
        return self._values

    @_array.setter
    def _array(self, array):
        self._values = array


class _WatchedArray(_Watched, HBMArray):
    _watching = property(lambda self: self._machine)


class _WatchedTile(_Watched, Tile):
    _watching = property(lambda self: self._storage.machine)

    def _compute(self, *arguments):
        result = super()._compute(*arguments)
        # A view shares its tile's storage and is made without the machine.
        return _WatchedTile(result._storage, result._array) if type(result) is Tile else result
