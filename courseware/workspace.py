"""A learner's working copies: `make lab` opens lessons in work/, so that an update of the course costs no answer.

    python -m courseware.workspace              copy the lessons that work/ lacks, and open JupyterLab there
    python -m courseware.workspace fresh NAME   put the current version of a lesson beside the copy in work/

A copy holds no outputs, because the committed results would answer each "predict" before the learner has guessed.
Two files in work/ are overwritten, and no others: .origins.json, which records what each copy was made from, and the
glossary page, to which the lessons link. This module works in a clone only, because the notebooks are not part of the
installed package.
"""

import argparse
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import urlencode

from course_lib import runtime

ROOT = Path(__file__).resolve().parents[1]
FIRST_LESSON = "00_start_here.ipynb"
SETTINGS = Path(__file__).with_name("data") / "jupyterlab"  # such as a save every 15 seconds, of what widgets show, too


def update(root: Path = ROOT) -> list[str]:
    """Copy each lesson in root/notebooks that root/work lacks. Returns a line for each that has changed since."""
    work = root / "work"
    work.mkdir(exist_ok=True)
    origins = _read_origins(work)
    for page in (root / "notebooks").glob("*.md"):
        shutil.copyfile(page, work / page.name)
    changed = []
    for original in sorted((root / "notebooks").glob("*.ipynb")):
        lesson = _without_outputs(original)
        digest = _digest(lesson)
        if not (work / original.name).exists():
            _write(lesson, work / original.name)
            origins[original.name] = digest
        elif origins.get(original.name) != digest:
            says = "has changed since your copy was made. Your copy stays as it is"
            if _is_older_than_courseware(work / original.name):
                says = (
                    "no longer runs from your copy: the checks have moved to the package courseware. Your copy stays "
                    "as it is, and in the new version `restore` brings back each answer that has passed"
                )
            changed.append(
                f"{original.stem} {says}; to put the new version beside it: "
                f".venv/bin/python -m courseware.workspace fresh {original.stem}"
            )
    _write_origins(work, origins)
    return changed


def fresh(name: str, root: Path = ROOT) -> Path:
    """Copy lesson `name` ("05_online_softmax") from root/notebooks into root/work, under a name that is still free.

    Returns the copy's path. Raises FileNotFoundError if there is no such lesson.
    """
    original, work = root / "notebooks" / f"{name}.ipynb", root / "work"
    if not original.is_file():
        names = ", ".join(sorted(path.stem for path in original.parent.glob("*.ipynb")))
        raise FileNotFoundError(f"no lesson {name!r}; there are {names}")
    work.mkdir(exist_ok=True)
    copy = next(path for i in count(2) if not (path := work / f"{name}_v{i}.ipynb").exists())
    lesson = _without_outputs(original)
    _write(lesson, copy)
    # From now on `update` compares with this version, and no longer reports the change.
    _write_origins(work, _read_origins(work) | {original.name: _digest(lesson)})
    return copy


def _is_older_than_courseware(copy: Path) -> bool:
    """Whether a copy was made when all of the course was one package, course_lib."""
    text = copy.read_text(encoding="utf-8")
    return "course_lib" in text and "courseware" not in text


def _without_outputs(path: Path) -> str:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _write(lesson: str, path: Path) -> None:
    """With what JupyterLab would otherwise add on opening it, and then call the copy unsaved."""
    from ipykernel.ipkernel import IPythonKernel

    notebook = json.loads(lesson)
    notebook["metadata"]["language_info"] = IPythonKernel.language_info
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _digest(lesson: str) -> str:
    return hashlib.sha256(lesson.encode()).hexdigest()


def _read_origins(work: Path) -> dict[str, str]:
    """Name of a lesson -> hash of the version that its copy was made from."""
    path = work / ".origins.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _write_origins(work: Path, origins: dict[str, str]) -> None:
    (work / ".origins.json").write_text(json.dumps(origins, indent=1) + "\n")


def address(port: int, base_url: str, token: str) -> str:
    """What a browser opens: the first lesson, on a server of this machine."""
    query = f"?{urlencode({'token': token})}" if token else ""
    return f"http://localhost:{port}{base_url}lab/tree/{FIRST_LESSON}{query}"


def running_address(root: Path = ROOT) -> str | None:
    """The address of a server that already runs in root/work, or None."""
    from jupyter_server.serverapp import list_running_servers

    work = (root / "work").resolve()
    for server in list_running_servers():
        if Path(server["root_dir"]).resolve() == work:
            return address(server["port"], server["base_url"], server["token"])
    return None


def install_triton() -> None:
    """Install torch and Triton behind JupyterLab, where this environment lacks them and they exist for the machine.

    `runtime.installing` says how far that is. Control-C ends it together with JupyterLab, and the next `make lab` goes
    on: pip keeps what it has downloaded.
    """
    if platform.system() != "Linux" or (find_spec("torch") and find_spec("triton")):
        return
    print("Lessons 00 to 06 are ready. torch and Triton, for the others, follow behind: 2.5 GB.", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--constraint", str(ROOT / "constraints.txt"), "torch", "triton"]
    with open(runtime.INSTALL_LOG, "w", encoding="utf-8") as log:
        import fcntl

        fcntl.flock(log, fcntl.LOCK_EX)  # until the last process that writes there has ended
        process = subprocess.Popen(["nice", *pip], stdout=log, stderr=log)

    def report():
        failed = process.wait()
        end = f"stopped, and {runtime.INSTALL_LOG} says why. Start `make lab` again" if failed else "are installed"
        print(f"torch and Triton {end}.", flush=True)

    threading.Thread(target=report, daemon=True).start()


def open_lab(root: Path = ROOT) -> None:
    """Run JupyterLab in root/work, on the first lesson, until it is stopped. Prints the one address to open.

    A server that runs there already is left running: two would save over each other.
    """
    if already := running_address(root):
        print(f"JupyterLab is already running. Open this:\n\n    {already}\n")
        return
    from jupyterlab.labapp import LabApp

    arguments = [
        f"--ServerApp.root_dir={root / 'work'}",
        f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        "--Application.log_level=ERROR",
        "--ServerApp.answer_yes=True",  # or Control-C asks, and goes on if nobody answers within 5 seconds
        "--KernelManager.transport_encryption=auto",  # without it, every kernel warns in the terminal
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")  # as in containers; JupyterLab refuses to run as root otherwise
    # Jupyter warns of its own deprecated settings, which nobody here has set, and its extensions ask for such warnings.
    logging.captureWarnings(True)
    server = LabApp.initialize_server(argv=arguments)
    # Jupyter's own message gives three addresses, one of them a file's.
    server.log.addFilter(lambda record: "To access the server" not in record.getMessage())
    url = address(server.port, server.base_url, server.identity_provider.token)
    print(f"Open this, if no browser has opened it:\n\n    {url}\n\nControl-C stops JupyterLab.", flush=True)
    server.start()


def main() -> None:
    parser = argparse.ArgumentParser("python -m courseware.workspace", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command")
    fresh_parser = commands.add_parser("fresh", help="put the current version of a lesson beside your copy")
    fresh_parser.add_argument("name", help="such as 05_online_softmax")
    arguments = parser.parse_args()

    if arguments.command == "fresh":
        try:
            print(fresh(arguments.name))
        except FileNotFoundError as error:
            parser.error(str(error))
        return
    for line in update():
        print(line)
    install_triton()
    open_lab()


if __name__ == "__main__":
    main()
