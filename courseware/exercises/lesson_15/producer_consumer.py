"""The two jobs of a ring: one copies tiles into it, the other multiplies with them."""

import re

from hypothesis import strategies as st

from courseware.checks import Checks, Evidence, Exercise, Finding, case_of, named, show, single_finding
from courseware.simulators.sm_simulator import JobError, Times, run_ring

MAX_REPORTED_FINDINGS = 3


def producer_consumer(tiles, stages):
    """The operations of a producer and of a consumer for tiles 0 to tiles - 1: two lists, (producer, consumer).

    The tiles go through a ring of stages 0 to stages - 1, in turn; there may be fewer tiles than stages. Stage s has
        two barriers. A phase of ready[s] is complete after one arrival, when the bytes that were announced have come. A
        phase of empty[s] is complete after one arrival of each consumer. Operations are tuples:
    ("expect", "ready", stage): arrive at ready[stage], and announce the bytes of one tile: just before the copy of the
        tile or just after it.
    ("copy", stage, tile): start the copy of a tile into a stage. It goes on in the background, and completes the bytes
        of ready[stage].
    ("mma", stage, tile): start the product with a tile, in the background. Products of a consumer end in their order;
        each has a result of its own.
    ("mma_wait", pending): wait until at most so many of the consumer's own products are unfinished.
    ("softmax", tile): arithmetic with the result of the tile's product.
    ("wait", "ready" or "empty", stage, parity): wait until the last complete phase has that parity. Before phase 0 is
        complete, a wait for 1 returns at once.
    ("arrive", "ready" or "empty", stage): arrive at a barrier.
    One or two consumers run at the same time, each with the consumer's operations; each needs the product and the
        softmax of every tile. Nothing may be read early, overwritten or left undone, however long anything takes.
    No job may wait for what it does not need. The producer must start a copy as soon as the next stage is empty,
        whatever the consumers are doing. A consumer must hand a stage back as soon as its product with the tile is
        done, and must then do the tile's softmax, without waiting for the next tile.
    Waits that return at once may be left out: in the first round, those for empty. Stages need not be handed back at
        the end, when no copy waits for them.

    >>> producer, consumer = producer_consumer(tiles=1, stages=1)
    >>> producer
    [('wait', 'empty', 0, 1), ('expect', 'ready', 0), ('copy', 0, 0)]
    """
    producer, consumer = [], []
    for tile in range(tiles):
        stage = tile % stages
        parity = tile // stages % 2
        producer.append(("wait", "empty", stage, 1 - parity))
        producer.append(("expect", "ready", stage))
        producer.append(("copy", stage, tile))
        consumer.append(("wait", "ready", stage, parity))
        consumer.append(("mma", stage, tile))
        consumer.append(("mma_wait", 0))
        consumer.append(("arrive", "empty", stage))
        consumer.append(("softmax", tile))
    return producer, consumer


def in_words(consumers, times):
    who = "one consumer" if consumers == 1 else f"{consumers} consumers"
    return (
        f"with {who}, copies of {times.copy} + {times.latency} cycles, products of {times.product} and a softmax of "
        f"{times.softmax}"
    )


def simulated(returned, stages, consumers, copy, latency, product, softmax):
    """(the Run, the conditions in words), or (None, Evidence)."""
    times = Times(copy, latency, product, softmax)
    if not isinstance(returned, tuple | list) or len(returned) != 2 or not all(isinstance(x, list) for x in returned):
        return None, single_finding("type", "the answer did not return two lists of operations", show(returned))
    try:
        return run_ring(*returned, stages, consumers=consumers, times=times), in_words(consumers, times)
    except JobError as error:
        return None, single_finding("operation", str(error))


NOT_WAITED_FOR = "a product that it has not waited for"


