"""Tools for who writes exercises: `new_exercise` writes one that works, of which a test says what is to be filled in;
`ablation` tells misconceptions that are needed from those that are not.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from courseware.checks import registry
from tools import ablation, new_exercise

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def clone(tmp_path, project_files):
    # Without the other lessons, whose misconceptions would all be made.
    names = [path.relative_to(ROOT) for path in project_files]
    files = [name for name in names if name.parts[1:2] != ("exercises",) or name.parts[2] in ("lesson_04", "common")]
    subprocess.run(["cp", "--parents", *files, tmp_path], cwd=ROOT, check=True)
    return tmp_path


def run(clone, *command):
    environment = os.environ | {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", *command], cwd=clone, env=environment, capture_output=True, text=True)


def test_a_new_exercise_works_and_says_what_is_to_be_filled_in(clone):
    result = run(clone, "tools.new_exercise", "04", "mean_of_scores")
    assert result.returncode == 0 and "Fill in what is marked FILL_IN" in result.stdout, result.stderr
    tests = "tests/courseware/exercises/test_exercises.py"
    result = run(clone, "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", "mean_of_scores or lesson_toml")
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1 and "test_an_exercise_is_whole[04.mean_of_scores]" in failed[0], result.stdout
    for name in ("mean_of_scores.py", "mean_of_scores.md", "04_attention.md", "lesson_04.py"):
        assert f"{name}: fill in what is marked FILL_IN, in lines " in result.stdout
    assert "04.mean_of_scores" in (clone / "notebooks/source/04_attention.md").read_text()
    again = run(clone, "tools.new_exercise", "04", "mean_of_scores")
    assert again.returncode == 2 and "there is an exercise 04.mean_of_scores already" in again.stderr


@pytest.mark.parametrize(
    "number, name, message",
    [
        ("99", "mean", "there is no lesson '99'"),
        ("04", "Mean of scores", "cannot name an exercise"),
        ("04", "lambda", "cannot name an exercise"),
    ],
)
def test_nothing_is_written_of_what_cannot_be(number, name, message):
    with pytest.raises(new_exercise.Refused, match=message):
        new_exercise.write(number, name)


@pytest.mark.parametrize(
    "exercise_id, name, became",
    [
        ("02.largest_exp_input", "the logarithm is to base 2", "worse"),
        ("04.attention", "the scale is missing", "as good"),
    ],
)
def test_a_message_is_as_good_if_it_names_a_line_that_changed(exercise_id, name, became):
    assert name in [misconception.name for misconception in registry.find(exercise_id).misconceptions]
    found, message = ablation.graded_without(exercise_id, name)
    assert found == became, message


def test_a_line_that_is_missing_changes_the_one_after_it():
    def right(x):
        x = x + 1
        x = 2 * x
        return x

    def wrong(x):
        x = x + 1
        return x

    assert ablation.changed_lines(right, right) == set()
    assert ablation.changed_lines(right, wrong) == {1, 3}
