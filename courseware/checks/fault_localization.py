"""Finds the place in a wrong answer where another value would make its result right.

Both answers are run with every expression recorded. Then expressions of the wrong one are given, one at a time, the
values that an expression of the right one has. Where the result is right from then on, there is the mistake.
"""

import difflib
import re
import time
from typing import NamedTuple

import numpy as np

from .calling import GuardedAnswer
from .diagnosis import show, told_apart
from .exercise import Exercise, Property
from .expression_trace import ExpressionTrace, as_shaped
from .misconceptions import same
from .properties import drawn

MAX_CASES, MAX_RANDOM, MAX_COST = 12, 6, 4000  # the cost as in ExpressionTrace: counted, not timed
MAX_KERNEL_CASES, MAX_KERNEL_LAUNCHES = 4, 40  # cases of a kernel, and launches to look for a change
MAX_SHOWN = 8  # numbers of a row
TRYING_LIMIT_S = 2.5  # of processor time
FLOAT64, FLOAT32, ROUNDED = 1e-9, 1e-5, 5e-3  # how far numbers may be apart that are the same, or but for rounding
# What an expression is, in the order in which they are tried: WRONG though all its parts are right; RIGHT, if a step
# is missing after it; wrong with some of its PARTS; a VARIABLE, which is made elsewhere; GIVEN.
WRONG, RIGHT, PARTS, VARIABLE, GIVEN = range(5)
# What is filled later, or rises: that with the right values from the start the result is right tells nothing.
INITIAL_VALUE = re.compile(
    r"-(1e\+\d+|\d{4,})|np\.(zeros|empty)|np\.ones\(.*bool|(np\.full\w*\(.*)?(-(np|math)\.inf|float\(.-inf)"
)
MAKES_INFINITY = re.compile(rf"^({INITIAL_VALUE.pattern})|\.inf$")
ORDINALS = ("first", "second", "third", *(f"{n}th" for n in range(4, 1000)))
RIGHT_THEN = "this result would be right"
CONDITION_FOR_ALL_ROWS = "this condition is asked once for all rows or queries; each needs its own"


def locate_by_value_replacement(exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict) -> str:
    """The line, the value that one of its expressions has, and the one that makes the result right; or nothing."""
    is_kernel = "launched(" in prop.call
    try:
        wrong, right = (ExpressionTrace(each, is_kernel=is_kernel) for each in (answer.answer, exercise.answer))
        search = _Search(wrong, right, is_kernel)
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):  # no function, or its source is not here
        return ""
    with np.errstate(all="ignore"):
        return search.told(exercise, prop, inputs)


class Run(NamedTuple):
    """Both answers on one case. kind: of what is wrong with the wrong one, or nothing. due: what is observed of the
    right one. wrong_values, ref_values: of all places, and of all sources.
    """

    case: tuple[Property, dict]
    kind: str
    due: tuple
    wrong_values: dict
    ref_values: dict


