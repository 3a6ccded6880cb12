"""The ladder of lesson 15: `kernels/hopper/forward.py`, one idea after the other, which hopper_ladder.toml lists."""

import functools
import zlib
from pathlib import Path
from types import ModuleType

from courseware.bench import ladder
from courseware.editing import edited_text, run_source


def launch(rung, q, k, v, *, causal):
    return forward_of(rung)(q, k, v, causal=causal, scale=q.shape[-1] ** -0.5, store_lse=False)[0]


rungs = functools.cache(functools.partial(ladder.read, Path(__file__).with_suffix(".toml"), launch))


@functools.cache
def forward_of(rung):
    """A function as `hopper.forward.hopper_forward`."""
    return _forward_of(rung.source, rung.name)


def interpreted(edits, rung=None):
    """`hopper_forward` of the source of the kernel, or of a rung's, with these edits, {old: new}: on the CPU."""
    on_cpu = {
        "course_lib.kernels.gluon import": "courseware.simulators.gluon_emulator import",
        "runtime.multiprocessors(q.device)": "1",
    }
    source = rung.source if rung else (ladder.KERNELS / "hopper/forward.py").read_text(encoding="utf-8")
    return _forward_of(edited_text(source, on_cpu | edits, "edits", "forward.py"), "edited")


def _forward_of(source, name):
    module = ModuleType(f"{name} {zlib.crc32(source.encode()):08x}")
    run_source(source, f"<{module.__name__}>", module.__dict__)
    return module.hopper_forward
