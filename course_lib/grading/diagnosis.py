"""Compares what an answer returned with what it should be, and says where and how the two differ."""

import numbers
from dataclasses import replace

import numpy as np

from .exercise import Evidence, Finding, Part

# Rounding that a right answer may add in float32: a few operations on each term, relative to the terms' size.
FLOOR = 32 * np.finfo(np.float32).eps


def exact_and_plain(function, *arguments):
    """What `function` makes of the arguments as float64, and as float32."""
    return function(*(_cast(a, np.float64) for a in arguments)), function(*(_cast(a, np.float32) for a in arguments))


def _cast(value, dtype):
    if isinstance(value, tuple):
        return tuple(_cast(v, dtype) for v in value)
    return dtype(value) if isinstance(value, float) else np.asarray(value, dtype=dtype)


def compare(returned, parts: list[Part]) -> Evidence | None:
    """None if every part is within its error budget, otherwise what is wrong, part by part.

    A part's error may be twice that of the reference computed in float32, plus FLOOR relative to the part's terms:
    an answer is free to compute in float32, in another order.
    """
    expected_text = show_parts([part.name for part in parts], [part.expected for part in parts])

    def evidence(*findings):
        return Evidence(findings, show_returned(returned, parts), expected_text)

    if len(parts) == 1:
        values = [returned]
    elif isinstance(returned, (tuple, list)) and len(returned) == len(parts):
        values = list(returned)
    else:
        wanted = f"a tuple of {len(parts)}: ({', '.join(part.name for part in parts)})"
        return evidence(Finding("", *_not_what(returned, wanted)))

    arrays, wrong = [], []
    for part, value in zip(parts, values, strict=True):
        problem = _not_numbers(part, value)
        if problem:
            wrong.append(Finding(part.name, *problem))
        else:
            arrays.append(np.atleast_1d(np.asarray(value, dtype=np.float64)))
    if wrong:
        return evidence(*wrong)
    # From here on a number is an array of one element.
    parts = [
        replace(part, expected=np.atleast_1d(part.expected), plain=np.atleast_1d(part.plain)) for part in parts
    ]
    if all(_within_budget(a, part) for a, part in zip(arrays, parts, strict=True)):
        return None
    if swapped := _swapped(arrays, parts):
        return evidence(swapped)
    return evidence(*(_differs(a, p) for a, p in zip(arrays, parts, strict=True) if not _within_budget(a, p)))


def _not_what(value, wanted):
    if value is None:
        return "none", f"the answer returned None, not {wanted}: is there a return on every way out?"
    if isinstance(value, (tuple, list)):
        return "type", f"the answer returned a {type(value).__name__} of {len(value)}, not {wanted}"
    return "type", f"the answer returned {_a(type(value).__name__)}, not {wanted}"


def _not_numbers(part, value):
    """(kind, text) if `value` is no array of numbers of the expected shape."""
    shape = np.shape(part.expected)
    wanted = f"an array of shape {shape}" if shape else "a number"
    if value is None or (isinstance(value, (tuple, list)) and shape):
        return _not_what(value, wanted)
    if not isinstance(value, (np.ndarray, np.generic, numbers.Real)):
        return "type", f"{part.name} is {_a(type(value).__name__)}, not {wanted}"
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        return "dtype", f"{part.name} has dtype {array.dtype}, not a float"
    if array.shape != shape:
        return "shape", f"{part.name} has shape {array.shape}, not {shape}"
    return None


def _a(noun):
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _within_budget(array, part):
    """Infinities must be equal; elsewhere the error budget of the part decides."""
    finite = np.isfinite(part.expected)
    if not np.array_equal(array[~finite], part.expected[~finite], equal_nan=True):
        return False
    return bool(np.all(np.abs(array[finite] - part.expected[finite]) <= _budget(part)[finite]))


def _budget(part):
    finite = np.isfinite(part.expected)
    plain_error = np.abs(part.plain[finite] - part.expected[finite]).max(initial=0.0)
    return 2 * plain_error + FLOOR * np.maximum(part.terms, np.abs(part.expected))


def _swapped(arrays, parts):
    """Two outputs in each other's place."""
    for i in range(len(parts)):
        for j in range(i):
            if arrays[i].shape != arrays[j].shape:
                continue
            crossed = list(arrays)
            crossed[i], crossed[j] = crossed[j], crossed[i]
            if all(_within_budget(a, part) for a, part in zip(crossed, parts, strict=True)):
                return Finding("", "swapped", f"{parts[j].name} and {parts[i].name} are swapped")
    return None


