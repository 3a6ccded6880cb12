"""The roofline's explorer: bytes and FLOPs against sums by hand, rates against the record, what it says and draws."""

import itertools
import json

import pytest

from course_lib.hardware import GPUS
from courseware.bench import records
from courseware.explorers import roofline
from courseware.explorers.roofline import DRAM, NAMES, ONCE, REQUESTED, describe, draw, evaluate

from .conftest import shapes

RAW = json.loads((records.FOLDER / "attention-h100.json").read_text())


def requested_bytes(s):
    """fp16 bytes of one head by hand: Q and O once, and for each query tile the tiles of 64 keys that it sees."""
    keys_read = 0
    for stop in range(s.block_q, s.n + 1, s.block_q):
        keys_read += -(-stop // 64) * 64 if s.causal else s.n
    return 2 * s.d * (2 * s.n + 2 * keys_read)


def test_bytes_flops_and_times_by_hand():
    settings = GPUS, roofline.HEAD_DIMS, roofline.LENGTHS, (False, True), (REQUESTED, ONCE), roofline.BLOCKS
    for name, d, n, causal, counted, block_q in itertools.product(*settings):
        model = evaluate(gpu=name, d=d, n=n, causal=causal, counted=counted, block_q=block_q)
        gpu = GPUS[name]
        assert model.n_bytes == (requested_bytes(model) if counted == REQUESTED else 4 * n * d * 2), model
        assert model.flops * (2 if causal else 1) == 4 * n * n * d, model
        memory_s, arithmetic_s = model.n_bytes / gpu.hbm_bytes_per_s, model.flops / gpu.fp16_tensor_tflops / 1e12
        assert f"The {'memory' if memory_s > arithmetic_s else 'arithmetic'} binds" in describe(model), model
        roof_flops_per_s = roofline.roof_tflops(gpu, model.intensity) * 1e12
        assert model.flops / roof_flops_per_s == pytest.approx(max(memory_s, arithmetic_s)), model


def test_rates_are_those_of_the_record_and_roofs_those_of_the_h100():
    for row in RAW["rows"]:
        if row["pass"] == "forward":
            model = evaluate(d=row["head_dim"], n=row["n"], causal=row["causal"])
            assert model.measured == {call: row["tflops"][call] for call in ("ours", "sdpa_flash", "sdpa_cudnn")}
    assert all(evaluate(gpu=name).measured == {} for name in GPUS if name != "H100")
    # Products and exponentials in turns.
    for d in roofline.HEAD_DIMS:
        seconds_a_score = 4 * d / 989.4e12 + 1 / 3.9e12
        assert evaluate(d=d).exp_roof_tflops == pytest.approx(4 * d / seconds_a_score / 1e12)
    assert evaluate(gpu="A100").exp_roof_tflops is None
    assert "69,206,016; 124.1 FLOPs a byte" in describe(evaluate()) and "416 TFLOP/s" in describe(evaluate())
    assert "Faster than HBM delivers these bytes:</b> this course; PyTorch, cuDNN." in describe(evaluate())
    assert "Faster than HBM" not in describe(evaluate(counted=ONCE))


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
        assert draw(model).html().count("no counter was read") == 2, "below the picture, and in it"


@pytest.mark.parametrize("counted", roofline.COUNTED)
def test_points_say_what_the_record_and_the_model_say(counted):
    """What was measured stays at its level; only this course's bytes were counted at DRAM."""
    model = evaluate(d=64, n=4096, counted=counted)
    drawn = draw(model)
    dots = {dot["class"]: dot for dot in shapes(drawn)}
    at = f"measured, at {model.intensity:,.1f} FLOPs a byte, bytes {counted}"
    for call, css in roofline.CALLS.items():
        rate = f"{model.measured[call]:.0f} TFLOP/s"
        assert f">{NAMES[call]}: {rate}<" in drawn.html()
        if counted != DRAM or call == "ours":
            assert dots[css]["data-tip"] == f"{NAMES[call]}, N = 4,096, d = 64, full: {rate} {at}"
            assert dots[css]["cx"] == dots["bad"]["cx"]
    assert len([css for css in dots if css in "QKV"]) == (1 if counted == DRAM else 3)
    roofs = [dot["data-tip"].split(": ")[1] for dot in shapes(drawn) if dot["class"] in ("bad", "grey")]
    reaches = [roofline.roof_tflops(model.gpu, model.intensities[way]) for way in roofline.COUNTED]
    assert roofs == [f"{reach:,.0f} TFLOP/s" for reach in reaches]
