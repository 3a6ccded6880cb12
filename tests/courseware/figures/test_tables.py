"""What is computed for figures and tables, against sums by hand and on invented rows."""

import numpy as np
import pytest

from course_lib.reference import formats, stable_softmax
from courseware.bench.hopper_ladder import interpreted
from courseware.figures import lesson_02, lesson_03, lesson_10, lesson_11, lesson_12, lesson_15
from courseware.simulators import gluon_emulator


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


def test_faster_from_is_where_it_stays_as_fast():
    times = {"standard": (8.0, 1.0, 2.0), "flash": (2.0, 2.0, 2.0)}
    rows = [{"method": method, "n": n, "ms": ms}
            for method in times for n, ms in zip((64, 128, 1024), times[method], strict=True)][::-1]  # fmt: skip
    assert lesson_10.by_length(rows, "standard", "ms") == ([64, 128, 1024], [8.0, 1.0, 2.0])
    assert lesson_10.faster_from(rows) == ([(64, 4.0), (128, 0.5), (1024, 1.0)], 1024)
    assert lesson_10.faster_from([]) == ([], None)


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
