import json
import random
import re
from dataclasses import asdict, replace
from itertools import product
from math import ceil

import numpy as np
import pytest

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine
from courseware.bench import records
from courseware.explorers import block_sizes as explorer
from courseware.explorers.block_sizes import BLOCKS, DTYPES, HEAD_DIMS, HEADS, LENGTHS, ORDERS, Settings
from courseware.explorers.tile_grid import tile_grid
from courseware.explorers.tiled_attention import TENSORS

RANGES = {
    "block_q": BLOCKS,
    "block_k": BLOCKS,
    "n": LENGTHS,
    "d": HEAD_DIMS,
    "dtype": tuple(DTYPES),
    "causal": (False, True),
    "order": tuple(ORDERS.values()),
    "gpu": tuple(GPUS),
    "heads": HEADS,
}
# Every combination of the controls' first and last values; every value of each control; and a sample of the rest.
CORNERS = [
    Settings(**dict(zip(RANGES, values, strict=True)))
    for values in product(*({options[0]: 0, options[-1]: 0} for options in RANGES.values()))
]
SINGLES = [replace(Settings(), **{name: value}) for name, options in RANGES.items() for value in options]
_random = random.Random(6)
SAMPLE = [Settings(**{name: _random.choice(options) for name, options in RANGES.items()}) for _ in range(100)]
ALL = [*CORNERS, *SINGLES, *SAMPLE]

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
RAW = records.record("resources")


def row_of(settings):
    """The record's row as a dict, straight from the file."""
    major, minor = GPUS[settings.gpu].compute_capability
    shape = [settings.d, settings.causal, settings.block_q, settings.block_k]
    wanted = [10 * major + minor, DTYPES[settings.dtype], *shape]
    return next(dict(zip(RAW["columns"], row, strict=True)) for row in RAW["rows"] if row[:6] == wanted)


def invented(settings, **values):
    """A record with one row."""
    used = dict(
        num_warps=4, num_stages=1, shared_bytes=40_000, tensor_memory_columns=0, registers=128, stack_bytes=0,
        tensor_cores=True,
    )  # fmt: skip
    return {settings.row: explorer.compiled("0.0", used | values)}


def lines_of(model):
    """Title of a line -> its text."""
    return dict(re.findall(r"<td><b>(\w+)</b></td><td>(.*?)</td></tr>", explorer.describe(model)))


def state_of(settings, full=True):
    return explorer.block_sizes_state(full, **asdict(settings))


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?", text)]