def whose_mistake(is_wrong, returned, tiles, stages, **conditions):
    """The job whose Run is_wrong beside the other one as it should be, if it is one of the two; otherwise nothing."""
    producer, consumer = producer_consumer(tiles, stages)
    pairs = {"consumer": (producer, returned[1]), "producer": (returned[0], consumer)}
    wrong = [job for job, pair in pairs.items() if is_wrong(simulated(pair, stages, **conditions)[0])]
    return wrong[0] if len(wrong) == 1 else ""


def waited_too_little(consumer, text):
    """Said of an early result, if the consumer does wait between product and softmax, but for other products only."""
    tile = int(re.search(r"\(softmax (\d+)\)", text)[1])
    product, newer = None, 0
    for operation in consumer:
        if operation[0] == "mma":
            product, newer = ("started", 0) if operation[-1] == tile else (product, newer + 1)
        elif operation[0] == "mma_wait" and product and operation[1] > newer:
            n = operation[1]
            newest = "newest product" if n == 1 else f"{n} newest products"
            among = f"which is product {tile}" if n == 1 else f"product {tile} among them"
            return f"before softmax {tile}, mma_wait {n} lets the {newest} be unfinished, {among}"
        elif operation == ("softmax", tile):
            return ""
    return ""


def waits_before_handing_back(consumer):
    """The first stage whose next tile the consumer waits for while it still has one there, if there is one."""
    has = set()
    for kind, barrier, stage in ((*operation, None, None)[:3] for operation in consumer):
        if (kind, barrier) == ("wait", "ready"):
            if stage in has:
                return stage
            has.add(stage)
        elif (kind, barrier) == ("arrive", "empty"):
            has.discard(stage)
    return None


def works(returned, tiles, **conditions):
    run, said = simulated(returned, **conditions)
    if run is None:
        return said
    if run.findings:
        first = run.findings[0]
        shown = [f for f in run.findings if f.kind == first.kind][:MAX_REPORTED_FINDINGS]
        # Such a use of a result is told of no barrier, as other early reads are.
        kinds = ["early result" if f.text.endswith(NOT_WAITED_FOR) else f.kind for f in shown]
        told = [*zip(kinds, (f.text for f in shown), strict=True), ("conditions", said)]
        if kinds[0] == "early result" and (text := waited_too_little(returned[1], first.text)):
            told.insert(1, ("wait", text))
        if kinds[0] == "deadlock" and (stage := waits_before_handing_back(returned[1])) is not None:
            text = f"the consumer waits for the next tile of stage {stage} before it hands back the one that is there"
            told.append(("order", text))
        if wrong := whose_mistake(lambda run: run.findings, returned, tiles, **conditions):
            right = "producer" if wrong == "consumer" else "consumer"
            told.append(("job", f"this {right} works with a right {wrong}; this {wrong} fails with a right {right}"))
        return Evidence(tuple(Finding("", kind, text) for kind, text in told))
    done, consumers = [span.what for span in run.spans if span.unit == "compute"], conditions["consumers"]
    missing = [tile for tile in range(tiles) if done.count(f"softmax {tile}") != consumers]
    worked_on = {operation[-1] for job in returned for operation in job if operation[0] in ("copy", "mma", "softmax")}
    if extra := sorted(worked_on - set(range(tiles))):
        last = "tile 0 is the only one" if tiles == 1 else f"there are tiles 0 to {tiles - 1}"
        return single_finding("tiles", f"the jobs work on {named('tile', extra)}, and {last}, {said}")
    if missing:
        text = f"softmax of tile {missing[0]} was computed {done.count(f'softmax {missing[0]}')} times"
        return single_finding("softmax", f"{text}, not {consumers}, {said}")
    return None


