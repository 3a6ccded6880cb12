"""The closed forms: against the machine, to the byte and by tensor, and against figures done by hand."""

import itertools

import numpy as np
import pytest

from course_lib import traffic
from course_lib.machine import Machine
from course_lib.reference import attention
from course_lib.reference.tiled import tiled_attention_on_machine

LENGTHS = [(1, 1), (5, 9), (9, 5), (16, 16), (33, 17), (17, 33), (3, 40), (40, 3), (48, 32), (64, 64)]
BLOCKS = [(16, 16), (16, 8), (8, 16), (4, 4), (5, 7), (3, 64), (64, 3), (128, 128)]
DTYPES = [np.float16, np.float32, np.float64]


def on_machine(n_q, n_k, d, dtype, order, return_lse, **options):
    """The machine's report of a tiled run, and the bytes of what it holds in HBM beyond Q, K, V and O."""
    rng = np.random.default_rng(0)
    machine = Machine()
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
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("order, return_lse", [("q_outer", False), ("q_outer", True), ("kv_outer", True)])
def test_the_machine_counts_what_the_closed_form_says(causal, order, return_lse):
    shapes = itertools.product(LENGTHS, BLOCKS)
    for ((n_q, n_k), (block_q, block_k)), dtype in zip(shapes, itertools.cycle(DTYPES), strict=False):
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


def flash(n, d, block_q, **options):
    return traffic.flash_attention(n, n, d, block_q=block_q, block_k=64, **options)


def test_folklore_f1_figures():
    """N = 4096, d = 128, fp16: traffic is not linear, and with small tiles flash moves hardly less."""
    assert traffic.standard_attention(4096, 4096, 128).total_bytes == 138_412_032
    assert flash(4096, 128, 64).total_bytes == 136_314_880
    assert flash(4096, 128, 128).total_bytes == 69_206_016
    growth = flash(8192, 128, 128).total_bytes / flash(4096, 128, 128).total_bytes
    assert 3.9 < growth < 4


def test_memory_beyond_the_tensors_is_linear_for_flash_and_quadratic_for_standard():
    assert [flash(n, 64, 64, return_lse=True).peak_bytes for n in (1024, 2048)] == [4096, 8192]
    assert flash(1024, 64, 64).peak_bytes == 0
    assert flash(1024, 64, 64, order="kv_outer").peak_bytes == 8192
    ratio = [traffic.standard_attention(n, n, 64).peak_bytes for n in (1024, 2048)]
    assert ratio == [4 * 1024**2, 4 * 2048**2]


@pytest.mark.parametrize("order", ["q_outer", "kv_outer"])
def test_heads_and_batch_multiply_everything(order):
    options = {"block_q": 8, "block_k": 16, "causal": True, "order": order, "return_lse": True}
    one = traffic.flash_attention(20, 30, 4, **options)
    many = traffic.flash_attention(20, 30, 4, heads=3, batch=2, **options)
    for field in ("read_bytes", "write_bytes", "flops", "peak_bytes", "total_bytes"):
        assert getattr(many, field) == 6 * getattr(one, field)
    assert many.by_tensor["K"].read_bytes == 6 * one.by_tensor["K"].read_bytes
    assert many.arithmetic_intensity == one.arithmetic_intensity
    assert traffic.standard_attention(20, 30, 4, heads=3, batch=2).total_bytes == 6 * (
        traffic.standard_attention(20, 30, 4).total_bytes
    )


def test_folklore_f25_decoding_is_about_one_flop_a_byte_and_head():
    """fp16 and many keys: a FLOP for each byte, times the query heads that share the keys. Splits hardly matter."""
    for group in (1, 4, 8):
        form = traffic.decode([8192, 5000], 128, heads=8, kv_heads=8 // group)
        assert 0.995 * group < form.arithmetic_intensity < group
    split = traffic.decode([8192, 5000], 128, heads=8, kv_heads=1, splits=8)
    assert split.peak_bytes == 2 * 8 * 8 * 130 * 4 and split.flops == form.flops == 4 * 8 * 13_192 * 128
    assert form.total_bytes < split.total_bytes < 1.2 * form.total_bytes


def test_the_lower_bound_takes_elements_and_follows_the_traffic_of_flash():
    assert traffic.lower_bound_elems(4096, 64, 65_536) == 4096**2 * 64**2 / 65_536
    # FA1 Alg. 1 with tiles that fill the SRAM: B_c = M / 4d, B_r = min(B_c, d).
    ratios = []
    for sram_elems in (8192, 16_384, 32_768):
        block_k = sram_elems // (4 * 64)
        form = traffic.flash_attention(4096, 4096, 64, block_q=min(block_k, 64), block_k=block_k, order="kv_outer")
        ratios.append(form.total_bytes / 2 / traffic.lower_bound_elems(4096, 64, sram_elems))
    assert max(ratios) / min(ratios) < 1.05
    for sram_elems in (63, 4096 * 64 + 1):
        with pytest.raises(ValueError, match=f"sram_elems is {sram_elems}; accepted: from d = 64 to n d = 262144"):
            traffic.lower_bound_elems(4096, 64, sram_elems)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: traffic.attention_flops(0, 4, 4), ValueError, "n_q is 0"),
        (lambda: traffic.standard_attention(4, 4.0, 4), TypeError, "n_k is 4.0"),
        (lambda: traffic.flash_attention(4, 4, 4, block_q=-1, block_k=4), ValueError, "block_q is -1"),
        (lambda: flash(4, 4, 4, order="FA2"), ValueError, "order is 'FA2'"),
        (lambda: flash(4, 4, 4, heads=True), TypeError, "heads is True"),
        (lambda: traffic.decode([4], 4.0), TypeError, "d is 4.0"),
        (lambda: traffic.decode([4, -1], 4), ValueError, "lengths holds -1"),
        (lambda: traffic.decode([], 4), ValueError, "sequences is 0"),
        (lambda: traffic.decode([4], 4, heads=6, kv_heads=4), ValueError, "kv_heads is 4; accepted: a divisor of"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_counts_are_python_integers_that_do_not_overflow():
    form = traffic.flash_attention(2**24, 2**24, 256, block_q=16, block_k=16, heads=128, batch=64)
    assert type(form.read_bytes) is int and form.flops == 4 * 2**48 * 256 * 128 * 64
