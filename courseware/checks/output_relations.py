"""What can be said of a wrong answer beyond its failure and any misconception: facts, found by running both answers."""

import inspect
import itertools
import re

import numpy as np

from .calling import GuardedAnswer, attempt
from .diagnosis import named
from .drawing import drawn
from .exercise import Exercise, Finding, Property
from .fault_localization import CONDITION_FOR_ALL_ROWS, locate_by_value_replacement
from .misconceptions import observed, on_case, same
from .mutation_repair import WITHOUT_BRANCH, repairing_mutation
from .properties import RAISED

TRANSPOSED = "the right result, transposed"
# What came back, made of what should have.
RELATIONS = {
    "the right result with the opposite sign": np.negative,
    "the right result without its sign": np.abs,
    "the logarithm of the right result": np.log,
    "the exponential of the right result": np.exp,
    "1 minus the right result": lambda right: 1 - right,
    "the right result cut to whole numbers": np.trunc,
    TRANSPOSED: np.transpose,
    "the right result as float16 holds it": lambda right: np.float64(np.float16(right)),
}
RELATIONS |= {f"the right result rounded to {n} decimals": lambda right, n=n: np.round(right, n) for n in range(6)}
POWERS = {"1/2": 0.5, "2/3": 2 / 3, "-1": -1, "2": 2, "3": 3, "4": 4}
RELATIONS |= {f"the right result to the power {said}": lambda right, p=p: right**p for said, p in POWERS.items()}
DIFFERS = (
    "called once more with the same input, the answer returns something else: is memory read that nobody wrote, "
    "or is something random, or kept from one call to the next?"
)
MAX_RANDOM = 12  # inputs of a property
ONLY_THERE = ", wherever it is wrong"
# Kinds of findings that say it all.
PLAIN = {
    "exception",
    "unknown name",
    "timeout",
    "none",
    "type",
    "dtype",
    "memory",
    "modified",
    "accepted",
    "wrong exception",
    "compiler",
}
PLAIN |= {"at once", "again", "swapped"}
REPAIRED = {"exception", "type", "dtype"}  # of these, a small change may be told that is enough


def further_findings(exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict, evidence):
    """The Findings besides those of the property's Evidence: what comes back in other words, and the place to mend."""
    kind = evidence.findings[0].kind
    if "run_cuda(" in prop.call or kind in PLAIN - REPAIRED or evidence.expected == RAISED:
        return ()
    again = evidence if "launched(" in prop.call else attempt(prop, answer, inputs)
    if again is None or again.returned != evidence.returned:  # what is looked for below would be chance
        return (Finding("", "fact", DIFFERS),)
    # Where nothing is expected, several results are right, and ours is one of them.
    unique = evidence.expected or "launched(" in prop.call or "Machine(" in prop.call
    place = locate_by_value_replacement(exercise, prop, answer, inputs, kind) if unique and kind not in PLAIN else ""
    lines = tuple(int(number) for number in re.findall(r"^line (\d+):", place, re.MULTILINE))
    # A launch takes long: for a kernel, one of the two has to do.
    is_tried = (unique or kind in REPAIRED) and not (place and "launched(" in prop.call)
    line, repair = repairing_mutation(exercise, prop, answer, inputs, lines) if is_tried else (0, "")
    is_reported = lines == (line,) and (WITHOUT_BRANCH not in repair or CONDITION_FOR_ALL_ROWS in place)
    if line and not is_reported:  # a change that is enough is beyond doubt
        place = repair
    if kind in PLAIN:
        return (Finding("", "fact", place),) if place else ()
    words = _in_other_words(exercise, prop, answer, inputs, evidence, place) if evidence.expected else ""
    place = "" if words.endswith(TRANSPOSED) else place
    return tuple(Finding("", "fact", fact) for fact in (words, place) if fact)


