"""What is done, kept in progress.json beside the notebook, or in the file that COURSE_LIB_PROGRESS names."""

import json
import os
import tempfile
from pathlib import Path

from . import registry


def location() -> Path:
    return Path(os.environ.get("COURSE_LIB_PROGRESS") or "progress.json")


def load() -> dict[str, str]:
    """exercise id -> "passed" or "attempted". A damaged file is set aside, never overwritten."""
    path = location()
    try:
        states = json.loads(path.read_text(encoding="utf-8"))["exercises"]
        if not all(isinstance(k, str) and v in ("passed", "attempted") for k, v in states.items()):
            raise ValueError("not a progress file")
        return states
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        _set_aside(path)
        return {}


def record(exercise_id: str, passed: bool) -> None:
    """Note an attempt. What was passed once stays passed."""
    states = load()
    state = "passed" if passed or states.get(exercise_id) == "passed" else "attempted"
    if states.get(exercise_id) == state:
        return
    states[exercise_id] = state
    path = location()
    # Written beside and renamed, so that no moment leaves half a file.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        json.dump({"exercises": dict(sorted(states.items()))}, file, indent=1)
    try:
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


def overview() -> str:
    """A bar per lesson and a line per exercise."""
    states = load()
    marks = {"passed": "passed", "attempted": "tried, not passed yet", None: "not attempted yet"}
    lines, points, possible = [], 0, 0
    for number in registry.lessons():
        exercises = registry.of_lesson(number)
        done = [exercise for exercise in exercises if states.get(exercise.id) == "passed"]
        points += sum(exercise.points for exercise in done)
        possible += sum(exercise.points for exercise in exercises)
        bar = "█" * len(done) + "░" * (len(exercises) - len(done))
        lines += [f"{number} {registry.lesson(number).TITLE:<24} {bar}  {len(done)} of {len(exercises)}"]
        lines += [f"     {e.id:<28} {marks[states.get(e.id)]}" for e in exercises]
    return "\n".join([*lines, f"{points} of {possible} points"])


def _set_aside(path):
    """Renames a damaged file to the first free progress.json.damaged, .damaged-2, ..."""
    aside, count = path.with_name(path.name + ".damaged"), 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.damaged-{count}")
    os.replace(path, aside)
