"""What all components share, and tables: numbers aligned by the point, the same in text and HTML, long ones folded."""

import re

import numpy as np
import pytest

from courseware import table
from courseware.widgets import page as widgets_page

ROWS = [("plain", 1024, "1.5"), ("tiled <b>", 16, "12"), ("none", None, "0.25")]
HEADERS = ("kernel", "bytes (KB)", "time (ms)")


def test_a_notebook_gets_both(shown):
    widgets_page.show("text", widgets_page.boxed("<p>page</p>", "failed"))
    (bundle,) = shown
    assert bundle["text/plain"] == "text" and "<script" not in bundle["text/html"]
    assert bundle["text/html"].endswith('<div class="course failed"><p>page</p></div>')


def test_the_text_is_aligned_by_the_point(capsys):
    table(ROWS, HEADERS, caption="Three kernels")
    assert capsys.readouterr().out.splitlines() == [
        "Three kernels",
        "kernel     bytes (KB)  time (ms)",
        "plain           1,024       1.5",
        "tiled <b>          16      12",
        "none                        0.25",
    ]
    table([(np.int64(4096), np.float64(1 / 3), np.True_, -1e-9)], ("n", "x", "right", "small"))
    assert capsys.readouterr().out.splitlines()[1].split() == ["4,096", "0.3333", "yes", "-1e-09"]


def page(shown, *arguments, **options):
    table(*arguments, **options)
    return shown.pop()["text/html"]


def test_the_html_is_aligned_and_escaped(shown):
    html = page(shown, ROWS, HEADERS, caption="a < b")
    assert "a &lt; b" in html and "tiled &lt;b&gt;" in html and "tiled <b>" not in html
    assert '<td align="left">plain</td><td align="right">1,024</td><td align="right">1.5\u2007</td>' in html
    assert '<td align="right">12\u2008\u2007\u2007</td>' in html and "<details>" not in html


@pytest.mark.parametrize(
    "cells, html",
    [(["0.125", "nan"], '<td align="right">nan</td>'),  # what has no point is not filled up
     (["1.5e-05", "0.25"], '<td align="right">0.25</td>'),
     (["7", "seven"], '<td align="left">7</td>'),  # a column with words is none of numbers
     (["`a[0] < b`"], "<code>a[0] &lt; b</code>"),
     (["`a` and b"], "`a` and b"),
     (["a sentence may wrap: one program computes a tile and visits every key"], "<p>a sentence")],
)  # fmt: skip
def test_a_cell_is_shown_as_what_it_is(shown, cells, html):
    assert html in page(shown, [(cell,) for cell in cells], ("x",))


def test_bars_are_as_long_as_their_numbers(shown):
    html = page(shown, [("a", 50), ("b", 200), ("c", 0)], ("name", "bytes"), bar="bytes")
    assert re.findall(r"width:([\d.]+)%", html) == ["25.0", "100.0", "0.0"]


def test_rows_are_marked_in_bold_and_those_that_are_not_kept_are_folded(shown):
    html = page(shown, ROWS, HEADERS, mark=lambda row: row[0] == "plain", keep=lambda row: row[0] != "tiled <b>")
    above, below = html.split("<details>")
    assert "<b>plain</b>" in above and "none" in above and "<b>none</b>" not in above and "tiled" not in above
    assert "all 3 rows" in below and all(name in below for name in ("plain", "tiled", "none"))
    assert "<table" not in page(shown, ROWS, HEADERS, folded="Numbers").partition("<summary>Numbers")[0]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 cells"):
        table([(1, 2)], HEADERS)
    with pytest.raises(ValueError, match="no column 'time'"):
        table(ROWS, HEADERS, bar="time")
