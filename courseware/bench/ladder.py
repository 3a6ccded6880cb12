"""The ladders of lesson 11 (Triton), 12 (CUDA) and 15 (Gluon): from a plain kernel to the shipped one, one idea a rung.

Each is a toml file, in the order of its lesson. A rung builds on the last one before it that was kept, and makes one
change: of an option of the launch (Triton), or of some lines of the source, as a diff (CUDA, Gluon). The kept diffs
lead one after the other to the shipped kernel, so that the source of a rung is the shipped file with the later diffs
undone. `timing.ladder_rows` times the rungs of any ladder.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from course_lib import kernels
from courseware.editing import edited_text, edits_of

KERNELS = Path(kernels.__file__).parent


@dataclass(frozen=True, eq=False)
class Rung:
    """One step of a worklog: one idea, and what it was expected to do before it was measured.

    idea, expected: some sentences. kept: whether later rungs build on it. builds_on: the name of a rung, None for the
    first. predicted_gain: the speed relative to that rung, for a "full" and a "causal" mask. timed_before: the masks
    with which something like it had been timed before its gain was counted; the count was left as it came out.
    kernel, options: of Triton, what is launched and the keywords of the launch. file, diff, alone, source: of CUDA and
    Gluon, a file of course_lib/kernels, the idea as a diff of it, and the rung's text. shuffles: of
    CUDA, that a warp makes for each score. launcher: a function of the rung, q, k, v and causal.
    """

    name: str
    launcher: Callable
    idea: str
    expected: str = ""
    kept: bool = True
    builds_on: str | None = None
    predicted_gain: dict | None = None
    timed_before: tuple = ()
    kernel: str = ""
    options: dict = field(default_factory=dict)
    file: str = ""
    diff: str = ""
    alone: bool = False
    source: str | None = None
    shuffles: int = 0

    def launch(self, q, k, v, *, causal=False):
        """o, of tensors that this ladder takes, with the scale 1/sqrt(head_dim)."""
        return self.launcher(self, q, k, v, causal=causal)


def read(path, launcher):
    """{name: Rung} of a ladder's toml file, in its order. What stands above the first rung holds for all of them."""
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    common = {key: value for key, value in written.items() if not isinstance(value, dict)}
    entries = {name: common | entry for name, entry in written.items() if name not in common}
    sources = {name: _source(name, entries) for name in entries}
    rungs, below = {}, None
    for name, entry in entries.items():
        options = {key: tuple(x) if isinstance(x, list) else x for key, x in entry.pop("change", {}).items()}
        entry |= {key: " ".join(entry[key].split()) for key in ("idea", "expected") if key in entry}
        if below:
            entry = {"kernel": below.kernel, "builds_on": below.name} | entry
            is_same = entry["kernel"] == below.kernel
            options = (below.options if is_same else {"config": below.options["config"]}) | options
        rungs[name] = Rung(name, launcher, options=options, source=sources[name], **entry)
        below = rungs[name] if rungs[name].kept else below
    return rungs


def _source(name, entries):
    """The text of a rung, None if it has no file.

    A rejected rung's diff changes the file as it is, and so does that of a kept one which says `alone = true`. Any
    other rung is the file with the diffs undone of the rungs that are kept after it.
    """

    def is_alone(entry):
        return entry.get("alone", not entry.get("kept", True))

    entry = entries[name]
    if not entry.get("file"):
        return None
    text = (KERNELS / entry["file"]).read_text(encoding="utf-8")
    if is_alone(entry):
        return edited_text(text, edits_of(entry["diff"]), name, entry["file"])
    names = list(entries)
    for later in reversed(names[names.index(name) + 1 :]):
        if entries[later].get("file") == entry["file"] and not is_alone(entries[later]):
            undone = {new: old for old, new in edits_of(entries[later].get("diff", "")).items()}
            text = edited_text(text, undone, later, entry["file"])
    return text
