import pytest

from courseware.explorers.figures import png


@pytest.fixture
def heights():
    """Heights of what Axes.bar drew; a bar that hangs below its base has a negative one."""

    def heights(bars):
        return [bar.get_height() for bar in bars]

    return heights


class Shell:
    """An explorer's widgets, found by their description, or by their class where they have none.

    Each look-up searches again, because explorers replace sliders whose range changes.
    """

    def __init__(self, box):
        self.box = box

    def __getitem__(self, name):
        todo = [self.box]
        while todo:
            widget = todo.pop()
            todo.extend(getattr(widget, "children", ()))
            is_shown = widget.layout is None or widget.layout.display != "none"
            if is_shown and name in (getattr(widget, "description", ""), type(widget).__name__):
                return widget
        raise KeyError(name)

    def assert_follows(self, shown, settings, moves):
        """Asserts that text and image are what the model says, at first and after each move of a control.

        shown(**settings) gives the expected (HTML, figure). moves: (control, its new value, the settings that
        change with it). Every move has to change the image, or the explorer would not show what was moved.
        """
        self.assert_shows(*shown(**settings))
        for control, value, changed in moves:
            before = self["Image"].value
            self[control].value = value
            settings = settings | changed
            self.assert_shows(*shown(**settings))
            assert self["Image"].value != before, control

    def assert_shows(self, text, figure):
        assert self["HTML"].value == text
        assert self["Image"].value == png(figure)


@pytest.fixture
def shell_of():
    return Shell
