"""The records: what is read of them, that each is listed, and the cases that are made of them."""

import json

import pytest

from courseware.bench import bounds, records


def test_rows_are_those_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    origin = {"gpu": "G", "torch": "1", "triton": "2", "date": "2026-01-01"}
    rows = [{"n": 1, "causal": False, "ms": 3.0}, {"n": 2, "causal": False}, {"n": 2, "causal": True}]
    records.write(tmp_path / "fp32-h100.json", origin | {"rows": rows})
    assert [row["n"] for row in records.rows("fp32-h100")] == [1, 2, 2]
    assert records.rows("fp32-h100", n=2, causal=True) == [{"n": 2, "causal": True}]
    assert records.rows("fp32-h100", ms=3.0) == [{"n": 1, "causal": False, "ms": 3.0}]
    assert records.rows("fp32-h100", n=3) == [] == records.rows("fp32-h100", no_such_key=1)
    assert records.provenance("fp32-h100") == "G, torch 1, triton 2, 2026-01-01"
    assert [path.name for path in tmp_path.iterdir()] == ["fp32-h100.json"], "nothing is left of the writing"
    # A record that is not there, or not listed.
    assert records.record("tf32-h100") is None and records.rows("tf32-h100", n=1) == []
    assert records.provenance("tf32-h100") == "no record tf32-h100 is here"
    for name in ("other", "other-h100"):
        with pytest.raises(ValueError, match=f"records.toml lists no record {name}"):
            records.rows(name)


def test_what_is_listed_is_there_and_says_where_it_comes_from():
    listed = {f"{name}-{gpu}" for name, kind in records.KINDS.items() for gpu in kind["gpus"]}
    listed |= {name for name, kind in records.KINDS.items() if not kind["gpus"]}
    assert listed == {path.stem for path in records.FOLDER.glob("*.json")}
    for name in listed:
        found = records.record(name)
        if name.endswith(("-h100", "-h200")):
            assert all(found.get(key) for key in ("gpu", "torch", "triton", "date", "commit", "command")), name
    assert all(("measure" in kind) != ("command" in kind) for kind in records.KINDS.values())


def test_the_cases_of_explain_point():
    rows = records.rows("attention-h100", causal=False, n=16384, head_dim=128, **{"pass": "forward"})
    cases = bounds.measured_cases()
    case = cases["this course, N = 16,384, d = 128"]
    assert case["seconds"] == rows[0]["ms"]["ours"] / 1e3
    assert case["flops"] == 4 * 16384**2 * 128 * rows[0]["heads"] * rows[0]["batch"]
    assert case["n_bytes"] == 4 * 16384 * 128 * 2 * rows[0]["heads"] * rows[0]["batch"]
    requested = cases["this course, N = 16,384, d = 128, bytes requested"]
    assert requested["n_bytes"] == case["n_bytes"] * (2 + 2 * 128) / 4, "K and V once for each of 128 query tiles"


def test_the_cases_of_standard_attention(tmp_path, monkeypatch):
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