def machine_report(s):
    machine, dtype = Machine(), np.float16 if BYTES[s.dtype] == 2 else np.float32
    handles = [machine.hbm(np.zeros((s.n, s.d), dtype), name) for name in "QKVO"]
    kept = {name: machine.hbm(np.zeros(s.n, np.float32), name) for name in "lm"} if s.order == "kv_outer" else {}
    options = {"block_q": s.block_q, "block_k": s.block_k, "causal": s.causal, "order": s.order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    return machine.report()


def test_controls_offer_what_the_syllabus_requires():
    assert {100, 512, 1000, 1024, 4095, 4096, 16384, 131072} <= set(LENGTHS)
    assert (BLOCKS, HEAD_DIMS) == ((16, 32, 64, 128), (32, 64, 128))
    assert len(CORNERS) == 2**9


def test_bytes_and_roofline_are_those_of_traffic():
    for s in ALL:
        sizes = {"dtype_bytes": BYTES[s.dtype], "causal": s.causal, "heads": s.heads}
        flash = traffic.flash_attention(s.n, s.n, s.d, block_q=s.block_q, block_k=s.block_k, order=s.order, **sizes)
        standard = traffic.standard_attention(s.n, s.n, s.d, **sizes)
        model = explorer.evaluate(s)
        assert (model.flash, model.standard) == (flash, standard)
        assert model.once_bytes == 4 * s.n * s.d * BYTES[s.dtype] * s.heads

        gpu = GPUS[s.gpu]
        sram_elems = gpu.shared_bytes_per_block // BYTES[s.dtype]
        shown = numbers(lines_of(model)["Bytes"].replace("N&sup2;d&sup2;", ""))
        expected = [flash.total_bytes, standard.total_bytes, round(flash.total_bytes / standard.total_bytes, 3)]
        expected.append(model.once_bytes)
        if sram_elems > s.n * s.d:
            assert model.bound_bytes is None and "n/a" in lines_of(model)["Bytes"]
        else:
            bound_bytes = traffic.lower_bound_elems(s.n, s.d, sram_elems) * BYTES[s.dtype] * s.heads
            assert model.bound_bytes == bound_bytes
            expected.append(round(bound_bytes))
        assert shown == expected

        peak = gpu.fp32_tflops if s.dtype == "fp32" or (s.dtype, s.gpu) == ("bf16", "T4") else gpu.fp16_tensor_tflops
        expected = []
        for counted in (flash, standard):
            intensity = counted.flops / counted.total_bytes
            seconds = max(counted.flops / (peak * 1e12), counted.total_bytes / gpu.hbm_bytes_per_s)
            tflops = min(peak, intensity * gpu.hbm_bytes_per_s / 1e12)
            expected += [round(intensity, 2), round(tflops, 2), seconds * 1e3]
        expected += [peak, gpu.hbm_bytes_per_s / 1e9]
        np.testing.assert_allclose(numbers(lines_of(model)["Roofline"]), expected, rtol=5.1e-3, atol=5.1e-3)


def test_machine_counts_and_holds_what_is_shown():
    shapes = [(100, 16, 32), (100, 128, 64), (512, 64, 128), (1000, 128, 128)]
    for (n, block_q, block_k), order, causal, (d, dtype) in product(
        shapes, ORDERS.values(), (False, True), [(32, "fp16"), (64, "fp32")]
    ):
        s = Settings(block_q, block_k, n, d, dtype, causal, order, heads=3)
        model, report = explorer.evaluate(s), machine_report(s)
        moved = {name: (3 * read, 3 * written) for name, (read, written) in report.by_tensor.items()}
        assert moved == {name: tuple(tensor) for name, tensor in model.flash.by_tensor.items()}, s
        assert sum(model.sram.values()) == report.peak_sram_bytes, s
        assert 3 * report.matmul_flops == model.flash.flops, s


def test_the_four_tiles_are_summed_as_in_the_exercise():
    for s in ALL:
        model = explorer.evaluate(s)
        total = BYTES[s.dtype] * (s.block_q * s.d + 2 * s.block_k * s.d + s.block_q * s.block_k)
        budget = GPUS[s.gpu].shared_bytes_per_block
        assert sum(model.four_tiles_bytes.values()) == total
        text, _, over = explorer._headline(model)[2]
        assert numbers(text) == pytest.approx([total / 1024, budget / 1024], rel=5e-3) and over == (total > budget)


def test_bytes_of_a_whole_grid_grow_to_those_of_traffic():
    """For one head, by tensor: what the two loops have moved after their last visits."""
    shapes = [(100, 16, 32), (100, 128, 64), (512, 64, 128), (1000, 128, 128)]
    for (n, block_q, block_k), causal, (d, dtype) in product(shapes, (False, True), [(32, "fp16"), (64, "fp32")]):
        s = Settings(block_q, block_k, n, d, dtype, causal)
        state = state_of(s)
        sizes = {"block_q": block_q, "block_k": block_k, "causal": causal, "dtype_bytes": BYTES[dtype]}
        assert state["note"] == "Drawn: all tiles of one head."
        for order, moved, totals in zip(ORDERS.values(), state["moved"], state["totals"], strict=True):
            flash = traffic.flash_attention(n, n, d, order=order, **sizes)
            assert totals[-1] == flash.total_bytes
            for (_, tensors, _), (read, written) in zip(TENSORS, moved, strict=True):
                by_tensor = [flash.by_tensor.get(tensor, (0, 0)) for tensor in tensors]
                assert (read[-1], written[-1]) == tuple(map(sum, zip(*by_tensor, strict=True))), (s, order, tensors)


def test_a_window_shows_the_same_tiles_as_the_whole_grid():
    for order, causal in product(ORDERS.values(), (False, True)):
        s = Settings(16, 32, 4095, causal=causal, order=order)
        state = state_of(s)
        assert state["note"] == "Drawn: the first 16 x 8 of 256 x 128 tiles of one head."
        loop = state["loops"][state["chosen"]]
        assert loop["name"] == order
        whole = tile_grid(s.n, s.n, s.block_q, s.block_k, causal, order).visit_number[:16, :8]
        window = np.array(loop["number"])
        np.testing.assert_array_equal(window > 0, whole > 0)
        # The order is the same, whatever the whole grid visits in between.
        visited = window > 0
        assert (np.argsort(window[visited]) == np.argsort(whole[visited])).all()


def test_the_headline_has_the_four_numbers():
    state = state_of(Settings())
    assert [value for value, _, _ in state["headline"]] == ["143 MB", "0.50 \u00d7", "32 of 227 KiB", "4 on an SM"]
    assert not any(over for _, _, over in state["headline"])
    state = state_of(Settings(16, 128, d=128, dtype="fp32", gpu="T4"))
    assert [over for _, _, over in state["headline"]] == [False, True, True, True]


def test_compiler_figures_come_from_the_record():
    seen = 0
    for s in ALL:
        model, row = explorer.evaluate(s), row_of(s)
        text = lines_of(model)["Compiler"]
        if s.order == "kv_outer":
            assert model.compiled is None and "nothing is recorded" in text
        else:
            seen += 1
            expected = [row["num_warps"], row["shared_bytes"]]
            if row["shared_bytes"] > GPUS[s.gpu].shared_bytes_per_block:
                assert f"does not fit: needs {row['shared_bytes']:,} bytes of shared memory, there are" in text
                expected.append(GPUS[s.gpu].shared_bytes_per_block)
            if row["tensor_memory_columns"]:
                expected.append(row["tensor_memory_columns"])
            expected += [row["registers"], 128 * row["registers"] * row["num_warps"]]
            expected += [row["stack_bytes"]] if row["stack_bytes"] else []
            assert text.startswith(f"By Triton {RAW['triton']}: ")
            assert numbers(text.split(": ", 1)[1]) == expected
            assert ("nothing spilled" in text) == (row["stack_bytes"] == 0)
            assert text.endswith("tensor cores used." if row["tensor_cores"] else "tensor cores not used.")
    assert seen


def test_programs_fill_waves():
    for s in ALL:
        model, gpu = explorer.evaluate(s), GPUS[s.gpu]
        text = lines_of(model)["Programs"]
        programs = s.heads * (ceil(s.n / s.block_q) if s.order == "q_outer" else 1)
        assert model.programs == programs and numbers(text)[0] == programs
        if not model.limits:
            assert "wave" not in text
            continue
        used = model.compiled
        assert model.per_sm * (used.shared_bytes + gpu.reserved_shared_bytes) <= gpu.shared_bytes_per_sm
        assert model.per_sm * 32 * used.num_warps * used.registers <= gpu.registers_per_sm
        assert model.per_sm * 32 * used.num_warps <= gpu.threads_per_sm
        assert (model.waves - 1) * model.at_a_time + model.last_wave == programs
        assert 1 <= model.last_wave <= model.at_a_time == model.per_sm * gpu.sms
        share = round(100 * model.last_wave / model.at_a_time)
        assert numbers(text)[1:] == [gpu.sms, model.per_sm, model.at_a_time, model.waves, model.last_wave, share]


def test_programs_by_hand():
    """16 query tiles x 32 heads; 128 registers x 128 threads: 4 programs an SM, 528 on 132 SMs."""
    s = Settings(64, 64, 1024, heads=32)
    model = explorer.evaluate(s, invented(s))
    assert (model.programs, model.per_sm, model.at_a_time, model.waves, model.last_wave) == (512, 4, 528, 1, 512)
    model = explorer.evaluate(replace(s, heads=64), invented(s))
    assert (model.programs, model.waves, model.last_wave) == (1024, 2, 496)
    assert "limit: registers" in lines_of(model)["Programs"]
    model = explorer.evaluate(s, invented(s, shared_bytes=100_000))
    assert model.per_sm == 2 and "limit: shared memory" in lines_of(model)["Programs"]
    model = explorer.evaluate(replace(s, order="kv_outer"), invented(s))
    assert model.programs == 32 and "At least 100 SMs have nothing to do" in lines_of(model)["Programs"]


def test_what_does_not_fit_or_has_the_other_order_says_so():
    s = Settings(gpu="T4")
    model = explorer.evaluate(s, invented(s, shared_bytes=65_537))
    assert "does not fit: needs 65,537 bytes of shared memory, there are 65,536" in lines_of(model)["Compiler"]
    assert "None fits on an SM" in lines_of(model)["Programs"]
    model = explorer.evaluate(s, invented(s, shared_bytes=65_536))
    assert model.per_sm == 1
    model = explorer.evaluate(replace(s, order="kv_outer"))
    assert [row["note"] for row in explorer._sram_rows(model)["rows"][2:]] == ["not for this order"] * 2


def test_bars_are_as_long_as_their_numbers():
    for s in [*SINGLES[::2], *SAMPLE[:15]]:
        model = explorer.evaluate(s)
        used, rows = model.compiled, explorer._sram_rows(model)
        expected = [*model.four_tiles_bytes.values(), *model.sram.values()]
        expected += [used.shared_bytes, used.register_bytes] if used else []
        drawn = [size for row in rows["rows"] for _, size, _ in row["parts"]]
        np.testing.assert_allclose(np.array(drawn) * 1024, expected, atol=6)
        assert rows["end"] * 1024 >= max(expected) - 6
        for row in rows["rows"]:
            assert row["over"] == (sum(size for _, size, _ in row["parts"]) > row["mark"])
        rows = explorer._byte_rows(model)["rows"]
        tensors = [tensor for counted in (model.standard, model.flash) for tensor in counted.by_tensor.values()]
        expected = [*map(sum, tensors), model.once_bytes, *([model.bound_bytes] if model.bound_bytes else [])]
        np.testing.assert_allclose([size * 1e6 for row in rows for _, size, _ in row["parts"]], expected, rtol=5.1e-4)
        heights = explorer._waves(model)["heights"]
        assert len(heights) == (min(model.waves, explorer.MAX_DRAWN_WAVES) if model.limits else 0)
        if heights:
            assert heights[-1] == pytest.approx(model.last_wave / model.at_a_time, abs=5.1e-4)
            assert set(heights[:-1]) <= {1}


def test_points_are_on_the_roof():
    for s in SINGLES:
        model = explorer.evaluate(s)
        roof = explorer._roof(model)
        for (x, y), counted in zip(points_of(roof)[:2], (model.standard, model.flash), strict=True):
            assert 10**x == pytest.approx(counted.flops / counted.total_bytes, rel=2e-3)
            assert 10**y == pytest.approx(explorer.at_the_roof(model, counted)[0], rel=2e-3)
            for value, axis in ((x, roof["x"]), (y, roof["y"])):
                assert axis["ends"][0] <= value <= axis["ends"][1]


def points_of(roof):
    return [(x, y) for x, y, _, _ in roof["points"]]


def synthetic(block_q, block_k, num_warps, num_stages, *, causal=False, **result):
    """A row of a sweep with invented milliseconds. As in benchmarks, a causal call counts half the FLOPs."""
    shape = {"head_dim": 64, "n": 4096, "causal": causal, "dtype": "float16", "batch": 4, "heads": 16}
    tiles = {"block_q": block_q, "block_k": block_k, "num_warps": num_warps, "num_stages": num_stages}
    if "ms" in result:
        result["tflops"] = (2 if causal else 4) * 4096**2 * 64 * 64 / result["ms"] / 1e9
    return shape | tiles | {"tma": num_stages > 2} | result


SYNTHETIC_SWEEP = {
    **{"gpu": "NVIDIA H100 80GB HBM3", "torch": "0.1", "triton": "0.2", "date": "2000-01-01"},
    "rows": [
        synthetic(64, 64, 4, 2, ms=4.0),
        synthetic(64, 64, 8, 3, ms=2.0),
        synthetic(64, 64, 8, 4, error="out of resources"),
        synthetic(64, 64, 4, 2, causal=True, ms=2.0),
        synthetic(128, 128, 4, 4, error="needs <much>"),
        synthetic(256, 64, 8, 2, ms=5.0),
    ],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in place of the committed records."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def sweep(folder):
    """The synthetic sweep as `explorer.swept` reads it. Unwrapped, because it keeps what it read first."""
    (folder / "sweep-h100.json").write_text(json.dumps(SYNTHETIC_SWEEP))
    return explorer.swept.__wrapped__()


def test_the_fastest_of_the_swept_configurations_is_shown(sweep):
    model = explorer.evaluate(Settings(n=1024), sweep=sweep)
    counted = traffic.flash_attention(4096, 4096, 64, block_q=64, block_k=64, heads=64)
    text = lines_of(model)["Measured"]
    assert text.startswith("137.4 TFLOP/s, N = 4,096, 64 heads, the fastest of 3 configurations with these tiles")
    allowed = GPUS["H100"].hbm_bytes_per_s * counted.arithmetic_intensity / 1e12  # left of the ridge
    assert f"allows {allowed:.1f} (NVIDIA H100 80GB HBM3, torch 0.1, triton 0.2, 2000-01-01)" in text
    assert "(8 warps, 3 stages, tiles by descriptor)" in text
    # Not under the roof of requested bytes, which caches let it exceed.
    assert len(points_of(explorer._roof(model))) == 2


def test_what_is_allowed_counts_flops_as_the_measurement_does(sweep):
    model = explorer.evaluate(Settings(causal=True), sweep=sweep)
    counted = model.measured.counted
    assert counted.flops > 2 * 4096**2 * 64 * 64, "the tiles on the diagonal are whole"
    allowed = 2 * 4096**2 * 64 * 64 / explorer.at_the_roof(model, counted)[1] / 1e9
    assert f"allows {allowed:.1f} (" in lines_of(model)["Measured"]


def test_tiles_that_never_ran_say_so(sweep):
    model = explorer.evaluate(Settings(128, 128), sweep=sweep)
    text = lines_of(model)["Measured"]
    assert text.startswith("N = 4,096, 64 heads: none of 1 configuration with these tiles ran, needs &lt;much&gt; (")


def test_what_was_not_swept_shows_no_measurement(sweep):
    for other in ({"gpu": "A100"}, {"dtype": "bf16"}, {"d": 128}, {"block_q": 32}, {"order": "kv_outer"}):
        model = explorer.evaluate(replace(Settings(), **other), sweep=sweep)
        assert model.measured is None and "Measured" not in lines_of(model), other


def test_without_a_sweep_nothing_measured_is_shown(folder):
    sweep = explorer.swept.__wrapped__()
    assert sweep == {} and explorer.evaluate(Settings(), sweep=sweep).measured is None


def test_every_setting_has_a_state_that_json_can_hold():
    """Every 31st corner; 31 is odd, so both ends of every control occur."""
    for s in [*CORNERS[::31], *SAMPLE[40:45]]:
        state = json.loads(json.dumps(state_of(s), allow_nan=False))
        assert state["opens"] == len(state["loops"][state["chosen"]]["visits"])


def test_every_choice_is_recorded():
    """The explorer takes it for granted."""
    for dtype, d, causal, block_q, block_k, gpu in product(DTYPES, HEAD_DIMS, (False, True), BLOCKS, BLOCKS, GPUS):
        s = Settings(block_q, block_k, d=d, dtype=dtype, causal=causal, gpu=gpu)
        assert s.row in explorer.recorded(), s


def test_the_controls_offer_every_setting():
    controls = {control["name"]: [value for _, value in control["options"]] for control in explorer.explore().controls}
    assert {name: tuple(options) for name, options in controls.items()} == RANGES
