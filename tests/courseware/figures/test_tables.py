"""What is computed for figures and tables, against sums by hand and on invented rows."""

import numpy as np
import pytest

from course_lib import traffic
from course_lib.reference import formats, stable_softmax
from courseware.bench.hopper_ladder import interpreted
from courseware.figures import lesson_02, lesson_03, lesson_10, lesson_11, lesson_12, lesson_15
from courseware.simulators import gluon_emulator

LENGTHS = (64, 128, 1024, 4096)


def test_broken_rows_are_counted_row_by_row():
    found = lesson_02.broken_rows([2.0], n=64, d=64, scale=1 / 8, seed=3)
    rng = np.random.default_rng(3)
    Q, K = rng.normal(size=(64, 64)), rng.normal(size=(64, 64))
    S = 4 * Q @ K.T / 8
    with np.errstate(all="ignore"):
        exp_s = np.exp(S.astype(np.float16))
        w = exp_s / exp_s.sum(axis=1, keepdims=True, dtype=np.float16)
    nan, zero = found["float16"]
    assert nan[0] == np.isnan(w).any(axis=1).mean() > 0
    assert zero[0] == (w == 0).all(axis=1).mean() > 0
    assert found["float32"][0] == found["float32"][1] == 0


def test_digits_fall_where_the_subnormals_are():
    (axes,) = lesson_02.draw_digits().axes
    for line, fmt in zip(axes.lines, formats.FORMATS.values(), strict=True):
        x, digits = line.get_data()
        assert x[0] == fmt.smallest and digits[0] == 1
        assert digits[-1] == fmt.mantissa_bits + 1 and x[-1] <= fmt.largest < 2 * x[-1]
        np.testing.assert_array_equal(digits == fmt.mantissa_bits + 1, x >= fmt.smallest_normal)


def test_shift_errors_end_where_exp_does_and_are_small_at_the_maximum():
    x = np.array([1, 2, 3, 4], np.float16)
    errors = lesson_03.shift_errors(x, [-8, 4, 10, 18, 22])
    assert np.isnan(errors[[0, 4]]).all()
    assert (errors[1:3] < 1e-3).all() and errors[3] > 1e-3
    exact = stable_softmax(x.astype(np.float64))
    assert errors[2] == np.abs(lesson_03.softmax_shifted_by(x, 10).astype(np.float64) - exact).max()


def test_passes_are_counted_on_the_machine():
    def copy_twice(machine, X, P, tiles):
        for tile in tiles:
            machine.load(X, tile)
        for tile in tiles:
            machine.store(P, tile, machine.load(X, tile))

    x = np.arange(10, dtype=np.float32)
    copied, report = lesson_03.count_passes(copy_twice, x, 4, sram_bytes=32)
    np.testing.assert_array_equal(copied, x)
    assert report.by_tensor == {"x": traffic.TensorBytes(80, 0), "softmax": traffic.TensorBytes(0, 40)}


def test_growth_is_the_exponent_of_a_power_law():
    n = np.array([64, 128, 256])
    assert lesson_10.growth(n, 3.0 * n**2) == pytest.approx(2)
    assert lesson_10.growth([1, *n], [0, *(5 * n)]) == pytest.approx(1)
    assert lesson_10.growth(n, [0, 0, 0]) == 0


def test_faster_from_is_where_it_stays_faster():
    times = {"standard": (1.0, 3.0, 1.0, 8.0), "flash": (2.0, 1.0, 2.0, 2.0)}
    rows = [{"method": method, "n": n, "ms": ms}
            for method in times for n, ms in zip(LENGTHS, times[method], strict=True)][::-1]  # fmt: skip
    assert lesson_10.by_length(rows, "standard", "ms") == (list(LENGTHS), list(times["standard"]))
    assert lesson_10.by_length(rows, "no such method", "ms") == ([], [])
    assert lesson_10.faster_from(rows) == ([(64, 0.5), (128, 3.0), (1024, 0.5), (4096, 4.0)], 4096)
    assert lesson_10.faster_from([row for row in rows if row["n"] < 4096])[1] is None
    trains = [row | {"train_ms": 1.0 if row["method"] == "flash" else 2.0} for row in rows]
    assert lesson_10.faster_from(trains, "train_ms") == ([(n, 2.0) for n in LENGTHS], 64)
    assert lesson_10.faster_from([]) == ([], None)
    # As fast is not slower.
    assert lesson_10.faster_from([row | {"ms": 1.0} for row in rows])[1] == 64


def dram_rows():
    shape = {"n": 1024, "head_dim": 64, "heads": 16, "batch": 1, "causal": False}
    shape |= {"sm_read_bytes": 400.0, "sm_write_bytes": 40.0, "l2_read_bytes": 300.0, "l2_write_bytes": 30.0}
    blocks = {"block_q": 64, "block_k": 128}
    return [
        shape | {"method": "standard", "dram_read_bytes": 90.0, "dram_write_bytes": 10.0},
        shape | blocks | {"method": "flash", "dram_read_bytes": 15.0, "dram_write_bytes": 5.0},
    ]


