import itertools
import re

import numpy as np
import pytest

from course_lib import traffic
from course_lib.hardware import GIB, GPUS, KIB, MIB
from course_lib.machine import Machine
from course_lib.reference.attention import causal_mask, standard_attention_on_machine
from courseware.explorers import attention_memory as explorer
from courseware.explorers import drawing


def every_setting():
    """Every combination of the controls, but only the ends of those that the model multiplies by."""
    ends = (options[:: len(options) - 1] for options in (explorer.HEAD_DIMS, explorer.HEADS))
    return itertools.product(explorer.LENGTHS, *ends, explorer.DTYPE_BYTES, GPUS)


def elements_of(passes):
    return {move: n_bytes for moves in passes.values() for move, n_bytes in moves.items()}


def test_numbers_agree_with_the_closed_forms_and_the_gpu():
    for n, d, heads, dtype, gpu in every_setting():
        model = explorer.run(n, d, heads, dtype, gpu)
        size = {"fp16": 2, "fp32": 4}[dtype]
        moved = traffic.standard_attention(n, n, d, dtype_bytes=size, heads=heads)
        assert model.matrix_bytes == heads * n * n * size
        assert model.held_bytes == heads * (2 * n * n + 4 * n * d) * size
        assert model.capacity_bytes == GPUS[gpu].hbm_bytes
        assert model.fits == (model.held_bytes <= GPUS[gpu].hbm_bytes)
        assert model.moved == moved
        assert model.intensity == moved.flops / moved.total_bytes
        peak = GPUS[gpu].fp16_tensor_tflops if dtype == "fp16" else GPUS[gpu].fp32_tflops
        assert model.arithmetic_s == pytest.approx(moved.flops / peak / 1e12, rel=1e-12)
        assert model.memory_s == moved.total_bytes / GPUS[gpu].hbm_bytes_per_s
        assert model.memory_bound == (model.memory_s > model.arithmetic_s)
        if dtype == "fp16":
            assert model.ridge == pytest.approx(GPUS[gpu].ridge_flops_per_byte, rel=1e-12)


def test_the_passes_hold_every_byte_once():
    moved = traffic.standard_attention(48, 48, 8, dtype_bytes=4)
    passes = explorer.by_pass(moved.by_tensor)
    assert sum(elements_of(passes).values()) == moved.total_bytes
    assert sum(len(moves) for moves in passes.values()) == len(elements_of(passes)) == 8
    sums = [sum(moves.values()) for moves in passes.values()]
    assert sums == [4 * (2 * 48 * 8 + 48 * 48), 4 * 2 * 48 * 48, 4 * (48 * 48 + 2 * 48 * 8)]


