"""The records: what is read of them, and that each is listed."""

import pytest

from courseware.bench import records


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
