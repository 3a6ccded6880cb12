"""Settles where kernels run before any test module imports Triton, and which tests share a worker."""

import re

import pytest

from course_lib import runtime

runtime.choose()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """In parallel: the tests of one exercise together, for they share gradings, each notebook alone, else by file.

    Where kernels are compiled, which takes seconds each, each test that does so goes alone; and a kernel is graded in a
    process of its own there, so that only the tests of one answer stay together.

    A scheduler of our own, for pytest-xdist 3.8 writes its groups where pytest 9.2 no longer reads them, and then
    hands out test by test.
    """
    from xdist.scheduler import LoadScopeScheduling

    class TogetherWhatShares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            if file.endswith(("test_answers.py", "test_nbval.py")):
                return nodeid
            if runtime.mode() == "gpu" and file.startswith(("tests/kernels/", "tests/test_")):
                return nodeid
            if runtime.mode() == "gpu" and file.endswith("test_exercises.py"):
                return test.partition("[")[2] or test
            exercise = re.search(r"\d\d\.[a-z_]+", test) if file.endswith("test_exercises.py") else None
            return exercise[0] if exercise else file

    config.option.loadscopereorder = False  # the long files do not have the most tests
    return TogetherWhatShares(config, log)


def pytest_terminal_summary(terminalreporter):
    """How many pairs of slips the suite told apart, by exercise."""
    rows = [
        value
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for name, value in report.user_properties
        if name == "pairs of slips told apart" and report.when == "call"
    ]
    if rows:
        terminalreporter.section("pairs of slips told apart")
        for exercise_id, apart, pairs in sorted(map(tuple, rows)):
            terminalreporter.write_line(f"{exercise_id:<32} {apart:>4} of {pairs:>4}")
        terminalreporter.write_line(f"{'all':<32} {sum(row[1] for row in rows):>4} of {sum(row[2] for row in rows):>4}")
