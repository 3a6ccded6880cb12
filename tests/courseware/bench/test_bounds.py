"""The measured cases of `explain_point`, against the records and sums by hand."""

import json

import pytest

from course_lib.hardware import GPUS
from courseware.bench import bounds, records


def test_cases_of_the_committed_record():
    rows = records.rows("attention-h100", causal=False, n=16384, head_dim=128, **{"pass": "forward"})
    cases = bounds.measured_cases()
    case = cases["this course, N = 16,384, d = 128"]
    assert case["seconds"] == rows[0]["ms"]["ours"] / 1e3
    assert case["flops"] == 4 * 16384**2 * 128 * rows[0]["heads"] * rows[0]["batch"]
    assert case["n_bytes"] == 4 * 16384 * 128 * 2 * rows[0]["heads"] * rows[0]["batch"]
    assert case["flops"] / case["flops_per_s"] / case["seconds"] == pytest.approx(
        rows[0]["tflops"]["ours"] / GPUS["H100"].fp16_tensor_tflops
    )
    requested = cases["this course, N = 16,384, d = 128, bytes requested"]
    assert requested["n_bytes"] == case["n_bytes"] * (2 + 2 * 128) / 4, "K and V once for each of 128 query tiles"


def test_five_cases_with_both_records(tmp_path, monkeypatch):
    """Times made up here: 12 microseconds for three launches, 5 for one, and 14.5 ms for the longest."""
    shape = {"pass": "forward", "causal": False, "head_dim": 64, "batch": 1, "heads": 16}
    times = {("standard", 64): 0.012, ("flash", 64): 0.005, ("standard", 256): 0.015, ("standard", 1024): 0.1}
    times["standard", 16384] = 14.5
    rows = [shape | {"method": method, "n": n, "ms": ms, "train_ms": ms} for (method, n), ms in times.items()]
    rows[0]["ms"] = 0.007  # of which no launch is made: the train counts
    (tmp_path / "standard-h100.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "attention-h100.json").write_text((records.FOLDER / "attention-h100.json").read_text())
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert bounds.least_launch_s() == pytest.approx(4e-6), "a third of standard's 12 microseconds"
    cases = bounds.measured_cases()
    assert len(cases) == 5
    small, large = cases["standard, N = 256, d = 64, back to back"], cases["standard, N = 16,384, d = 64"]
    assert (small["launches"], large["launches"]) == (3, 3)
    assert large["n_bytes"] == 16 * (4 * 16384**2 + 4 * 16384 * 64) * 2
    assert bounds.explain_point(**small) == ("launch", pytest.approx(0.8)), "neither the quickest nor the slowest"
    assert bounds.explain_point(**large) == ("memory", pytest.approx(large["n_bytes"] / 3352e9 / 0.0145))
