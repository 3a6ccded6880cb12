"""Chooses GPU or interpreter before any test module imports Triton, and decides which tests share a worker."""

import gc
import re
import subprocess
from pathlib import Path

import pytest
import torch

import courseware  # noqa: F401  its emulators
from course_lib import runtime

if runtime.choose() == "interpreter":
    runtime.emulator("triton").install()


def pytest_collection_finish():
    """What imports have made is no garbage: Python need not search it again and again while tests run."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True)
def the_same_random_numbers_every_time():
    """Of torch's global generator, which measurements draw from: an error's size depends on the draw."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def cache_of_compiled_cuda_kernels(tmp_path_factory):
    """Those of tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def project_files() -> list[Path]:
    """What git tracks or would: everything that is not ignored, by its whole path."""
    root = Path(__file__).resolve().parents[1]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for name in listing.split("\0") if name and (path := root / name).is_file()]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With several workers, a worker gets a whole file, except that each notebook goes alone and the tests of one
    exercise stay together because they share gradings.

    On a GPU, where compiling takes seconds, each test of a kernel goes alone; there, a kernel is graded in a process of
    its own, so that only the tests of one answer share anything.

    pytest-xdist 3.8 writes its own groups where pytest 9.2 no longer reads them and then hands out single tests, which
    is why this is a scheduler.
    """
    from xdist.scheduler import LoadScopeScheduling

    class TogetherWhatShares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            if file.endswith("test_nbval.py"):
                return nodeid
            if runtime.mode() == "gpu" and file.startswith("tests/course_lib/"):
                return nodeid
            if runtime.mode() == "gpu" and file.endswith("test_exercises.py"):
                return test.partition("[")[2] or test
            of_exercises = file.endswith(("test_exercises.py", "test_wrong_answers.py"))
            exercise = re.search(r"\d\d\.[a-z_]+", test) if of_exercises else None
            return exercise[0] if exercise else file

    config.option.loadscopereorder = False  # files with many tests are not the slow ones
    return TogetherWhatShares(config, log)
