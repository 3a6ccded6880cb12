"""Compares what an answer returned with what it should be, and says where and how the two differ."""

import itertools
import numbers
from dataclasses import replace

import numpy as np

from courseware.worker.running import is_unwritten

from .exercise import Evidence, ExpectedOutput, Finding

# Rounding that a right answer may add in float32: a few operations on each term, relative to the terms' size.
FLOOR = 32 * np.finfo(np.float32).eps
LOGARITHMS = ("lse", "logsumexp")  # outputs in which a factor of what they are the logarithm of is a difference


def exact_and_plain(function, *arguments):
    """What `function` makes of the arguments as float64, and as float32."""
    return function(*(_cast(a, np.float64) for a in arguments)), function(*(_cast(a, np.float32) for a in arguments))


def _cast(value, dtype):
    if isinstance(value, tuple):
        return tuple(_cast(v, dtype) for v in value)
    return dtype(value) if isinstance(value, float) else np.asarray(value, dtype=dtype)


def expected(names, function, *arguments, terms=None, index="row") -> list[ExpectedOutput]:
    """What the function makes of the arguments, as outputs to compare with.

    names: of its output, or a tuple of several. terms, of each, and index: as in ExpectedOutput; None is the output.
    """
    exact, plain = exact_and_plain(function, *arguments)
    if isinstance(names, str):
        names, exact, plain, terms = [names], [exact], [plain], [terms]
    outputs = zip(names, exact, plain, terms, strict=True)
    return [ExpectedOutput(name, e, p, e if size is None else size, index) for name, e, p, size in outputs]


def exactly(name, value, terms=1.0, index="row") -> list[ExpectedOutput]:
    """One output that no format rounds, alone in a list."""
    return [ExpectedOutput(name, np.float64(value), np.float64(value), terms, index)]


def compare(returned, parts: list[ExpectedOutput]) -> Evidence | None:
    """None if every part is within its error budget, otherwise what is wrong, part by part.

    A part's error may be twice that of the reference computed in float32, plus FLOOR relative to the part's
    terms: an answer is free to compute in float32, in another order.
    """

    def evidence(*findings):
        due = parts[0].expected if len(parts) == 1 else [part.expected for part in parts]
        shown = told_apart(lambda digits: [_show_parts(values, parts, digits) for values in (returned, due)])
        return Evidence(findings, *shown)

    if len(parts) == 1:
        values = [returned]
    elif isinstance(returned, (tuple, list)) and len(returned) == len(parts):
        values = list(returned)
    else:
        wanted = f"a tuple of {len(parts)}: ({', '.join(part.name for part in parts)})"
        return evidence(Finding("", *_not_what(returned, wanted)))

    values = [np.asarray(v) if _is_table(v, part) else v for v, part in zip(values, parts, strict=True)]
    missing = [part.name for value, part in zip(values, parts, strict=True) if value is None]
    if missing and len(parts) > 1:
        return evidence(*(Finding(name, "type", f"{name} is None, not a number or an array") for name in missing))
    problems = [(part.name, _not_numbers(part, value)) for part, value in zip(parts, values, strict=True)]
    if wrong := [Finding(name, *problem) for name, problem in problems if problem]:
        return evidence(*wrong)
    # From here on a number is an array of one element.
    arrays = [np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in values]
    rows = [replace(part, expected=np.atleast_1d(part.expected), plain=np.atleast_1d(part.plain)) for part in parts]
    off = [(a, part) for a, part in zip(arrays, rows, strict=True) if _wrong(a, part).any()]
    if not off:
        return None
    swapped = _swapped(arrays, rows)
    findings = [swapped] if swapped else [Finding(part.name, *_difference(a, part)) for a, part in off]
    if not any(a.ndim > 1 for a in arrays):
        return evidence(*findings)
    shown = [_one_row(a, part, alone=len(parts) == 1) for a, part in off]
    return Evidence(tuple(findings), *("\n".join(lines) for lines in zip(*shown, strict=True)))


def told_apart(shown):
    """shown(digits), a text of each of two values, with as many digits as tell them apart."""
    return next((pair for pair in map(shown, (6, 9, 12, 17)) if pair[0] != pair[1]), shown(6))


