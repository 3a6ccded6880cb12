"""The records: read as they are written, and absent without a fuss; every committed one names where it comes from."""

import json

import pytest

from courseware.bench import records


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    origin = {"gpu": "G", "torch": "1", "triton": "2", "date": "2026-01-01"}
    rows = [{"n": 1, "causal": False, "ms": 3.0}, {"n": 2, "causal": False}, {"n": 2, "causal": True}]
    (tmp_path / "some.json").write_text(json.dumps(origin | {"rows": rows}))
    return tmp_path


def test_rows_are_those_wanted(folder):
    assert [row["n"] for row in records.rows("some")] == [1, 2, 2]
    assert records.rows("some", n=2, causal=True) == [{"n": 2, "causal": True}]
    assert records.rows("some", ms=3.0) == [{"n": 1, "causal": False, "ms": 3.0}]
    assert records.rows("some", n=3) == [] == records.rows("some", no_such_key=1)


def test_a_record_that_is_not_there(folder):
    assert records.record("other") is None and records.rows("other", n=1) == []
    assert records.provenance("other") == "no record other is here"


def test_provenance_names_gpu_versions_and_date(folder):
    assert records.provenance("some") == "G, torch 1, triton 2, 2026-01-01"


COMMITTED = sorted(path.stem for path in records.FOLDER.glob("*-h100.json"))


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_record_says_where_it_comes_from(name):
    found = records.record(name)
    assert all(found.get(key) for key in ("gpu", "torch", "triton", "date", "commit", "command"))
    assert "H100" in found["gpu"]
