import pytest

from tests.browser import lab


@pytest.fixture(scope="module")
def browser():
    with lab.chromium() as context:
        yield context
