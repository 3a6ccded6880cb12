"""The progress file: what was passed stays passed, answers and guesses are kept, and nothing is ever lost."""

import json
import os

import pytest

from courseware.widgets import progress_file


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def test_beside_the_notebook_unless_named_or_on_a_mounted_drive(monkeypatch, tmp_path, path):
    assert progress_file.location() == path
    monkeypatch.delenv("COURSEWARE_PROGRESS")
    assert str(progress_file.location()) == "progress.json"
    monkeypatch.setattr(progress_file, "DRIVE", tmp_path)
    assert progress_file.location() == tmp_path / "flash-attention-progress.json"


def test_what_was_passed_stays_passed(path):
    assert progress_file.load("exercises") == {}
    progress_file.record("05.merge_states", False)
    progress_file.record("00.softmax_scale", True)
    progress_file.record("00.softmax_scale", False)
    assert progress_file.load("exercises") == {"00.softmax_scale": "passed", "05.merge_states": "attempted"}
    progress_file.record("05.merge_states", True)
    assert progress_file.load("exercises")["05.merge_states"] == "passed"
    assert os.listdir(path.parent) == ["progress.json"]


def test_the_last_answer_that_passed_is_kept(path):
    progress_file.record("05.merge_states", True, "first")
    progress_file.record("05.merge_states", False, "wrong")
    assert progress_file.load("answers") == {"05.merge_states": "first"}
    progress_file.record("05.merge_states", True, "second")
    assert progress_file.load("answers") == {"05.merge_states": "second"}


def test_kinds_do_not_touch_each_other(path):
    progress_file.keep("guesses", "05.passes", "one")
    progress_file.record("05.merge_states", True, "source")
    assert json.loads(path.read_text()) == {
        "exercises": {"05.merge_states": "passed"},
        "answers": {"05.merge_states": "source"},
        "guesses": {"05.passes": "one"},
    }


def test_a_file_from_before_answers_and_guesses_were_kept_is_read(path):
    path.write_text(json.dumps({"exercises": {"42.unknown": "passed"}}))
    assert progress_file.load("guesses") == progress_file.load("answers") == {}
    progress_file.record("00.softmax_scale", True)
    assert progress_file.load("exercises") == {"00.softmax_scale": "passed", "42.unknown": "passed"}


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"exercises": [1]}', '{"exercises": {"x": 1}}', '{"exercises": {"x": []}}',
     '{"guesses": 1}', '{"else": 1}', "\x00\xff"],
)  # fmt: skip
def test_a_damaged_file_is_set_aside(path, damage):
    path.write_bytes(damage.encode("latin-1"))
    progress_file.record("00.softmax_scale", True)
    assert progress_file.load("exercises") == {"00.softmax_scale": "passed"}
    assert path.with_name("progress.json.damaged").read_bytes() == damage.encode("latin-1")


def test_damage_twice_keeps_both(path):
    for damage in ("one", "two"):
        path.write_text(damage)
        progress_file.load("exercises")
    kept = {file.name: file.read_text() for file in path.parent.iterdir()}
    assert kept == {"progress.json.damaged": "one", "progress.json.damaged-2": "two"}


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    progress_file.record("00.softmax_scale", True)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        progress_file.record("05.merge_states", True)
    assert json.loads(path.read_text()) == {"exercises": {"00.softmax_scale": "passed"}}
    assert os.listdir(path.parent) == ["progress.json"]
