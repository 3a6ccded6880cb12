"""Cycles of a key tile in the steady state, from what each resource does and what waits for what."""

import functools
import math
from numbers import Real

from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, case_of, show, single_finding
from courseware.exercises.lesson_15.producer_consumer import producer_consumer
from courseware.simulators.sm_simulator import Times, run_ring

WARM_UP, TILES = 24, 36  # 36 tiles are a whole number of periods, which have 1 to 4 tiles


def schedule(copy, latency, product, softmax, stages, consumers, next_first=False):
    """Cycles from one key tile to the next in the steady state, when many tiles go through a ring of stages.

    So many cycles pass until each of the consumers has done one tile more. A producer copies each tile into the next
    stage as soon as all consumers have handed that stage back: the copy engine is busy for copy cycles, and latency
    cycles later the tile has arrived. For each tile, every consumer needs product cycles of the tensor cores and then
    softmax cycles of arithmetic. The tensor cores serve one consumer at a time, and so does the arithmetic; the
    consumers take turns. A consumer hands a stage back when its product with the tile is done.
    next_first False: a consumer starts the product with the next tile when the softmax of this one is done.
    next_first True: it waits until the next tile has arrived and starts its product; then it waits for this tile's
        product, hands this tile's stage back, and computes this tile's softmax.
    All times are positive; consumers is 1 or 2. The result is a number, or infinity if no tile is ever handed back.

    >>> schedule(copy=400, latency=600, product=1000, softmax=600, stages=2, consumers=1)
    1600
    >>> schedule(copy=400, latency=600, product=1000, softmax=600, stages=2, consumers=1, next_first=True)
    1000
    """
    if next_first and stages == 1:
        return float("inf")
    busiest = max(copy, consumers * product, consumers * softmax)
    if next_first:
        return max(busiest, (copy + latency) / (stages - 1))
    round_trip = (copy + latency + consumers * product) / stages
    return max(busiest, round_trip, product + softmax)


@functools.lru_cache(maxsize=4096)
def simulated(copy, latency, product, softmax, stages, consumers, next_first):
    """The steady time by simulation of both jobs, operation by operation."""
    times = Times(copy, latency, product, softmax)
    cycles = []
    for tiles in (WARM_UP, WARM_UP + TILES):
        producer, consumer = producer_consumer(tiles, stages)
        consumer = next_first_consumer(tiles, stages) if next_first else consumer
        run = run_ring(producer, consumer, stages, consumers=consumers, times=times)
        if run.findings:
            return math.inf
        cycles.append(run.cycles)
    return (cycles[1] - cycles[0]) / TILES


def next_first_consumer(tiles, stages):
    def start(tile):
        return ("wait", "ready", tile % stages, tile // stages % 2), ("mma", tile % stages, tile)

    yield from start(0)
    for tile in range(tiles):
        ahead = tile + 1 < tiles
        if ahead:
            yield from start(tile + 1)
        yield from (("mma_wait", int(ahead)), ("arrive", "empty", tile % stages), ("softmax", tile))


def agrees_with_the_simulation(returned, **inputs):
    right = simulated(**inputs)
    if isinstance(returned, bool) or not isinstance(returned, Real):
        return single_finding("type", "the answer did not return a number", show(returned), show(right))
    if math.isclose(returned, right, rel_tol=1e-9):
        return None
    if math.isinf(right):
        return single_finding("halt", "in the simulation, no tile is ever handed back", show(returned), "infinity")
    if not math.isfinite(returned):
        text = f"the answer returned {show(returned)}"
        text += ", as if no tile were ever handed back: only next_first comes to a halt, and only with one stage"
        return single_finding("no number", text, show(returned), show(right))
    kind = "too few" if returned < right else "too many"
    text = f"{show(returned)} cycles a tile are {kind}"
    if (off := abs(returned / right - 1)) < 0.005:
        text += f", by {100 * off:.2g} %; a mean over many tiles is exact only if they are a whole number of rounds"
    text += f"\n{what_is_busy(right, **inputs)}"
    return single_finding(kind, text, show(returned), show(right))


def what_is_busy(cycles, copy, product, softmax, consumers, **_):
    """Which unit sets the pace in the simulation; if none does, something waits for something else."""
    units = {"the copy engine": copy, "the tensor cores": consumers * product, "the arithmetic": consumers * softmax}
    always = [unit for unit, busy in units.items() if busy == cycles]
    if always:
        return f"in the simulation, there is never a pause for {' and '.join(always)}"
    parts = ", ".join(f"{unit} {busy}" for unit, busy in units.items())
    return f"in the simulation, no unit is always busy, so waiting sets the pace; of {show(cycles)} cycles: {parts}"


case = case_of(schedule, consumers=1)
ahead = functools.partial(case, next_first=True)


RINGS = st.tuples(*[st.integers(1, 12)] * 4, st.integers(1, 4), st.integers(1, 2), st.booleans())
check = Checks(schedule, agrees_with_the_simulation, case, examples=25)

check("one consumer, and tiles that always wait for it", [(2, 1, 7, 5, 4), (3, 2, 9, 2, 3)])
check("copies that take longer than all the rest", [(20, 1, 7, 5, 4), (30, 2, 3, 8, 3), (15, 20, 5, 4, 4)])
check(
    "few stages: the time from a copy to the hand-back of its stage",
    [(6, 20, 4, 3, 1), (6, 20, 4, 3, 2), (5, 32, 7, 2, 3), (3, 50, 7, 1, 4), (1, 1, 9, 5, 1)],
)
check("two consumers share the tensor cores", [(2, 1, 8, 5, 4, 2), (3, 4, 11, 2, 4, 2)])
check("two consumers share the arithmetic", [(2, 1, 5, 9, 4, 2), (3, 4, 2, 7, 4, 2)])
check("a stage is handed back by the last consumer", [(6, 20, 5, 3, 1, 2), (6, 33, 5, 3, 2, 2)])
check("the next product first: it hides the softmax", [ahead(2, 1, 4, 9, 4), ahead(2, 1, 8, 3, 4, 2)])
check(
    "the next product first: the next tile has to be there before a stage is handed back",
    [ahead(5, 20, 4, 3, 2), ahead(4, 31, 3, 5, 3), ahead(3, 50, 2, 4, 4, 2), ahead(3, 40, 30, 4, 4)],
)
check("the next product first, with a single stage", [ahead(2, 1, 7, 5, 1), ahead(3, 9, 4, 2, 1, 2)])
check(
    "next_first is False if it is not given",
    [(2, 1, 7, 5, 4)],
    call="schedule(copy, latency, product, softmax, stages, consumers)",
)
check("any ring", [ahead(400, 600, 1000, 600, 2, 2), ahead(3, 14, 8, 1, 2), RINGS])

EXERCISE = Exercise(__file__, schedule, check, points=4, minutes=20, difficulty="hard")
