"""The progress file: what was passed stays passed, answers and guesses are kept, and nothing is ever lost."""

import json
import os

import pytest

from courseware.widgets import progress_file


def test_beside_the_notebook_unless_named_or_on_a_mounted_drive(monkeypatch, tmp_path, progress):
    assert progress_file.location() == progress
    monkeypatch.delenv("COURSEWARE_PROGRESS")
    assert str(progress_file.location()) == "progress.json"
    monkeypatch.setattr(progress_file, "DRIVE", tmp_path)
    assert progress_file.location() == tmp_path / "flash-attention-progress.json"


def test_what_was_passed_stays_passed_with_the_last_answer_that_did(progress):
    assert progress_file.load("exercises") == {}
    progress.write_text('{"exercises": {"42.unknown": "passed"}}')  # from before answers and guesses were kept
    progress_file.record("05.merge_states", False)
    for passed, source in ((True, "first"), (False, "wrong"), (True, "second"), (False, "wrong")):
        progress_file.record("00.softmax_scale", passed, source)
    progress_file.keep("guesses", "05.passes", "one")
    assert json.loads(progress.read_text()) == {
        "exercises": {"00.softmax_scale": "passed", "05.merge_states": "attempted", "42.unknown": "passed"},
        "answers": {"00.softmax_scale": "second"},
        "guesses": {"05.passes": "one"},
    }
    assert os.listdir(progress.parent) == ["progress.json"]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", "\x00\xff", '{"exercises": [1]}', '{"exercises": {"x": 1}}', '{"guesses": 1}',
     '{"else": 1}'],
)  # fmt: skip
def test_a_damaged_file_is_set_aside(progress, damage):
    progress.write_bytes(damage.encode("latin-1"))
    progress_file.record("00.softmax_scale", True)
    assert progress_file.load("exercises") == {"00.softmax_scale": "passed"}
    assert progress.with_name("progress.json.damaged").read_bytes() == damage.encode("latin-1")
    # Once more, and both are kept.
    progress.write_text("two")
    assert progress_file.load("exercises") == {}
    assert progress.with_name("progress.json.damaged-2").read_text() == "two"


def test_a_write_that_fails_leaves_the_old_file(progress, monkeypatch):
    progress_file.record("00.softmax_scale", True)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        progress_file.record("05.merge_states", True)
    assert json.loads(progress.read_text()) == {"exercises": {"00.softmax_scale": "passed"}}
    assert os.listdir(progress.parent) == ["progress.json"]
