"""What can be said of a wrong answer beyond its failure and any misconception: facts, found by running both answers."""

import inspect
import itertools
import re

import numpy as np

from .calling import GuardedAnswer, attempt
from .diagnosis import as_array, named
from .exercise import Exercise, Finding, Property
from .fault_localization import CONDITION_FOR_ALL_ROWS, locate_by_value_replacement
from .misconceptions import observed, on_case, same
from .properties import RAISED, drawn
from .repair import WITHOUT_BRANCH, repair

TRANSPOSED = "the right result, transposed"
# What came back, made of what should have.
RELATIONS = {
    "the right result with the opposite sign": np.negative,
    "the right result without its sign": np.abs,
    "the logarithm of the right result": np.log,
    "the exponential of the right result": np.exp,
    TRANSPOSED: np.transpose,
}
DIFFERS = (
    "called once more with the same input, the answer returns something else: is memory read that nobody wrote, "
    "or is something random, or kept from one call to the next?"
)
MAX_RANDOM = 12  # inputs of a property
ONLY_THERE = ", wherever it is wrong"
# Kinds of findings that say it all.
PLAIN = {"exception", "unknown name", "timeout", "none", "type", "dtype", "memory", "modified", "accepted"}
PLAIN |= {"wrong exception", "numpy exception", "compiler", "waste", "at once", "again", "swapped"}
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
    place = locate_by_value_replacement(exercise, prop, answer, inputs) if unique and kind not in PLAIN else ""
    lines = tuple(int(number) for number in re.findall(r"^line (\d+):", place, re.MULTILINE))
    is_tried = unique or kind in REPAIRED
    mended, words = repair(exercise, prop, answer, inputs, lines) if is_tried else (set(), "")
    is_reported = mended <= set(lines) and (WITHOUT_BRANCH not in words or CONDITION_FOR_ALL_ROWS in place)
    if mended and not is_reported:  # a change that is enough is beyond doubt
        place = words
    if kind in PLAIN:
        return (Finding("", "fact", place),) if place else ()
    words = _in_other_words(exercise, prop, answer, inputs, evidence) if evidence.expected else ""
    place = "" if words.endswith(TRANSPOSED) else place
    return tuple(Finding("", "fact", fact) for fact in (words, place) if fact)


def _in_other_words(exercise, prop, answer, inputs, evidence):
    """ "on every input tried, dK is the right result times d**0.5": of the output that is wrong."""
    launched = "launched(" in prop.call
    right = GuardedAnswer(exercise.answer)
    with np.errstate(all="ignore"):
        observations = [observed(prop, each, inputs) for each in (right, answer)]
        if fact := _never_loaded(right.loads, answer.loads):
            return fact
        pair = [_arrays(each) for each in observations]
        wrong = [i for i, parts in enumerate(zip(*pair, strict=False)) if not same(*parts)]
        keys = [key for key, _ in _outcomes(observations[0])]
        place = next((i for i in wrong if keys[i] == evidence.findings[0].part), next(iter(wrong), None))
        if place is None:
            return ""
        alike = [prop] if launched else [each for each in exercise.properties if each.call == prop.call]
        tried = [each for p in alike for each in _outcomes_of(p, (right, answer), place, with_random=not launched)]
        tried.sort(key=lambda each: same(*each[2:]))  # the wrong ones first
        wrong = [each for each in tried if not same(*each[2:])]
        if sum(each[2].size for each in wrong) < 2 or len(tried) < 2 or not any(each[3].any() for each in tried):
            return ""

        words = _relation(tried) or _factor(tried, "") or _factor(wrong, ONLY_THERE)
        if not words and not launched and len(pair[0]) == 1:  # a kernel would be launched for each argument
            words = _as_if(right, place, tried)
        several = "what comes back" if len(pair[0]) == 1 else f"number {place + 1} of what comes back"
        part = str(keys[place]).removesuffix("_ptr") or evidence.findings[0].part or several
        return words and f"on every input tried, {part} is {words}"


def _outcomes_of(prop, answers, place, with_random):
    """(prop, inputs, what should come back, what does) for the property's cases, and some random ones."""
    seen = [(case, [on_case(prop, each, i) for each in answers]) for i, case in enumerate(prop.cases)]
    if with_random and prop.draw is not None:
        random = drawn(prop, 0)[:MAX_RANDOM]
        seen += [(case, [observed(prop, each, case) for each in answers]) for case in random]
    for case, pair in seen:
        exact, came = (_arrays(each)[place:] for each in pair)
        if exact and came:
            yield prop, case, exact[0], came[0]


def _arrays(observation):
    return [array for _, array in _outcomes(observation)]


def _outcomes(observation):
    """(key, array) of each array that an answer's calls made, or returned; the key in the dict that it was in."""
    for value in observation[0][0]:
        parts = value if isinstance(value, tuple) else (value,)
        for key, part in value.items() if isinstance(value, dict) else (("", part) for part in parts):
            array = as_array(part) if isinstance(part, (int, float, list, np.ndarray, np.generic)) else None
            if array is not None and array.dtype.kind in "iuf" and array.size:
                yield key, array.astype(np.float64)


