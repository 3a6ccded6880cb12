"""What is thorough but slow: `make test` does the part of it that finds most, `make test-all` the whole."""

import os

import pytest

ALL = "COURSEWARE_ALL_VARIANTS" in os.environ
slow = pytest.mark.skipif(not ALL, reason="make test-all tries it")


def some(cases, essential):
    """pytest's parameters: those of the cases that are not essential are slow."""
    return [pytest.param(case, marks=[] if case in essential else slow) for case in cases]