def _in_other_words(exercise, prop, answer, inputs, evidence, place_to_mend):
    launched = "launched(" in prop.call
    right = GuardedAnswer(exercise.answer)
    with np.errstate(all="ignore"):
        observations = [observed(prop, each, inputs) for each in (right, answer)]
        pair = [_outcomes(each) for each in observations]
        if fact := _never_loaded(right.loads, answer.loads):
            return fact
        wrong = [i for i, parts in enumerate(zip(*pair, strict=False)) if not same(*parts)]
        keys = _keys(observations[0])
        place = next((i for i in wrong if keys[i] == evidence.findings[0].part), next(iter(wrong), None))
        if place is None:
            return ""

        def run(each, prop, inputs):
            """The outcome that is wrong, or None where there is none."""
            return next(iter(_outcomes(observed(prop, each, inputs))[place:]), None)

        alike = [prop] if launched else [each for each in exercise.properties if each.call == prop.call]
        tried = [each for p in alike for each in _outcomes_of(p, (right, answer), place, with_random=not launched)]
        tried.sort(key=lambda each: same(*each[2:]))  # the wrong ones first
        wrong = [each[1:] for each in tried if not same(*each[2:])]
        on_cases = [[on_case(p, each, i) for each in (right, answer)] for p in alike for i in range(len(p.cases))]
        is_alone = _is_alone([observations, *on_cases], place)
        words = ""
        if sum(exact.size for _, exact, _ in wrong) > 1 and len(tried) > 1:
            words = (
                _relation(tried)
                or _factor_or_offset([each[1:] for each in tried], wrong, is_alone)
                or not launched  # which would be launched for each argument
                and (is_alone or len(pair[0]) == 1)
                and any(each[3].any() for each in tried)
                and _as_if(exercise.answer, lambda *of: run(right, *of), tried)
            )
        if words:  # 0 is the right result for many other arguments
            part = (
                str(keys[place]).removesuffix("_ptr")
                or evidence.findings[0].part
                or ("what comes back" if len(pair[0]) == 1 else f"number {place + 1} of what comes back")
            )
            return f"on every input tried, {part} is {words}"
        part = evidence.findings[0].part if len(pair[0]) > 1 or launched else ""
        if place_to_mend or "\n" in prop.call.strip():  # other arguments are made of the inputs, and change with them
            return ""
        return _rows_that_should_move(lambda *of: run(of[0], prop, of[1]), right, answer, inputs, part)


def _outcomes_of(prop, answers, place, with_random):
    """(prop, inputs, what should come back, what does) for the property's cases, and some random ones."""
    seen = [(case, [on_case(prop, each, i) for each in answers]) for i, case in enumerate(prop.cases)]
    if with_random and prop.draw is not None:
        random = drawn(prop, 0)[:MAX_RANDOM]
        seen += [(case, [observed(prop, each, case) for each in answers]) for case in random]
    for case, pair in seen:
        exact, came = (_outcomes(each)[place:] for each in pair)
        if exact and came:
            yield prop, case, exact[0], came[0]


def _is_alone(pairs, place):
    """Whether all that comes back is right but for this part of it. pairs: observations of both answers."""
    for pair in pairs:
        parts = zip(*map(_outcomes, pair), strict=False)
        others = all(same(*both) for at, both in enumerate(parts) if at != place)
        if not others or _words(pair[0]) != _words(pair[1]):
            return False
    return True


def _outcomes(observation):
    """The arrays that an answer's calls made, or returned."""
    return [np.asarray(part, dtype=np.float64) for _, part in _parts(observation)]


def _words(observation):
    """What comes back in words, as a verdict does."""
    values = [part for value in observation[0][0] for part in (value if isinstance(value, tuple) else [value])]
    return tuple(part for part in values if isinstance(part, str))


def _keys(observation):
    """Of each of the `_outcomes`, its key in the dict that it was in, or nothing."""
    return [key for key, _ in _parts(observation)]