def test_the_machine_runs_the_passes_one_after_another():
    machine = Machine()
    shapes = {"Q": (9, 2), "K": (9, 2), "V": (9, 2), "S": (9, 9), "P": (9, 9), "O": (9, 2)}
    handles = [machine.hbm(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    standard_attention_on_machine(machine, *handles, block_q=4)
    report = machine.report()
    ways = {"load": "read", "store": "written"}
    order = [next(i for i, moves in enumerate(explorer.PASSES.values()) if (e.tensor, ways[e.kind]) in moves)
             for e in report.events]  # fmt: skip
    assert order == sorted(order) and set(order) == {0, 1, 2}
    stated = traffic.standard_attention(9, 9, 2, dtype_bytes=4)
    assert explorer.by_pass(report.by_tensor) == explorer.by_pass(stated.by_tensor)


def test_the_longest_sequence_fits_and_one_token_more_does_not():
    for gpu, dtype, heads in itertools.product(GPUS, explorer.DTYPE_BYTES, explorer.HEADS):
        longest = explorer.run(1024, 128, heads, dtype, gpu).longest
        assert explorer.run(longest, 128, heads, dtype, gpu).fits, (gpu, dtype, heads)
        assert not explorer.run(longest + 1, 128, heads, dtype, gpu).fits, (gpu, dtype, heads)


def test_no_sequence_fits_into_100_bytes():
    assert explorer.longest_that_fits(64, 1, 2, 100) == 0


def test_the_statements_of_the_lesson_hold():
    assert explorer.run(1024, 64, 1, "fp32").moved.total_bytes == pytest.approx(17.8e6, rel=0.01)
    assert explorer.run(1024, 64, 1, "fp16").moved.total_bytes == pytest.approx(8.9e6, rel=0.01)
    assert explorer.run(100_000, 64, 1, "fp16", "H100").fits and not explorer.run(100_000, 64, 8, gpu="H100").fits
    assert all(explorer.run(n, gpu="H100").memory_bound for n in explorer.LENGTHS)
    assert not explorer.run(4096, dtype="fp32", gpu="A100").memory_bound


def test_sizes_are_written_in_the_unit_that_fits():
    words = {100: "100 bytes", KIB: "1.00 KiB", 3 * MIB // 2: "1.50 MiB", 1100 * GIB: "1,100.00 GiB"}
    assert {n_bytes: explorer.size(n_bytes) for n_bytes in words} == words


def test_every_number_in_the_text_comes_from_the_model():
    for setting in every_setting():
        model = explorer.run(*setting)
        text = explorer.describe(model)
        assert text.startswith(f"<b>N = {model.n:,}, d = {model.d}, {model.heads} heads, {model.dtype}.</b>")
        for n_bytes in (model.matrix_bytes, model.held_bytes, model.capacity_bytes):
            assert explorer.size(n_bytes) in text
        assert ("does not fit" in text) != model.fits
        assert f"longest that fits is N = {model.longest:,}." in text
        found = [float(x.replace(",", "")) for x in re.findall(r"([\d,]+\.\d+)", text.split("<br>")[1])]
        unit_bytes = 1e9 if model.moved.total_bytes >= 1e9 else 1e6
        assert f"{found[0]:,.1f} {'GB' if unit_bytes == 1e9 else 'MB'}." in text
        expected = [
            model.moved.total_bytes / unit_bytes,
            model.intensity,
            model.ridge,
            1e3 * model.memory_s,
            1e3 * model.arithmetic_s,
        ]
        np.testing.assert_allclose(found, expected, atol=0.0501)
        assert f"bound by <b>{'memory' if model.memory_bound else 'arithmetic'}</b>" in text


@pytest.mark.parametrize("n, dtype", [(256, "fp16"), (100_000, "fp32"), (131_072, "fp16")])
def test_the_drawing_shows_the_model(n, dtype, heights):
    model = explorer.run(n, 128, 8, dtype, "T4")
    held, moved, times = explorer.draw(model).axes
    assert held.lines[-1].get_xydata().tolist() == [[n, model.held_bytes]]
    assert dict(held.lines[0].get_xydata())[n] == model.held_bytes
    assert held.lines[1].get_ydata()[0] == model.capacity_bytes
    shares = [bar.get_width() for bar in moved.patches]
    expected = elements_of(explorer.by_pass(model.moved.by_tensor))
    np.testing.assert_allclose(shares, np.array(list(expected.values())) / model.moved.total_bytes)
    assert sum(shares) == pytest.approx(1)
    assert max(bar.get_x() + bar.get_width() for bar in moved.patches) < moved.get_xlim()[1]
    assert heights(times.patches) == [1e3 * model.memory_s, 1e3 * model.arithmetic_s]
    low, high = held.get_ylim()
    assert all(low < y < high for curve in held.lines for y in curve.get_ydata())


def test_all_lengths_and_sizes_stay_within_the_frame():
    for heads, d, dtype in itertools.product((1, 64), (32, 256), explorer.DTYPE_BYTES):
        held = explorer.draw(explorer.run(256, d, heads, dtype, "B200")).axes[0]
        low, high = held.get_ylim()
        assert all(low < y < high for curve in held.lines for y in curve.get_ydata()), (heads, d, dtype)


def test_matrices_and_masks_are_written_out():
    S = np.where(causal_mask(2, 2), [[0.5, 1.0], [0.25, -1.0]], -np.inf)
    figure = drawing.draw_matrices({"S": S, "P": np.eye(2), "O": np.ones((2, 1))}, ("a", "b"), ("c", "d"))
    shown = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert shown == [["0.50", "-inf", "0.25", "-1.00"], ["1", "0", "0", "1"], ["1", "1"]]
    assert (
        figure.alt == "Numbers, row by row. S: a (0.50, -inf); b (0.25, -1.00). P: a (1, 0); b (0, 1). O: a (1); b (1)."
    )
    mask = causal_mask(2, 4)
    (axes,) = explorer.draw_masks({"2 queries, 4 keys": mask, "4 queries, 2 keys": causal_mask(4, 2)}).axes[:1]
    np.testing.assert_array_equal(axes.collections[0].get_array().reshape(mask.shape), mask)


def test_the_explorer_follows_every_control(shell_of):
    def shown(**settings):
        model = explorer.run(**settings)
        return explorer.describe(model), explorer.draw(model)

    moves = [
        ("N", 100_000, {"n": 100_000}),
        ("d", 256, {"d": 256}),
        ("heads", 1, {"heads": 1}),
        ("dtype", "fp32", {"dtype": "fp32"}),
        ("GPU", "T4", {"gpu": "T4"}),
        ("N", 256, {"n": 256}),
    ]
    start = {"n": 32_768, "d": 64, "heads": 16, "dtype": "fp16", "gpu": "A100"}
    shell_of(explorer.explore()).assert_follows(shown, start, moves)
