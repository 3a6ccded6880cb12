"""Places of a picture that say what they show: where they are, what they say, and what a click on one chooses."""

import re

import pytest

from courseware.bench import records
from courseware.explorers import forward_kernel, roofline
from courseware.explorers.figures import Picture
from courseware.explorers.tooltips import POINT_PIXELS, tooltip, tooltips_html


@pytest.fixture
def axes():
    """Of 4 by 2 inches, which is 400 by 200 pixels of a page, in their middle; 0 to 10 both ways."""
    axes = Picture(2, 4, alt="-").add_axes((0.25, 0.25, 0.5, 0.5))
    axes.set(xlim=(0, 10), ylim=(10, 0))
    return axes


def places(figure):
    """text -> (left, top, width, height) in percent of the picture."""
    found = re.findall(
        r'"left:([^%]*)%;top:(.*?)%;width:(.*?)%;height:(.*?)%;.*?" aria-label="(.*?)"', tooltips_html(figure)
    )
    return {text: tuple(map(float, numbers)) for *numbers, text in found}


def test_a_rectangle_lies_where_its_data_do(axes):
    tooltip(axes, (0, 5), (0, 10), "left half")
    tooltip(axes, (10, 5), (2, 0), "upper right")
    assert places(axes.figure) == {"left half": (25, 25, 25, 50), "upper right": (50, 25, 25, 10)}


def test_a_point_has_room_around_it(axes):
    tooltip(axes, 5, 5, "<middle>")
    width, height = 100 * 2 * POINT_PIXELS / 400, 100 * 2 * POINT_PIXELS / 200
    assert places(axes.figure) == {"&lt;middle&gt;": (50 - width / 2, 50 - height / 2, width, height)}


@pytest.mark.parametrize("above_first", [True, False])
def test_two_near_points_can_both_be_pointed_at(axes, above_first):
    points = [("above", 4.5), ("below", 5.5)]  # 10 pixels
    for text, y in points if above_first else points[::-1]:
        tooltip(axes, 5, y, text)
    (_, top, _, height), (_, low_top, _, _) = places(axes.figure)["above"], places(axes.figure)["below"]
    assert top < 25 + 50 * 0.45 < top + height == low_top < 25 + 50 * 0.55


def test_a_picture_without_spots_is_an_image_alone(axes):
    assert tooltips_html(axes.figure) == "" and axes.figure._repr_html_().startswith("<img")
    tooltip(axes, 5, 5, "middle")
    assert tooltips_html(axes.figure) in axes.figure._repr_html_()


@pytest.mark.parametrize("counted", roofline.COUNTED)
def test_the_rooflines_points_say_what_the_record_and_the_model_say(counted):
    model = roofline.evaluate(d=64, n=4096, counted=counted)
    (row,) = records.rows("attention-h100", **{"pass": "forward"}, n=4096, head_dim=64, causal=False)
    figure = roofline.draw(model)
    texts = [text for *_, text, _ in figure.tooltips]
    calls = ["ours"] if counted == roofline.DRAM else roofline.CALLS
    for call in calls:
        rate = f"{roofline.CALLS[call][0]}, N = 4,096, d = 64, full: {row['tflops'][call]:.0f} TFLOP/s measured"
        assert f"{rate}, at {model.intensity:,.1f} FLOPs a byte, bytes {counted}" in texts
    assert len(texts) == len(calls) + len(roofline.COUNTED)  # each line's end on the roof
    left, bottom, width, height = figure.axes[0].get_position().bounds
    for low, high, *_ in figure.tooltips:
        assert left < low[0] < high[0] < left + width and bottom < low[1] < high[1] < bottom + height


def test_a_click_on_a_tile_or_a_program_chooses_it():
    explorer = forward_kernel.explore()
    start = explorer.tooltips.html
    chosen = {text: values for *_, text, values in explorer.figure.tooltips}
    assert chosen == {
        "Program 0: queries 0 to 3": {"pid": 0},
        "Tile 0, keys 0 to 3: no mask": {"step": 0},
        "Tile 1, keys 4 to 7: no mask": {"step": 1},
        "Tile 2, keys 8 to 11: masked": {"step": 2},
        "Tile 3, keys 12 to 12: not visited": {"step": 3},
        "Program 2: queries 8 to 9": {"pid": 2},
    }
    explorer.tooltips._handle_custom_msg({"step": 0}, [])
    assert explorer.values["step"] == 0 and "<b>Tile 0</b>" in explorer.text.value
    explorer.tooltips._handle_custom_msg({"pid": 2}, [])
    assert "queries 8 to 9" in explorer.text.value and explorer.tooltips.html != start
