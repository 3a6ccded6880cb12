"""The ladder of lesson 12's CUDA kernels, and what each rung's counts let us expect of its time.

cuda_rungs.toml lists the rungs. cuda_kernels.py times them on a GPU, and asks Nsight Compute for its counters.
"""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_lib.editing import edits_of
from course_lib.kernels.cuda import launches, runner


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


def counted(rung, M, N, d):
    """The runner's Report of a rung, thread by thread on this CPU, where its keys are not split."""
    (launch,) = rung.launches(M, N, d, sms=1, max_shared_bytes=runner.MAX_DYNAMIC_SHARED_BYTES)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((rows, d), dtype=np.float32) for name, rows in (("Q", M), ("K", N), ("V", N))}
    return runner.run(launch, arrays | {"output": np.empty((M, d), np.float32), "states": np.empty(1, np.float32)})
