"""The pictures that belong to no explorer: the map of lessons, lesson 00's overview and the README's."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from course_lib import traffic
from courseware.bench import records
from courseware.explorers import lesson_map, overview
from courseware.explorers.figures import png
from tools import readme_picture

SOURCE = Path(__file__).parents[3] / "notebooks/source"
LESSONS = [lesson for lessons in lesson_map.PARTS.values() for lesson in lessons]


def test_map_knows_which_lessons_are_there():
    there = {path.name[:2] for path in SOURCE.glob("[0-9][0-9]_*.md")}
    assert {lesson.number for lesson in LESSONS if lesson.ready} == there


def test_lessons_are_numbered_and_need_only_earlier_ones():
    assert [lesson.number for lesson in LESSONS] == [f"{i:02}" for i in range(len(LESSONS))]
    assert all(needed < lesson.number for lesson in LESSONS for needed in lesson.needs)


def test_map_shows_every_lesson_inside_its_box():
    figure = lesson_map.lesson_map()
    (axes,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [patch.get_window_extent(renderer) for patch in axes.patches]
    assert len(boxes) == len(LESSONS)
    texts = [text for text in axes.texts if text.get_text()]
    headings = len(lesson_map.PARTS) + 1
    outside = [
        text.get_text()
        for text in texts
        if not any(
            box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0 and extent.y1 <= box.y1
            for box in boxes
            for extent in [text.get_window_extent(renderer)]
        )
    ]
    assert len(outside) == headings, outside


def test_curves_are_the_closed_forms():
    steps, memory, moved = (axes for axes in overview.draw().axes[3:])
    standard, flash = memory.lines[:2]
    n = standard.get_xdata().astype(int)
    np.testing.assert_allclose(standard.get_ydata() * 2**30, 2 * 32 * n.astype(float) ** 2 * 2)
    np.testing.assert_allclose(flash.get_ydata() * 2**30, 32 * n * 4)
    rows, flash_mb = moved.lines[1].get_data()
    break_even = dict(zip(rows, flash_mb, strict=True))
    standard_mb = moved.lines[0].get_ydata()[0]
    assert standard_mb == pytest.approx(traffic.standard_attention(4096, 4096, 128).total_bytes / 1e6)
    assert break_even[32] > standard_mb > break_even[64]  # even at d / 2 = 64, but for the smaller terms
    assert len(steps.patches) == 4 + 3


def test_readme_bars_are_the_record():
    speed = readme_picture.draw().axes[-1]
    rows = {
        of: records.rows("attention-h100", n=16_384, head_dim=128, causal=False, **{"pass": of})[0]["tflops"]
        for of in ("forward", "backward")
    }
    recorded = [rows[of][method] for of in rows for method in readme_picture.METHODS]
    assert [bar.get_width() for bar in speed.patches] == recorded
    assert sorted(rows["forward"].values(), reverse=True) == [bar.get_width() for bar in speed.patches[:4]]
    texts = {text.get_text() for text in speed.texts}
    assert {f"{tflops:.0f}" for tflops in recorded} <= {text.split()[0] for text in texts}


def test_the_readme_shows_what_is_drawn_today():
    """Nearly, for machines round differently."""
    shown = Image.open(SOURCE.parent / "images/readme.png").convert("L")
    drawn = Image.open(io.BytesIO(png(readme_picture.draw(), colours=64))).convert("L")
    apart = np.abs(np.asarray(shown, dtype=int) - np.asarray(drawn, dtype=int))
    assert np.count_nonzero(apart > 96) < 20, "run `python -m tools.readme_picture`"
