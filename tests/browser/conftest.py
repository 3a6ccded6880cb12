import sys
from pathlib import Path

import pytest

# pytest does not put this folder on the path, so that the tests could not import lab.py.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def browser():
    import lab

    with lab.chromium() as context:
        yield context