def _parts(observation):
    for value in observation[0][0]:
        parts = value.items() if isinstance(value, dict) else [("", value)]
        if isinstance(value, tuple):
            parts = [("", part) for part in value]
        for key, part in parts:
            if isinstance(part, (int, float, list, np.ndarray, np.generic)) and _is_array(part):
                yield key, part


def _is_array(value):
    try:
        array = np.asarray(value)
    except ValueError:  # a list of arrays of several shapes
        return False
    return array.dtype.kind in "iuf" and array.size > 0


def _relation(tried):
    came = tried[0][3]
    if len(tried) > 2 and came.size == 1 and np.isfinite(came).all() and all(same(came, each[3]) for each in tried):
        return f"{came.item():.6g}"
    if not any(each[3].any() for each in tried):  # 0 is many things
        return ""
    fits = (said for said, of in RELATIONS.items() if all(_is(of(right), came, right) for *_, right, came in tried))
    return next(fits, "")


def _is(wanted, came, right):
    """The same, wherever what came is wrong, as far as it can be told: the logarithm of 0 is -inf."""
    told = np.isfinite(wanted)
    if wanted.shape != came.shape or not told.any() or not same(wanted[told], came[told]):
        return False
    rest = ~told & (came != wanted)
    return wanted.shape != right.shape or same(came[rest], right[rest])


def _as_if(answer, right, tried):
    """For which other arguments what comes back is the right result, on all inputs."""
    for words, change in _changes(answer, tried[0][1]):
        if all(_fits(change, right, *each) for each in tried):
            return f"the right result for {words}"
    return ""


def _fits(change, right, prop, inputs, exact, came):
    try:
        outcome = right(prop, inputs | change(inputs))
    except (LookupError, TypeError, ValueError):
        return False
    return outcome is not None and same(outcome, came)


def _changes(answer, inputs):
    """(words, a function that makes other arguments of a case's) for mistakes with arguments such as these."""
    parameters = inspect.signature(answer).parameters
    for name, value in inputs.items():
        simple = {}  # words -> the argument in its place
        if name in parameters and parameters[name].default is not inspect.Parameter.empty:
            simple[f"{name}={parameters[name].default}"] = lambda _, new=parameters[name].default: new
        if isinstance(value, bool):
            simple[f"not {name}"] = lambda value: not value
        elif isinstance(value, (int, float)):
            simple |= {f"{name} + 1": lambda value: value + 1, f"{name} - 1": lambda value: value - 1}
            simple |= {f"{name} = {new}": lambda _, new=new: new for new in (0, 1, 2, 4)}
            simple[f"1 / {name}"] = lambda value: 1 / value if value else value
        elif isinstance(value, dict):
            for key in value:
                simple[f"{name}[{key!r}] = 0"] = lambda given, key=key: given | {key: 0}
        elif isinstance(value, list):
            simple |= {f"{name}[1:]": lambda value: value[1:], f"{name}[:-1]": lambda value: value[:-1]}
        elif isinstance(value, np.ndarray) and value.dtype == bool:
            simple[f"~{name}"] = np.logical_not
        elif isinstance(value, np.ndarray) and value.ndim:
            simple |= {f"-{name}": np.negative, f"{name}[::-1]": lambda x: x[::-1], f"{name}.T": np.transpose}
            for words, power in {"* sqrt({})": 0.5, "/ sqrt({})": -0.5, "/ {}": -1, "* {}**1.5": 1.5}.items():
                size = f"{name}.shape[-1]"
                simple[f"{name} {words.format(size)}"] = lambda x, power=power: x * x.shape[-1] ** power
        for words, new in simple.items():
            yield words, lambda case, name=name, new=new: {name: new(case[name])}
    for one, other in itertools.permutations(inputs, 2):
        shapes = [np.shape(each) if isinstance(each, np.ndarray) else () for each in (inputs[one], inputs[other])]
        if type(inputs[one]) is type(inputs[other]) and len(shapes[0]) == len(shapes[1]):
            yield f"{other} in place of {one}", lambda case, one=one, other=other: {one: case[other]}
            if one < other:
                exchanged = f"{one} and {other} exchanged"
                yield exchanged, lambda case, one=one, other=other: {one: case[other], other: case[one]}


