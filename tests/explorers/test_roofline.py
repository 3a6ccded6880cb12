"""The roofline's explorer: bytes and FLOPs against `traffic`, rates against the record, what it says and draws."""

import itertools
import json
from dataclasses import replace

import ipywidgets as widgets
import pytest

from course_lib import traffic
from course_lib.explorers import roofline
from course_lib.explorers.roofline import ASKED, COUNTED, DRAM, ONCE, Settings, describe, draw, evaluate
from course_lib.hardware import GPUS
from course_lib.measure import records

RAW = json.loads((records.FOLDER / "attention-h100.json").read_text())
ALL = [
    Settings(gpu, d, n, causal, counted, block_q)
    for gpu, d, n, causal, counted, block_q in itertools.product(
        GPUS, roofline.HEAD_DIMS, roofline.LENGTHS, (False, True), (ASKED, ONCE), roofline.BLOCKS
    )
]


@pytest.mark.parametrize("settings", ALL[::3], ids=str)
def test_counts_are_those_of_traffic(settings):
    s, model = settings, evaluate(settings)
    if s.counted == ASKED:
        counted = traffic.flash_attention(s.n, s.n, s.d, block_q=s.block_q, block_k=64, causal=s.causal)
        assert model.n_bytes == counted.total_bytes
    else:
        assert model.n_bytes == 4 * s.n * s.d * 2, "Q, K, V and O, 2 bytes each"
    assert model.flops * (2 if s.causal else 1) == 4 * s.n * s.n * s.d
    gpu = GPUS[s.gpu]
    assert model.binds == (
        "memory" if model.n_bytes / gpu.hbm_bytes_per_s > model.flops / gpu.fp16_tensor_tflops / 1e12 else "arithmetic"
    )
    roof = model.roof_tflops(model.intensity) * 1e12
    assert model.flops / roof == pytest.approx(
        max(model.n_bytes / gpu.hbm_bytes_per_s, model.flops / gpu.fp16_tensor_tflops / 1e12)
    )


def test_rates_are_the_records_and_the_h100s_alone():
    for row in RAW["rows"]:
        if row["pass"] == "forward":
            model = evaluate(Settings(d=row["head_dim"], n=row["n"], causal=row["causal"]))
            assert model.measured == {call: row["tflops"][call] for call in ("ours", "sdpa_flash", "sdpa_cudnn")}
    assert all(evaluate(Settings(gpu=name)).measured == {} for name in GPUS if name != "H100")


def test_products_and_exponentials_in_turns():
    for d in roofline.HEAD_DIMS:
        seconds_a_score = 4 * d / 989.4e12 + 1 / 3.9e12
        assert evaluate(Settings(d=d)).exp_roof_tflops == pytest.approx(4 * d / seconds_a_score / 1e12)
    assert evaluate(Settings(gpu="A100")).exp_roof_tflops is None


def test_counters_of_a_record(tmp_path, monkeypatch):
    """Made up, here alone: sixteen heads that moved 24,000 bytes, and one alone."""
    row = {"method": "flash", "pass": "forward", "n": 1024, "head_dim": 64, "causal": False, "batch": 1, "heads": 16}
    row |= {"dram_read_bytes": 16000, "dram_write_bytes": 8000}
    (tmp_path / "dram-h100.json").write_text(json.dumps({"rows": [row | {"heads": 1}, row]}))
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    settings = Settings(d=64, n=1024, counted=DRAM)
    assert evaluate(settings).n_bytes == 1500
    for other in (replace(settings, n=4096), replace(settings, causal=True), replace(settings, gpu="A100")):
        model = evaluate(other)
        assert model.n_bytes is None and model.intensity is None
        assert "no counter was read" in describe(model)
        draw(model)


def test_description_says_what_binds_and_what_lies_above():
    text = describe(evaluate(Settings()))
    assert "69,206,016; 124.1 FLOPs a byte" in text and "The memory binds" in text and "416 TFLOP/s" in text
    assert "Above the roof" in text
    text = describe(evaluate(Settings(counted=ONCE)))
    assert "The arithmetic binds</b>: at most 989 TFLOP/s" in text and "Above the roof" not in text
    assert "nothing is measured" in describe(evaluate(Settings(gpu="T4")))


def test_picture_has_every_call_at_its_place():
    model = evaluate(Settings())
    (axes,) = draw(model).axes
    drawn = {round(10 ** line.get_ydata()[0], 6) for line in axes.lines if len(line.get_xdata()) == 2}
    assert {round(tflops, 6) for tflops in model.measured.values()} <= drawn
    texts = " ".join(text.get_text() for text in axes.texts)
    assert all(f": {tflops:.0f} TFLOP/s" in texts for tflops in model.measured.values())


@pytest.mark.parametrize("gpu", GPUS)
def test_roof_lies_inside_the_picture(gpu):
    (axes,) = draw(evaluate(Settings(gpu=gpu))).axes
    roof = axes.lines[0].get_ydata()
    assert axes.get_ylim()[0] < max(roof) < axes.get_ylim()[1]


def test_every_control_redraws():
    box = roofline.explore()
    *rows, text, image = box.children
    controls = [control for row in rows for control in row.children]
    assert len(controls) == 6
    for control in controls:
        before = text.value, image.value
        options = [False, True] if isinstance(control, widgets.Checkbox) else list(control.options)
        values = [option[1] if isinstance(option, tuple) else option for option in options]
        control.value = next(value for value in values if value != control.value)
        assert text.value != before[0] and image.value != before[1], control.description
    assert COUNTED == (ASKED, ONCE, DRAM)
