"""Every notebook runs, nbval finds every text output that a reader sees reproduced, and answers pass there."""

import inspect
import json
import os
import re
import textwrap

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_lib import runtime
from courseware.checks import registry
from tests import forked
from tests.thorough import ALL
from tools import authoring

# Alternative texts have to reproduce, a picture's pixels need not.
SANITIZE = '[pictures]\nregex: base64,[^"]*\nreplace: base64\n'
NBVAL = """
import pytest
from jupyter_client.provisioning import local_provisioner
from tests.forked import Kernel
local_provisioner.launch_kernel = Kernel().launch
sys.exit(pytest.main(sys.argv))
"""
NAMES = sorted(path.stem for path in authoring.NOTEBOOKS.glob("*.ipynb"))


def with_answers(notebook, exercise_ids):
    """Appends, for each exercise, the answer that a learner would write, and its check."""
    for exercise_id in exercise_ids:
        answer = registry.find(exercise_id).answer
        check = f"from courseware import check\n\ncheck({exercise_id!r}, {answer.__name__})"
        for source in ("import numpy as np\n\n\n" + textwrap.dedent(inspect.getsource(answer)), check):
            notebook.cells.append(new_code_cell(source, metadata={"tags": ["nbval-ignore-output"]}))
    return notebook


def validate(notebook, scratch, gpu=False):
    """Runs nbval on `notebook`, saved in a folder of its own: its exit status, and what it says.

    gpu: kernels are compiled for the GPU, which changes what the first cell prints.

    nbval gets a process of its own because its kernels inherit the environment, and a progress file or a hidden GPU
    would be wrong for the other tests of this one.
    """
    folder = scratch / "notebooks"
    folder.mkdir()
    for cell in notebook.cells:
        if gpu and "bootstrap" in cell.metadata.get("tags", []):
            cell.metadata.tags.append("nbval-ignore-output")
    nbformat.write(notebook, folder / "lesson.ipynb")
    sanitize = scratch / "sanitize.cfg"
    sanitize.write_text(SANITIZE)
    environment = authoring.kernel_environment(scratch, gpu) | {"PYTHONPATH": str(authoring.ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    finished = forked.run(
        NBVAL,
        ["-p", "nbval.plugin", "--nbval", "--nbval-current-env",
         folder / "lesson.ipynb", f"--nbval-cell-timeout={authoring.CELL_TIMEOUT_S}", "--nbval-sanitize-with", sanitize,
         "--rootdir", scratch, "-c", os.devnull, "-p", "no:cacheprovider", "--color=no", "--tb=short", "--quiet"],
        environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, authoring.ROOT, scratch,
    )  # fmt: skip
    left = {path.name for path in folder.iterdir()} - {"lesson.ipynb", "center_rows.py"}  # the second is lesson 07's
    assert not left, "a notebook leaves no file"
    return finished


def states(scratch):
    """What checks have written into the progress file: exercise id -> state."""
    progress = scratch / "progress.json"
    return json.loads(progress.read_text())["exercises"] if progress.exists() else {}


@pytest.mark.parametrize("device", ["cpu", "gpu"] if runtime.mode() == "gpu" else ["cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_notebook_reproduces_and_answers_pass(name, device, tmp_path):
    """The first exercise's, or all: that each answer passes its check is tested in test_exercises.py."""
    notebook = nbformat.read(authoring.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    expected = [exercise_id for exercise_id in registry.exercises() if exercise_id[:2] == name[:2]]
    assert [cell.metadata.exercise for cell in notebook.cells if "exercise" in cell.metadata] == expected
    answered = expected if ALL else expected[:1]
    status, said = validate(with_answers(notebook, answered), tmp_path, gpu=device == "gpu")
    assert status == 0, said
    assert states(tmp_path) == dict.fromkeys(answered, "passed")


def test_validation_rejects_what_does_not_reproduce_and_a_file_left_behind(tmp_path):
    cells = []
    for source, text in (
        ("print(1.25)", "1.25\n"),
        ("print(1.26)", "1.25\n"),
        ("print(1.25)", ""),
        ("import time; print(time.time_ns())", "1767225600000000000\n"),
        ("raise ValueError", ""),
        ("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", "\n"),
    ):
        output = new_output("stream", name="stdout", text=text)
        cells.append(new_code_cell(source, execution_count=len(cells) + 1, outputs=[output]))
    status, said = validate(new_notebook(cells=cells), tmp_path)
    assert status == 1
    failed = re.findall(r"^FAILED .*::Cell (\d)", said, flags=re.MULTILINE)
    assert failed == ["1", "2", "3", "4"], said
    (tmp_path / "more").mkdir()
    leaves_a_file = new_notebook(cells=[new_code_cell("open('left', 'w').close()", execution_count=1)])
    with pytest.raises(AssertionError, match="leaves no file"):
        validate(leaves_a_file, tmp_path / "more")
