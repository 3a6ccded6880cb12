"""What only the tiled form has: its arguments, the SRAM that it needs, and traffic that a closed form gives."""

import itertools

import numpy as np
import pytest

from course_lib import traffic
from course_lib.machine import Machine, SRAMOverflow
from course_lib.reference import attention
from course_lib.reference.tiled import tiled_attention_on_machine

LENGTHS = [(1, 1), (5, 9), (9, 5), (16, 16), (33, 17), (17, 33), (3, 40), (40, 3), (48, 32), (64, 64)]
BLOCKS = [(16, 16), (16, 8), (8, 16), (4, 4), (5, 7), (3, 64), (64, 3), (128, 128)]
FORMS = pytest.mark.parametrize("order, return_lse", [("q_outer", False), ("q_outer", True), ("kv_outer", True)])
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def on_machine(n_q, n_k, d, dtype, order, return_lse, sram_bytes=np.inf, **options):
    """The machine's report of a tiled run, and the bytes of what it holds in HBM beyond Q, K, V and O."""
    rng = np.random.default_rng(0)
    machine = Machine(sram_bytes)
    q, k, v = (rng.normal(size=(n, d)).astype(dtype) for n in (n_q, n_k, n_k))
    o = np.full_like(q, np.nan)
    handles = [machine.hbm(array, name) for array, name in zip((q, k, v, o), "QKVO", strict=True)]
    names = ("l", "m") if order == "kv_outer" else ("lse",) if return_lse else ()
    statistic = np.float64 if dtype == np.float64 else np.float32
    extra = {name: machine.hbm(np.full(n_q, np.nan, statistic), name) for name in names}
    tiled_attention_on_machine(machine, *handles, order=order, **options, **extra)
    np.testing.assert_allclose(o, attention(q, k, v, causal=options["causal"]), atol=1e-2)
    return machine.report(), sum(handle.nbytes for handle in extra.values())


# 10 pairs of lengths x 8 pairs of blocks x causal or not x 3 forms = 480 runs of the machine, in one dtype each.
@CAUSAL
@FORMS
def test_the_machine_counts_what_the_closed_form_says(causal, order, return_lse):
    dtypes = itertools.cycle([np.float16, np.float32, np.float64])
    for ((n_q, n_k), (block_q, block_k)), dtype in zip(itertools.product(LENGTHS, BLOCKS), dtypes, strict=False):
        itemsize = np.dtype(dtype).itemsize
        d = 1 + (n_q + block_k) % 5
        options = {"block_q": block_q, "block_k": block_k, "causal": causal}
        report, extra_bytes = on_machine(n_q, n_k, d, dtype, order, return_lse, **options)
        form = traffic.flash_attention(
            n_q, n_k, d, dtype_bytes=itemsize, stat_bytes=max(itemsize, 4),
            order=order, return_lse=return_lse, **options,
        )  # fmt: skip
        where = f"n_q={n_q} n_k={n_k} d={d} {options}"
        assert report.by_tensor == form.by_tensor, where
        assert (report.read_bytes, report.write_bytes) == (form.read_bytes, form.write_bytes), where
        assert report.matmul_flops == form.flops, where
        assert extra_bytes == form.peak_bytes, where


@CAUSAL
@FORMS
def test_the_sram_needed_does_not_grow_with_the_length(causal, order, return_lse):
    def peak(n, **options):
        report, _ = on_machine(
            n, n, 16, np.float32, order, return_lse, block_q=16, block_k=16, causal=causal, **options
        )
        return report.peak_sram_bytes

    peaks = {peak(n) for n in (64, 128, 256)}
    assert len(peaks) == 1
    (least,) = peaks
    peak(128, sram_bytes=least)
    with pytest.raises(SRAMOverflow):
        peak(128, sram_bytes=least - 1)
