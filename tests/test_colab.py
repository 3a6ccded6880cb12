"""The first cell of every notebook, run where a learner may open one: in Colab, a clone, a plain folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.authoring import bootstrap_source

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("course_lib", "courseware")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTION = PROJECT["name"].replace("-", "_")
READY = "The course is ready. Triton kernels run in Triton's interpreter, on the CPU.\n"

# What a later cell sees: where the packages came from, and which torch and triton this process would use.
LATER_CELL = """
import courseware.checks, course_lib, importlib.metadata
print(courseware.__file__)
print(*(importlib.metadata.version(name) for name in ("torch", "triton")))
print(len(courseware.checks.exercises()), course_lib.__file__)
"""

# Colab's list of open notebooks, as its server gives it to the machine on which they run.
SESSIONS = '[{"path": "fileId=https%3A%2F%2Fgithub.com%2Fsomeone%2Fcourse%2Fblob%2Fmain%2Fnotebooks%2F05.ipynb"}]'
IN_COLAB = """
import io, urllib.request
def urlopen(address, timeout):
    assert address.endswith(":9000/api/sessions")
    if not SESSIONS:
        raise OSError
    return io.BytesIO(SESSIONS.encode())
urllib.request.urlopen = urlopen
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory, project_files) -> Path:
    """A git repository with the files of this working tree, as if the course had been published from it."""
    repository = tmp_path_factory.mktemp("published")
    files = [path.relative_to(ROOT) for path in project_files]
    subprocess.run(["cp", "--parents", *files, repository], cwd=ROOT, check=True)
    someone = ["-c", "user.name=A maintainer", "-c", "user.email=maintainer@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*someone, "commit", "-q", "-m", "The course"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    return repository


class Machine:
    """A computer with everything that this environment has, torch and triton too, but not the course.

    Its packages lie outside its virtual environment, where pip will not remove or replace anything.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        packages = folder / "packages"
        packages.mkdir(parents=True)
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not any(name in entry.name for name in (*PACKAGES, DISTRIBUTION)):
                (packages / entry.name).symlink_to(entry)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv/bin/python"
        (self.site_packages,) = (folder / "venv/lib").glob("python3*/site-packages")
        (self.site_packages / "packages.pth").write_text(f"{packages}\n")

    def installed(self) -> set[str]:
        """Names in the virtual environment: whatever pip has put there."""
        return {path.name for path in self.site_packages.iterdir() if path.name != "packages.pth"}

    def copy_packages(self, repository: Path, packages=PACKAGES) -> None:
        """The course is installed, without pip."""
        for package in packages:
            shutil.copytree(repository / package, self.site_packages / package)

    def run_cells(self, repository: str | None, cwd: Path, colab=False, published=""):
        """colab: in Colab, where the notebook was opened from https://github.com/someone/course, of which git finds
        the repository `published`, if that is given."""
        dropped = ("TRITON_INTERPRET", "PYTHONPATH", "COURSEWARE_PROGRESS")
        environment = {name: value for name, value in os.environ.items() if name not in dropped}
        # All that the course requires is there, and so is what builds it: pip needs no network.
        environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "CUDA_VISIBLE_DEVICES": ""}
        if colab:
            (self.folder / "stand-in/google/colab").mkdir(parents=True, exist_ok=True)
            (self.folder / "stand-in/google/colab/__init__.py").touch()
            (self.folder / "stand-in/sitecustomize.py").write_text(f"SESSIONS = {published and SESSIONS!r}{IN_COLAB}")
            environment["PYTHONPATH"] = str(self.folder / "stand-in")
            if published:
                environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{published}.insteadOf"}
                environment["GIT_CONFIG_VALUE_0"] = "https://github.com/someone/course"
        cells = bootstrap_source(repository) + "\n" + LATER_CELL
        return subprocess.run([self.python, "-c", cells], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path / "machine")


@pytest.fixture
def empty_folder(tmp_path) -> Path:
    folder = tmp_path / "content"
    folder.mkdir()
    return folder


def package_files(folder: Path) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)) for path in files}


def test_in_colab_the_first_cell_installs_the_course_and_nothing_else(machine, empty_folder, published):
    result = machine.run_cells("file:///nowhere", empty_folder, colab=True)
    assert result.returncode == 1 and "CalledProcessError" not in result.stderr
    assert "Stop: The course is not installed" in result.stderr.splitlines()[-1]
    result = machine.run_cells(None, empty_folder, colab=True, published=published)
    assert result.returncode == 0, result.stderr
    ready, home, torch_and_triton, exercises = result.stdout.splitlines()
    assert ready + "\n" == READY
    assert Path(home).parent == machine.site_packages / "courseware"
    assert torch_and_triton == f"{version('torch')} {version('triton')}"
    number, taught = exercises.split()
    assert int(number) > 0 and Path(taught).parent == machine.site_packages / "course_lib"

    assert machine.installed() == {*PACKAGES, f"{DISTRIBUTION}-{PROJECT['version']}.dist-info"}
    for package in PACKAGES:
        assert package_files(machine.site_packages / package) == package_files(published / package)
    assert list(empty_folder.iterdir()) == []

    # The runtime is restarted: what is installed is used, and the address is not asked again.
    again = machine.run_cells("file:///nowhere", empty_folder, colab=True)
    assert (again.returncode, again.stdout) == (0, result.stdout)


def test_in_a_clone_the_clone_is_used(machine, published, tmp_path):
    """Even where the course is installed."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", published, clone], check=True)
    for folder, copied in (("work/of/someone", ()), ("notebooks", PACKAGES)):
        (clone / folder).mkdir(parents=True, exist_ok=True)
        machine.copy_packages(published, copied)
        result = machine.run_cells("file:///nowhere", clone / folder)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(READY + str(clone / "courseware"))
        assert machine.installed() == set(copied)


def test_in_a_plain_folder_the_installed_one_is_used_or_the_error_says_what_to_do(machine, empty_folder, published):
    result = machine.run_cells(f"file://{published}", empty_folder)
    assert result.returncode == 1 and machine.installed() == set()
    last = result.stderr.splitlines()[-1]
    assert "Stop: The course is not installed" in last and f"pip install git+file://{published}" in last
    machine.copy_packages(published)
    result = machine.run_cells("file:///nowhere", empty_folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(READY + str(machine.site_packages / "courseware"))