def _one_row(array, part, alone):
    """(returned, expected) of an output: the first row that is wrong is enough."""
    row = tuple(np.argwhere(_wrong(array, part))[0, :-1].tolist())
    if array.ndim == 1:
        label = f"{part.name} = "
    elif array.ndim == 2:
        label = ("" if alone else f"{part.name}, ") + f"{part.index} {row[0]}: "
    else:
        label = f"{part.name}[{', '.join(map(str, row))}]: "
    return told_apart(lambda digits: tuple(label + show(x[row], digits) for x in (array, part.expected)))


def as_array(value):
    """As an array, or None of rows that differ in length."""
    try:
        return np.asarray(value)
    except ValueError:
        return None


def are_numbers(value, n: int, kind=numbers.Real) -> bool:
    """Whether it is a tuple or a list of so many."""
    return isinstance(value, (tuple, list)) and len(value) == n and all(isinstance(x, kind) for x in value)


def _is_table(value, part):
    """A list or tuple of numbers, or of rows of numbers, of the shape that is expected."""
    array = as_array(value) if isinstance(value, (list, tuple)) else None
    return array is not None and array.dtype.kind in "fiu" and array.shape == np.shape(part.expected) != ()


def _not_what(value, wanted):
    if value is None:
        return "none", f"the answer returned None, not {wanted}: is there a return on every way out?"
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return "type", f"the answer returned {_a(type(value).__name__)}{size}, not {wanted}"


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


def _wrong(array, part):
    """Which elements are wrong: infinities must be equal, and elsewhere the error budget of the part decides."""
    expected, finite = part.expected, np.isfinite(part.expected)
    plain_error = np.abs(part.plain[finite] - expected[finite]).max(initial=0.0)
    budget = 2 * plain_error + FLOOR * np.maximum(part.terms, np.abs(expected))
    with np.errstate(invalid="ignore"):  # inf - inf, where the two are compared instead
        close = np.abs(array - expected) <= budget
    return ~np.where(finite, close, (array == expected) | (np.isnan(array) & np.isnan(expected)))


def _swapped(arrays, parts):
    """Two outputs in each other's place."""
    for i, j in itertools.combinations(range(len(parts)), 2):
        crossed = list(arrays)
        crossed[i], crossed[j] = arrays[j], arrays[i]
        fit = arrays[i].shape == arrays[j].shape
        if fit and not any(_wrong(a, part).any() for a, part in zip(crossed, parts, strict=True)):
            return Finding("", "swapped", f"{parts[i].name} and {parts[j].name} are swapped")
    return None


def _difference(array, part):
    """(kind, text) of what is wrong with the values of a part of the right shape."""
    expected, name = part.expected, part.name
    finite = np.isfinite(expected)
    if (unwritten := is_unwritten(array)).any():
        return "np.empty", f"{name} is NaN{_where(unwritten, part)}, from elements of np.empty that were never written"
    if np.isnan(array).any():
        return "nan", f"{name} is NaN{_where(np.isnan(array), part)}"
    wrong = _wrong(array, part)
    if not np.isfinite(array[finite]).all():
        infinite = np.isinf(array) & finite
        what = "-inf" if (array[infinite] < 0).all() else "infinite"
        return "inf", f"{name} is {what}{_where(infinite, part)}"
    if not finite[wrong].all():
        return "values", f"{name} is not {expected[wrong & ~finite][0]}{_where(wrong, part)}"
    relative = np.abs(array - expected)[finite].max() / np.abs(expected[finite]).max(initial=1e-300)
    # float16 rounds to within 2 ** -11 of a number, some up and some down.
    off = (array - expected)[finite & (expected != 0)] / expected[finite & (expected != 0)]
    if 1e-15 < relative < 3e-3 and not (off.size > 2 and np.ptp(off) < 0.01 * np.abs(off).max()):
        if factors := _by_row(array, part, wrong):
            return "factor", f"{name} is {factors}"
        rounded = relative > 1e-5 and off.any() and 0.2 < np.mean(off[off != 0] > 0) < 0.8
        text = f"{name} is right to about {int(-np.log10(relative))} digits only"
        return "precision" if rounded else "digits", text
    if tiles := _by_tile(array, part, wrong):
        return "factor", f"{name}:\n{tiles}"
    where = _where(wrong, part)
    selected = np.ndim(part.terms) == 0 and part.terms == 0  # not summed
    if selected or name in LOGARITHMS:
        off = array[wrong] - expected[wrong]
        if np.abs(off - off[0]).max() <= 1e-6 * np.abs(off[0]):
            return "offset", f"{name} is {abs(off[0]):.4g} too {'large' if off[0] > 0 else 'small'}{where}"
    if not selected and (factor := _common_factor(array[wrong], expected[wrong])) is not None:
        partly = wrong.ndim > 1 and not (wrong.all(axis=-1) | ~wrong.any(axis=-1)).all()
        what = "0 where it should not be," if factor == 0 and partly else _too(factor, int(wrong.sum()))
        return "factor", f"{name} is {what}{where}{_sums(name, array, expected)}"
    if not selected and (factors := _by_row(array, part, wrong)):
        return "factor", f"{name} is {factors}{_sums(name, array, expected)}"
    return "values", f"{name} is wrong{where}{_by_weight(array, part, wrong) or _sums(name, array, expected)}"


