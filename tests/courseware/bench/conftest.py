"""What the tests of several measurements share."""

import pytest


@pytest.fixture
def made_up():
    """A clock that measures nothing: every contestant is called once, and takes 0.5 ms (or s)."""

    def half(contestants, **_how):
        for call in contestants.values():
            call()
        return dict.fromkeys(contestants, 0.5)

    return half
