"""The simulated multiprocessor: planted mistakes are found, closed forms hold, and right programs are found right."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.hardware import GPUS
from courseware.simulators import sm_simulator
from courseware.simulators.sm_simulator import (
    H100,
    RUNGS,
    SM,
    JobError,
    Rates,
    attention,
    compute,
    mbarrier,
    predict,
    run_ring,
    simulate,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

PRODUCT = 2 * 64 * 128 * 128 / H100.tensor_flops
COPY = 128 * 128 * 2 / H100.copy_bytes
SOFTMAX = 64 * 128 / H100.exps + 64 * 128 / H100.instructions + 64 * 128 / H100.instructions  # exp, max, rescale


def changed(job, change, only=None):
    """The job with `change` applied to each operation: it gives the operations to carry out in its place.

    only: the group that it is applied to, of a consumer.
    """

    def wrapped(b, z, *w):
        operations, sent = job(b, z, *w), None
        while True:
            try:
                operation, sent = operations.send(sent), None
            except StopIteration:
                return
            for new in change(operation) if only in (None, *w[:1]) else [operation]:
                result = yield new
                sent = result if new[0] == "mma" else sent

    return wrapped


def on(kind, barrier, new):
    """A change of operations of a kind that concern a barrier, or one of a name; new(operation) -> operations."""

    def change(operation):
        hit = operation[0] == kind and any(str(part).startswith(barrier) for part in operation[1:])
        return new(operation) if hit else [operation]

    return change


def flipped(operation):
    return [(*operation[:2], 1 - operation[2])]


def dropped(_):
    return []


def twice(operation):
    return [operation, operation]


def expecting(n_bytes):
    return lambda operation: [(*operation[:2], operation[2] + n_bytes)]


class Later:
    """Remembers an operation and gives it out elsewhere: a pair of operations that has changed places."""

    def __init__(self, first, second):
        self.first, self.second, self.kept = first, second, None

    def __call__(self, operation):
        if operation[0] == self.first[0] and str(operation[1]).startswith(self.first[1]):
            self.kept = operation
            return []
        if self.kept and operation[0] == self.second[0] and str(operation[1]).startswith(self.second[1]):
            kept, self.kept = self.kept, None
            return [operation, kept]
        return [operation]


class HandBackEarly:
    """The arrival at k_empty of a stage comes before the wait for the product that reads it."""

    def __init__(self):
        self.held = []

    def __call__(self, operation):
        if operation[0] == "mma_wait":
            self.held.append(operation)
            return []
        held, self.held = self.held, []
        hands_back = any(str(part).startswith("k_empty") for part in operation[1:])
        return [operation, *held] if hands_back else [*held, operation]


def too_weak(before, after):
    return lambda operation: [("mma_wait", after) if operation == ("mma_wait", before) else operation]


MISTAKES = {
    "a consumer waits for the wrong phase": ("consumer", on("wait", "k_ready", flipped), "early read"),
    "a consumer does not wait for V": ("consumer", on("wait", "v_ready", dropped), "early read"),
    "the producer waits for the consumers' phase": ("producer", on("wait", "k_empty", flipped), "deadlock"),
    "the producer does not wait": ("producer", on("wait", "v_empty", dropped), "overwrite"),
    "no stage is handed back": ("consumer", on("arrive", "v_empty", dropped), "deadlock"),
    "one of two consumers hands nothing back": ("consumer 1", on("arrive", "k_empty", dropped), "deadlock"),
    "an arrival counts twice": ("consumer 0", on("arrive", "k_empty", twice), "extra arrival"),
    "a consumer arrives with two arrivals": (
        "consumer 0", on("arrive", "v_empty", lambda operation: [(*operation[:2], 2)]), "overwrite",
    ),
    "nothing is expected": ("producer", on("expect", "k_ready", dropped), "deadlock"),
    "too many bytes are expected": ("producer", on("expect", "v_ready", expecting(16)), "deadlock"),
    "too few bytes are expected": ("producer", on("expect", "v_ready", expecting(-16)), "bytes"),
    "bytes are expected twice": ("producer", on("expect", "k_ready", twice), "extra arrival"),
    "Q is not waited for": ("consumer", on("wait", "q_ready", dropped), "early read"),
    "the softmax does not wait for S": ("consumer", too_weak(1, 2), "early read"),
    "O is rescaled while its product is under way": ("consumer", too_weak(0, 1), "early read"),
    "K is handed back when its product is issued": ("consumer 0", HandBackEarly(), "overwrite"),
    "a copy is made twice": ("producer", on("copy", "k_ready", twice), "overwrite"),
    "a copy is left out": ("producer", on("copy", "v_ready", dropped), "deadlock"),
    "V is waited for behind its product": ("consumer 0", Later(("wait", "v_ready"), ("mma", "O")), "early read"),
    "the first turn is given to nobody": ("turns", on("wait", "turn[0]", flipped), "deadlock"),
    "a group keeps its turn": ("turns 0", on("arrive", "turn[1]", dropped), "deadlock"),
}  # fmt: skip


def simulated_with(monkeypatch, job, change):
    name, _, only = job.partition(" ")
    rung = "groups take turns" if name == "turns" else "next scores first"
    target = "producer" if name == "producer" else "consumer_next_first"
    monkeypatch.setattr(attention, target, changed(getattr(attention, target), change, int(only) if only else None))
    return simulate(rung, stages=2, key_tiles=8, query_tiles=2)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found_first_by_its_kind(mistake, monkeypatch):
    job, change, kind = MISTAKES[mistake]
    run = simulated_with(monkeypatch, job, change)
    assert run.findings[0].kind == kind, run.findings[0]
    assert all(finding.kind in sm_simulator.KINDS for finding in run.findings)


def test_the_changes_change_nothing_by_themselves(monkeypatch):
    run = simulated_with(monkeypatch, "consumer", lambda operation: [operation])
    assert not run.findings and run.cycles == simulate("next scores first", key_tiles=8, query_tiles=2).cycles


def test_swapped_barriers_are_found(monkeypatch):
    """The copies of K complete the barriers of V, and the other way round: equally many bytes, at another time."""
    plain = attention.producer

    def swapped(b, z):
        k_stages = set(map(id, b.k_smem))
        for operation in plain(b, z):
            if operation[0] == "copy" and operation[3] not in b.q_smem:
                stage = operation[3]
                place = (b.k_smem if id(stage) in k_stages else b.v_smem).index(stage)
                other = (b.v_ready if id(stage) in k_stages else b.k_ready)[place]
                operation = ("copy", operation[1], other, stage)
            yield operation

    monkeypatch.setattr(attention, "producer", swapped)
    assert simulate("a warp that fetches", key_tiles=4).findings[0].kind == "early read"


def two_jobs(producer, consumer, stages=2, count=1, rates=H100):
    """A run of two jobs, each of which gets (stages, ready, empty)."""
    sm = SM(rates)
    ready, empty = sm.barriers("ready", stages, 1), sm.barriers("empty", stages, count)
    shared = sm.allocate_shared_memory("K", stages, 4096), ready, empty
    return sm.run({"producer": producer(*shared), "consumer": consumer(*shared)})


def fetch(k, ready, empty, tiles=2):
    for tile in range(tiles):
        yield mbarrier.expect(ready[tile], 4096)
        yield tma.async_copy_global_to_shared(tile, ready[tile], k[tile])


def use(k, ready, empty, tiles=2, waits=True):
    for tile in range(tiles):
        yield mbarrier.wait(ready[tile], 0)
        yield warpgroup_mma(f"S {tile}", 1e6, {k[tile]: tile})
        if waits:
            yield warpgroup_mma_wait(0)


def test_a_right_pair_has_no_findings():
    assert not two_jobs(fetch, use).findings


@pytest.mark.parametrize("tiles, waits, kind", [(1, True, "never read"), (2, False, "unfinished")])
def test_what_is_left_undone_is_found_at_the_end(tiles, waits, kind):
    run = two_jobs(fetch, lambda *shared: use(*shared, tiles, waits))
    assert [finding.kind for finding in run.findings] == [kind]


def test_a_phase_that_nobody_waited_for_is_missed():
    def arrives(k, ready, empty):
        for _ in range(2):
            yield mbarrier.arrive(empty[0])

    run = two_jobs(lambda *_: iter(()), arrives)
    assert [finding.kind for finding in run.findings] == ["missed phase"]


def test_an_early_read_is_found_even_if_the_copy_was_quick_enough():
    def late(k, ready, empty):
        yield compute("something else", instructions=1e6)
        yield warpgroup_mma("S 0", 1e6, {k[0]: 0})
        yield warpgroup_mma_wait(0)

    run = two_jobs(lambda *shared: fetch(*shared, 1), late)
    assert [finding.kind for finding in run.findings] == ["early read"]
    assert "without having waited for phase 0 of ready[0]" in run.findings[0].text


def test_an_overwrite_is_found_even_if_the_product_was_quick_enough():
    def over(k, ready, empty):
        yield from fetch(k, ready, empty, 1)
        yield mbarrier.wait(empty[0], 0)
        yield mbarrier.expect(ready[0], 4096)
        yield tma.async_copy_global_to_shared(1, ready[0], k[0])

    def hands_back(k, ready, empty):
        yield mbarrier.wait(ready[0], 0)
        yield warpgroup_mma("S 0", 1, {k[0]: 0})
        yield compute("something else", instructions=1e6)
        yield mbarrier.arrive(empty[0])  # the product has long ended, but the group cannot know
        yield warpgroup_mma_wait(0)
        yield mbarrier.wait(ready[0], 1)
        yield warpgroup_mma("S 1", 1, {k[0]: 1})
        yield warpgroup_mma_wait(0)

    (finding,) = two_jobs(over, hands_back).findings
    assert finding.kind == "overwrite" and "may still read tile 0 there" in finding.text


def test_findings_name_job_operation_time_stage_and_barrier():
    producer = [("wait", "empty", 0, 0), ("expect", "ready", 0), ("copy", 0, 0)]
    consumer = [("wait", "ready", 0, 0), ("mma", 0, 0), ("mma_wait", 0)]
    first, second = run_ring(producer, consumer, 1).findings
    assert first.text == (
        "cycle 0: producer waits for empty[0], parity 0, since cycle 0, and nothing happens any more; "
        "empty[0] is in phase 0 and lacks 1 of 1 arrivals"
    )
    assert second.kind == "deadlock" and second.job == "consumer" and "ready[0], parity 0" in second.text
    (finding,) = run_ring(producer[1:], consumer[1:], 1).findings
    words = "cycle 0: consumer reads tile 0 from stage[0] (product 0), while the copy of tile 0 is under way"
    assert (finding.kind, finding.cycle, finding.text) == ("early read", 0, words)


@pytest.mark.parametrize("filled, holds", [([], "nothing yet"), ([0, 2], "tile 2")])
def test_a_stage_that_holds_something_else_is_read_early(filled, holds):
    def fill(k, ready, empty):
        for tile in filled:
            yield mbarrier.expect(ready[tile // 2], 4096)
            yield tma.async_copy_global_to_shared(tile, ready[tile // 2], k[tile // 2])

    def reads_the_other(k, ready, empty):
        for tile in filled:
            yield mbarrier.wait(ready[tile // 2], 0)
        yield warpgroup_mma("S 0", 1, {k[1]: 0})
        yield warpgroup_mma_wait(0)

    first = two_jobs(fill, reads_the_other).findings[0]
    assert first.kind == "early read" and first.text.endswith(f"reads tile 0 from K[1] (S 0), which holds {holds}")


@pytest.mark.parametrize("says_so", [True, False])
def test_an_arrival_says_that_a_product_is_done_if_it_comes_after_the_wait(says_so):
    """The copier has waited for the consumer, which has waited for its product, or has not."""
    sm = SM()
    k, ready, turn = sm.allocate_shared_memory("K", 1, 4096), sm.barriers("ready", 1, 1), sm.barriers("turn", 1, 1)

    def copies():
        for tile in range(2):
            yield mbarrier.expect(ready[0], 4096)
            yield tma.async_copy_global_to_shared(tile, ready[0], k[0])
            yield mbarrier.wait(turn[0], tile)

    def reads():
        for tile in range(2):
            yield mbarrier.wait(ready[0], tile)
            yield warpgroup_mma(f"S {tile}", 1, {k[0]: tile})
            yield from (warpgroup_mma_wait(0), mbarrier.arrive(turn[0]))[:: 1 if says_so else -1]

    kinds = [finding.kind for finding in sm.run({"copies": copies(), "reads": reads()}).findings]
    assert kinds == ([] if says_so else ["overwrite"])


def test_an_endless_job_is_stopped():
    yielded = itertools.count()
    run = run_ring((("wait", "empty", 0, 1) for _ in yielded), [], 1)
    assert [finding.kind for finding in run.findings] == ["runaway"]
    assert f"stopped after {next(yielded) - 1:,} operations" in run.findings[0].text


def test_groups_that_compute_wait_for_each_other_s_exponentials():
    def job():
        yield compute("exp", exps=160, instructions=128)

    spans = SM().run({"one": job(), "other": job()}).spans
    assert [(span.job, span.start, span.end) for span in spans] == [("one", 0, 10), ("other", 10, 20)]
    (alone,) = SM().run({"one": iter([compute("exp", exps=16, instructions=1280)])}).spans
    assert (alone.start, alone.end) == (0, 10)


@pytest.mark.parametrize(
    "operation, words",
    [
        ("wait", "an operation is a tuple that begins with one of 'wait', 'arrive'"),
        (("fly", 0), "an operation is a tuple"),
        (("wait", "ready", 0), "'wait' takes barrier, stage, parity"),
        (("wait", "half", 0, 1), "the barriers are 'ready' and 'empty'"),
        (("wait", "ready", 2, 1), "the stages are 0 to 1"),
        (("wait", "ready", 0, 2), "a parity is 0 or 1"),
        (("copy", 0, 1.5), "tile has to be a whole number"),
        (("mma_wait", -1), "pending cannot be less than 0"),
        (("softmax", 0), "no product with tile 0 was started"),
    ],
)
def test_what_is_no_operation_is_told_with_its_place(operation, words):
    with pytest.raises(JobError, match="operation 1 of the producer") as error:
        run_ring([("wait", "ready", 0, 1), operation], [], 2)
    assert words in str(error.value)


@pytest.mark.parametrize("operation", [None, ("fly",), ("expect",), ("wait", None, 0), 3])
def test_the_simulator_refuses_what_is_no_operation(operation):
    with pytest.raises(JobError, match=r"cycle 0: job yielded"):
        SM().run({"job": iter([operation])})


def test_a_wait_takes_a_parity():
    sm = SM()
    (barrier,) = sm.barriers("b", 1, 1)
    with pytest.raises(JobError, match="takes a parity"):
        sm.run({"job": iter([mbarrier.wait(barrier, 2)])})


def test_an_unknown_rung_is_refused():
    with pytest.raises(ValueError, match="none of the rungs 'one group'"):
        simulate("warp speed")
    with pytest.raises(ValueError, match="two groups take turns"):
        simulate("groups take turns", consumers=1)


# Closed forms.


def test_a_serial_chain_takes_the_sum_of_its_parts():
    """One stage and one group: each tile's copies, both products and the softmax in turn."""
    tile = 2 * COPY + H100.copy_latency + 2 * PRODUCT + SOFTMAX
    assert predict("one group", stages=1).cycles_per_key_tile == pytest.approx(tile)


