"""What a simulated multiprocessor is made of, and what a run of it leaves behind."""

import itertools
from collections import Counter
from dataclasses import dataclass

from course_lib.hardware import GPUS

from .. import barriers


@dataclass(frozen=True)
class Rates:
    """What one SM does in a cycle, and the cycles from the last byte's departure to its arrival in shared memory."""

    tensor_flops: float
    exps: float
    instructions: float  # of one lane each, maxima among them
    maxima: float
    copy_bytes: float
    copy_latency: float


_GPU = GPUS["H100"]
# Copies come from L2, and all SMs copy.
H100 = Rates(
    _GPU.tensor_flops_per_cycle_per_sm, _GPU.exps_per_cycle_per_sm, _GPU.instructions_per_cycle_per_sm,
    _GPU.maxima_per_cycle_per_sm, _GPU.l2_bytes_per_cycle / _GPU.sms, _GPU.l2_latency_cycles,
)  # fmt: skip


class Stage(barriers.Buffer):
    """A buffer in shared memory. readers: how many groups read each tile that is copied here."""

    def __init__(self, name, n_bytes, readers):
        super().__init__()
        self.name, self.n_bytes, self.readers = name, n_bytes, readers
        self.tile = None  # what it holds; None before the first copy, and while one is under way
        self.copying = None
        self.read_by = set()  # jobs that have read the tile
        self.products = []  # that read the tile

    def __str__(self):
        return self.name


class Barrier(barriers.Barrier):
    def __init__(self, name, count):
        super().__init__(count)
        self.name = name
        self.who = []  # names of the jobs that arrived in this phase
        self.waiting = []
        self.coming = Counter()  # what those who arrived know, as of _Job.known
        self.known = Counter()  # the same, up to the last complete phase

    def __str__(self):
        return self.name


@dataclass(eq=False)
class Product:
    """The token of a product of matrices."""

    what: str
    job: str
    reads: dict
    issued: float
    end: float = 0.0
    waited_for: int | None = None  # how often its job had arrived anywhere by then


@dataclass(frozen=True)
class Span:
    """A line of the timeline. unit: "copy", "tensor", "compute", or "wait" for a job that stands still."""

    job: str
    unit: str
    what: str
    start: float
    end: float
    tile: object = None


@dataclass(frozen=True)
class Finding:
    """A mistake. kind: such as "early read". text: who did what, when, and where."""

    kind: str
    text: str


@dataclass(frozen=True)
class Run:
    """What came of it. cycles: until the last operation, copy and product had ended."""

    cycles: float
    spans: tuple[Span, ...]
    findings: tuple[Finding, ...]
    shared_bytes: int

    def busy(self, unit):
        """[(start, end)], in order, in which a unit works; what touches is one piece."""
        pieces = []
        for span in sorted((span for span in self.spans if span.unit == unit), key=lambda span: span.start):
            if pieces and span.start <= pieces[-1][1] + 1e-9:
                pieces[-1] = pieces[-1][0], max(pieces[-1][1], span.end)
            else:
                pieces.append((span.start, span.end))
        return pieces

    def share(self, unit):
        """The part of all cycles in which a unit works."""
        return sum(end - start for start, end in self.busy(unit)) / self.cycles if self.cycles else 0.0

    def bubbles(self, unit="tensor"):
        """[(start, end)] between a unit's first work and its last in which it has none."""
        pieces = self.busy(unit)
        return [(end, start) for (_, end), (start, _) in itertools.pairwise(pieces)]