def _relation(tried):
    fits = (said for said, of in RELATIONS.items() if all(_is(of(right), came, right) for *_, right, came in tried))
    return next(fits, "")


def _is(wanted, came, right):
    """The same, wherever what came is wrong, as far as it can be told: the logarithm of 0 is -inf."""
    told = np.isfinite(wanted)
    if wanted.shape != came.shape or not told.any() or not same(wanted[told], came[told]):
        return False
    rest = ~told & (came != wanted)
    return wanted.shape != right.shape or same(came[rest], right[rest])


def _as_if(right, place, tried):
    """For which other arguments what comes back is the right result, on all inputs."""
    for words, change in _changes(right.answer, tried[0][1]):
        if all(_fits(change, right, place, *each) for each in tried):
            return f"the right result for {words}"
    return ""


def _fits(change, right, place, prop, inputs, _, came):
    try:
        outcomes = _arrays(observed(prop, right, inputs | change(inputs)))
    except (LookupError, TypeError, ValueError):
        return False
    return place < len(outcomes) and same(outcomes[place], came)


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
            simple |= {f"{name} = {new}": lambda _, new=new: new for new in (0, 1)}
        elif isinstance(value, np.ndarray) and value.dtype == bool:
            simple[f"~{name}"] = np.logical_not
        elif isinstance(value, np.ndarray) and value.ndim:
            for sign, power in {"*": 0.5, "/": -0.5}.items():
                words = f"{name} {sign} sqrt({name}.shape[-1])"
                simple[words] = lambda x, power=power: x * x.shape[-1] ** power
        for words, new in simple.items():
            yield words, lambda case, name=name, new=new: {name: new(case[name])}
    for one, other in itertools.permutations(inputs, 2):
        shapes = [np.shape(each) if isinstance(each, np.ndarray) else () for each in (inputs[one], inputs[other])]
        if type(inputs[one]) is type(inputs[other]) and len(shapes[0]) == len(shapes[1]):
            yield f"{other} in place of {one}", lambda case, one=one, other=other: {one: case[other]}
            if one < other:
                exchanged = f"{one} and {other} exchanged"
                yield exchanged, lambda case, one=one, other=other: {one: case[other], other: case[one]}


def _factor(tried, where):
    """ "the right result times 2 * d**0.5": a constant, or one times a power of a size if four inputs agree."""
    rights = np.concatenate([each[2].ravel() for each in tried])
    if where and (not np.isfinite(rights).all() or len(set(rights)) < 4):
        return ""  # of -inf a factor makes no other number, and of few numbers it may hold by chance
    tried = [each[1:] for each in tried if np.isfinite(each[2]).all() and np.isfinite(each[3]).all() and each[3].any()]
    if len(tried) < 2 or any(exact.shape != came.shape or came[exact == 0].any() for _, exact, came in tried):
        return ""
    factors = [came[exact != 0] / exact[exact != 0] for _, exact, came in tried]
    if not all(len(each) and np.ptp(each) <= 1e-3 * abs(each[0]) for each in factors):
        return ""
    factors = np.array([each[0] for each in factors])
    sizes = [_sizes(case) for case, *_ in tried]
    names = [name for name in sizes[0] if all(name in each for each in sizes)] if len(tried) > 3 else []
    for name, power in [(None, 0), *itertools.product(names, (-1, -0.5, 0.5, 1))]:
        constants = factors / np.array([each.get(name, 1) for each in sizes], float) ** power
        if np.isfinite(constants).all() and np.ptp(constants) <= 1e-3 * abs(constants[0]):
            constant = f"{constants[0]:.4g}"
            words = [constant] * (constant != "1") + [name if power == 1 else f"{name}**{power:g}"] * (name is not None)
            return f"the right result times {' * '.join(words)}{where}" if words else ""
    return ""


def _sizes(case):
    """Name of each size and number among the inputs -> its value."""
    sizes = {}
    for name, value in case.items():
        if isinstance(value, np.ndarray):
            sizes |= {f"{name}.shape[{axis}]": length for axis, length in enumerate(value.shape)}
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < np.inf:
            sizes[name] = value
    return sizes


def _never_loaded(should, did):
    """Which rows or columns of a tensor were not loaded, but are by the right answer."""
    for name in (name for name in should if name in did and should[name].shape == did[name].shape):
        missing = (should[name] > 0) & (did[name] == 0)
        for axis, noun in [(-2, "row"), (-1, "column")] if missing.ndim > 1 else [(0, "element")]:
            places = np.flatnonzero(np.moveaxis(missing, axis, 0).reshape(missing.shape[axis], -1).any(axis=1))
            if 0 < len(places) < missing.shape[axis]:
                return f"{named(noun, places.tolist())} of {name} {'is' if len(places) == 1 else 'are'} never loaded"
    return ""
