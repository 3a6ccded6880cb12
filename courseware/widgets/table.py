"""Tables of numbers and words: aligned by the decimal point, long ones folded."""

import re
from collections.abc import Callable, Sequence
from numbers import Integral, Real

from .page import STYLE, escape, show

NUMBER = re.compile(r"[-+]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf|nan)[x%]?")
DIGITS = tuple("0123456789%x")  # what a number ends with that is neither inf nor nan
A_SENTENCE = 40  # characters: what is longer may wrap
FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit and as a point


def table(
    rows: Sequence[Sequence],
    headers: Sequence[str],
    *,
    caption: str = "",
    bar: str = "",
    mark: Callable | None = None,
    keep: Callable | None = None,
    folded: str = "",
) -> None:
    """Show a table.

    rows: their cells are texts, as f"{x:.2f}", or numbers: whole ones are written in full, others to four digits; None
    leaves the cell empty. A text between backticks is code. A column of numbers is aligned by the point. headers: with
    the unit, as in "traffic (MB)".
    bar: the header of a column of numbers that are at least 0; each gets a bar beside it.
    mark, keep: functions of a row. Marked rows are bold. The rows that are kept stand above, and the whole table is
    folded below them. folded: a line below which the table is folded, as where it gives answers away.
    """
    rows = [list(row) for row in rows]
    texts = [[_text(cell) for cell in row] for row in rows]
    if any(len(row) != len(headers) for row in rows):
        raise ValueError(f"every row needs {len(headers)} cells, one for each header")
    if bar and bar not in headers:
        raise ValueError(f"there is no column {bar!r} to draw bars for; there are {', '.join(headers)}")
    columns = [_aligned([row[i] for row in texts]) for i in range(len(headers))]
    cells = [list(row) for row in zip(*(texts for _, texts in columns), strict=True)]
    marked = [mark is not None and bool(mark(row)) for row in rows]
    bars = _bars([row[headers.index(bar)] for row in texts]) if bar else [""] * len(rows)
    numeric = [is_numeric for is_numeric, _ in columns]

    def page(indices):
        lines = [_row("th", map(escape, headers), numeric)]
        for i in indices:
            content = [re.sub("^`(.*)`$", r"<code>\1</code>", escape(cell)) for cell in cells[i]]
            content = [f"<b>{cell}</b>" if marked[i] else cell for cell in content]
            content = [f"<p>{cell}</p>" if len(cell) > A_SENTENCE else cell for cell in content]
            if bar:
                content[headers.index(bar)] += bars[i]
            lines.append(_row("td", content, numeric))
        head = f"<caption>{escape(caption)}</caption>" if caption else ""
        return f'<table class="course-table">{head}<thead>{lines[0]}</thead><tbody>{"".join(lines[1:])}</tbody></table>'

    everything = range(len(rows))
    kept = [i for i in everything if keep(rows[i])] if keep else everything
    shown, rest = ("", folded) if folded else (page(kept), f"all {len(rows)} rows" if len(kept) < len(rows) else "")
    rest = f"<details><summary>{escape(rest)}</summary>{page(everything)}</details>" if rest else ""
    show(_as_text(headers, cells, numeric, marked, caption), STYLE + shown + rest)


def _text(cell):
    if cell is None or isinstance(cell, str):
        return cell or ""
    if type(cell).__name__ in ("bool", "bool_"):  # NumPy's, too
        return "yes" if cell else "no"
    if isinstance(cell, Integral):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, Real) else str(cell)


def _aligned(texts):
    """Whether a column is one of numbers, and its texts, numbers filled up to the same places after the point."""
    found = [NUMBER.fullmatch(text) for text in texts]
    if not any(found) or not all(match or text in ("", "-") for match, text in zip(found, texts, strict=True)):
        return False, texts
    places = [len(text.partition(".")[2]) for text in texts]
    if not any(places) or any("e" in text for text in texts):
        return True, texts  # whole numbers, or 1.5e-05, whose point is not where that of 0.002 is

    def filled(text, lack):
        point = "" if "." in text else POINT_SPACE
        return text + point + FIGURE_SPACE * lack if text[-1:] in DIGITS else text

    return True, [filled(text, max(places) - count) for text, count in zip(texts, places, strict=True)]


def _bars(texts):
    values = [float(re.sub(r"[,x%]", "", text) or 0) for text in texts]
    longest = max(values, default=0) or 1
    return [f'<span class="course-bar"><i style="width:{100 * value / longest:.1f}%"></i></span>' for value in values]


def _row(tag, cells, numeric):
    places = ["right" if is_numeric else "left" for is_numeric in numeric]
    row = (f'<{tag} align="{place}">{cell}</{tag}>' for cell, place in zip(cells, places, strict=True))
    return f"<tr>{''.join(row)}</tr>"


def _as_text(headers, cells, numeric, marked, caption):
    widths = [max(len(row[i]) for row in [headers, *cells]) for i in range(len(headers))]

    def line(row):
        padded = (
            cell.rjust(width) if is_numeric else cell.ljust(width)
            for cell, width, is_numeric in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).translate({ord(FIGURE_SPACE): " ", ord(POINT_SPACE): " "}).rstrip()

    lines = [line(row) + ("  <" if is_marked else "") for row, is_marked in zip(cells, marked, strict=True)]
    return "\n".join([*filter(None, [caption]), line(headers), *lines])
