"""What only the tiled forms have: the SRAM that they need, and traffic that a closed form gives."""

import itertools

import numpy as np
import pytest

from course_lib import traffic
from course_lib.machine import Machine, SRAMOverflow
from course_lib.reference import attention, attention_backward
from course_lib.reference.backward import tiled_backward_on_machine
from course_lib.reference.tiled import tiled_attention_on_machine

LENGTHS = [(1, 1), (5, 9), (9, 5), (16, 16), (33, 17), (17, 33), (3, 40), (40, 3), (48, 32), (64, 64)]
BLOCKS = [(16, 16), (16, 8), (8, 16), (4, 4), (5, 7), (3, 64), (64, 3), (128, 128)]
FORMS = pytest.mark.parametrize(
    "form",
    [{"order": "q_outer", "return_lse": False}, {"order": "q_outer", "return_lse": True}, {"order": "kv_outer"}, None],
    ids=["q_outer", "q_outer, lse", "kv_outer", "backward"],
)
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def on_machine(n_q, n_k, d, dtype, form, sram_bytes=np.inf, **options):
    """The machine's report of a tiled run, and the bytes of its statistics in HBM. form: None for the backward."""
    rng, machine, statistic = np.random.default_rng(0), Machine(sram_bytes), np.promote_types(dtype, np.float32)
    q, k, v, do = (rng.normal(size=(n, d)).astype(dtype) for n in (n_q, n_k, n_k, n_q))
    o, lse = attention(q, k, v, causal=options["causal"], return_lse=True)

    def handles(names, *arrays):
        return {name: machine.hbm(array, name) for name, array in zip(names, arrays, strict=True)}

    def unwritten(names):
        return handles(names, *(np.full(n_q, np.nan, statistic) for _ in names))

    if form is None:
        expected = attention_backward(q, k, v, o, lse, do, causal=options["causal"])
        results, statistics = [np.full_like(x, np.nan) for x in (q, k, v)], handles(["lse"], lse) | unwritten(["delta"])
        names = ("Q", "K", "V", "O", "dO", "dQ", "dK", "dV")
        tiled_backward_on_machine(machine, **handles(names, q, k, v, o, do, *results), **statistics, **options)
    else:
        expected, results = [o], [np.full_like(q, np.nan)]
        is_fa1, given = form["order"] == "kv_outer", handles("QKVO", q, k, v, *results)
        statistics = unwritten("lm" if is_fa1 else ["lse"] * form["return_lse"])
        tiled_attention_on_machine(machine, *given.values(), order=form["order"], **options, **statistics)
    for ours, whole in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, whole, atol=1e-2)
    return machine.report(), sum(handle.nbytes for handle in statistics.values())


@CAUSAL
@FORMS
def test_the_machine_counts_what_the_closed_form_says(causal, form):
    """Of each pair of lengths and blocks, in one dtype."""
    dtypes, dq_blocks = itertools.cycle([np.float16, np.float32, np.float64]), itertools.cycle([None, (5, 3), (3, 64)])
    for (n_q, n_k), (block_q, block_k) in itertools.product(LENGTHS, BLOCKS):
        dtype, d = next(dtypes), 1 + (n_q + block_k) % 5
        options = {"block_q": block_q, "block_k": block_k, "causal": causal}
        options |= {"dq_blocks": next(dq_blocks)} if form is None else {}
        report, statistics_bytes = on_machine(n_q, n_k, d, dtype, form, **options)
        sizes = {"dtype_bytes": dtype().itemsize, "stat_bytes": max(dtype().itemsize, 4)}
        closed_form = traffic.flash_attention_backward if form is None else traffic.flash_attention
        stated = closed_form(n_q, n_k, d, **sizes, **options, **form or {})
        where = f"n_q={n_q} n_k={n_k} d={d} {options}"
        assert report.by_tensor == stated.by_tensor, where
        assert (report.read_bytes, report.write_bytes) == (stated.read_bytes, stated.write_bytes), where
        assert report.matmul_flops == stated.flops, where
        assert statistics_bytes == stated.peak_bytes, where


@CAUSAL
@FORMS
def test_the_sram_needed_does_not_grow_with_the_length(causal, form):
    def peak(n, **options):
        report, _ = on_machine(n, n, 16, np.float32, form, block_q=16, block_k=16, causal=causal, **options)
        return report.peak_sram_bytes

    (least,) = {peak(n) for n in (64, 128)}
    peak(128, sram_bytes=least)
    with pytest.raises(SRAMOverflow):
        peak(128, sram_bytes=least - 1)