def test_the_tensor_cores_bound_two_groups():
    for rung in RUNGS[1:]:
        assert predict(rung).cycles_per_key_tile == pytest.approx(4 * PRODUCT)


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_slow_copies_or_slow_exponentials_set_the_pace(rung):
    slow_copies = Rates(H100.tensor_flops, H100.exps, H100.instructions, 4, H100.copy_latency)
    tile_bytes = 2 * 128 * 128 * 2
    assert predict(rung, stages=3, rates=slow_copies).cycles_per_key_tile == pytest.approx(tile_bytes / 4)
    slow_exps = Rates(H100.tensor_flops, 2, H100.instructions, H100.copy_bytes, H100.copy_latency)
    paced = predict(rung, stages=3, rates=slow_exps).cycles_per_key_tile
    assert paced == pytest.approx(2 * 64 * 128 / 2)


def test_one_group_with_several_stages_waits_for_its_own_chain_or_for_copies():
    chain = 2 * PRODUCT + SOFTMAX
    assert 0.95 * 2 * COPY < chain < 2 * COPY, "64 rows are too few for the copies"
    assert predict("one group", stages=3).cycles_per_key_tile == pytest.approx(2 * COPY)
    quick = Rates(H100.tensor_flops, H100.exps, H100.instructions, 2 * H100.copy_bytes, H100.copy_latency)
    assert predict("one group", stages=3, rates=quick).cycles_per_key_tile == pytest.approx(chain)