def _differs(array, part):
    """The Finding for a part of the right shape with wrong values."""
    expected, name = part.expected, part.name
    finite = np.isfinite(expected)
    if np.isnan(array).any():
        return Finding(name, "nan", f"{name} is NaN{_where(np.isnan(array), part)}")
    for mistake, value in part.readings.items():
        if _close(array, value) and not _close(value, expected):
            text = f"{name} is what comes out when {mistake}"
            if tiles := _by_tile(array, part, array != expected):
                text += f": {tiles}"
            return Finding(name, mistake, text)
    if np.isinf(array[finite]).any():
        wrong = np.isinf(array) & finite
        return Finding(name, "inf", f"{name} is infinite{_where(wrong, part)}")
    wrong = ~finite & (array != expected)
    wrong[finite] = (np.abs(array - expected) > _budget(part))[finite]
    scale = np.abs(expected[finite]).max(initial=0.0)
    if finite.all() and np.abs(array - expected).max() < 3e-3 * scale:
        digits = int(-np.log10(np.abs(array - expected).max() / scale))
        text = f"{name} is right to about {digits} digits only: was something kept in float16?"
        return Finding(name, "precision", text)
    if text := _by_tile(array, part, wrong):
        return Finding(name, "factor", f"{name}: {text}")
    if (factor := _common_factor(array[wrong], expected[wrong])) is not None:
        return Finding(name, "factor", f"{name} is {_too(factor)}{_where(wrong, part, each='everywhere')}")
    return Finding(name, "values", f"{name} is wrong{_where(wrong, part)}")


def _close(array, value):
    value = np.broadcast_to(value, array.shape)
    same = array == value
    return bool(np.all(same | (np.abs(array - value) <= 1e-4 * np.abs(value))))


def _common_factor(array, expected):
    """array / expected if that is one and the same number throughout, and not 1."""
    if array.size == 0 or not np.isfinite(expected).all() or (expected == 0).any():
        return None
    ratio = array / expected
    factor = float(ratio.flat[0])
    return factor if np.abs(ratio - factor).max() <= 1e-3 * abs(factor) and abs(factor - 1) > 1e-6 else None


def _too(factor):
    if factor == 0:
        return "0"
    if factor < 0:
        return f"off by the factor {factor:.4g}"
    return f"too {'large' if factor > 1 else 'small'} by the same factor {factor:.4g}"


def _by_tile(array, part, wrong):
    """How each block of a tiled axis is off, blocks of one fate together; None if there are no blocks or no pattern."""
    if part.tile is None or array.ndim != 1 or len(array) <= part.tile:
        return None
    n, last = len(array), (len(array) - 1) // part.tile
    fates = {}  # what happened -> the blocks it happened to
    for block in range(last + 1):
        rows = slice(block * part.tile, (block + 1) * part.tile)
        factor = _common_factor(array[rows], part.expected[rows]) if wrong[rows].all() else None
        if factor is None and wrong[rows].any():
            return None
        fates.setdefault(_too(factor) if factor is not None else "right", []).append(block)
    sentences = []
    for fate, blocks in fates.items():
        first, final = blocks[0], blocks[-1]
        if blocks == list(range(first, final + 1)):
            keys = f"{part.index}s {first * part.tile} to {min((final + 1) * part.tile, n) - 1}"
            of = f"block {first}" if first == final else f"blocks {first} to {final}"
            sentences.append(f"{of} ({keys}) {fate}")
        else:
            sentences.append(f"blocks {', '.join(map(str, blocks))} {fate}")
    return "; ".join(sentences)


def _where(wrong, part, each=""):
    """" in rows 1, 3 of 4", or nothing where there is only one place it could be."""
    if wrong.size == 1:
        return ""
    along = np.unravel_index(np.flatnonzero(wrong), wrong.shape)[0]
    rows = sorted(set(along.tolist()))
    if len(rows) == wrong.shape[0]:
        return f" {each}" if each else f" in every {part.index}"
    shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    return f" in {part.index}{'s' if len(rows) > 1 else ''} {shown} of {wrong.shape[0]}"


def show_parts(names, values):
    if len(values) == 1:
        return show(values[0])
    return ", ".join(f"{name} = {show(value)}" for name, value in zip(names, values, strict=True))


def show_returned(returned, parts):
    if len(parts) > 1 and isinstance(returned, (tuple, list)) and len(returned) == len(parts):
        return show_parts([part.name for part in parts], returned)
    return show(returned)


def show(value):
    """A value to six digits, short, the same on every machine."""
    if isinstance(value, (float, np.floating)) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return f"{float(value):.6g}"
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=6, threshold=24, max_line_width=90, separator=", ")
    if isinstance(value, (tuple, list)):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        shown = ", ".join(show(v) for v in value[:12]) + (", ..." if len(value) > 12 else "")
        return f"{opening}{shown}{closing}"
    if value is None or isinstance(value, (int, np.integer, bool, str)):
        return str(value)[:200]
    return _a(type(value).__name__)
