"""Every notebook is executed with the answers in place of the stubs, on a GPU if there is one: every check passes."""

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
    """Exercise id -> what its check cell says in an executed notebook."""
    texts = {}
    for cell in notebook.cells:
        if "check" in cell.metadata.get("tags", []):
            (output,) = cell.outputs
            text = output.data["text/plain"]
            texts[text.split(":")[0]] = text
    return texts


def states(notebook, scratch):
    """Executes `notebook` and returns what its checks wrote into the progress file: exercise id -> state."""
    authoring.execute(notebook, cwd=scratch, scratch=scratch, gpu=runtime.mode() == "gpu")
    progress = scratch / "progress.json"
    return json.loads(progress.read_text())["exercises"] if progress.exists() else {}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    # The notebooks run in a temporary directory, from where their first cell cannot find the clone.
    monkeypatch.setenv("PYTHONPATH", str(authoring.ROOT))


def test_every_exercise_stands_in_its_lesson_once_and_in_order():
    for name in NAMES:
        notebook = authoring.read_text(authoring.SOURCE / f"{name}.md")
        found = [cell.metadata.exercise for cell in notebook.cells if "exercise" in cell.metadata]
        assert found == list(registry.ids_of(name[:2])), name


def test_every_lesson_with_exercises_has_a_notebook():
    assert set(registry.lessons()) <= {name[:2] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_check_passes_with_the_answers(name, tmp_path):
    notebook = authoring.read_text(authoring.SOURCE / f"{name}.md")
    notebook = with_answers(notebook, lambda exercise_id: registry.find(exercise_id).answer)
    expected = dict.fromkeys(registry.ids_of(name[:2]), "passed")
    assert states(notebook, tmp_path) == expected, check_texts(notebook)
    assert all(": passed" in text for text in check_texts(notebook).values()), check_texts(notebook)


def test_a_stub_a_wrong_answer_and_a_right_one_are_told_apart(tmp_path):
    """The test above would be worth nothing if `states` or `check_texts` could not tell them apart."""
    sources = {
        "01.dot": "def dot(a, b):\n    raise NotImplementedError",
        "01.cosine_similarity": "def cosine_similarity(a, b):\n    return 0.0",
        "01.attention_flops": inspect.getsource(registry.find("01.attention_flops").answer),
    }
    cells = [nbformat.v4.new_code_cell("from course_lib import check")]
    for exercise_id, source in sources.items():
        check = f'check("{exercise_id}", {exercise_id.split(".")[1]})'
        cells += [nbformat.v4.new_code_cell(source), nbformat.v4.new_code_cell(check, metadata={"tags": ["check"]})]
    notebook = nbformat.v4.new_notebook(cells=cells)

    assert states(notebook, tmp_path) == {"01.cosine_similarity": "attempted", "01.attention_flops": "passed"}
    texts = check_texts(notebook)
    assert "not attempted" in texts["01.dot"] and ": passed" in texts["01.attention_flops"]
    assert ": passed" not in texts["01.cosine_similarity"]