def test_requested_bytes_and_ratios_are_those_of_the_rows():
    standard = traffic.standard_attention(1024, 1024, 64, heads=16).total_bytes
    flash = traffic.flash_attention(1024, 1024, 64, block_q=64, block_k=128, heads=16).total_bytes
    assert lesson_10.moved(dram_rows()) == [
        lesson_10.Moved("flash", 1024, flash, 440.0, 330.0, 20.0),
        lesson_10.Moved("standard", 1024, standard, 440.0, 330.0, 100.0),
    ]
    both = [{"method": "standard", "ms": 9.0}, {"method": "flash", "ms": 3.0}, {"method": "sdpa_flash", "ms": 1.0}]
    ratios = lesson_10.standard_over_flash(both, dram_rows())
    assert ratios["GFLOPs"] == pytest.approx((66.6 / 75.2, 6 / 9))
    assert ratios["HBM, GB"] == pytest.approx((40.3 / 4.4, 5.0))
    assert ratios["time, ms"] == pytest.approx((41.7 / 7.3, 3.0))


def sweep_rows():
    shape = {"n": 4096, "head_dim": 64, "heads": 16, "batch": 4, "causal": False}
    rates = {(32, 32): 100.0, (32, 64): 120.0, (64, 32): 200.0}
    rows = [shape | {"block_q": q, "block_k": k, "tflops": rate} for (q, k), rate in rates.items()]
    rows += [shape | {"block_q": 32, "block_k": 32, "tflops": 90.0}]
    return [*rows, shape | {"block_q": 64, "block_k": 64, "error": "does not fit"}]


def test_sweep_takes_the_best_and_predicts_from_bytes():
    table = lesson_11.sweep_table(sweep_rows())
    assert [(q, k, rate) for q, k, _, rate in table] == [
        (32, 32, 100.0), (32, 64, 120.0), (64, 32, 200.0), (64, 64, None),
    ]  # fmt: skip
    # 2 N d + 2 N d N / 32 elements of 2 bytes for 4 N N d FLOPs, at 3,352 GB/s.
    assert table[0][2] == pytest.approx(4 * 4096 / (4 * (1 + 4096 / 32)) * 3.352)
    # Causal: half the FLOPs, and query tile i reads the first 32 (i + 1) keys.
    causal = lesson_11.sweep_table([row | {"causal": True} for row in sweep_rows()])
    assert causal[0][2] == pytest.approx(4096**2 / (2 * 4096 + 2 * 32 * 128 * 129 / 2) * 3.352)


def test_rank_agreement_is_spearmans_correlation():
    assert lesson_11.rank_agreement([1, 2, 3], [10, 20, 1000]) == pytest.approx(1)
    assert lesson_11.rank_agreement([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # One pair of the three in the other order: 1 - 6 (0 + 1 + 1) / (3 * 8).
    assert lesson_11.rank_agreement([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    # Ties share the mean of their ranks: (0, 1.5, 1.5, 3) against (0, 1, 2, 3).
    assert lesson_11.rank_agreement([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(np.sqrt(0.9))


def test_a_copy_is_divided_among_all_warps_in_every_step():
    def pieces_of(rows, columns, warps):
        every = lesson_12.draw_copies(rows, columns, warps=warps).axes
        return [[text.get_text() for text in axes.texts] for axes in every]

    for pieces in pieces_of(16, 64, 16):
        assert sorted(pieces) == sorted(f"warp {warp}, step {step}" for warp in range(16) for step in (0, 1))
    by_row, in_turn = pieces_of(8, 32, 4)
    assert by_row == in_turn  # a row is one request
    by_row, in_turn = pieces_of(4, 64, 4)
    assert by_row[:2] == ["warp 0, step 0", "warp 0, step 1"] and in_turn[:2] == ["warp 0, step 0", "warp 1, step 0"]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("n, heads, n_programs", [(1024, 1, 4), (1024, 3, 5), (512, 16, 7), (2048, 4, 32)])
def test_programs_get_the_tiles_that_the_kernel_hands_out(n, heads, n_programs, paired):
    shares, kernel = lesson_15.key_tiles_of_programs(n, heads, n_programs, paired), interpreted({}).__globals__
    n_tiles = heads * n // 128
    for pid, share in enumerate(shares):
        gluon_emulator.Program.current = gluon_emulator.Program((pid, 0, 0), (n_programs, 1, 1))
        tiles = range(kernel["tiles_of_program"](n_tiles, paired))
        assert share == sum(
            kernel["query_tile"](i, (n_tiles, heads, 1, n, n), 128, 128, True, paired)[2] for i in tiles
        )
    of_head = n // 128
    assert len(shares) == n_programs and sum(shares) == heads * of_head * (of_head + 1) // 2
