import pytest


@pytest.fixture
def heights():
    """Heights of what Panel.boxes and Panel.bars drew, less than 0 for a bar that hangs."""

    def heights(boxes):
        return [path.vertices[2, 1] - path.vertices[0, 1] for path in boxes.get_paths()]

    return heights
