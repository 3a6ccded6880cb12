"""The progress file: what was passed stays passed, and nothing is ever lost."""

import json
import os

import pytest

from course_lib.grading import progress_file


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_LIB_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def test_beside_the_notebook_unless_named(monkeypatch):
    monkeypatch.delenv("COURSE_LIB_PROGRESS")
    assert str(progress_file.location()) == "progress.json"


def test_what_was_passed_stays_passed(path):
    assert progress_file.load() == {}
    progress_file.record("05.merge_states", False)
    progress_file.record("00.softmax_scale", True)
    progress_file.record("00.softmax_scale", False)
    assert progress_file.load() == {"00.softmax_scale": "passed", "05.merge_states": "attempted"}
    progress_file.record("05.merge_states", True)
    assert progress_file.load()["05.merge_states"] == "passed"
    assert os.listdir(path.parent) == ["progress.json"]


def test_exercises_of_another_version_are_kept(path):
    path.write_text(json.dumps({"exercises": {"42.unknown": "passed"}}))
    progress_file.record("00.softmax_scale", True)
    assert progress_file.load() == {"00.softmax_scale": "passed", "42.unknown": "passed"}
    assert "42.unknown" not in progress_file.overview()


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"exercises": [1]}', '{"exercises": {"x": 1}}', '{"else": 1}', "\x00\xff"],
)
def test_a_damaged_file_is_set_aside(path, damage):
    path.write_bytes(damage.encode("latin-1"))
    progress_file.record("00.softmax_scale", True)
    assert progress_file.load() == {"00.softmax_scale": "passed"}
    assert path.with_name("progress.json.damaged").read_bytes() == damage.encode("latin-1")


def test_damage_twice_keeps_both(path):
    for damage in ("one", "two"):
        path.write_text(damage)
        progress_file.load()
    kept = {file.name: file.read_text() for file in path.parent.iterdir()}
    assert kept == {"progress.json.damaged": "one", "progress.json.damaged-2": "two"}


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    progress_file.record("00.softmax_scale", True)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        progress_file.record("05.merge_states", True)
    assert json.loads(path.read_text()) == {"exercises": {"00.softmax_scale": "passed"}}
    assert os.listdir(path.parent) == ["progress.json"]
