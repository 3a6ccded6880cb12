"""A ring of stages between a producer and consumers whose operations are plain tuples: what lesson 15's exercises use.

One tile after the other is copied into the ring, and every consumer multiplies with it. `ready[stage]` is a barrier
that one arrival and the copy's bytes complete, `empty[stage]` one that an arrival of each consumer completes.

    ("wait", "ready", stage, parity)   ("arrive", "empty", stage)   ("expect", "ready", stage)   ("copy", stage, tile)
    ("mma", stage, tile)   ("mma_wait", pending)   ("softmax", tile)

`expect` arrives at ready[stage] and announces the bytes of one copy. `mma` starts the product with a tile, `mma_wait`
waits until at most `pending` products of the group are unfinished, and `softmax` uses the result of a tile's product.
"""

from dataclasses import dataclass

from course_lib.integers import python_integers

from .parts import Rates
from .simulator import SM, JobError, compute, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

COPY_BYTES = 1024  # of a tile: how many they are does not matter
FORMS = {
    "wait": ("barrier", "stage", "parity"), "arrive": ("barrier", "stage"), "expect": ("barrier", "stage"),
    "copy": ("stage", "tile"), "mma": ("stage", "tile"), "mma_wait": ("pending",), "softmax": ("tile",),
}  # fmt: skip


@dataclass(frozen=True)
class Times:
    """Cycles. copy: in which the engine is busy with one tile; latency: until the tile has arrived, after that.
    product: of the tensor cores for a tile and consumer; softmax: of the arithmetic for a tile and consumer."""

    copy: float = 400
    latency: float = 600
    product: float = 1000
    softmax: float = 600


@python_integers
def run_ring(producer, consumer, stages, *, consumers=1, times=Times()):
    """Simulate the two jobs, each a list of operations or a generator. Every consumer does the same. Returns a Run.

    Raises JobError for what is no operation.
    """
    sm = SM(Rates(1 / max(times.product, 1e-9), 1, 1, 1, COPY_BYTES / max(times.copy, 1e-9), times.latency))
    ring = sm.allocate_shared_memory("stage", stages, COPY_BYTES, readers=consumers)
    barriers = {"ready": sm.barriers("ready", stages, 1), "empty": sm.barriers("empty", stages, consumers)}
    # Two consumers go through the same operations, so a generator's are listed first.
    consumer = list(consumer)
    jobs = {"producer": _job("producer", producer, ring, barriers, times)}
    for i in range(consumers):
        name = f"consumer {i}" if consumers > 1 else "consumer"
        jobs[name] = _job(name, consumer, ring, barriers, times)
    return sm.run(jobs)


def _job(name, operations, ring, barriers, times):
    products = {}
    for place, operation in enumerate(operations):
        given = _checked(name, place, operation, len(ring))
        kind = operation[0]
        stage, tile = given.get("stage"), given.get("tile")
        if kind == "wait":
            yield mbarrier.wait(barriers[given["barrier"]][stage], given["parity"])
        elif kind == "arrive":
            yield mbarrier.arrive(barriers[given["barrier"]][stage])
        elif kind == "expect":
            yield mbarrier.expect(barriers[given["barrier"]][stage], COPY_BYTES)
        elif kind == "copy":
            yield tma.async_copy_global_to_shared(tile, barriers["ready"][stage], ring[stage])
        elif kind == "mma":
            products[tile] = yield warpgroup_mma(f"product {tile}", 1, {ring[stage]: tile})
        elif kind == "mma_wait":
            yield warpgroup_mma_wait(given["pending"])
        elif tile not in products:
            raise JobError(f"operation {place} of the {name}, {operation!r}: no product with tile {tile} was started")
        else:
            yield compute(f"softmax {tile}", instructions=times.softmax, of=[products[tile]])


def _checked(name, place, operation, stages):
    """{what: value} of an operation. Raises JobError with the operation, its place and what is wrong."""
    where = f"operation {place} of the {name}, {operation!r:.80}"
    if not isinstance(operation, tuple | list) or not operation or operation[0] not in FORMS:
        raise JobError(f"{where}: an operation is a tuple that begins with one of {', '.join(map(repr, FORMS))}")
    form = FORMS[operation[0]]
    if len(operation) != len(form) + 1:
        raise JobError(f"{where}: {operation[0]!r} takes {', '.join(form)}")
    given = dict(zip(form, operation[1:], strict=True))
    if given.get("barrier", "ready") not in ("ready", "empty"):
        raise JobError(f"{where}: the barriers are 'ready' and 'empty'")
    for what, value in given.items():
        if what != "barrier" and (isinstance(value, float) or not hasattr(value, "__index__")):
            raise JobError(f"{where}: {what} has to be a whole number")
        if what in ("tile", "pending") and value < 0:
            raise JobError(f"{where}: {what} cannot be less than 0")
    if not 0 <= given.get("stage", 0) < stages:
        raise JobError(f"{where}: the stages are 0 to {stages - 1}")
    if given.get("parity", 0) not in (0, 1):
        raise JobError(f"{where}: a parity is 0 or 1")
    return given