def _factor_or_offset(tried, wrong, is_alone):
    """A factor or an offset made of the inputs' sizes, in words.

    is_alone: whether all else that comes back is right. If not, one mistake is behind both, which no offset explains
    that fits some inputs only.
    """
    if any(exact.shape != came.shape for _, exact, came in tried):
        return ""
    if all(exact.size == 1 for _, exact, _ in tried):
        for some, where in ((tried, ""), (wrong if is_alone else (), ONLY_THERE)):
            numbers = np.array([(came - exact).item() for _, exact, came in some])
            is_reported = len(numbers) and np.isfinite(numbers).all()
            if is_reported and (words := _sum_of_products(numbers, [_sizes(case) for case, *_ in some])):
                return f"the right result {words}{where}"
    for some, where in ((tried, ""), (wrong if is_alone else (), ONLY_THERE)):
        finite = [each for each in some if np.isfinite(each[1:]).all() and each[1].any()]
        if not any(came[exact == 0].any() for _, exact, came in finite):
            factors = [came[exact != 0] / exact[exact != 0] for _, exact, came in finite]
            if words := _constant_or_power_of_a_size(factors, [_sizes(case) for case, *_ in finite]):
                return f"the right result times {words}{where}"
    return ""


def _sizes(case):
    """Name of each size and number among the inputs -> its value."""
    sizes = {}
    for name, value in case.items():
        if isinstance(value, np.ndarray):
            sizes |= {f"{name}.shape[{axis}]": length for axis, length in enumerate(value.shape)}
        elif isinstance(value, list):
            sizes[f"len({name})"] = len(value)
            if all(map(_is_size, value)):
                sizes[f"sum({name})"] = sum(value)
        elif isinstance(value, dict):
            sizes |= {f"{name}[{key!r}]": each for key, each in value.items() if _is_size(each)}
        elif _is_size(value):
            sizes[name] = value
    return sizes


