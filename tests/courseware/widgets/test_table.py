"""Tables: numbers aligned by the point, the same in text and HTML, long ones folded."""

import re

import numpy as np
import pytest

from courseware import table

ROWS = [("plain", 1024, "1.5"), ("tiled <b>", 16, "12"), ("none", None, "0.25")]
HEADERS = ("kernel", "bytes (KB)", "time (ms)")


def test_the_text_is_aligned_by_the_point(capsys):
    table(ROWS, HEADERS, caption="Three kernels")
    assert capsys.readouterr().out.splitlines() == [
        "Three kernels",
        "kernel     bytes (KB)  time (ms)",
        "plain           1,024       1.5",
        "tiled <b>          16      12",
        "none                        0.25",
    ]


def page(shown, *arguments, **options):
    table(*arguments, **options)
    return shown.pop()["text/html"]


def test_the_html_is_aligned_and_escaped(shown):
    html = page(shown, ROWS, HEADERS, caption="a < b")
    assert "a &lt; b" in html and "tiled &lt;b&gt;" in html and "tiled <b>" not in html
    assert '<td align="left">plain</td><td align="right">1,024</td><td align="right">1.5\u2007</td>' in html
    assert '<td align="right">12\u2008\u2007\u2007</td>' in html


def test_numbers_are_written_by_kind(capsys):
    table([(np.int64(4096), np.float64(1 / 3), np.True_, -1e-9)], ("n", "x", "right", "small"))
    assert capsys.readouterr().out.splitlines()[1].split() == ["4,096", "0.3333", "yes", "-1e-09"]


def test_what_has_no_point_is_not_filled_up(shown):
    html = page(shown, [("0.125",), ("nan",), ("-inf",)], ("x",))
    assert '<td align="right">nan</td>' in html and '<td align="right">-inf</td>' in html
    html = page(shown, [("1.5e-05",), ("0.25",)], ("x",))
    assert '<td align="right">0.25</td>' in html


def test_a_column_with_words_is_not_one_of_numbers(shown):
    assert '<td align="left">7</td>' in page(shown, [("7",), ("seven",)], ("count",))


def test_code_is_shown_as_code(shown, capsys):
    html = page(shown, [("`a[0] < b`", "`a` and b")], ("line", "words"))
    assert "<code>a[0] &lt; b</code>" in html and "`a` and b" in html


def test_bars_are_as_long_as_their_numbers(shown):
    html = page(shown, [("a", 50), ("b", 200), ("c", 0)], ("name", "bytes"), bar="bytes")
    assert re.findall(r"width:([\d.]+)%", html) == ["25.0", "100.0", "0.0"]


def test_marks_are_seen_without_colour(shown, capsys):
    html = page(shown, ROWS, HEADERS, mark=lambda row: row[0] == "plain")
    assert "<b>plain</b>" in html and "<b>none</b>" not in html


def test_rows_that_are_not_kept_are_folded(shown):
    html = page(shown, ROWS, HEADERS, keep=lambda row: row[0] == "plain")
    above, below = html.split("<details>")
    assert "plain" in above and "tiled" not in above
    assert "all 3 rows" in below and all(name in below for name in ("plain", "tiled", "none"))
    assert "<details>" not in page(shown, ROWS, HEADERS)


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 cells"):
        table([(1, 2)], HEADERS)
    with pytest.raises(ValueError, match="no column 'time'"):
        table(ROWS, HEADERS, bar="time")


def test_a_sentence_may_wrap(shown):
    html = page(shown, [("plain", "one program computes a tile of queries and visits every key")], ("rung", "idea"))
    assert html.count("<p>") == 1 and "<p>one program" in html