def test_the_next_product_first_hides_the_softmax_of_a_single_group():
    """S of the next tile, then O of this one under the exponentials: max(O, max + exp), and then the rescale."""
    rows_and_exps = 64 * 128 / H100.instructions + 64 * 128 / H100.exps
    tile = PRODUCT + max(PRODUCT, rows_and_exps) + 64 * 128 / H100.instructions
    ample = Rates(H100.tensor_flops, H100.exps, H100.instructions, 1e6, 0)
    assert predict("next scores first", stages=3, consumers=1, rates=ample).cycles_per_key_tile == pytest.approx(tile)


def test_rates_of_the_h100():
    gpu = GPUS["H100"]
    assert gpu.sms * H100.tensor_flops * 1.83e9 == pytest.approx(gpu.fp16_tensor_tflops * 1e12, rel=0.001)
    assert gpu.sms * H100.copy_bytes * 1.755e9 == pytest.approx(8986e9, rel=0.001)
    assert gpu.sms * H100.instructions * 2 * 1.98e9 == pytest.approx(gpu.fp32_tflops * 1e12, rel=0.001)


@pytest.mark.parametrize("rung", RUNGS)
def test_the_tensor_cores_do_all_products_and_nothing_else(rung):
    run = simulate(rung, 64, 128, 3, key_tiles=5, query_tiles=2)
    groups = 1 if rung == "one group" else 2
    busy = sum(end - start for start, end in run.busy("tensor"))
    assert busy == pytest.approx(groups * 2 * 5 * 2 * PRODUCT / 2)
    idle = sum(end - start for start, end in run.bubbles("tensor"))
    first, last = run.busy("tensor")[0][0], run.busy("tensor")[-1][1]
    assert busy + idle == pytest.approx(last - first) and run.share("tensor") == pytest.approx(busy / run.cycles)
    for unit in ("tensor", "copy"):
        assert all(span.start < span.end <= run.cycles for span in run.spans if span.unit == unit)
    spans = sorted((s for s in run.spans if s.unit == "tensor"), key=lambda s: s.start)
    assert all(one.end <= other.start + 1e-6 for one, other in itertools.pairwise(spans))


