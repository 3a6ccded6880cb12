"""What can be said of a wrong answer that is no known slip: facts, found by running it beside the right answer."""

import itertools

import numpy as np

from .calling import GuardedAnswer
from .diagnosis import named
from .exercise import Evidence, Exercise, Finding, Property
from .slips import observed, same

# What came back, made of what should have.
RELATIONS = {
    "the right result with the opposite sign": np.negative,
    "the right result without its sign": np.abs,
    "one divided by the right result": np.reciprocal,
    "the square of the right result": np.square,
    "the square root of the right result": np.sqrt,
    "the logarithm of the right result": np.log,
    "the exponential of the right result": np.exp,
    "1 minus the right result": lambda right: 1 - right,
    "the right result cut to whole numbers": np.trunc,
    "the right result, transposed": np.transpose,
    "the right result in reverse order": np.flip,
    "the right result as float16 holds it": lambda right: np.float64(np.float16(right)),
} | {f"the right result rounded to {n} decimal places": lambda right, n=n: np.round(right, n) for n in range(6)}
# Kinds of findings that say it all.
PLAIN = {"exception", "unknown name", "timeout", "none", "type", "dtype", "memory", "modified", "at once", "again"}


def known(exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict, evidence: Evidence):
    """The Findings besides those of the property: one or none."""
    kernel = "launched(" in prop.call or "run_cuda(" in prop.call  # which takes long
    if kernel or evidence.findings[0].kind in PLAIN:
        return ()
    right = GuardedAnswer(exercise.answer)
    with np.errstate(all="ignore"):
        pair = [_outcomes(prop, each, inputs) for each in (right, answer)]
        place = next((i for i, parts in enumerate(zip(*pair, strict=False)) if not same(*parts)), None)
        if place is None:
            return ()
        fact = _relation(exercise, prop, right, answer, place) or _influence(prop, right, answer, inputs, place)
    return (Finding("", "fact", fact),) if fact else ()


def _outcomes(prop, answer, inputs):
    """The arrays that the answer's first call made, or returned."""
    outcomes = []
    for value in observed(prop, answer, inputs)[0][0]:
        for part in value if isinstance(value, tuple) else (value,):
            array = np.asarray(part) if isinstance(part, (int, float, list, np.ndarray, np.generic)) else np.zeros(0)
            if array.dtype.kind in "biuf" and array.size:
                outcomes.append(array.astype(np.float64))
    return outcomes


def _relation(exercise, prop, right, answer, place):
    """What came back in place of what was expected, if that is the same on all cases of the same call."""
    alike = [p for p in exercise.properties if p.call == prop.call]
    cases = [(case, *(_outcomes(p, each, case)[place:] for each in (right, answer))) for p in alike for case in p.cases]
    cases = [(case, exact[0], came[0]) for case, exact, came in cases if exact and came]
    wrong = [(case, exact, came) for case, exact, came in cases if not same(exact, came)]
    if sum(exact.size for _, exact, _ in wrong) < 2:
        return ""
    said = "on every input tried, what comes back is"
    for words, relation in RELATIONS.items():
        if all(same(relation(exact), came) for _, exact, came in cases):
            return f"{said} {words}"
    if any(exact.shape != came.shape for _, exact, came in wrong):
        return ""
    sizes = [_sizes(case) for case, _, _ in wrong]
    factors = [came[exact != 0] / exact[exact != 0] for _, exact, came in wrong]
    if all(map(_are_weights, (each for _, *pair in wrong for each in pair))):
        logs = [[np.log(each) - np.log(each).mean(axis=-1, keepdims=True) for each in pair] for _, *pair in wrong]
        steeper = [came[exact != 0] / exact[exact != 0] for exact, came in logs]
        if words := _law(steeper, sizes, (-1, -0.5, 0.5, 1), 1):
            return f"{said} the softmax of the right scores times {words}, where it is not right"
    if any(came[exact == 0].any() for _, exact, came in wrong):
        return ""
    if words := _law(factors, sizes, (-2, -1, -0.5, 0.5, 1, 2), 1):
        return f"{said} the right result times {words}, where it is not right"
    if all(exact.size == 1 for _, exact, _ in wrong):
        words = _law([came - exact for _, exact, came in wrong], sizes, (1, 2), 3)
        return f"{said} the right result plus {words}, where it is not right" if words else ""
    return ""


