"""Numbers as the explorers write them, in HTML and in pictures."""

import re


def number(x, digits=2):
    """x to `digits` decimals, and 0 without a sign: the cosine of a right angle is a little off 0."""
    return f"{round(float(x), digits) + 0.0:.{digits}f}"


def significant(x, digits=4):
    """x to so many significant digits."""
    return f"{float(x):.{digits}g}"


def vector(x, write=significant):
    """The components of x, in brackets."""
    return "(" + ", ".join(map(write, x)) + ")"


def plain(text):
    """HTML without its tags, as alternative text."""
    text = re.sub("<style>.*</style>|</?[bh][^r>]*>", "", text)
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", text)).strip()


def in_units(n_bytes, units, write):
    """A number of bytes in the largest unit that it reaches, or in the last. units: (name, bytes), large ones first."""
    name, size = next((unit for unit in units if n_bytes >= unit[1]), units[-1])
    return f"{n_bytes / size:{write}} {name}"


def table(rows, header=()):
    """An HTML table; the first cell of each row is its name. rows, header: texts that may hold HTML."""
    lines = ["".join(f"<th>{name}</th>" if name else "<td></td>" for name in header)] if header else []
    lines += [f"<td><b>{name}</b></td><td>{'</td><td>'.join(cells)}</td>" for name, *cells in rows]
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"