def waits_for_too_much(producer, consumer):
    """What one of the jobs waits for, or does first, without need: of the first such place in each of them."""
    said, filled = [], set()
    for place, (kind, *operands) in enumerate(producer):
        if kind == "copy":
            filled.add(operands[0])
        elif kind == "wait" and operands[0] == "ready":
            said.append(f"the producer waits for ready[{operands[1]}], although it does not need the tile")
        elif kind == "wait" and operands[1] in filled:
            _, stage, tile = next((other for other in producer[place:] if other[0] == "copy"), ("", operands[1], 0))
            if stage != operands[1]:
                text = f"the producer waits for empty[{operands[1]}] before it copies tile {tile} into stage {stage}"
                said.append(text)
    said, waits, order, computed = said[:1], 0, [], set()
    for kind, *operands in consumer:
        if kind == "wait":
            waits += operands[0] == "ready"
        elif kind == "mma":
            order.append(operands)
        elif kind == "softmax":
            computed.add(operands[0])
            needed = next((i + 1 for i, (_, tile) in enumerate(order) if tile == operands[0]), waits)
            if waits > needed:
                text = f"the consumer waits for {waits} tiles to arrive before softmax {operands[0]}"
                return [*said, f"{text}, which needs {needed}"]
        elif kind == "arrive":
            late = [tile for stage, tile in order if stage == operands[1] and tile in computed]
            order = [(None, tile) if stage == operands[1] else (stage, tile) for stage, tile in order]
            if late:
                text = f"softmax {late[0]} comes before the hand-back of stage {operands[1]}, which it does not read"
                return [*said, text]
    return said


def is_quick(returned, tiles, stages, **conditions):
    if (evidence := works(returned, tiles, stages=stages, **conditions)) is not None:
        return evidence
    run, said = simulated(returned, stages, **conditions)
    best, _ = simulated(producer_consumer(tiles, stages), stages, **conditions)

    def is_slow(run):
        return run.cycles > 1.05 * best.cycles

    if not is_slow(run):
        return None
    text = f"the jobs are right, but they take {run.cycles:,.0f} cycles where {best.cycles:,.0f} are enough, {said}"
    busy, enough = (sum(span.end - span.start for span in each.spans if span.unit == "tensor") for each in (run, best))
    if busy > enough:
        text += f"\nthe tensor cores are busy for {busy:,.0f} cycles where {enough:,.0f} are enough"
    if wrong := whose_mistake(is_slow, returned, tiles, stages, **conditions):
        text += f"\nthe {wrong} holds things up, with a right {'producer' if wrong == 'consumer' else 'consumer'}, too"
    for reason in waits_for_too_much(*returned):
        text += f"\n{reason}"
    return single_finding("slow", text)


def paces(tiles, stages, consumers=1):
    """Copies, latency, products and softmax, each in turn by far the slowest."""
    slow = (4, 6, 10, 6), (90, 2, 3, 2), (3, 90, 2, 4), (2, 3, 90, 1), (3, 2, 1, 90)
    return [(tiles, stages, consumers, *cycles) for cycles in slow]


RINGS = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 2), *[st.integers(1, 30)] * 4)
sizes = {"consumers": 1, "copy": 4, "latency": 6, "product": 10, "softmax": 6}
case = case_of("tiles stages consumers copy latency product softmax", **sizes)
check = Checks("producer_consumer(tiles, stages)", works, case, examples=25)

check("one tile in a ring of one stage", [(1, 1), (1, 1, 2)])
check("as many tiles as stages: each is used once", [(2, 2), (4, 4), *paces(3, 3)])
check("fewer tiles than stages", [(1, 3), (2, 4), (2, 3, 2)])
check("more tiles than stages, at every pace", [(2, 1), (3, 2), *paces(7, 2), *paces(9, 3)])
check("one stage for all tiles, at every pace", paces(4, 1))
check("two consumers, at every pace", [*paces(5, 1, 2), *paces(9, 4, 2)], credit=4)
check(
    "no job waits for what it does not need: copies, hand-backs and softmaxes come as early as they can",
    [(9, 3, 1, 5, 5, 10, 6), (6, 1, 1, 4, 6, 10, 20), (8, 2, 2, 6, 12, 5, 9), (6, 1, 2, 4, 16, 10, 20)],
    test=is_quick,
)
check("any ring, at any pace", [(8, 3, 2, 7, 30, 5, 11), RINGS])

EXERCISE = Exercise(__file__, producer_consumer, check, points=6, minutes=25, difficulty="hard")
