"""The CUDA kernels of lesson 12: their ladder, its times beside PyTorch's, and a profiler's counters beside ours.

cuda_rungs.toml lists the rungs. `counts` runs one thread by thread on a CPU, `least_ms` says how fast its counts let it
be, `rows` times all on a GPU, and `counter_rows` asks Nsight Compute.
"""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_lib.editing import edits_of
from course_lib.hardware import GPUS
from course_lib.kernels.cuda import launches


@dataclass(frozen=True)
class Rung:
    """file: of kernels/cuda, which diff changes. fma_per_pair: in terms of D. idea: in a sentence."""

    name: str
    file: str
    idea: str
    fma_per_pair: str
    diff: str = ""
    kept: bool = True

    @functools.cached_property
    def source(self):
        """The CUDA C++ of this rung."""
        text = launches.source(self.file)
        if self.file == "plain_attention.cu" or not self.kept:
            return _edited(text, edits_of(self.diff), self.name)
        for later in reversed([rung for rung in rungs().values() if rung.file == self.file and rung.kept]):
            if later.name == self.name:
                return text
            text = _edited(text, {new: old for old, new in edits_of(later.diff).items()}, later.name)

    def launches(self, M, N, d, *, sms, max_shared_bytes):
        """As `launches.shipped` returns them."""
        if self.file == "plain_attention.cu":
            return launches.plain(M, N, d, self.source)
        splits = launches.MAX_SPLITS if self.name == "keys split" or not self.kept else 1
        gpu = {"sms": sms, "max_shared_bytes": max_shared_bytes}
        return launches.shipped(M, N, d, **gpu, text=self.source, max_splits=splits)


@functools.cache
def rungs():
    """{name: Rung}, in the order of the lesson."""
    text = Path(__file__).with_name("cuda_rungs.toml").read_text(encoding="utf-8")
    return {name: Rung(name, **{"diff": "", **keys}) for name, keys in tomllib.loads(text).items()}


def _edited(text, edits, name):
    for old, new in edits.items():
        if old and text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {text.count(old)} times, not once")
        text = text.replace(old, new) if old else text
    return text
