"""Settles where kernels run before any test module imports Triton, and which tests share a worker."""

import pytest

from course_lib import runtime

runtime.choose()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's own, which reads the marks
def pytest_collection_modifyitems(items):
    """With --dist loadgroup: the tests of one exercise together, for they share gradings; else those of a file."""
    for item in items:
        exercise = getattr(item, "callspec", None) and item.callspec.params.get("exercise")
        item.add_marker(pytest.mark.xdist_group(exercise.id if exercise else item.nodeid.split("::")[0]))