def _is_size(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < np.inf


def _constant_or_power_of_a_size(numbers, sizes):
    """ "2 * d**0.5": a constant times a power of one of the sizes, if it is the numbers, an array for each input.

    It is not told unless three inputs or more agree on it.
    """
    if not numbers or not all(len(each) and np.ptp(each) <= 1e-3 * abs(each[0]) for each in numbers):
        return ""
    numbers = np.array([each[0] for each in numbers])
    if np.ptp(numbers) <= 1e-3 * abs(numbers[0]):
        words = f"{numbers[0]:.4g}"
        return words if len(numbers) > 1 and words.lstrip("-") != "0" and words != "1" else ""
    for name, power in itertools.product(_in_all(sizes) if len(numbers) > 2 else (), (-2, -1.5, -1, -0.5, 0.5, 1, 2)):
        constants = numbers / np.array([of_one[name] for of_one in sizes], float) ** power
        if np.isfinite(constants).all() and constants[0] and np.ptp(constants) <= 1e-3 * abs(constants[0]):
            factor = "" if abs(constants[0] - 1) < 1e-3 else f"{constants[0]:.4g} * "
            return factor + (name if power == 1 else f"{name}**{power:g}")
    return ""


def _in_all(sizes):
    """Names of what each case has, and not all of them alike."""
    return [
        name for name in sizes[0] if len({of_one.get(name) for of_one in sizes} - {None}) > 1 and _is_in(name, sizes)
    ]


def _is_in(name, sizes):
    return all(name in of_one for of_one in sizes)


def _sum_of_products(numbers, sizes):
    """ "plus 2 * n * d minus n": one product of sizes or two, each with a whole number, if that is the numbers.

    Told of one product if four inputs or more agree on it, of two if six do, of three if eight do.
    """
    names = _in_all(sizes)
    of_name = {name: np.array([of_one[name] for of_one in sizes], float) for name in names}
    products = {}
    for powers in sorted(itertools.product(range(3), repeat=len(names)), key=lambda p: (sum(p), max(p, default=0))):
        if sum(powers) <= 4:
            words = [n if p == 1 else f"{n}**{p}" for n, p in zip(names, powers, strict=True) if p]
            powers_of = (of_name[n] ** p for n, p in zip(names, powers, strict=True))
            products[" * ".join(words)] = np.prod([np.ones(len(numbers)), *powers_of], axis=0)
    for count in (1, 2, 3) if len(names) < 6 else (1,):
        if count == 3:  # of so many, the simplest only
            products = {words: values for words, values in products.items() if "**" not in words}
        for chosen in itertools.combinations(products, count) if len(numbers) > 2 * count + 1 else ():
            columns = np.stack([products[words] for words in chosen], axis=1)
            size = np.abs(columns).max(axis=1)
            size[size == 0] = 1
            factors = np.linalg.lstsq(columns / size[:, None], numbers / size, rcond=None)[0]
            whole = np.round(factors)
            if whole.all() and np.allclose(columns @ whole, numbers, rtol=1e-12, atol=1e-6):
                parts = zip(whole.astype(int).tolist(), chosen, strict=True)
                return " ".join(f"{'plus' if f > 0 else 'minus'} {_product(abs(f), words)}" for f, words in parts)
    return ""


def _product(factor, words):
    return f"{factor}" if not words else words if factor == 1 else f"{factor} * {words}"


def _never_loaded(should, did):
    """Which rows or columns of a tensor were not loaded, but are by the right answer."""
    for name in (name for name in should if name in did and should[name].shape == did[name].shape):
        missing = (should[name] > 0) & (did[name] == 0)
        for axis, noun in [(-2, "row"), (-1, "column")] if missing.ndim > 1 else [(0, "element")]:
            places = np.flatnonzero(np.moveaxis(missing, axis, 0).reshape(missing.shape[axis], -1).any(axis=1))
            if 0 < len(places) < missing.shape[axis]:
                return f"{named(noun, places.tolist())} of {name} {'is' if len(places) == 1 else 'are'} never loaded"
    return ""


def _rows_that_should_move(run, right, answer, inputs, part):
    """Which row of an input moves which rows of the result, where that is not as it should be."""
    before = [run(each, inputs) for each in (right, answer)]
    if before[0].shape != before[1].shape or not np.isfinite(before).all():
        return ""
    whole = before[0].size == 1
    for name, value in inputs.items():
        if not (isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim and value.size <= 64):
            continue
        for row in range(len(value)):
            new = value.copy()
            new[row] += np.linspace(0.3, 0.9, new[row].size).reshape(new[row].shape)
            after = [run(each, inputs | {name: new}) for each in (right, answer)]
            if any(a is None or a.shape != before[0].shape or not np.isfinite(a).all() for a in after):
                continue
            largest = max(np.abs(each).max(initial=1e-3) for each in (*after, *before))
            off = [np.abs(a - b) > 1e-7 * largest for a, b in zip(after, before, strict=True)]  # more than rounding
            moved = [np.flatnonzero(np.atleast_2d(each.T).any(axis=0)).tolist() for each in off]
            noun = "row" if before[0].ndim > 1 else "entry"
            should, did = ("nothing" if not rows else "the result" if whole else named(noun, rows) for rows in moved)
            # A few rows of many may stay as they are by chance.
            if should != did and (set(moved[1]) - set(moved[0]) or 2 * len(moved[1]) <= len(moved[0])):
                if part:
                    should, did = (f"{part}" if each == "the result" else each for each in (should, did))
                    place = "" if did == part else f" in {part}" if did == "nothing" else f" of {part}"
                else:
                    place = "" if whole or did == "nothing" else " of what comes back"
                given = f"{name}[{row}]" if value.ndim == 1 else f"row {row} of {name}"
                return f"changing {given} changes {did}{place}; it should change {should}"
    return ""