def _by_row(array, part, wrong):
    """ "off by a factor in each row: 0.5 in row 0, 0.25 in row 2", of the rows that are wrong, if there are several."""
    factors = {}
    for row in np.flatnonzero(wrong.any(axis=1)) if wrong.ndim == 2 else ():
        told = part.expected[row] != 0
        factors[row] = _common_factor(array[row][told], part.expected[row][told])
        if factors[row] is None or told.sum() < 2 or array[row][~told].any():
            return ""
    if len(factors) < 2:
        return ""
    right, terms = (np.broadcast_to(each, array.shape)[list(factors)] for each in (part.expected, part.terms))
    off = (np.array(list(factors.values()))[:, None] - 1) * right
    # A small element is off by what a few float32 roundings make of it, which is another thing on another processor. An
    # eighth of FLOOR: what is wrong is off by more than FLOOR, and then its row's factor explains nearly all of it.
    allowed = np.maximum(0.05 * np.abs(off), FLOOR / 8 * np.maximum(terms, np.abs(right)))
    if (np.abs(array[list(factors)] - right - off) > allowed).any():  # rounding, which differs from column to column
        return ""
    each = [f"{_factor(factor)} in {part.index} {row}" for row, factor in list(factors.items())[:3]]
    return f"off by a factor of each {part.index}'s own: {', '.join(each)}{', ...' if len(factors) > 3 else ''}"


def _factor(factor):
    """A factor to four digits, or as many as tell it from 1."""
    return next(text for digits in (4, 7, 10) if (text := f"{factor:.{digits}g}") != "1" or digits == 10)


def _sums(name, array, expected):
    """ "; its sum is 2, not 1", of the first row if there are several, where every row's sum should be 1."""
    sums_to_1 = name not in ("m", "l") and expected.shape[-1] > 1 and not (expected < 0).any()
    if not sums_to_1 or not np.allclose(expected.sum(axis=-1), 1):
        return ""
    off = [row.sum() for row in array.reshape(-1, array.shape[-1]) if abs(row.sum() - 1) > 1e-2]
    return f"; {'a row' if array.ndim > 1 else 'it'} adds up to {off[0]:.4g}, not to 1" if off else ""


def _common_factor(array, expected):
    """array / expected if that is one and the same number throughout, and not 1."""
    if array.size == 0 or not np.isfinite(expected).all() or (expected == 0).any():
        return None
    ratio = array / expected
    factor = float(ratio.flat[0])
    return factor if np.abs(ratio - factor).max() <= 1e-3 * abs(factor) and abs(factor - 1) > 1e-6 else None


def _too(factor, count):
    if factor == 0:
        return "0"
    by = f"by the {'same ' if count > 1 else ''}factor {_factor(factor)}"
    return f"off {by}" if factor < 0 else f"too {'large' if factor > 1 else 'small'} {by}"


def _by_weight(array, part, wrong):
    """ "; in row 0, keys 0 to 3 count 1.5 times, keys 4 to 7 not at all": of the terms that the row is a sum of.

    Nothing unless this is so to the last digits, with fewer factors than columns.
    """
    if part.product is None or wrong.ndim != 2 or not np.isfinite(array).all():
        return ""
    of, weights, values = part.product()
    columns = array.shape[1]
    for row in np.flatnonzero(wrong.any(axis=1)):
        terms = weights[row][:, None] * values
        size = np.abs(terms).max()
        for block in range(len(terms), 0, -1):
            starts = np.arange(0, len(terms), block)
            if len(starts) >= columns:
                break
            sums = np.add.reduceat(terms, starts)
            factors, _, rank, _ = np.linalg.lstsq(sums.T, array[row], rcond=None)
            is_close = np.abs(factors @ sums - array[row]).max() <= 1e-5 * size
            if rank == len(starts) and factors.min() >= -1e-6 and is_close:
                fates = _fates(factors + 0.0, of, block, weights[row] != 0)
                return f"; in {part.index} {row}, {fates}" if fates else ""
    return ""


