"""Every notebook runs, and nbval finds every text output that a reader sees reproduced exactly."""

import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from course_lib import authoring, runtime

# Alternative texts have to reproduce, a picture's pixels need not.
SANITIZE = '[pictures]\nregex: base64,[^"]*\nreplace: base64\n'
NAMES = sorted(path.stem for path in authoring.NOTEBOOKS.glob("*.ipynb"))


def validate(notebook, scratch, gpu=False):
    """Runs nbval on a copy of the file `notebook` and returns the finished process.

    gpu: kernels are compiled for the GPU, which changes what the first cell prints.

    nbval gets a process of its own because its kernels inherit the environment, and a progress file or a hidden GPU
    would be wrong for the other tests of this one.
    """
    folder = scratch / "notebooks"
    folder.mkdir()
    copy = shutil.copy(notebook, folder)
    if gpu:
        changed = nbformat.read(copy, as_version=4)
        for cell in changed.cells:
            if "bootstrap" in cell.metadata.get("tags", []):
                cell.metadata.tags.append("nbval-ignore-output")
        nbformat.write(changed, copy)
    sanitize = scratch / "sanitize.cfg"
    sanitize.write_text(SANITIZE)
    environment = authoring.kernel_environment(scratch, gpu) | {"PYTHONPATH": str(authoring.ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", copy,
         f"--nbval-cell-timeout={authoring.CELL_TIMEOUT_S}", "--nbval-sanitize-with", sanitize,
         "--rootdir", scratch, "-c", os.devnull,
         "-p", "no:cacheprovider", "--color=no", "--tb=short", "--quiet"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert [path.name for path in folder.iterdir()] == [notebook.name], "a notebook leaves no file"
    return finished


@pytest.mark.parametrize("device", ["cpu", "gpu"] if runtime.mode() == "gpu" else ["cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_notebook_reproduces(name, device, tmp_path):
    finished = validate(authoring.NOTEBOOKS / f"{name}.ipynb", tmp_path, gpu=device == "gpu")
    assert finished.returncode == 0, finished.stdout + finished.stderr


def small_notebook(folder, printed):
    """A notebook with one cell for each pair of source and committed text in `printed`."""
    cells = []
    for count, (source, text) in enumerate(printed, start=1):
        output = nbformat.v4.new_output("stream", name="stdout", text=text)
        cells.append(nbformat.v4.new_code_cell(source, execution_count=count, outputs=[output]))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "small.ipynb")
    return folder / "small.ipynb"


def test_validation_rejects_what_does_not_reproduce(tmp_path):
    cells = [
        ("print(1.25)", "1.25\n"),
        ("print(1.26)", "1.25\n"),
        ("print(1.25)", ""),
        ("import time; print(time.time_ns())", "1767225600000000000\n"),
        ("raise ValueError", ""),
        ("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", "\n"),
    ]
    finished = validate(small_notebook(tmp_path, cells), tmp_path)
    assert finished.returncode == 1
    failed = re.findall(r"^FAILED .*::Cell (\d)", finished.stdout, flags=re.MULTILINE)
    assert failed == ["1", "2", "3", "4"], finished.stdout


def test_validation_notices_a_file_left_behind(tmp_path):
    notebook = small_notebook(tmp_path, [("print(1); open('left', 'w').close()", "1\n")])
    with pytest.raises(AssertionError, match="leaves no file"):
        validate(notebook, tmp_path)
