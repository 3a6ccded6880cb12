"""Every notebook once more, with the answers in place of the stubs: every check must then pass. Where there is a GPU,
the notebooks have it.
"""

import copy
import inspect
import json

import nbformat
import pytest

from course_lib import authoring, runtime
from course_lib.grading import registry

NAMES = sorted(path.stem for path in authoring.SOURCE.glob("[0-9]*.md"))


def with_answers(notebook, answer_of):
    """A copy in which the cell of each exercise holds the source of `answer_of(id)`."""
    answered = copy.deepcopy(notebook)
    for cell in answered.cells:
        if exercise_id := cell.metadata.get("exercise"):
            cell.source = "import numpy as np\n\n\n" + inspect.getsource(answer_of(exercise_id))
    return answered


def check_texts(notebook):
    """What the check cells of an executed notebook say, by exercise."""
    texts = {}
    for cell in notebook.cells:
        if "check" in cell.metadata.get("tags", []):
            (output,) = cell.outputs
            text = output.data["text/plain"]
            texts[text.split(":")[0]] = text
    return texts


def states(notebook, scratch):
    """Executes `notebook` and returns what its checks found, as the progress file has it: id -> state."""
    authoring.execute(notebook, cwd=scratch, scratch=scratch, gpu=runtime.mode() == "gpu")
    progress = scratch / "progress.json"
    return json.loads(progress.read_text())["exercises"] if progress.exists() else {}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    # The notebooks run in a temporary directory, where their first cell finds no folder above.
    monkeypatch.setenv("PYTHONPATH", str(authoring.ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_every_exercise_stands_in_its_lesson_once(name):
    notebook = authoring.read_text(authoring.SOURCE / f"{name}.md")
    found = [cell.metadata.exercise for cell in notebook.cells if "exercise" in cell.metadata]
    assert found == [exercise.id for exercise in registry.lesson(name[:2]).EXERCISES]


def test_every_lesson_with_exercises_has_a_notebook():
    assert set(registry.lessons()) <= {name[:2] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_check_passes_with_the_answers(name, tmp_path):
    notebook = authoring.read_text(authoring.SOURCE / f"{name}.md")
    notebook = with_answers(notebook, lambda exercise_id: registry.find(exercise_id).answer)
    expected = {exercise.id: "passed" for exercise in registry.lesson(name[:2]).EXERCISES}
    assert states(notebook, tmp_path) == expected, check_texts(notebook)
    assert all(": passed" in text for text in check_texts(notebook).values()), check_texts(notebook)


def wrong_scale(head_dim):
    return 1 / head_dim


def test_a_wrong_answer_is_not_taken_for_a_right_one(tmp_path):
    """What the test above looks at does tell the stub, a wrong answer and the right one apart."""
    cells = [
        nbformat.v4.new_code_cell("from course_lib import check"),
        nbformat.v4.new_code_cell(
            "def softmax_scale(head_dim):\n    raise NotImplementedError",
            metadata={"tags": ["exercise"], "exercise": "00.softmax_scale"},
        ),
        nbformat.v4.new_code_cell('check("00.softmax_scale", softmax_scale)', metadata={"tags": ["check"]}),
    ]
    stub = nbformat.v4.new_notebook(cells=cells)
    assert states(stub, tmp_path) == {}
    assert "not attempted" in check_texts(stub)["00.softmax_scale"]

    wrong = with_answers(stub, lambda _: wrong_scale)
    wrong.cells[1].source = wrong.cells[1].source.replace("wrong_scale", "softmax_scale")
    assert states(wrong, tmp_path) == {"00.softmax_scale": "attempted"}

    right = with_answers(stub, lambda exercise_id: registry.find(exercise_id).answer)
    assert states(right, tmp_path) == {"00.softmax_scale": "passed"}
