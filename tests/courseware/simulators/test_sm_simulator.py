"""The simulated multiprocessor: planted mistakes are found, closed forms hold, and right programs are found right."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.hardware import GPUS
from courseware.bench import records
from courseware.simulators import sm_simulator
from courseware.simulators.sm_simulator import H100, RUNGS, SM, compute, mbarrier, predict, run_ring, simulate, tma

# Cycles of a tile of 128 keys, of one group.
PRODUCT = 2 * 64 * 128 * 128 / H100.tensor_flops
COPY = 128 * 128 * 2 / H100.copy_bytes
EXPS, MAX, RESCALE = (64 * 128 / rate for rate in (H100.exps, H100.maxima, H100.instructions))
SOFTMAX = EXPS + MAX + RESCALE
AMPLE = replace(H100, copy_bytes=1e6, copy_latency=0)
SLOW_COPIES = replace(H100, copy_bytes=4)


FILL = [("expect", "ready", 0), ("copy", 0, 0), ("expect", "ready", 1), ("copy", 1, 1)]
USE = [("wait", "ready", 0, 0), ("mma", 0, 0), ("mma_wait", 0)]
USE_BOTH = [*USE, ("wait", "ready", 1, 0), ("mma", 1, 1), ("mma_wait", 0)]
AGAIN = [("wait", "empty", 0, 0), ("expect", "ready", 0), ("copy", 0, 2)]
# (producer, consumer, {kind: words} of all that is found)
FOUND = {
    "nothing": (FILL, USE_BOTH, {}),
    "a tile that nobody reads": (FILL, USE, {"never read": "stage[1] holds tile 1"}),
    "a product that nobody waits for": (FILL, USE_BOTH[:-1], {"unfinished": "without waiting for product 1"}),
    "a phase that nobody has waited for": (
        FILL, [*USE_BOTH, *2 * [("arrive", "empty", 0)]], {"missed phase": "empty[0] completes phase 1"}
    ),
    "another tile has been copied": (
        [("expect", "ready", 0), ("copy", 0, 3)], USE, {"early read": "stage[0] (product 0), which holds tile 3"}
    ),
    "a copy is under way": (FILL[:2], USE[1:], {"early read": "while the copy of tile 0 is under way"}),
    "a wait for the phase before, and for another barrier, though another job has waited for it": (
        [*FILL, USE[0]],
        [("wait", "ready", 0, 1), ("wait", "ready", 1, 0), ("mma", 0, 0), ("mma", 1, 1), ("mma_wait", 0)],
        {"early read": "without having waited for phase 0 of ready[0]"},
    ),
    # The product has long ended when its stage is handed back, but the group cannot know.
    "an arrival before the wait for a product that has ended": (
        [*FILL, *AGAIN],
        [*USE[:2], ("wait", "ready", 1, 0), ("arrive", "empty", 0), ("mma_wait", 0), ("mma", 1, 1),
         ("wait", "ready", 0, 1), ("mma", 0, 2), ("mma_wait", 0)],
        {"overwrite": "cycle 1,400: producer copies tile 2 into stage[0] while consumer may still read tile 0 there "
                      "(product 0, issued at cycle 1,000): nothing says that it has waited for this product"},
    ),
    "the result of a product that has ended, but was not waited for": (
        FILL, [*USE[:2], ("wait", "ready", 1, 0), ("softmax", 0), ("mma", 1, 1), ("mma_wait", 0)],
        {"early read": "uses the result of product 0 (softmax 0), a product that it has not waited for"},
    ),
    "everybody waits": (
        AGAIN[:1], [], {"deadlock": "producer waits for empty[0], parity 0, since cycle 0, and nothing happens any "
                                    "more; empty[0] is in phase 0 and lacks 1 of 1 arrivals"},
    ),
    "a copy is left out": (FILL[:1], USE, {"deadlock": "ready[0] is in phase 0 and lacks 1,024 bytes"}),
    "a copy is made twice": ([*FILL[:2], FILL[1]], USE, {"overwrite": "while the copy of tile 0 is under way"}),
    "bytes are expected twice": (
        [FILL[0], *FILL], USE_BOTH,
        {"extra arrival": "producer is arrival 2 at ready[0] in phase 0", "deadlock": "ready[0] is in phase 0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_is_told_with_names_and_times(name):
    producer, consumer, told = FOUND[name]
    found = run_ring(producer, consumer, 2, times=sm_simulator.Times(product=1)).findings
    assert [finding.kind for finding in found] == list(told)
    for finding in found:
        assert told[finding.kind] in finding.text


def test_two_arrivals_of_one_group_are_not_those_of_two():
    first, *_ = run_ring(FILL, [*USE_BOTH, *2 * [("arrive", "empty", 0)]], 2, consumers=2).findings
    assert first.kind == "extra arrival"
    assert first.text.endswith("consumer 0 arrives at empty[0] again in phase 0, which expects 2 groups")


def job(*operations):
    return (operation for operation in operations)


def test_more_bytes_than_were_announced():
    sm = SM()
    (stage,), (ready,) = sm.allocate_shared_memory("K", 1, 4096), sm.barriers("ready", 1, 1)
    copy, until_it_has_arrived = tma.async_copy_global_to_shared(0, ready, stage), compute("more", instructions=1e6)
    operations = copy, until_it_has_arrived, mbarrier.expect(ready, 4000), mbarrier.wait(ready, 0)
    finding, _ = sm.run({"job": job(*operations)}).findings
    assert finding.kind == "bytes" and "copies brought 96 bytes more than ready[0] was told to expect" in finding.text


def test_a_tile_that_one_of_two_groups_has_not_read():
    sm = SM()
    (stage,), (ready,) = sm.allocate_shared_memory("K", 1, 4096, readers=2), sm.barriers("ready", 1, 1)
    operations = []
    for tile in range(2):
        operations += [mbarrier.expect(ready, 4096), tma.async_copy_global_to_shared(tile, ready, stage)]
        operations += [mbarrier.wait(ready, tile), sm_simulator.warpgroup_mma(f"S {tile}", 1, {stage: tile})]
        operations += [sm_simulator.warpgroup_mma_wait(0)]
    first, last = sm.run({"job": job(*operations)}).findings
    assert (first.kind, last.kind) == ("overwrite", "never read")
    assert first.text.endswith("K[0] holds tile 0, and job copies tile 1 over it before 1 of 2 groups have read it")


def test_an_endless_job_is_stopped(monkeypatch):
    monkeypatch.setattr(sm_simulator.simulator, "MAX_OPERATIONS", 1000)
    run = run_ring((("wait", "empty", 0, 1) for _ in itertools.count()), [], 1)
    assert [finding.kind for finding in run.findings] == ["runaway"]
    assert "stopped after 1,000 operations" in run.findings[0].text


@pytest.mark.parametrize(
    "operation, words",
    [
        ("wait", "an operation is a tuple that begins with one of 'wait', 'arrive'"),
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
    with pytest.raises(sm_simulator.JobError, match="operation 1 of the producer") as error:
        run_ring([("wait", "ready", 0, 1), operation], [], 2)
    assert words in str(error.value)


def test_the_simulator_refuses_what_is_no_operation_or_no_rung():
    sm = SM()
    for operation in (None, ("fly",), ("wait", None, 0), mbarrier.wait(*sm.barriers("b", 1, 1), 2)):
        with pytest.raises(sm_simulator.JobError, match=r"cycle 0: job yielded|b\[0\]: a wait takes a parity"):
            SM().run({"job": job(operation)})
    with pytest.raises(ValueError, match="none of the rungs 'one group'"):
        simulate("warp speed")
    with pytest.raises(ValueError, match="two groups take turns"):
        simulate("groups take turns", consumers=1)


# Closed forms of the cycles that a tile of keys takes: (rung, options, cycles).
CHAIN = 2 * PRODUCT + SOFTMAX
FORMS = [
    # Copies, both products and the softmax in turn; with more stages, a group waits for its own chain or for copies.
    ("one group", {"stages": 1}, 2 * COPY + H100.copy_latency + CHAIN),
    ("one group", {"stages": 3}, max(CHAIN, 2 * COPY)),
    ("one group", {"stages": 3, "rates": AMPLE}, CHAIN),
    # S of the next tile, then O of this one under the exponentials: max(O, max + exp), and then the rescale.
    ("next scores first", {"stages": 3, "consumers": 1, "rates": AMPLE}, PRODUCT + max(PRODUCT, MAX + EXPS) + RESCALE),
    *((rung, {"stages": 3}, 4 * PRODUCT) for rung in RUNGS[1:]),
    *((rung, {"stages": 3, "rates": SLOW_COPIES}, 2 * 128 * 128 * 2 / 4) for rung in RUNGS[1:]),
    *((rung, {"stages": 3, "rates": replace(H100, exps=2)}, 2 * 64 * 128 / 2) for rung in RUNGS[1:]),
    # Each of three programs copies tiles of its own; where copies are not the limit, they fill what one leaves idle:
    # both products of a tile with d = 64, or its exponentials.
    *(
        (rung, {"head_dim": 64, "stages": 3, "programs": 3, "rates": AMPLE}, 3 * groups * max(PRODUCT, EXPS))
        for rung, groups in zip(RUNGS, (1, 2, 2, 2), strict=True)
    ),
    *((rung, {"stages": 3, "programs": 3, "rates": SLOW_COPIES}, 3 * 2 * 128 * 128 * 2 / 4) for rung in RUNGS),
]  # fmt: skip


@pytest.mark.parametrize("rung, options, cycles", FORMS)
def test_a_tile_takes_what_a_closed_form_says(rung, options, cycles):
    tolerance = 0.02 if "programs" in options else 1e-6
    assert predict(rung, **options).cycles_per_key_tile == pytest.approx(cycles, rel=tolerance)


def test_rates_of_the_h100():
    gpu = GPUS["H100"]
    assert gpu.sms * H100.tensor_flops * 1.83e9 == pytest.approx(gpu.fp16_tensor_tflops * 1e12, rel=0.001)
    measured = records.record("rates-h100")
    said = {"fma": H100.instructions, "max": H100.maxima, "exp2": H100.exps}
    assert {what: measured["per_clock"][what] for what in said} == pytest.approx(said, rel=0.02)
    assert measured["latency_clocks"]["L2"] == pytest.approx(H100.copy_latency, abs=1)
    assert gpu.sms * H100.instructions * 2 * 1.98e9 == pytest.approx(gpu.fp32_tflops * 1e12, rel=0.001)


@pytest.mark.parametrize("rung", RUNGS)
def test_the_tensor_cores_do_all_products_and_nothing_else(rung):
    run = simulate(rung, 64, 128, 3, key_tiles=5)
    groups = 1 if rung == "one group" else 2
    busy = sum(end - start for start, end in run.busy("tensor"))
    assert busy == pytest.approx(groups * 5 * 2 * PRODUCT / 2)
    idle = sum(end - start for start, end in run.bubbles("tensor"))
    first, last = run.busy("tensor")[0][0], run.busy("tensor")[-1][1]
    assert busy + idle == pytest.approx(last - first) and run.share("tensor") == pytest.approx(busy / run.cycles)
    spans = sorted((s for s in run.spans if s.unit == "tensor"), key=lambda s: s.start)
    assert all(one.end <= other.start + 1e-6 for one, other in itertools.pairwise(spans))


RATES = st.builds(
    sm_simulator.Rates,
    *(st.floats(*span) for span in ((50, 1e5), (0.5, 1e3), (5, 1e4), (2, 1e4), (0.5, 1e4), (0, 1e5))),
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(RUNGS), st.sampled_from([64, 128]), st.sampled_from([32, 64, 128]), st.integers(1, 4),
    st.integers(1, 7), st.integers(1, 2), RATES,
)  # fmt: skip
def test_right_programs_have_no_findings_at_any_rates(rung, d, block_k, stages, tiles, consumers, rates):
    consumers = 2 if rung == "groups take turns" else consumers
    run = simulate(rung, d, block_k, stages, tiles, consumers=consumers, rates=rates)
    assert not run.findings


def test_a_wait_lasts_until_the_arrival():
    sm = SM()
    (turn,), work = sm.barriers("turn", 1, 1), compute("work", instructions=1280)
    run = sm.run({"first": job(work, mbarrier.arrive(turn)), "second": job(mbarrier.wait(turn, 0), work)})
    assert run.cycles == pytest.approx(20) and not run.findings
    (waited,) = [span for span in run.spans if span.unit == "wait"]
    assert waited == sm_simulator.Span("second", "wait", "turn[0], parity 0", 0, 10)
