import random
from math import ceil

import numpy as np
import pytest

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records
from courseware.explorers import block_sizes as explorer
from courseware.explorers.block_sizes import DTYPES, START, evaluate
from courseware.explorers.tile_grid import tile_grid

from .conftest import numbers, shapes, tips

CONTROLS = {control["name"]: [value for _, value in control["options"]] for control in explorer.explore().controls}
RANGES = {name: CONTROLS[name] for name in START}
_random = random.Random(6)
# Every value of each control, and a sample of all combinations.
ALL = [START | {name: value} for name, options in RANGES.items() for value in options]
ALL += [{name: _random.choice(options) for name, options in RANGES.items()} for _ in range(300)]
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
RAW = records.record("resources")
RECORDED = {tuple(row[:6]): dict(zip(RAW["columns"], row, strict=True)) for row in RAW["rows"]}


def counted(s, **sizes):
    """(this choice's Traffic, standard attention's)"""
    sizes = {"dtype_bytes": BYTES[s["dtype"]], "causal": s["causal"], "heads": s["heads"]} | sizes
    blocks = {name: s[name] for name in ("block_q", "block_k", "order")}
    shape = s["n"], s["n"], s["d"]
    return traffic.flash_attention(*shape, **blocks, **sizes), traffic.standard_attention(*shape, **sizes)


def test_bytes_and_roofline_are_those_of_traffic():
    for s in ALL:
        (flash, standard), model, gpu, size = counted(s), evaluate(**s), GPUS[s["gpu"]], BYTES[s["dtype"]]
        assert (model.flash, model.standard) == (flash, standard)
        ratio, sram_elems = flash.total_bytes / standard.total_bytes, gpu.shared_bytes_per_block // size
        assert model.once_bytes == 4 * s["n"] * s["d"] * size * s["heads"]
        if sram_elems > s["n"] * s["d"]:
            assert model.bound_bytes is None
        else:
            assert model.bound_bytes == traffic.lower_bound_elems(s["n"], s["d"], sram_elems) * size * s["heads"]
        tensors = [sum(moved) for one in (standard, flash) for moved in one.by_tensor.values()]
        np.testing.assert_allclose(
            [1e6 * numbers(tip)[0] for tip in tips(explorer.bytes_panel(model), r".*: \w+ ")], tensors, rtol=5.1e-4
        )

        without = s["dtype"] == "fp32" or (s["dtype"], s["gpu"]) == ("bf16", "T4")
        peak = gpu.fp32_tflops if without else gpu.fp16_tensor_tflops
        roof = explorer.roof_panel(model)
        for one, dot in zip((flash, standard), reversed(shapes(roof)), strict=True):
            intensity = one.flops / one.total_bytes
            tflops = min(peak, intensity * gpu.hbm_bytes_per_s / 1e12)
            place = [float(dot["cx"]), float(dot["cy"])]
            np.testing.assert_allclose(place, [roof.x(intensity), roof.y(tflops)], atol=0.06)

        tiles_bytes = size * (s["block_q"] * s["d"] + 2 * s["block_k"] * s["d"] + s["block_q"] * s["block_k"])
        _, (_, _, too_many), (text, _, too_large), _ = explorer._headline(model)
        budget = gpu.shared_bytes_per_block
        assert numbers(text) == pytest.approx([tiles_bytes / 1024, budget / 1024], rel=5e-3)
        assert [too_many == "bad", too_large == "bad"] == [ratio > 1, tiles_bytes > budget], s


