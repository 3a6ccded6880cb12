"""What a simulated multiprocessor is made of, and what a run of it leaves behind."""

import itertools
from dataclasses import dataclass, field

from course_lib.hardware import GPUS

KINDS = (
    "early read", "overwrite", "never read", "extra arrival", "missed phase", "bytes", "deadlock", "unfinished",
    "runaway",
)  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """What one SM does in a cycle, and the cycles from the last byte's departure to its arrival in shared memory."""

    tensor_flops: float
    exps: float
    instructions: float  # of one lane each
    copy_bytes: float
    copy_latency: float

    @classmethod
    def of(cls, gpu):
        """The rates of a GPU of `hardware`, whose copies come from L2, when all SMs copy."""
        return cls(
            gpu.tensor_flops_per_cycle_per_sm, gpu.exps_per_cycle_per_sm, gpu.instructions_per_cycle_per_sm,
            gpu.l2_bytes_per_cycle / gpu.sms, gpu.l2_latency_cycles,
        )  # fmt: skip


H100 = Rates.of(GPUS["H100"])


@dataclass(eq=False)
class Stage:
    """A buffer in shared memory. readers: how many groups read each tile that is copied here."""

    name: str
    n_bytes: int
    readers: int = 1
    tile: object = None  # what it holds; None before the first copy, and while one is under way
    copying: object = None
    filled_by: tuple = ()  # (barrier, its phase) that says that the last copy has arrived
    read_by: set = field(default_factory=set)  # jobs that have read the tile
    products: list = field(default_factory=list)  # that read the tile

    def __str__(self):
        return self.name


@dataclass(eq=False)
class Barrier:
    """An mbarrier: a phase is complete when `count` arrivals have come and no bytes are missing; then the next begins.

    phase: number of the phase that is not complete yet, from 0; its parity is what jobs wait for.
    """

    name: str
    count: int
    phase: int = 0
    arrived: int = 0
    missing_bytes: int = 0
    who: list = field(default_factory=list)  # names of the jobs that arrived in this phase
    noticed: int = -1  # the last complete phase that some job has waited for
    waiting: list = field(default_factory=list)
    coming: dict = field(default_factory=dict)  # what those who arrived know, as of _Job.known
    known: dict = field(default_factory=dict)  # the same, up to the last complete phase

    def __str__(self):
        return self.name

    @property
    def lacks(self):
        parts = [f"{self.count - self.arrived} of {self.count} arrivals"] if self.arrived < self.count else []
        return " and ".join(parts + [f"{self.missing_bytes:,} bytes"] * (self.missing_bytes > 0))


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
    """A mistake: kind is one of KINDS; text says who did what, when, and where."""

    kind: str
    cycle: float
    job: str
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
