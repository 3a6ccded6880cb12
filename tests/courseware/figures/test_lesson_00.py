"""The pictures that belong to no explorer: the map of lessons, lesson 00's overview and the README's."""

import io

import numpy as np
import pytest
from PIL import Image

from course_lib import traffic
from courseware.bench import records
from courseware.figures import lesson_00 as overview
from courseware.figures import lesson_map
from courseware.figures.base import png
from tools import readme_picture
from tools.authoring import NOTEBOOKS


def test_the_map_has_the_lessons_that_are_there_and_each_needs_only_earlier_ones():
    lessons = [lesson for lessons in lesson_map.PARTS.values() for lesson in lessons]
    there = {path.name[:2] for path in (NOTEBOOKS / "source").glob("[0-9][0-9]_*.md")}
    assert {lesson.number for lesson in lessons if lesson.ready} == there
    assert [lesson.number for lesson in lessons] == [f"{i:02}" for i in range(len(lessons))]
    assert all(needed < lesson.number for lesson in lessons for needed in lesson.needs)
    assert len(lesson_map.lesson_map().axes[0].patches) == len(lessons)


def test_curves_are_the_closed_forms():
    memory, moved = overview.draw().axes[-2:]
    standard, flash = memory.lines[:2]
    n = standard.get_xdata().astype(int)
    np.testing.assert_allclose(standard.get_ydata() * 2**30, 2 * 32 * n.astype(float) ** 2 * 2)
    np.testing.assert_allclose(flash.get_ydata() * 2**30, 32 * n * 4)
    break_even, standard_mb = dict(zip(*moved.lines[1].get_data(), strict=True)), moved.lines[0].get_ydata()[0]
    assert standard_mb == pytest.approx(traffic.standard_attention(4096, 4096, 128).total_bytes / 1e6)
    assert break_even[32] > standard_mb > break_even[64]  # even at d / 2 = 64, but for the smaller terms


def test_the_readme_shows_the_record_and_what_is_drawn_today():
    figure, shape = readme_picture.draw(), {"n": 16_384, "head_dim": 128, "causal": False}
    rows = [records.rows("attention-h100", **shape, **{"pass": of})[0] for of in ("forward", "backward")]
    recorded = [row["tflops"][method] for row in rows for method in readme_picture.METHODS]
    speed = figure.axes[-1]
    assert [bar.get_width() for bar in speed.patches] == recorded
    assert {f"{tflops:.0f}" for tflops in recorded} <= {text.get_text().split()[0] for text in speed.texts}
    # Nearly, for machines round differently.
    shown = Image.open(NOTEBOOKS / "images/readme.png").convert("L")
    drawn = Image.open(io.BytesIO(png(figure, colours=64))).convert("L")
    apart = np.abs(np.asarray(shown, dtype=int) - np.asarray(drawn, dtype=int))
    assert np.count_nonzero(apart > 96) < 20, "run `python -m tools.readme_picture`"