def _fates(factors, of, block, is_due):
    """What became of the terms of each block, where neighbours with the same fate are told together.

    is_due: which terms have a weight at all.
    """
    told, texts = [], [f"{factor if factor > 1e-6 else 0:.3g}" for factor in factors]
    for factor, group in itertools.groupby(range(len(factors)), texts.__getitem__):
        places = [number for place in group for number in range(place * block, (place + 1) * block)]
        numbers = [number for number in places if number < len(is_due) and is_due[number]]
        times = {"0": "not at all", "1": "once"}.get(factor, f"{factor} times")
        told.append(f"{named(of, numbers)} {'' if told else 'counts ' if len(numbers) == 1 else 'count '}{times}")
    return ", ".join(told) if len(told) <= 4 else ""


def _by_tile(array, part, wrong):
    """A line for the blocks of each fate: "blocks 0 to 1 (keys 0 to 3): too small by the same factor 0.5".

    None if the part has no blocks, or a block is off in no simple way.
    """
    if part.tile is None or array.ndim != 1 or len(array) <= part.tile:
        return None
    lines, blocks_of = [], {}  # of each fate
    for start in range(0, len(array), part.tile):
        rows = slice(start, start + part.tile)
        factor = _common_factor(array[rows], part.expected[rows]) if wrong[rows].all() else None
        if factor is None and wrong[rows].any():
            return None
        blocks_of.setdefault("right" if factor is None else f"{factor:.4g}", []).append(start // part.tile)
    for fate, blocks in blocks_of.items():
        keys = [i for i in range(len(array)) if i // part.tile in blocks]
        what = "right" if fate == "right" else _too(float(fate), len(keys))
        lines.append(f"{named('block', blocks)} ({named(part.index, keys)}): {what}")
    return "\n".join(lines)


def named(noun, numbers):
    """ "key 3", "keys 0 to 4" or "keys 0, 2, 5"."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"{noun} {first}"
    nouns = {"entry": "entries", "query": "queries", "index": "indices"}.get(noun, f"{noun}s")
    if numbers == list(range(first, last + 1)):
        return f"{nouns} {first} to {last}"
    return f"{nouns} {', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}"


def _where(wrong, part):
    """ " at rows 1 to 3 of 4", or nothing where there is only one place it could be."""
    if wrong.size == 1:
        return ""
    rows = sorted(set(np.nonzero(wrong)[0].tolist()))
    columns = np.flatnonzero(wrong.any(axis=0)).tolist() if wrong.ndim == 2 else []
    some = f", {named('column', columns)} of {wrong.shape[1]}" if 0 < len(columns) < wrong[:1].size else ""
    if len(rows) == wrong.shape[0]:
        return f" at every {part.index}{some}"
    return f" at {named(part.index, rows)} of {wrong.shape[0]}{some}"


def _show_parts(values, parts, digits):
    if len(parts) > 1 and isinstance(values, (tuple, list)) and len(values) == len(parts):
        return ", ".join(f"{part.name} = {show(value, digits)}" for part, value in zip(parts, values, strict=True))
    return show(values, digits)


def show(value, digits=6):
    """A value to so many digits, short, the same on every machine."""
    if isinstance(value, (float, np.floating)) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return f"{float(value):.{digits}g}"
    if isinstance(value, np.ndarray):
        value = value + 0.0 if value.dtype.kind == "f" else value  # -0. says nothing
        return np.array2string(value, precision=digits, threshold=24, max_line_width=90, separator=", ")
    if isinstance(value, (tuple, list)):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        shown = ", ".join(show(v, digits) for v in value[:12]) + (", ..." if len(value) > 12 else "")
        return f"{opening}{shown}{closing}"
    if value is None or isinstance(value, (int, np.integer, bool, str)):
        return str(value)[:200]
    return _a(type(value).__name__)
