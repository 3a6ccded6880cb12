"""Working copies: an update of the course costs no learner an answer, and the text twins never see one."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel

from courseware import workspace

ROOT = Path(__file__).resolve().parents[2]


def write_lesson(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    output = nbformat.v4.new_output("stream", text="the answer to what is asked above")
    cell = nbformat.v4.new_code_cell(text, id="only", execution_count=1, outputs=[output])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("Predict.", id="text"), cell])
    nbformat.write(notebook, path)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A clone with two lessons, in which no work has been done."""
    write_lesson(tmp_path / "notebooks/00_start_here.ipynb", "hello = 1")
    write_lesson(tmp_path / "notebooks/05_online_softmax.ipynb", "raise NotImplementedError")
    (tmp_path / "notebooks/source").mkdir()
    (tmp_path / "notebooks/source/05_online_softmax.md").write_text("the text twin\n")
    return tmp_path


def as_copied(path: Path) -> nbformat.NotebookNode:
    """A lesson as its working copy must be: all of it but what running it left, and with what a kernel says of its
    language, which JupyterLab would add and call the copy unsaved."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].outputs, notebook.cells[1].execution_count = [], None
    notebook.metadata.language_info = IPythonKernel.language_info
    return notebook


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_first_use_copies_every_lesson(course):
    assert workspace.update(course) == []
    lessons = {name for name in contents(course / "work") if name.endswith(".ipynb")}
    assert lessons == {"00_start_here.ipynb", "05_online_softmax.ipynb"}
    for name in lessons:
        assert nbformat.read(course / "work" / name, as_version=4) == as_copied(course / "notebooks" / name)
    write_lesson(course / "work/05_online_softmax.ipynb", "answer = 42")
    original = course / "notebooks/05_online_softmax.ipynb"
    notebook = nbformat.read(original, as_version=4)
    notebook.cells[1].outputs, notebook.cells[1].execution_count = [], None
    nbformat.write(notebook, original)
    before = contents(course)
    assert workspace.update(course) == [], "an answer, or outputs alone, are no change upstream"
    assert contents(course) == before, "second use changes nothing"
    (course / "work/.origins.json").unlink()
    assert len(workspace.update(course)) == 2, "of unknown origin"
    assert contents(course / "work")["05_online_softmax.ipynb"] == before["work/05_online_softmax.ipynb"]


def test_a_lesson_changed_upstream_costs_no_answer(course):
    workspace.update(course)
    answered = course / "work/05_online_softmax.ipynb"
    write_lesson(answered, "answer = 42")
    (course / "work/progress.json").write_text('{"05.merge_states": "passed"}')
    write_lesson(course / "notebooks/05_online_softmax.ipynb", "raise NotImplementedError  # a better stub")
    before = contents(course / "work")

    (line,) = workspace.update(course)
    assert "05_online_softmax has changed" in line
    assert line.endswith(".venv/bin/python -m courseware.workspace fresh 05_online_softmax")
    assert contents(course / "work") == before
    assert workspace.update(course) == [line], "said until it is done"

    copy = workspace.fresh("05_online_softmax", course)
    assert copy == course / "work/05_online_softmax_v2.ipynb"
    assert nbformat.read(copy, as_version=4) == as_copied(course / "notebooks/05_online_softmax.ipynb")
    after = contents(course / "work")
    origins = ".origins.json"
    assert {n: after[n] for n in before if n != origins} == {n: before[n] for n in before if n != origins}
    assert workspace.update(course) == [], "the learner has the new version and is left in peace"

    write_lesson(course / "notebooks/05_online_softmax.ipynb", "and once more")
    assert len(workspace.update(course)) == 1
    assert workspace.fresh("05_online_softmax", course).name == "05_online_softmax_v3.ipynb"
    assert answered.read_bytes() == before["05_online_softmax.ipynb"]


def test_a_new_lesson_and_todays_glossary_arrive_beside_the_old(course):
    page = course / "notebooks/glossary.md"
    page.write_text("old\n")
    workspace.update(course)
    before = contents(course / "work")
    page.write_text("new\n")
    write_lesson(course / "notebooks/06_tiled_attention.ipynb", "new")
    assert workspace.update(course) == []
    copy = nbformat.read(course / "work/06_tiled_attention.ipynb", as_version=4)
    assert copy == as_copied(course / "notebooks/06_tiled_attention.ipynb")
    assert contents(course / "work")["05_online_softmax.ipynb"] == before["05_online_softmax.ipynb"]
    assert (course / "work/glossary.md").read_text() == "new\n"


def test_a_copy_older_than_courseware_is_told_what_to_do(course):
    write_lesson(course / "notebooks/05_online_softmax.ipynb", "from course_lib import check")
    workspace.update(course)
    write_lesson(course / "notebooks/05_online_softmax.ipynb", "from courseware import check")
    (line,) = workspace.update(course)
    assert "05_online_softmax no longer runs from your copy" in line and "`restore` brings back each answer" in line
    assert line.endswith("fresh 05_online_softmax")


def test_fresh_refuses_a_lesson_that_is_not_there(course):
    with pytest.raises(FileNotFoundError, match="no lesson '5'; there are 00_start_here, 05_online_softmax"):
        workspace.fresh("5", course)
    assert not (course / "work").exists()


def request(url: str, method: str = "GET", body: dict | None = None) -> str:
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=10) as response:
        return response.read().decode()


def test_jupyterlab_opens_the_first_lesson_quietly_once_and_saves_in_work(course, tmp_path_factory):
    """Where jupytext is installed and finds its configuration, JupyterLab writes a text twin at each save."""
    (course / "jupytext.toml").write_bytes((ROOT / "jupytext.toml").read_bytes())
    workspace.update(course)
    before = contents(course)

    with socket.create_server(("127.0.0.1", 0)) as free:
        home, port = tmp_path_factory.mktemp("jupyter"), free.getsockname()[1]
    folders = {f"JUPYTER_{kind}_DIR": str(home / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    options = {"token": "", "port": port, "ip": "127.0.0.1", "open_browser": False, "disable_check_xsrf": True}
    (home / "CONFIG").mkdir()
    (home / "CONFIG/jupyter_server_config.json").write_text(json.dumps({"ServerApp": options}))
    code = f"import pathlib, courseware.workspace; courseware.workspace.open_lab(pathlib.Path({str(course)!r}))"
    terminal, stdin = pty.openpty()  # in a terminal, Jupyter may ask something at Control-C
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=os.environ | folders, stdin=stdin, stdout=log, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while "Open this" not in (said := (home / "log").read_text()):
                assert server.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.1)
            assert "00_start_here.ipynb" in request(f"{url}/lab/tree/00_start_here.ipynb")
            first_lesson = f"http://localhost:{port}/lab/tree/00_start_here.ipynb\n"
            assert said.count("http://") == 1
            assert f"Open this, if no browser has opened it:\n\n    {first_lesson}" in said
            schema = json.loads(request(f"{url}/lab/api/settings/@jupyterlab/docmanager-extension:plugin"))["schema"]
            assert schema["properties"]["autosaveInterval"]["default"] == 15
            second = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, env=os.environ | folders, capture_output=True, text=True,
                timeout=60,
            )  # fmt: skip
            assert second.stdout == f"JupyterLab is already running. Open this:\n\n    {first_lesson}\n", second.stderr
            model = json.loads(request(f"{url}/api/contents/05_online_softmax.ipynb"))
            model["content"]["cells"][0]["source"] = "answer = 42"
            request(f"{url}/api/contents/05_online_softmax.ipynb", "PUT", model)
            server.send_signal(signal.SIGINT)
            server.wait(20)
        finally:
            server.kill()
            os.close(terminal)
            os.close(stdin)

    after = contents(course)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name for name in changed if ".ipynb_checkpoints" not in name} == {"work/05_online_softmax.ipynb"}
    assert b"answer = 42" in after["work/05_online_softmax.ipynb"]