class _Search:
    """wrong, right: the traces of the two answers. A place is always one of the wrong answer's, a source one of the
    right one's. wrong_values, ref_values: of each run. random: runs on random cases, where no change mends by chance.
    """

    def __init__(self, wrong, right, is_kernel=False):
        self.wrong, self.right, self.is_kernel = wrong, right, is_kernel
        self.rtol = FLOAT32 if is_kernel else FLOAT64
        self.cost, self.passing = 0, set()
        self.deadline_s = time.thread_time() + TRYING_LIMIT_S

    def told(self, exercise, prop, inputs):
        self.prop = prop
        others = [p for p in exercise.properties if p.call == prop.call and p is not prop]
        cases = [(prop, inputs), *((prop, case) for case in prop.cases if case is not inputs)]
        cases += [(p, case) for p in others for case in p.cases]
        # The other properties' cases tell values apart that are the same in these by chance.
        self.runs = list(filter(None, map(self._run, cases[: MAX_KERNEL_CASES if self.is_kernel else MAX_CASES])))
        if not self.runs or self.runs[0].case is not cases[0]:
            return ""
        drawing = [] if self.is_kernel else [p for p in (prop, *others) if p.draw is not None]
        random = [(p, case) for p in drawing for case in drawn(p, 0)[1 : 1 + MAX_RANDOM]]
        self.random = list(filter(None, map(self._run, random[:MAX_CASES])))
        self.wrong_values = [run.wrong_values for run in self.runs]
        self.ref_values = values = [run.ref_values for run in self.runs]
        self.kind = self.runs[0].kind
        if not self.is_kernel:
            self._cut_into_passes()
        self.texts = {}  # results first; of several with the same values, one, with the texts of all
        for source in sorted(values[0], key=lambda source: not self.right.places[source].is_result):
            alike = (other for other in self.texts if are_alike(values, source, values, other, as_often=True))
            self.texts.setdefault(next(alike, source), []).append(self.right.places[source].text)
        results = [source for source in self.texts if self.right.places[source].is_result == "all"]
        self.results = {  # and what is the result but for its last rounding
            source
            for source in self.texts
            if any(are_alike(values, source, values, result, ROUNDED) for result in results)
        }
        self.known = {  # each place -> the source that has the same values, or None
            place: next((source for source in self.texts if self._stands_for(source, place)), None)
            for place in self.wrong_values[0]
        }
        return self._right_already() or self._from_the_end() or self._mended() or self._at_first()

    def _run(self, case):
        """The Run of a case, or None if that takes too much."""
        evidence, due = self.wrong.run(*case)[1], self.right.run(*case)[0]
        if max(self.wrong.cost, self.right.cost) > self.wrong.max_cost:
            return None
        kind = evidence.findings[0].kind if evidence else ""
        return Run(case, kind, due, self.wrong.values, self.right.values)

    def _stands_for(self, source, place):
        """Whether they have the same values; of a number or a row also as often."""
        ref_expr, values = self.right.places[source], (self.wrong_values, place, self.ref_values, source, self.rtol)
        as_often = source in self.passing or ref_expr.is_given and not ref_expr.text.isidentifier()
        # What asks for the opposite of a right condition is as good.
        return are_alike(*values, as_often) or are_alike(*values, as_often, negated=True)

    def _cut_into_passes(self):
        """Adds the rows of the right answer's arrays as sources of their own: a loop makes a row in each pass."""
        if all(len(values) == 1 for of_run in self.wrong_values for values in of_run.values()):
            return
        numbers, count = {}, len(self.right.places)  # (source, how many of its axes the passes run over) -> its number
        for run in self.runs + self.random:
            for source, values in list(run.ref_values.items()):
                for axes in range(1, values[0].ndim + 1) if len(values) == 1 else ():
                    number = numbers.setdefault((source, axes), count + len(numbers))
                    run.ref_values[number] = list(values[0].reshape(-1, *values[0].shape[axes:]))
        for source, axes in numbers:
            whole = self.right.places[source]
            parts = tuple(numbers[part, axes] for part in whole.parts if (part, axes) in numbers)
            self.right.places.append(whole._replace(parts=parts, is_result="", is_given=False))
        self.passing = set(numbers.values())

    def _at_first(self):
        """Where a NaN, or an infinity, is made of numbers that are none."""
        if (is_bad := {"nan": np.isnan, "inf": np.isposinf}.get(self.kind)) is None:
            return ""

        def bad(place):
            if place not in self.wrong_values[0]:
                return any(map(bad, self.wrong.places[place].parts))
            return any(is_bad(values).any() for values in self.wrong_values[0][place])

        for place in self.wrong_values[0]:
            wrong_expr = self.wrong.places[place]
            is_made = wrong_expr.parts and not MAKES_INFINITY.search(wrong_expr.text)
            if is_made and bad(place) and not any(map(bad, wrong_expr.parts)):
                values = next(values for values in self.wrong_values[0][place] if is_bad(values).any())
                said = " ".join(show(values if values.ndim else values.item()).split())
                return self._said(place, f"{wrong_expr.text} is {said}, made of numbers that are not {self.kind}")
        return ""

    def _from_the_end(self):
        """The bound of a slice that has become negative."""
        for place in self.wrong.bounds & self.wrong_values[0].keys():
            text, lowest = self.wrong.places[place].text, min(values.min() for values in self.wrong_values[0][place])
            if lowest < 0 and not text.startswith("-"):
                return self._said(place, f"{text} is {lowest} here: a slice counts negative numbers from the end")
        return ""

    def _right_already(self):
        for place, source in self.known.items():
            wrong_expr, first = self.wrong.places[place], self.wrong_values[0][place][0]
            is_chance = first.dtype == bool and first.size == 1  # or what a function inside says
            if source in self.results and not (is_chance or wrong_expr.is_result or wrong_expr.is_given):
                return self._said(place, f"{wrong_expr.text} is right already; what is made of it is not")
        return ""

    def _mended(self):
        inside = self._inside_of_right() | self.wrong.joined
        places = [place for place in self.wrong_values[0] if place not in inside]
        kinds = {place: self._kind(place) for place in places if not self.wrong.places[place].is_result}
        found = {}  # place -> its source, once a single number is among them, which may fit by chance
        for place in sorted(kinds, key=kinds.get):  # where the first mistakes are, before what is made of them
            mending = (source for source in self._stand_ins(place) if self._mends(place, source))
            if (source := next(mending, None)) is not None:
                if not found and any(x.size > 1 for x in self.wrong_values[0][place]):
                    return self._told(place, source)
                found[place] = source
        if not found:
            return ""
        # What reads as in the right answer is wrong only because of what it is made of; an argument is seldom wrong.
        likeness = {place: self._likeness(place, source) % 1.0 for place, source in found.items()}
        place = max(found, key=lambda place: (kinds[place] != GIVEN, likeness[place]))
        return self._told(place, found[place])

    def _likeness(self, place, source):
        """Of what stands in the two answers, from 0 to 1."""
        wrong_expr = self.wrong.places[place].text
        return max(difflib.SequenceMatcher(None, wrong_expr, text).ratio() for text in self.texts[source])

    def _inside_of_right(self):
        """Places in an expression that is right: whatever they are, the mistake is none of theirs."""
        inside = set()
        for place in sorted(self.wrong_values[0], reverse=True):  # what is inside comes before
            is_right = self.known[place] is not None and self.wrong_values[0][place][0].dtype != bool
            if is_right and not self.wrong.places[place].is_given or place in inside:
                inside.update(self.wrong.places[place].parts)
        return inside

    def _kind(self, place):
        wrong_expr = self.wrong.places[place]
        if wrong_expr.is_given:
            return GIVEN
        if self.known[place] is not None:
            return RIGHT
        if not wrong_expr.parts:
            return VARIABLE
        return WRONG if all(map(self._is_right, wrong_expr.parts)) else PARTS

    def _is_right(self, place):
        wrong_expr = self.wrong.places[place]
        if place in self.wrong.lists:  # of what it is made is looked at first
            return False
        if place not in self.known and not wrong_expr.parts:  # what is no number: right, unless it is made here
            return wrong_expr.text not in self.wrong.function.__code__.co_varnames
        if place not in self.known or self.known[place] is None and self.wrong_values[0][place][0].dtype == bool:
            return all(map(self._is_right, wrong_expr.parts))
        return wrong_expr.is_given or self.known[place] is not None

    def _stand_ins(self, place):
        """Sources whose values might belong here, the most alike first."""
        wrong_expr, known, old = self.wrong.places[place], self.known[place], self.wrong_values[0][place]
        found = []
        others = [each[place][0] for each in self.wrong_values[1:] if place in each]
        is_constant = len(self.wrong_values) > 1 and not any(differ(old[0], other) for other in others)
        if INITIAL_VALUE.match(wrong_expr.text) or known is not None and is_constant:
            return found
        outer = (each.text for each in self.wrong.places if place in each.parts)
        is_cut = next(outer, "").startswith((f"{wrong_expr.text}[", f"({wrong_expr.text})["))
        for source in self.texts:
            ref_expr, new = self.right.places[source], self.ref_values[0][source]
            if wrong_expr.is_given:
                # No number in place of an array, and none that is written down in place of an argument.
                is_of_kind = ref_expr.is_given and (not old[0].ndim or new[0].ndim)
                is_of_kind = is_of_kind and ref_expr.text.isidentifier() >= wrong_expr.text.isidentifier()
            elif known is not None:  # a step is missing, one that is not made later
                is_of_kind = source not in self.known.values() and self._contains(source, known)
            else:
                is_of_kind = not ref_expr.is_given or ref_expr.text.isidentifier() or old[0].size == 1
            if not wrong_expr.is_given and np.isinf(new[0]).all() and np.isfinite(old[0]).any():
                continue  # what is computed of finite numbers, and ought to be infinite: by chance
            if old[0].size > 1 and old[0].any() and not new[0].any():
                continue  # where 0 comes out, many zeros on the way fit
            as_large = [x.size for x in old] == [x.size for x in new]
            if is_cut and not as_large:
                continue  # the slice is wrong, and not what it is a slice of
            is_of_kind = is_of_kind and (as_large or not wrong_expr.is_given and known is None)
            if is_of_kind and not ref_expr.is_result and source not in self.results and can_stand(old, new):
                alike = (old[0].shape == new[0].shape) + (old[0].size == new[0].size)
                found.append((self._likeness(place, source) + alike, source))
        return [source for _, source in sorted(found, key=lambda each: -each[0])]

    def _contains(self, source, known):
        values, parts = self.ref_values, self.right.places[source].parts
        return any(are_alike(values, part, values, known) or self._contains(part, known) for part in parts)

    def _mends(self, place, source):
        """Whether every case of the property has the right result with this source, and most runs that failed."""
        if self.cost > MAX_COST or time.thread_time() > self.deadline_s:
            return False
        for run in self.runs:
            if run.case[0] is self.prop and place in run.wrong_values:
                if source not in run.ref_values or not self._is_mended(run, place, source):
                    return False
        failed = [run for run in self.runs + self.random if run.kind]
        failed = [run for run in failed if place in run.wrong_values and source in run.ref_values]
        mended = sum(self._is_mended(run, place, source) for run in failed)
        # A number may fit by chance, and of a kernel there are few runs.
        if self.is_kernel or all(x.size == 1 for x in self.wrong_values[0][place]):
            return mended == len(failed)
        return 2 * mended > len(failed)

    def _is_mended(self, run, place, source):
        came, evidence = self.wrong.run(*run.case, {place: run.ref_values[source]})
        self.cost += MAX_COST / MAX_KERNEL_LAUNCHES if self.is_kernel else self.wrong.cost
        return evidence is None and same(came, run.due)

    def _told(self, place, source):
        expr = self.wrong.places[place]
        wrong_values, ref_values = self.wrong_values[0][place], self.ref_values[0][source]
        leaves = any(self.wrong.places[other].line == expr.line for other in self.wrong.leaving)
        if leaves and wrong_values[0].size > 1 and re.search(r"\b(any|all)\(", self.wrong.line(place)):
            return self._said(place, CONDITION_FOR_ALL_ROWS)
        pairs = enumerate(zip(wrong_values, ref_values, strict=True))
        at = next((i for i, pair in pairs if differ(*pair)), None)
        if at is None:  # a copy of the old values would do: what the answer writes into them is then lost
            return ""
        is_often = sum(map(differ, wrong_values, ref_values)) > 1
        time_of = f" the {ORDINALS[at]} time" if len(wrong_values) > 1 else ""
        time_of += " (and others)" if is_often else ""
        wrong, ref = wrong_values[at], ref_values[at]
        if wrong.shape != ref.shape and wrong.ndim == ref.ndim and not expr.text.startswith("range("):
            is_of_shape = f"{expr.text}{time_of} has shape {wrong.shape}"
            return self._said(place, f"{is_of_shape}; with an array of shape {ref.shape} in its place {RIGHT_THEN}")
        row, is_now, due = first_difference(*(listed_range(expr.text, x) for x in (wrong, ref)))
        outer = next((each.text for each in self.wrong.places if place in each.parts), "")
        if expr.text == is_now:  # a number
            where = f" in {outer}" if outer.count(expr.text) > 1 or outer and len(expr.text) < 3 else ""
            return self._said(place, f"with {due} in place of {expr.text}{where} {RIGHT_THEN}")
        within = f" of {outer}" if len(expr.text) < 3 and outer or outer.count(expr.text) > 1 else ""
        in_rows = wrong.ndim > 1 and wrong.shape == ref.shape
        due += " and so on" if is_often or in_rows and sum(map(differ, wrong, ref)) > 1 else ""
        return self._said(place, f"{row}{expr.text}{within}{time_of} is {is_now}; with {due} in its place {RIGHT_THEN}")

    def _said(self, place, text):
        return f"{self.wrong.line(place)}\n{text}"


# The values that an expression had are a list of arrays, one for each time.
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
