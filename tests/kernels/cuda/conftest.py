"""Compiled kernels of tests stay out of the user's cache."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_compiled_kernels(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