def test_rungs_come_in_the_order_of_their_worth():
    shares = [predict(rung, 64, 128, 3).tensor_share for rung in RUNGS]
    assert shares[0] < shares[1] < shares[2] and shares[2] == pytest.approx(shares[3], rel=0.01)
    assert predict(RUNGS[2], stages=1).tensor_share < predict(RUNGS[2], stages=2).tensor_share


RATES = st.builds(
    Rates, st.floats(50, 1e5), st.floats(0.5, 1e3), st.floats(5, 1e4), st.floats(0.5, 1e4), st.floats(0, 1e5)
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(RUNGS), st.sampled_from([64, 128]), st.sampled_from([32, 64, 128]), st.integers(1, 4),
    st.integers(1, 7), st.integers(1, 3), st.integers(1, 2), RATES,
)  # fmt: skip
def test_right_programs_have_no_findings_at_any_rates(rung, d, block_k, stages, tiles, query_tiles, consumers, rates):
    consumers = 2 if rung == "groups take turns" else consumers
    run = simulate(rung, d, block_k, stages, tiles, query_tiles=query_tiles, consumers=consumers, rates=rates)
    assert not run.findings


def test_a_wait_lasts_until_the_arrival():
    sm = SM()
    (turn,) = sm.barriers("turn", 1, 1)

    def first():
        yield compute("work", instructions=1280)
        yield mbarrier.arrive(turn)

    def second():
        yield mbarrier.wait(turn, 0)
        yield compute("work", instructions=1280)

    run = sm.run({"first": first(), "second": second()})
    assert run.cycles == pytest.approx(20) and not run.findings
    (waited,) = [span for span in run.spans if span.unit == "wait"]
    assert waited == sm_simulator.Span("second", "wait", "turn[0], parity 0", 0, 10)


@pytest.mark.parametrize("rung", RUNGS)
def test_programs_share_the_tensor_cores_and_the_copies(rung):
    """Each copies tiles of its own; where the copies are not the limit, three fill what one leaves idle."""
    ample = Rates(H100.tensor_flops, H100.exps, H100.instructions, 1e6, 0)
    alone, three = (predict(rung, 64, stages=3, programs=n, rates=ample) for n in (1, 3))
    groups = 1 if rung == "one group" else 2
    least = groups * max(PRODUCT, 64 * 128 / H100.exps)  # both products of a tile with d = 64, or its exponentials
    assert three.cycles_per_key_tile == pytest.approx(3 * least, rel=0.02) and alone.cycles_per_key_tile >= least
    slow_copies = Rates(H100.tensor_flops, H100.exps, H100.instructions, 4, H100.copy_latency)
    paced = predict(rung, programs=3, stages=3, rates=slow_copies).cycles_per_key_tile
    assert paced == pytest.approx(3 * 2 * 128 * 128 * 2 / 4, rel=0.01)
    run = simulate(rung, key_tiles=4, programs=2)
    assert not run.findings and run.shared_bytes == 2 * simulate(rung, key_tiles=4).shared_bytes