def _are_weights(array):
    return array.ndim > 0 and (array > 0).all() and np.allclose(array.sum(axis=-1), 1, atol=1e-4)


def _sizes(case):
    """Name of each size and number among the inputs -> its value."""
    sizes = {}
    for name, value in case.items():
        if isinstance(value, np.ndarray):
            sizes |= {f"{name}.shape[{axis}]": length for axis, length in enumerate(value.shape)}
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            sizes[name] = value
    return sizes


def _law(numbers, sizes, exponents, most):
    """ "2 * n * d": a constant times powers of at most `most` of the sizes, if it is the numbers, one of each input.

    numbers: an array for each input, all of whose elements the law states. It is not told unless three inputs or more
    agree on it.
    """
    if not all(len(each) and np.ptp(each) <= 1e-3 * abs(each[0]) for each in map(np.ravel, numbers)):
        return ""
    numbers = np.array([np.ravel(each)[0] for each in numbers])
    if np.ptp(numbers) <= 1e-3 * abs(numbers[0]):
        return f"{numbers[0]:.4g}" if len(numbers) > 1 and numbers[0] != 0 else ""
    names = [name for name in sizes[0] if all(name in of_one for of_one in sizes)]
    for count in range(1, most + 1) if len(numbers) > 2 else ():
        for chosen in itertools.combinations(names, count):
            for powers in itertools.product(exponents, repeat=count):
                law = np.prod(
                    [[of_one[n] ** float(e) for n, e in zip(chosen, powers, strict=True)] for of_one in sizes], axis=1
                )
                constants = numbers / law
                if np.ptp(constants) <= 1e-3 * abs(constants[0]):
                    parts = [n if e == 1 else f"{n}**{e:g}" for n, e in zip(chosen, powers, strict=True)]
                    return " * ".join(([] if abs(constants[0] - 1) < 1e-3 else [f"{constants[0]:.4g}"]) + parts)
    return ""


def _influence(prop, right, answer, inputs, place):
    """Which input moves which rows of the result, where that is not as it should be."""
    before = [_outcomes(prop, each, inputs)[place] for each in (right, answer)]
    if before[0].shape != before[1].shape or not np.isfinite(before).all():
        return ""
    whole = before[0].size == 1
    for what, changed in _changes(inputs, whole):
        moved = []
        for each, array in zip((right, answer), before, strict=True):
            after = _outcomes(prop, each, inputs | changed)[place:]
            if not after or after[0].shape != array.shape or not np.isfinite(after[0]).all():
                break
            off = np.abs(after[0] - array) > 1e-9 * np.abs(array).max(initial=1e-30)
            moved.append(np.flatnonzero(off.reshape(len(off) if off.ndim else 1, -1).any(axis=1)).tolist())
        else:
            should, did = ("nothing" if not rows else "the result" if whole else named("row", rows) for rows in moved)
            if should != did:
                place_of = "" if whole or did == "nothing" else " of what comes back"
                return f"changing {what} changes {did}{place_of}; it should change {should}"
    return ""


def _changes(inputs, whole):
    """(what is changed, {name: its new value})."""
    for name, value in inputs.items():
        if isinstance(value, bool):
            yield name, {name: not value}
        elif isinstance(value, (int, float, np.floating)) and (whole or not isinstance(value, int)):
            yield name, {name: value + 1}
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim and value.size <= 64:
            for row in range(len(value)):
                new = value.copy()
                new[row] += np.linspace(0.3, 0.9, new[row].size).reshape(new[row].shape)
                yield f"{name}[{row}]", {name: new}
