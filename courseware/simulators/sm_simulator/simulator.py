"""One streaming multiprocessor (SM) of a Hopper GPU, simulated on a CPU: warp groups with jobs, and what they share.

A job is a generator that yields operations, one after the other, as a Gluon kernel's warp group carries them out:

    mbarrier.expect(barrier, n_bytes)      one arrival, and so many bytes that copies have to bring
    mbarrier.arrive(barrier)               one arrival
    mbarrier.wait(barrier, phase)          until the phase of this parity, 0 or 1, is complete
    tma.async_copy_global_to_shared(tile, barrier, stage)
    warpgroup_mma(what, flops, reads)      starts a product of matrices; `yield` gives a token for its result
    warpgroup_mma_wait(pending)            until no more than so many products of this group are unfinished
    compute(what, exps, instructions, maxima, of)    arithmetic; the group goes on when it is done. of: tokens it uses
    tma.async_copy_shared_to_global(n_bytes)

Time is in clock cycles. There is one engine for copies, one queue for the tensor cores, and one each for the units that
compute exponentials, those that find maxima, and the lanes that carry out instructions. All groups share them, and each
serves what it is asked for in the order of asking. A copy arrives a latency after it has left the engine. Issuing an
operation takes no time.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field

from .parts import H100, Barrier, Finding, Product, Run, Span, Stage

MAX_OPERATIONS = 100_000  # of a job: one that yields more has an endless loop
MAX_FINDINGS = 50
COMPUTING = "its own arithmetic"


class JobError(ValueError):
    """A job yielded what is no operation. The message says which job, when, and what."""


class mbarrier:
    """The operations on a Barrier, as Gluon names them."""

    expect = staticmethod(lambda barrier, n_bytes: ("expect", barrier, n_bytes))
    arrive = staticmethod(lambda barrier, count=1: ("arrive", barrier, count))
    wait = staticmethod(lambda barrier, phase: ("wait", barrier, phase))


class tma:
    """Copies between device memory and shared memory."""

    async_copy_global_to_shared = staticmethod(lambda tile, barrier, stage: ("copy", tile, barrier, stage))
    async_copy_shared_to_global = staticmethod(lambda n_bytes: ("store", n_bytes))


def warpgroup_mma(what, flops, reads):
    """reads: {stage: tile that it is to hold}."""
    return "mma", what, flops, reads


def warpgroup_mma_wait(pending=0):
    return "mma_wait", pending


def compute(what, *, exps=0, instructions=0, maxima=0, of=()):
    return "compute", what, {"exps": exps, "instructions": instructions, "maxima": maxima}, of


@dataclass(eq=False)
class _Job:
    name: str
    operations: Generator
    count: int = 0
    result: object = None  # what its `yield` gives
    products: list = field(default_factory=list)  # not waited for, the oldest first
    waits: str = ""  # for what, when it stands still
    since: float = 0.0
    known: Counter = field(default_factory=Counter)  # name of a job -> how many of its arrivals must have happened
    ended: bool = False


class SM:
    """The multiprocessor. Allocate stages and barriers, then `run` jobs that use them, once."""

    def __init__(self, rates=H100):
        self.rates, self.now = rates, 0.0
        self.stages, self.all_barriers = [], []
        self._events, self._order = [], itertools.count()
        self._ends = Counter()  # of what is queued, by unit
        self.spans, self.findings = [], []

    def allocate_shared_memory(self, name, n_stages, n_bytes, readers=1):
        """A ring of stages of n_bytes each, name[0] to name[n_stages - 1]."""
        ring = [Stage(f"{name}[{i}]", n_bytes, readers) for i in range(n_stages)]
        self.stages += ring
        return ring

    def barriers(self, name, n, count):
        """n barriers, initialised: each phase of each expects `count` arrivals."""
        made = [Barrier(f"{name}[{i}]", count) for i in range(n)]
        self.all_barriers += made
        return made

    def run(self, jobs):
        """Run all jobs, {name: generator}, from cycle 0 until nothing happens any more. Returns a Run."""
        made = [_Job(name, operations) for name, operations in jobs.items()]
        for job in made:
            self._later(0.0, self._go_on, job)
        while self._events:
            self.now, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)
        self._look_back(made)
        shared_bytes = sum(stage.n_bytes for stage in self.stages)
        return Run(self.now, tuple(self.spans), tuple(self.findings[:MAX_FINDINGS]), shared_bytes)

    def _later(self, when, act, *arguments):
        heapq.heappush(self._events, (when, next(self._order), act, arguments))

    def _queue(self, unit, work):
        """(start, end) of work for a unit that does one thing after the other, in the order of asking."""
        start = max(self.now, self._ends[unit])
        self._ends[unit] = start + work / getattr(self.rates, unit)
        return start, self._ends[unit]

    def _find(self, kind, text):
        self.findings.append(Finding(kind, f"cycle {self.now:,.0f}: {text}"))

    def _go_on(self, job):
        """Carry out the job's operations up to the first that it has to wait for."""
        if job.waits:
            if self.now > job.since and job.waits != COMPUTING:
                self.spans.append(Span(job.name, "wait", job.waits, job.since, self.now))
            job.waits = ""
        while True:
            try:
                operation = job.operations.send(job.result)
            except StopIteration:
                job.ended = True
                return
            job.result, job.count = None, job.count + 1
            if job.count > MAX_OPERATIONS:
                self._find("runaway", f"{job.name} was stopped after {MAX_OPERATIONS:,} operations")
                job.ended = True
                return
            handle = isinstance(operation, tuple) and operation and getattr(self, f"_on_{operation[0]}", None)
            if not handle:
                raise JobError(f"cycle {self.now:,.0f}: {job.name} yielded {operation!r}, which is no operation")
            try:
                waits = handle(job, *operation[1:])
            except (TypeError, AttributeError) as error:
                raise JobError(f"cycle {self.now:,.0f}: {job.name} yielded {operation!r}: {error}") from error
            if waits:
                job.waits, job.since = waits, self.now
                return

    def _on_expect(self, job, barrier, n_bytes):
        barrier.missing_bytes += n_bytes
        self._on_arrive(job, barrier, 1)

    def _on_arrive(self, job, barrier, count):
        if barrier.count > 1 and job.name in barrier.who:
            text = f"{job.name} arrives at {barrier} again in phase {barrier.phase}"
            self._find("extra arrival", f"{text}, which expects {barrier.count} groups")
        barrier.who.append(job.name)
        job.known[job.name] += 1
        barrier.coming |= job.known  # of each job, the greater number
        if barrier.arrive(count):
            text = f"{job.name} is arrival {barrier.arrived} at {barrier} in phase {barrier.phase}"
            self._find("extra arrival", f"{text}, which expects {barrier.count}")
        self._complete(barrier)

    def _complete(self, barrier):
        """Begin the barrier's next phase if this one is complete."""
        if barrier.surplus_bytes:
            self._find(
                "bytes", f"copies brought {barrier.surplus_bytes:,} bytes more than {barrier} was told to expect"
            )
            barrier.missing_bytes = 0
        if not barrier.end_phase():
            return
        complete = barrier.phase - 1
        if complete > 0 and not barrier.noticed(complete - 1):
            text = f"{barrier} completes phase {complete} before any group has waited for phase {complete - 1}"
            self._find("missed phase", text)
        barrier.who, barrier.known = [], barrier.coming.copy()
        waiting, barrier.waiting = barrier.waiting, []
        for job in waiting:
            self._notice(job, barrier)
            self._later(self.now, self._go_on, job)

    def _notice(self, job, barrier):
        barrier.notice(job.name)
        job.known |= barrier.known

    def _on_wait(self, job, barrier, phase):
        if phase not in (0, 1):
            raise JobError(f"{job.name} waits for phase {phase!r} of {barrier}: a wait takes a parity, 0 or 1")
        if not barrier.blocks(phase):
            return self._notice(job, barrier)
        barrier.waiting.append(job)
        return f"{barrier}, parity {phase}"

    def _on_copy(self, job, tile, barrier, stage):
        for product in stage.products:
            arrivals = job.known[product.job] + (product.job == job.name)  # of its own it knows the last
            if product.waited_for is not None and arrivals > product.waited_for:
                continue
            # Found whether or not the product was quick enough this time.
            how = "still reads" if product.end > self.now else "may still read"
            text = f"{job.name} copies tile {tile} into {stage} while {product.job} {how} tile {product.reads[stage]}"
            text += f" there ({product.what}, issued at cycle {product.issued:,.0f})"
            text += "" if product.end > self.now else ": nothing says that it has waited for this product"
            self._find("overwrite", text)
        if stage.copying is not None:
            text = f"{job.name} copies tile {tile} into {stage} while the copy of tile {stage.copying} is under way"
            self._find("overwrite", text)
        elif stage.tile is not None and len(stage.read_by) < stage.readers:
            self._unread("overwrite", stage, f"{job.name} copies tile {tile} over it")
        stage.tile, stage.copying, stage.read_by, stage.products = None, tile, set(), []
        stage.told_by = {barrier: barrier.phase}
        self._copy(job, f"copy to {stage}", stage.n_bytes, tile, lambda: self._copied(tile, barrier, stage))

    def _unread(self, kind, stage, how):
        n = len(stage.read_by)
        read = f"{n} of {stage.readers} groups have" if n else "anyone has"
        self._find(kind, f"{stage} holds tile {stage.tile}, and {how} before {read} read it")

    def _copied(self, tile, barrier, stage):
        if stage.copying == tile:
            stage.tile, stage.copying = tile, None
        barrier.missing_bytes -= stage.n_bytes
        self._complete(barrier)

    def _on_store(self, job, n_bytes):
        self._copy(job, "store O", n_bytes, None, lambda: None)

    def _copy(self, job, what, n_bytes, tile, then):
        start, end = self._queue("copy_bytes", n_bytes)
        arrives = end + self.rates.copy_latency
        self.spans.append(Span(job.name, "copy", what, start, arrives, tile))
        self._later(arrives, then)

    def _on_mma(self, job, what, flops, reads):
        product = Product(what, job.name, dict(reads), self.now)
        for stage, tile in product.reads.items():
            self._read(job, product, stage, tile)
        start, product.end = self._queue("tensor_flops", flops)
        tile = next(reversed(product.reads.values()), None)
        self.spans.append(Span(job.name, "tensor", what, start, product.end, tile))
        self._later(product.end, lambda: None)
        job.products.append(product)
        job.result = product

    def _read(self, job, product, stage, tile):
        text = f"{job.name} reads tile {tile} from {stage} ({product.what}), "
        if stage.copying is not None:
            self._find("early read", f"{text}while the copy of tile {stage.copying} is under way")
        elif stage.tile != tile:
            holds = "nothing yet" if stage.tile is None else f"tile {stage.tile}"
            self._find("early read", f"{text}which holds {holds}")
        elif job.name not in stage.told():
            # Found whether or not the copy was quick enough this time.
            ((barrier, phase),) = stage.told_by.items()
            self._find("early read", f"{text}without having waited for phase {phase} of {barrier}")
        stage.read_by.add(job.name)
        stage.products.append(product)

    def _on_mma_wait(self, job, pending):
        done = job.products[: max(0, len(job.products) - pending)]
        job.products = job.products[len(done) :]
        for product in done:
            product.waited_for = job.known[job.name]
        if done and done[-1].end > self.now:
            self._later(done[-1].end, self._go_on, job)
            return done[-1].what

    def _on_compute(self, job, what, work, of):
        for product in of:
            if product.waited_for is None:
                text = f"{job.name} uses the result of {product.what} ({what}), a product that it has not waited for"
                self._find("early read", text)
        parts = [self._queue(unit, amount) for unit, amount in work.items() if amount]
        if not parts:
            return None
        start, end = map(max, zip(*parts, strict=True))
        self.spans.append(Span(job.name, "compute", what, start, end))
        self._later(end, self._go_on, job)
        return COMPUTING

    def _look_back(self, jobs):
        """What can only be known at the end."""
        for job in jobs:
            if not job.ended:
                where = next((b for b in self.all_barriers if job in b.waiting), None)
                state = f"; {where} is in phase {where.phase} and lacks {where.lacks}" if where else ""
                text = f"{job.name} waits for {job.waits}, since cycle {job.since:,.0f}, and nothing happens any more"
                self._find("deadlock", text + state)
            elif job.products:
                names = ", ".join(product.what for product in job.products)
                self._find("unfinished", f"{job.name} ended without waiting for {names}")
        if not all(job.ended for job in jobs):
            return  # what follows from a deadlock tells nothing more
        for stage in self.stages:
            if stage.tile is not None and len(stage.read_by) < stage.readers:
                self._unread("never read", stage, "all jobs ended")
