"""Compares the values that expressions of two answers had: a list of arrays each, one for each time."""

import numpy as np

from .diagnosis import show, told_apart

MAX_SHOWN = 8  # numbers of a row


def first_difference(old, new):
    """("row 1 of ", its values, those in their place), or of all values where that is short."""
    new, row = as_shaped(new, old), ""
    # Where they differ, but for NaN in both.
    unlike = np.argwhere((old != new) & ((old == old) | (new == new))) if old.shape == new.shape else ()
    if old.ndim and len(unlike):
        *rows, entry = unlike[0].tolist()
        row = f"row {', '.join(map(str, rows))} of " if rows else ""
        old, new = old[tuple(rows)], new[tuple(rows)]
        if old.size > MAX_SHOWN:
            row, old, new = f"entry {entry} of {row}", old[entry], new[entry]

    def shown(digits=6):
        return [" ".join(show(each if each.ndim else each.item(), digits).split()) for each in (old, new)]

    said = shown() if old.dtype != new.dtype else told_apart(shown)
    if said[0] == said[1]:
        said = [f"{text} in {each.dtype}" for text, each in zip(said, (old, new), strict=True)]
    return row, *said


def listed_range(text, values):
    """The numbers of a range, of which only the start, the stop and the step are recorded."""
    return np.arange(*values.tolist()) if text.startswith("range(") and values.size == 3 else values


def can_stand(old, new):
    """Whether the right answer's values could stand for the wrong one's."""
    pairs = list(zip(old, new, strict=False))
    same_kind = all((a.dtype == bool) == (b.dtype == bool) for a, b in pairs)
    # A whole number is not replaced by an array, nor whole numbers by fractions.
    whole = all(a.dtype.kind != "i" or (a.ndim or not b.ndim) and (b == np.round(b)).all() for a, b in pairs)
    return len(old) == len(new) and same_kind and whole and any(differ(*pair) for pair in pairs)


def differ(one, other):
    """Whether they do, as values: a stand-in of the same size takes the shape of what it stands for."""
    return not np.array_equal(one, as_shaped(other, one), equal_nan=True)


def how_many_differ(ones, others):
    """Of two lists of arrays, or of the rows of two arrays."""
    return sum(map(differ, ones, others))


def as_shaped(new, old):
    """The values in the shape of what they stand for, if they are as many."""
    return new.reshape(old.shape) if new.size == old.size and new.ndim != old.ndim else new


def are_alike(values, place, others, source, rtol=1e-9, as_often=False, negated=False):
    """Whether two expressions have the same values in every case that comes to both, as far as both come.

    as_often: whether neither may come further, or in another shape. negated: whether truth values are opposite.
    """
    pairs = [(a[place], b[source]) for a, b in zip(values, others, strict=True) if place in a and source in b]
    if negated:
        pairs = [([~x for x in one], other) for one, other in pairs if one[0].dtype == other[0].dtype == bool]
    if as_often and any(len(some) != len(other) or some[0].shape != other[0].shape for some, other in pairs):
        return False
    return bool(pairs) and all(are_equal(*pair, rtol) for both in pairs for pair in zip(*both, strict=False))


def are_equal(one, other, rtol=1e-9):
    if one.size != other.size or (one.dtype == bool) != (other.dtype == bool):
        return False
    return np.allclose(one.ravel(), other.ravel(), rtol=rtol, atol=0, equal_nan=True)