def test_compiler_figures_are_the_records_and_programs_fill_waves():
    for s in ALL:
        model, gpu = evaluate(**s), GPUS[s["gpu"]]
        said = explorer.describe(model)
        programs = s["heads"] * (ceil(s["n"] / s["block_q"]) if s["order"] == "q_outer" else 1)
        assert model.programs == programs
        if model.limits:
            assert (model.waves - 1) * model.at_a_time + model.last_wave == programs
            assert 1 <= model.last_wave <= model.at_a_time == model.per_sm * gpu.sms
            share = round(100 * model.last_wave / model.at_a_time)
            found = numbers(said.split("The limit on an SM")[1].split("Triton")[0])
            assert found == [model.at_a_time, gpu.sms, model.last_wave, share]
        if s["order"] == "kv_outer":
            assert model.compiled is None and "nothing is recorded" in said
            continue
        major, minor = gpu.compute_capability
        tiles = s["d"], s["causal"], s["block_q"], s["block_k"]
        row = RECORDED[10 * major + minor, DTYPES[s["dtype"]], *tiles]
        columns = [row["tensor_memory_columns"]] if row["tensor_memory_columns"] else []
        expected = [row["num_warps"], row["shared_bytes"], gpu.shared_bytes_per_block, *columns, row["registers"]]
        expected += [128 * row["registers"] * row["num_warps"], *([row["stack_bytes"]] if row["stack_bytes"] else [])]
        assert numbers(said.split("gave them")[1]) == expected
        assert ("nothing spilled" in said) == (row["stack_bytes"] == 0)
        assert said.endswith("tensor cores used." if row["tensor_cores"] else "tensor cores not used.")


def test_programs_by_hand():
    """16 query tiles x 32 heads; 98 registers x 128 threads: 4 programs an SM, 528 on 132 SMs."""
    model = evaluate()
    assert (model.programs, model.per_sm, model.at_a_time, model.waves, model.last_wave) == (512, 4, 528, 1, 512)
    headline = [value for value, *_ in explorer._headline(model)]
    assert headline == ["143 MB", "0.50 \u00d7", "32 of 227 KiB", "4 on an SM"]
    run = explorer.runs_of(model.settings)["q_outer"]
    sram = explorer.sram_panel(model, run)
    assert tips(sram, "four tiles: ") == [f"{name} 8 KiB" for name in "QKVS"]
    assert tips(sram, "NumPy, machine: ") == [f"{name} {n / 1024:,.4g} KiB" for name, n in run.held.items() if n]
    model = evaluate(heads=64)
    assert (model.waves, model.last_wave) == (2, 496) and "The limit on an SM: registers." in explorer.describe(model)
    assert "at least 100 of 132 SMs have nothing to do" in explorer.describe(evaluate(order="kv_outer"))
    model = evaluate(gpu="T4", block_q=128)
    assert model.compiled.shared_bytes == model.gpu.shared_bytes_per_block, "just fits"
    assert model.per_sm == 1 and "The limit on an SM: shared memory." in explorer.describe(model)
    model = evaluate(gpu="T4", block_q=128, d=128)
    assert "None fits on an SM" in explorer.describe(model) and explorer._headline(model)[3][2] == "bad"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n, block_q, block_k", [(100, 16, 32), (512, 64, 128), (4095, 16, 32)])
def test_the_first_tiles_are_run_as_they_are_in_the_whole(n, block_q, block_k, causal):
    s = START | {"block_q": block_q, "block_k": block_k, "n": n, "causal": causal, "d": 32, "dtype": "fp32"}
    for order, run in explorer.runs_of(evaluate(**s).settings).items():
        if n <= 8 * block_q:
            assert run.moved[-1] == counted(s | {"order": order}, heads=1)[0].by_tensor, order
        window = run.grid.visit_number
        assert window.shape == (min(8, ceil(n / block_q)), min(8 * block_q // block_k, ceil(n / block_k)))
        whole = tile_grid(n, n, block_q, block_k, causal, order).visit_number[: window.shape[0], : window.shape[1]]
        visited = window > 0
        # The order is the same, whatever the whole grid visits in between.
        assert (visited == (whole > 0)).all()
        assert (np.argsort(window[visited]) == np.argsort(whole[visited])).all()
    drawn = f"the first 8 x 4 of {ceil(n / 16)} x {ceil(n / 32)}" if n == 4095 else "all"
    assert explorer.page(**s | {"visit": 0}).text == f"Nothing visited yet. Drawn: {drawn} tiles of one head."
