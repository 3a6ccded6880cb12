"""What only the tiled form has: its arguments, and what it needs on a machine with little SRAM."""

import numpy as np
import pytest

from course_lib.machine import Machine, SRAMOverflow
from course_lib.reference import attention, tiled_attention
from course_lib.reference.tiled import tiled_attention_on_machine


def run(sram_bytes, n, order="q_outer", dtype=np.float32, d=16, block=16, causal=False):
    """Tiled attention of n queries and keys on a machine; the output and the report."""
    rng = np.random.default_rng(0)
    machine = Machine(sram_bytes)
    q, k, v = (rng.normal(size=(n, d)).astype(dtype) for _ in range(3))
    o = np.full_like(q, np.nan)
    handles = [machine.hbm(array, name) for array, name in zip((q, k, v, o), "QKVO", strict=True)]
    statistics = {}
    if order == "kv_outer":
        for name in "lm":
            statistics[name] = machine.hbm(np.full(n, np.nan, np.float32), name)
    options = {"block_q": block, "block_k": block, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **statistics)
    np.testing.assert_allclose(o, attention(q, k, v, causal=causal), atol=1e-5)
    return machine.report()


@pytest.mark.parametrize("order", ["q_outer", "kv_outer"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_sram_needed_does_not_grow_with_the_length(order, causal):
    peaks = {run(np.inf, n, order, causal=causal).peak_sram_bytes for n in (64, 128, 256)}
    assert len(peaks) == 1
    (peak,) = peaks
    run(peak, 128, order, causal=causal)
    with pytest.raises(SRAMOverflow):
        run(peak - 1, 128, order, causal=causal)


def test_the_visits_of_a_causal_run_come_in_loop_order():
    report = run(np.inf, 48, causal=True)
    assert [event.start for event in report.events if event.tensor == "K"] == [0, 0, 16, 0, 16, 32]
    report = run(np.inf, 48, "kv_outer", causal=True)
    assert [event.start for event in report.events if event.tensor == "Q"] == [0, 16, 32, 16, 32, 32]


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"block_q": True}, TypeError, "block_q is True"),
        ({"block_k": -4}, ValueError, "block_k is -4"),
        ({"order": "k_outer"}, ValueError, "order is 'k_outer'"),
    ],
)
def test_bad_options_are_refused_by_name(options, error, message):
    q = np.ones((4, 2))
    with pytest.raises(error, match=message):
        tiled_attention(q, q, q, **{"block_q": 2, "block_k": 2} | options)


def test_each_order_takes_its_own_statistics():
    machine = Machine()
    q, l = np.ones((4, 2)), np.ones(4)
    handles = [machine.hbm(q, name) for name in "QKVO"]
    l = machine.hbm(l, "l")
    with pytest.raises(ValueError, match="takes no l"):
        tiled_attention_on_machine(machine, *handles, block_q=2, block_k=2, l=l)
    with pytest.raises(ValueError, match="takes l and m"):
        tiled_attention_on_machine(machine, *handles, block_q=2, block_k=2, order="kv_outer", l=l)
