"""What a learner has done, kept in progress.json beside the notebook, or in the file that COURSEWARE_PROGRESS names.

In Colab, where the machine and its files go with the session, it is kept on Google Drive if that is mounted.
"""

import json
import os
import tempfile
from pathlib import Path

COLAB = Path("/content")
DRIVE = COLAB / "drive/MyDrive"
# exercises: id -> "passed" or "attempted". answers: id -> source of the answer that passed. guesses: id -> guess.
KINDS = ("exercises", "answers", "guesses")


def location() -> Path:
    default = DRIVE / "flash-attention-progress.json" if DRIVE.is_dir() else "progress.json"
    return Path(os.environ.get("COURSEWARE_PROGRESS") or default)


def load(kind: str) -> dict:
    """What is kept of one kind: id -> value. A damaged file is set aside, never overwritten."""
    return _load()[kind]


def keep(kind: str, name: str, value) -> None:
    """Keep a value under a name."""
    kept = _load()
    if kept[kind].get(name) == value:
        return
    kept[kind][name] = value
    path = location()
    content = {kind: dict(sorted(entries.items())) for kind, entries in kept.items() if entries}
    # Written beside and renamed, so that no moment leaves half a file.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        json.dump(content, file, indent=1)
    try:
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


def record(exercise_id: str, passed: bool, source: str | None = None) -> None:
    """Note an attempt. What was passed once stays passed. source: of an answer that passed."""
    if passed or load("exercises").get(exercise_id) != "passed":
        keep("exercises", exercise_id, "passed" if passed else "attempted")
    if passed and source:
        keep("answers", exercise_id, source)


def _load():
    path = location()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kept = {kind: dict(content.get(kind, {})) for kind in KINDS}
        if not content.keys() & set(KINDS) or not set(kept["exercises"].values()) <= {"passed", "attempted"}:
            raise ValueError("not a progress file")
        return kept
    except FileNotFoundError:
        return {kind: {} for kind in KINDS}
    except (ValueError, TypeError, AttributeError):
        # It is renamed to the first free progress.json.damaged, .damaged-2, ...
        aside, count = path.with_name(path.name + ".damaged"), 1
        while aside.exists():
            count += 1
            aside = path.with_name(f"{path.name}.damaged-{count}")
        os.replace(path, aside)
        return {kind: {} for kind in KINDS}
