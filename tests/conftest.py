"""Chooses GPU or interpreter before any test module imports Triton, and decides which tests share a worker."""

import dataclasses
import functools
import inspect
import re

import numpy as np
import pytest
import torch

from course_lib import runtime

if runtime.choose() == "interpreter":
    from triton.runtime import interpreter

    # Half of the time of our small launches is work that Triton's interpreter does again and again to no effect.

    # At each launch it searches the whole of triton.language for what it has to replace, and always finds the same.
    @functools.cache
    def builtins_of(package):
        is_builtin = interpreter.tl.core.is_builtin
        return [(name, member) for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package, *how):
        for name, member in builtins_of(package):
            if getattr(package, name) is member:  # and not replaced already
                interpreter._patch_attr(package, name, member, *how)

    # It replaces all of it again at each call of one jitted function by another, where the launch has done so already.
    @functools.cache
    def languages_of(fn):
        return [value for value in fn.__globals__.values() if value in (interpreter.tl, interpreter.tl.core)]

    patch_lang = interpreter._patch_lang

    def patch_lang_once(fn):
        languages = languages_of(fn)
        done = languages and all(language.range.__name__ == "_new_range" for language in languages)
        return interpreter._LangPatchScope() if done else patch_lang(fn)

    # It computes whether an integer overflows, for an assertion that it makes in debug mode alone.
    without = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)

    # It builds a dictionary of all types in order to look one up.
    dtype_of_scalar = functools.cache(interpreter._get_np_dtype)

    def get_np_dtype(dtype):
        return np.dtype(np.uint64) if dtype.scalar.is_ptr() else dtype_of_scalar(dtype.scalar)

    interpreter._patch_builtin, interpreter._patch_lang = patch_builtin, patch_lang_once
    interpreter._get_np_dtype, interpreter.interpreter_builder.options = get_np_dtype, without


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
            if runtime.mode() == "gpu" and file.startswith(("tests/kernels/", "tests/test_")):
                return nodeid
            if runtime.mode() == "gpu" and file.endswith("test_exercises.py"):
                return test.partition("[")[2] or test
            exercise = re.search(r"\d\d\.[a-z_]+", test) if file.endswith("test_exercises.py") else None
            return exercise[0] if exercise else file

    config.option.loadscopereorder = False  # files with many tests are not the slow ones
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
