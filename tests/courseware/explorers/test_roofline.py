"""The roofline's explorer: bytes and FLOPs against sums by hand, rates against the record, what it says and draws."""

import itertools
import json

import pytest

from course_lib.hardware import GPUS
from courseware.bench import records
from courseware.explorers import roofline
from courseware.explorers.roofline import DRAM, ONCE, REQUESTED, describe, draw, evaluate

RAW = json.loads((records.FOLDER / "attention-h100.json").read_text())
ALL = [
    evaluate(gpu=gpu, d=d, n=n, causal=causal, counted=counted, block_q=block_q)
    for gpu, d, n, causal, counted, block_q in itertools.product(
        GPUS, roofline.HEAD_DIMS, roofline.LENGTHS, (False, True), (REQUESTED, ONCE), roofline.BLOCKS
    )
]


def requested_bytes(s):
    """fp16 bytes of one head by hand: Q and O once, and for each query tile the tiles of 64 keys that it sees."""
    keys_read = 0
    for stop in range(s.block_q, s.n + 1, s.block_q):
        keys_read += -(-stop // 64) * 64 if s.causal else s.n
    return 2 * s.d * (2 * s.n + 2 * keys_read)


def test_bytes_are_those_of_the_loop_or_of_each_tensor_once():
    for s in ALL:
        expected = requested_bytes(s) if s.counted == REQUESTED else 4 * s.n * s.d * 2
        assert s.n_bytes == expected, s


def test_flops_are_halved_by_the_mask_and_the_slower_resource_binds():
    for model in ALL:
        gpu = GPUS[model.name]
        assert model.flops * (2 if model.causal else 1) == 4 * model.n * model.n * model.d, model
        memory_s = model.n_bytes / gpu.hbm_bytes_per_s
        arithmetic_s = model.flops / gpu.fp16_tensor_tflops / 1e12
        assert f"The {'memory' if memory_s > arithmetic_s else 'arithmetic'} binds" in describe(model), model
        roof_flops_per_s = roofline.roof_tflops(gpu, model.intensity) * 1e12
        assert model.flops / roof_flops_per_s == pytest.approx(max(memory_s, arithmetic_s)), model


def test_rates_are_those_of_the_record_and_only_for_the_h100():
    for row in RAW["rows"]:
        if row["pass"] == "forward":
            model = evaluate(d=row["head_dim"], n=row["n"], causal=row["causal"])
            assert model.measured == {call: row["tflops"][call] for call in ("ours", "sdpa_flash", "sdpa_cudnn")}
    assert all(evaluate(gpu=name).measured == {} for name in GPUS if name != "H100")


def test_the_roof_of_products_and_exponentials_in_turns_by_hand():
    for d in roofline.HEAD_DIMS:
        seconds_a_score = 4 * d / 989.4e12 + 1 / 3.9e12
        assert evaluate(d=d).exp_roof_tflops == pytest.approx(4 * d / seconds_a_score / 1e12)
    assert evaluate(gpu="A100").exp_roof_tflops is None


def test_dram_bytes_come_from_the_record_of_that_shape(tmp_path, monkeypatch):
    """In a made-up record, sixteen heads moved 24,000 bytes."""
    row = {"method": "flash", "pass": "forward", "n": 1024, "head_dim": 64, "causal": False, "batch": 1, "heads": 16}
    row |= {"dram_read_bytes": 16000, "dram_write_bytes": 8000}
    (tmp_path / "dram-h100.json").write_text(json.dumps({"rows": [row | {"heads": 1}, row]}))
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    settings = {"d": 64, "n": 1024, "counted": DRAM}
    assert evaluate(**settings).n_bytes == 1500
    for other in ({"n": 4096}, {"causal": True}, {"gpu": "A100"}):
        model = evaluate(**(settings | other))
        assert model.n_bytes is None and model.intensity is None
        assert "no counter was read" in describe(model)
        draw(model)


def test_description_says_what_binds_and_what_lies_above():
    text = describe(evaluate())
    assert "69,206,016; 124.1 FLOPs a byte" in text and "The memory binds" in text and "416 TFLOP/s" in text
    assert "Faster than HBM delivers these bytes:</b> this course; PyTorch, cuDNN." in text
    text = describe(evaluate(counted=ONCE))
    assert "The arithmetic binds</b>: at most 989 TFLOP/s" in text and "Faster than HBM" not in text and "%" not in text
    assert "nothing is measured" in describe(evaluate(gpu="T4"))


def test_picture_has_every_call_at_its_place():
    model = evaluate()
    (axes,) = draw(model).axes
    points = {tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() in "os^"}
    assert points == {(model.intensity, tflops) for tflops in model.measured.values()}
    words = [text.get_text() for text in axes.get_legend().texts]
    assert words == [f"{roofline.CALLS[call][0]}: {tflops:.0f} TFLOP/s" for call, tflops in model.measured.items()]


def test_measured_rates_do_not_move_with_the_tile():
    levels = [
        sorted(line.get_ydata()[0] for line in draw(evaluate(block_q=rows)).axes[0].lines if is_level(line))
        for rows in roofline.BLOCKS
    ]
    assert levels == [sorted(evaluate().measured.values())] * len(roofline.BLOCKS)


def is_level(line):
    return list(line.get_xdata()) == [0, 1]


def test_only_this_course_stands_where_the_counter_was_read():
    """No other kernel's bytes were counted."""
    model = evaluate(d=64, n=4096, counted=DRAM)
    (axes,) = draw(model).axes
    points = [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() in "os^"]
    assert points == [(model.intensities[DRAM], model.measured["ours"])]


def test_the_roof_lies_inside_the_picture():
    for gpu in GPUS:
        (axes,) = draw(evaluate(gpu=gpu)).axes
        roof = axes.lines[0].get_ydata()
        assert axes.get_ylim()[0] < max(roof) < axes.get_ylim()[1], gpu


def test_the_explorer_follows_every_control(shell_of):
    def shown(**settings):
        model = evaluate(**settings)
        return describe(model), draw(model)

    moves = [
        ("N", 16384, {"n": 16384}),
        ("d", 64, {"d": 64}),
        ("B_r", 64, {"block_q": 64}),
        ("causal", True, {"causal": True}),
        ("GPU", "T4", {"gpu": "T4"}),
        ("bytes", ONCE, {"counted": ONCE}),
        ("bytes", DRAM, {"counted": DRAM}),
    ]
    shell_of(roofline.explore()).assert_follows(shown, {}, moves)
