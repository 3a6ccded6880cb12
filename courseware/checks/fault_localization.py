"""Finds the place in a wrong answer where another value would make its result right.

The answer and the right one are run with every expression recorded. Then expressions of the answer are given, one at a
time, the values that an expression of the right answer has. Where the result is right from then on, there is the
mistake.
"""

import difflib
import itertools
import re
import time
from typing import NamedTuple

import numpy as np

from .calling import GuardedAnswer
from .diagnosis import show
from .drawing import drawn
from .exercise import Exercise, Property
from .expression_trace import ExpressionTrace
from .misconceptions import same
from .value_pairs import (
    are_alike,
    are_equal,
    as_shaped,
    can_stand,
    changes_sign,
    differ,
    first_difference,
    how_many_differ,
    listed,
    listed_range,
    sizes_of,
)

MAX_CASES, MAX_RANDOM, MAX_COST = 12, 6, 4000  # the cost as in ExpressionTrace: counted, not timed
MAX_PARTS, MAX_PASSES = 3, 3  # parts of a line that are named; passes of a loop that are told apart
MAX_KERNEL_CASES, MAX_KERNEL_LAUNCHES = 4, 40  # cases of a kernel, and launches to look for a change
TRYING_LIMIT_S = 2.5  # of processor time
FLOAT64, FLOAT32 = 1e-9, 1e-5  # how far numbers may be apart that are the same
MIN_LIKENESS = 0.4  # so little do two expressions have in common that stand for different things
MAX_TRIED = 12  # passes of a loop, and rows of an array
# What an expression is, in the order in which they are tried: WRONG though all its parts are right; RIGHT, if a step
# is missing after it; wrong with some of its PARTS; a VARIABLE, which is made elsewhere; GIVEN.
WRONG, RIGHT, PARTS, VARIABLE, GIVEN = range(5)
ROUNDED = 5e-3  # how far numbers of a few float16 roundings may be apart
# What is filled later, or rises: that with the right values from the start the result is right tells nothing.
INITIAL_VALUE = re.compile(
    r"-(1e\+\d+|\d{4,})|np\.(zeros|empty)|np\.ones\(.*bool|(np\.full\w*\(.*)?(-(np|math)\.inf|float\(.-inf)"
)
ORDINALS = ("first", "second", "third", *(f"{n}th" for n in range(4, 1000)))
CONDITION_FOR_ALL_ROWS = "this condition is asked once for all rows or queries; each needs its own"


def locate_by_value_replacement(
    exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict, kind: str
) -> str:
    """The line, the value that one of its expressions has, and the one that makes the result right; or nothing."""
    is_kernel = "launched(" in prop.call
    try:
        wrong, right = (ExpressionTrace(each, is_kernel=is_kernel) for each in (answer.answer, exercise.answer))
        search = _Search(wrong, right, is_kernel)
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):  # no function, or its source is not here
        return ""
    with np.errstate(all="ignore"):
        if kind == "precision" and not is_kernel and (found := search.in_float16(prop, inputs)):
            return found
        return search.told(exercise, prop, inputs)


class Run(NamedTuple):
    """Both answers on one case. kind: of what is wrong with the wrong one, or nothing. due: what is observed of the
    right one. old, new: the values of all places, and of all sources.
    """

    case: tuple[Property, dict]
    kind: str
    due: tuple
    old: dict
    new: dict


class _Search:
    """wrong, right: Recordings of the two answers. A place is always one of the wrong answer's, a source one of the
    right one's. old, new: of each run, the values of all places and of all sources. random: runs on random cases, by
    which it is told whether a change mends by chance.
    """

    def __init__(self, wrong, right, is_kernel=False):
        self.wrong, self.right, self.is_kernel = wrong, right, is_kernel
        self.rtol = FLOAT32 if is_kernel else FLOAT64
        self.cost, self.extra, self.passing, self.single = 0, {}, set(), set()
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
        self.old, self.new = [run.old for run in self.runs], [run.new for run in self.runs]
        self.kind = self.runs[0].kind
        if not self.is_kernel:
            self._cut_into_passes()
        self.texts = {}  # results first; of several with the same values, one, with the texts of all
        for source in sorted(self.new[0], key=lambda source: not self.right.places[source].is_result):
            alike = (other for other in self.texts if are_alike(self.new, source, self.new, other, exactly=True))
            self.texts.setdefault(next(alike, source), []).append(self.right.places[source].text)
        results = [source for source in self.texts if self.right.places[source].is_result == "all"]
        self.results = {  # and what is the result but for its last rounding
            source: at
            for at in results
            for source in self.texts
            if are_alike(self.new, source, self.new, at, rtol=ROUNDED)
        }
        self.known = self._known(self.rtol)
        found = (
            self._right_already()
            or self._left_early()
            or self._from_the_end()
            or self._mended()
            or self._at_first()
            or self._right_parts()
            or self._asked_once()
            or self._first_of_shape()
        )
        if not found:
            self.known = self._known(ROUNDED)
            found = self._right_parts()
        return found

    def _run(self, case):
        """The Run of a case, or None if that takes too much."""
        evidence, due = self.wrong.run(*case)[1], self.right.run(*case)[0]
        if max(self.wrong.cost, self.right.cost) > self.wrong.max_cost:
            return None
        kind = evidence.findings[0].kind if evidence else ""
        return Run(case, kind, due, self.wrong.values, self.right.values)

    def _known(self, rtol):
        """Each place -> the source that has the same values, or None."""
        known = {}
        for place in self.old[0]:
            alike = (source for source in self.texts if self._stands_for(source, place, rtol))
            known[place] = next(alike, None)
        return known

    def _stands_for(self, source, place, rtol):
        """Whether they have the same values; of a number or a row also as often; of one pass, each time."""
        there = self.right.places[source]
        if source in self.single:
            both = self._both(place, source)
            return bool(both) and all(are_equal(x, new[source][0], rtol) for old, new in both for x in old[place])
        as_often = source in self.passing or there.is_given and not there.text.isidentifier()
        # What asks for the opposite of a right condition is as good.
        return any(are_alike(self.old, place, self.new, source, rtol=rtol, negated=n) for n in (False, True)) and not (
            as_often and any(len(old[place]) != len(new[source]) for old, new in self._both(place, source))
        )

    def _both(self, place, source):
        return [(o, n) for o, n in zip(self.old, self.new, strict=True) if place in o and source in n]

    def _cut_into_passes(self):
        """Adds the rows of the right answer's arrays as sources of their own, and each pass of a short loop.

        A loop makes a row in each pass, and three lines make what a loop over three makes.
        """
        self.passing = {}  # (source, how many of its axes the passes run over) -> the number of the new source
        single, runs = {}, self.runs + self.random  # single: (source, pass) -> likewise
        if any(len(values) > 1 for old in self.old for values in old.values()):
            for new in (run.new for run in runs):
                for source, values in list(new.items()):
                    for axes in range(1, values[0].ndim + 1) if len(values) == 1 else ():
                        new[self._added(self.passing, (source, axes), single)] = list(
                            values[0].reshape(-1, *values[0].shape[axes:])
                        )
        for new in (run.new for run in runs):
            for source, values in list(new.items()):
                if source < len(self.right.places) and 1 < len(values) <= MAX_PASSES:
                    for at, value in enumerate(values):
                        new[self._added(single, (source, at), self.passing)] = [value]
        for added in (self.passing, single):
            for source, kind in added:
                whole = self.right.places[source]
                parts = tuple(added[part, kind] for part in whole.parts if (part, kind) in added)
                self.extra[added[source, kind]] = whole._replace(parts=parts, is_result="", is_given=False)
        self.right.places.extend(self.extra[number] for number in sorted(self.extra))
        self.passing, self.single = set(self.passing.values()), set(single.values())

    def _added(self, added, key, others):
        """The number of a new source."""
        return added.setdefault(key, len(self.right.places) + len(added) + len(others))

    def _left_early(self):
        """A return, break or continue in a loop without which, or with another in its place, the result is right."""
        for number, (line, before) in enumerate(self.wrong.exits):
            for after in ("pass", "continue", "break"):
                moved = before == "return" and not self.wrong.ends_with_return
                if after == before or moved and after != "pass":
                    continue
                other = ExpressionTrace(self.wrong.function, (number, after), self.is_kernel)
                mended = []
                for run in self.runs + self.random:
                    came, evidence = other.run(*run.case)
                    mended.append(evidence is None and same(came, run.due))
                    if not mended[-1] and (not run.kind or run.case[0] is self.prop):
                        break
                else:
                    failed = [bool(run.kind) for run in self.runs + self.random]
                    if 2 * sum(itertools.compress(mended, failed)) > sum(failed):
                        otherwise = {"pass": f"without this {before}, or with another condition,"}.get(
                            after, f"with {after} in place of {before}"
                        )
                        instead = f"with this {before} after the loop, not in it," if moved else otherwise
                        text = f"{instead} the result would be right"
                        return f"{self.wrong.line_of(line)}\n{text}"
        return ""

    def _at_first(self):
        """Where a NaN, or an infinity, is made of numbers that are none."""
        if (is_bad := {"nan": np.isnan, "inf": np.isposinf}.get(self.kind)) is None:
            return ""

        def bad(place):
            if place not in self.old[0]:
                return any(map(bad, self.wrong.places[place].parts))
            return any(is_bad(values).any() for values in self.old[0][place])

        for place in self.old[0]:
            here = self.wrong.places[place]
            is_made = here.parts and not INITIAL_VALUE.match(here.text) and not here.text.endswith(".inf")
            if is_made and bad(place) and not any(map(bad, here.parts)):
                values = next(values for values in self.old[0][place] if is_bad(values).any())
                said = " ".join(show(values if values.ndim else values.item()).split())
                return self._said([place], f"{here.text} is {said}, made of numbers that are not {self.kind}")
        return ""

    def _from_the_end(self):
        """The bound of a slice that has become negative."""
        for place in self.wrong.bounds & self.old[0].keys():
            text, lowest = self.wrong.places[place].text, min(values.min() for values in self.old[0][place])
            if lowest < 0 and not text.startswith("-"):
                return self._said([place], f"{text} is {lowest} here: a slice counts negative numbers from the end")
        return ""

    def in_float16(self, prop, inputs):
        """The line that computes in float16, if in float32 the result is right; of several, the last."""
        max_cost = self.wrong.max_cost
        self.wrong.max_cost = 10 * max_cost  # for it is run once for each line, and not for each place
        self.wrong.run(prop, inputs)
        lines = {}  # line -> a place in it that is computed in float16
        for place, values in self.wrong.values.items():
            here = self.wrong.places[place]
            if here.parts and values[0].dtype == np.float16 and ".load(" not in here.text:
                lines.setdefault(here.line, place)
        for tried in (*([line] for line in reversed(lines)), lines):
            if lines and self.wrong.run(prop, inputs, in_float32=tried)[1] is None:
                others = ", as are other lines" if len(tried) > 1 else ""
                text = f"this line is computed in float16{others}; in float32 this result would be right"
                return self._said([lines[min(tried)]], text)
        self.wrong.max_cost = max_cost
        return ""

    def _right_already(self):
        for place, source in self.known.items():
            here, first = self.wrong.places[place], self.old[0][place][0]
            if first.dtype == bool and first.size == 1:  # right by chance, or what a function inside says
                continue
            if source in self.results and not here.is_result and not here.is_given:
                shape = self.new[0][source][0].shape
                if self.kind == "shape" and first.shape != shape:
                    text = f"{here.text} holds the right numbers, but its shape is {first.shape}, not {shape}"
                    return self._said([place], text)
                return self._said([place], f"{here.text} is right already; what is made of it is not")
        return ""

    def _right_parts(self):
        """What the last line makes the result of, if it is right, and the result is not but for its shape."""
        if self.kind == "shape":  # what has the right numbers may lack an axis
            return ""
        last = [place for place, here in enumerate(self.wrong.places) if here.is_result == "all"]
        parts = list(dict.fromkeys(self.wrong.places[place].text for place in self._largest_known(*last[:1])))
        if len(last) != 1 or self.known.get(last[0]) is not None or not parts or not self._is_made_of_right(last[0]):
            return ""
        if len(parts) > MAX_PARTS or self.wrong.places[last[0]].text.startswith("{"):  # the line is the whole answer
            return ""
        it = "them" if len(parts) > 1 else "it"
        return self._said(last, f"{listed(parts)}: right; what is made of {it} in this line is not")

    def _is_made_of_right(self, place):
        parts = self.wrong.places[place].parts
        return self._is_right(place) or bool(parts) and all(map(self._is_made_of_right, parts))

    def _first_of_shape(self):
        """What is the first to have the shape that comes back, and what it is made of."""
        results = (place for place, here in enumerate(self.wrong.places) if here.is_result == "all")
        last = [place for place in results if place in self.old[0]]
        if self.kind != "shape" or len(last) != 1:
            return ""
        shapes = {place: values[-1].shape for place, values in self.old[0].items()}
        first = next(place for place in shapes if shapes[place] == shapes[last[0]])
        here = self.wrong.places[first]
        parts = [f"{self.wrong.places[p].text} has shape {shapes[p]}" for p in here.parts if shapes.get(p, ())]
        return self._said([first], f"{listed(parts)}; so {here.text} has shape {shapes[first]}") if parts else ""

    def _asked_once(self):
        """An `if` that leaves all rows as they are because of some."""
        for place in self.wrong.leaving & self.old[0].keys():
            asks = re.search(r"\b(any|all)\(", self.wrong.places[place].text)
            if asks and any(values.any() for values in self.old[0][place]) and self._is_of_some(place):
                return self._said([place], CONDITION_FOR_ALL_ROWS)
        return ""

    def _is_of_some(self, place):
        """Whether a truth value in this expression holds of some elements, and not of others."""
        mixed = any(x.dtype == bool and x.any() and not x.all() for x in self.old[0].get(place, ()))
        return mixed or any(map(self._is_of_some, self.wrong.places[place].parts))

    def _largest_known(self, *places):
        for place in places:
            if self.known.get(place) is None:
                yield from self._largest_known(*self.wrong.places[place].parts)
            elif not self.wrong.places[place].is_given:
                yield place

    def _mended(self):
        inside = self._inside_of_right()
        kinds = {
            place: self._kind(place)
            for place in self.old[0]
            if not (self.wrong.places[place].is_result or self.wrong.places[place].is_subtotal or place in inside)
        }
        places = sorted(kinds, key=kinds.get)
        stand_ins = {place: self._stand_ins(place) for place in places}
        made = [place for place in places if kinds[place] in (WRONG, PARTS)]
        first = [place for place in places if kinds[place] in (WRONG, RIGHT)]

        def one(places):
            return ({place: source} for place in places for _, source in stand_ins[place])

        likely = sorted(((likeness, place, s) for place in made for likeness, s in stand_ins[place]), reverse=True)
        most = ({place: source} for _, place, source in likely)
        alike = (change for group in self._groups(made) for change in self._all_alike(group, stand_ins))
        # Where the first mistakes are, before what is made of them.
        in_order = one(first), alike, one(places[len(first) :])
        found = {}  # place -> its change, once a single number is among them, which may fit by chance
        for tried, whole in (*((changes, True) for changes in in_order), (most, False)):
            for sources in tried:
                place, alone = next(iter(sources)), len(sources) == 1
                if self.cost > MAX_COST or time.thread_time() > self.deadline_s:
                    break
                if alone and place in found or not self._mends(sources, whole):
                    continue
                if whole and not self._mends_enough_runs(sources, kinds):
                    continue
                if not alone and any(self._mends({place: source}, whole) for place, source in sources.items()):
                    continue
                if not alone or not found and any(x.size > 1 for x in self.old[0][place]):
                    return self._told(self._as_variable(sources, stand_ins))
                found[place] = sources
            if tried is in_order[-1] and found:
                # What reads as in the right answer is wrong only because of what it is made of.
                likeness = {place: self._likeness(place, change[place]) % 1.0 for place, change in found.items()}
                return self._told(found[self._whole_of(max(likeness, key=likeness.get), found)])
        return ""

    def _whole_of(self, place, found):
        """The largest sum or product that the place is a part of, of those whose change mends as well."""
        for other in found:
            here = self.wrong.places[other]
            if place in here.parts and re.search(r"[-+*/%]", re.sub(r"\(.*\)|\[.*\]", "", here.text)):
                return self._whole_of(other, found)
        return place

    def _likeness(self, place, source):
        """Of what stands in the two answers, from 0 to 1."""
        here = self.wrong.places[place].text
        return max(difflib.SequenceMatcher(None, here, text).ratio() for text in self.texts[source])

    def _as_variable(self, sources, stand_ins):
        """In place of an expression the variable in it, if a change of that alone mends the result as well."""
        parts = self.wrong.places[next(iter(sources))].parts if len(sources) == 1 else ()
        variables = (part for part in parts if self.wrong.places[part].text.isidentifier() and part in stand_ins)
        changes = (
            {part: source}
            for part in variables
            for _, source in stand_ins[part]
            if self.old[0][part][0].shape == self.new[0][source][0].shape
        )
        return next((change for change in changes if self._mends(change, True)), sources)

    def _is_stale(self, place, old, new):
        """The time whose value a variable has every time, and ought to have only then, or None."""
        if len(old) < 2 or not self.wrong.places[place].text.isidentifier() or any(differ(old[0], x) for x in old):
            return None
        return next((at for at, x in enumerate(new) if not differ(old[0], x)), None)

    def _inside_of_right(self):
        """Places in an expression that is right: whatever they are, the mistake is none of theirs."""
        inside = set()
        for place in sorted(self.old[0], reverse=True):  # what is inside comes before
            is_right = self.known[place] is not None and self.old[0][place][0].dtype != bool
            if is_right and not self.wrong.places[place].is_given or place in inside:
                inside.update(self.wrong.places[place].parts)
        return inside

    def _groups(self, places):
        """Two places or more that do the same with other variables, as with Q, K and V."""
        groups = {}
        for place in places:
            groups.setdefault(re.sub(r"\b[A-Za-z]\w*\b(?!\()", "x", self.wrong.places[place].text), []).append(place)
        return [group for group in groups.values() if 1 < len(group) < 6]

    def _all_alike(self, group, stand_ins):
        """Changes {place: source} of the whole group, to each place a source of its own, one of the most alike."""
        for sources in itertools.product(*([source for _, source in stand_ins[place][:4]] for place in group[:3])):
            if len(set(sources)) == len(sources):
                yield dict(zip(group[:3], sources, strict=True))

    def _kind(self, place):
        here = self.wrong.places[place]
        if here.is_given:
            return GIVEN
        if self.known[place] is not None:
            return RIGHT
        if not here.parts:
            return VARIABLE
        return WRONG if all(map(self._is_right, here.parts)) else PARTS

    def _is_right(self, place):
        here = self.wrong.places[place]
        if place in self.wrong.lists:  # of what it is made is looked at first
            return False
        if place not in self.known and not here.parts:  # what is no number: right, unless it is made here
            return here.text not in self.wrong.function.__code__.co_varnames
        if place not in self.known or self.known[place] is None and self.old[0][place][0].dtype == bool:
            return all(map(self._is_right, here.parts))
        return here.is_given or self.known[place] is not None

    def _stand_ins(self, place):
        """(likeness, source) of those whose values might belong here, the most alike first."""
        here, known, old = self.wrong.places[place], self.known[place], self.old[0][place]
        found = []
        is_constant = len(self.old) > 1 and all(are_equal(old[0], each[place][0]) for each in self.old if place in each)
        if INITIAL_VALUE.match(here.text) or known is not None and is_constant:
            return found
        for source in self.texts:
            there, new = self.right.places[source], self.new[0][source]
            if here.is_given:
                # No number in place of an array, and none that is written down in place of an argument.
                is_of_kind = there.is_given and (not old[0].ndim or new[0].ndim)
                is_of_kind = is_of_kind and there.text.isidentifier() >= here.text.isidentifier()
            elif known is not None:  # a step is missing, one that is not made later
                is_of_kind = source not in self.known.values() and self._contains(source, known)
            else:
                is_of_kind = not there.is_given or there.text.isidentifier() or old[0].size == 1
            if not here.is_given and np.isinf(new[0]).all() and np.isfinite(old[0]).any():
                continue  # what is computed of finite numbers, and ought to be infinite: by chance
            if old[0].size > 1 and old[0].any() and not new[0].any():
                continue  # where 0 comes out, many zeros on the way fit
            is_of_kind = is_of_kind and (not here.is_given and known is None or sizes_of(old) == sizes_of(new))
            if is_of_kind and not there.is_result and source not in self.results and can_stand(old, new):
                if here.parts and changes_sign(old[0], new[0]) and self._likeness(place, source) < MIN_LIKENESS:
                    continue
                alike = (old[0].shape == new[0].shape) + (old[0].size == new[0].size)
                found.append((self._likeness(place, source) + alike, source))
        return sorted(found, key=lambda each: -each[0])

    def _contains(self, source, known):
        parts = self.right.places[source].parts
        return any(are_alike(self.new, part, self.new, known) or self._contains(part, known) for part in parts)

    def _mends(self, sources, whole):
        """Whether every case has the right result with these sources, {place: source}; or, if not the whole is asked
        for, the first case and another one that had not, and none loses it."""
        mended = []
        for number, run in enumerate(self.runs):
            if run.case[0] is not self.prop:
                break
            if any(place in run.old and source not in run.new for place, source in sources.items()):
                return False
            mended.append(self._is_mended(run, sources))
            if not mended[-1] and (whole or number == 0 or not run.kind):
                return False
        return whole or sum(bool(run.kind) for run in itertools.compress(self.runs, mended)) > 1

    def _is_mended(self, run, sources):
        came, evidence = self.wrong.run(
            *run.case, {place: run.new[source] for place, source in sources.items() if place in run.old}
        )
        self.cost += MAX_COST / MAX_KERNEL_LAUNCHES if self.is_kernel else self.wrong.cost
        return evidence is None and same(came, run.due)

    def _mends_enough_runs(self, sources, kinds):
        """What is right in itself, or given, is called wrong only if its change mends most runs that failed; what is
        not, if it mends two of them, and a quarter (of numbers half, of unlike ones all)."""
        failed = [run for run in self.runs + self.random if run.kind and self._reaches(run, sources)]
        mended = sum(self._is_mended(run, sources) for run in failed)
        if self.is_kernel:  # of which there are few
            return mended == len(failed)
        place, source = next(iter(sources.items()))
        if len(sources) == 1 and all(x.size == 1 for x in self.old[0][place]):
            if self._likeness(place, source) < MIN_LIKENESS:
                return mended == len(failed)
        is_condition = self.old[0][place][0].dtype == bool
        if len(sources) == 1 and kinds[place] in (WRONG, PARTS) and not is_condition:
            share = 2 if all(x.size == 1 for x in self.old[0][place]) else 4
            return mended >= min(2, len(failed)) and share * mended >= len(failed)
        return 2 * mended > len(failed)

    def _reaches(self, run, sources):
        return all(place in run.old and source in run.new for place, source in sources.items())

    def _told(self, sources):
        changes, wanted = [], []  # what is said of each place, and of what belongs there
        for place in sources:
            leaves = any(self.wrong.places[other].line == self.wrong.places[place].line for other in self.wrong.leaving)
            if leaves and self.old[0][place][0].size > 1 and re.search(r"\b(any|all)\(", self.wrong.line(place)):
                return self._said([place], CONDITION_FOR_ALL_ROWS)
        for place, source in sources.items():
            here, old, new = self.wrong.places[place], self.old[0][place], self.new[0][source]
            if len(sources) == 1 and (at := self._is_stale(place, old, new)) is not None:
                return self._said([place], f"{here.text} is each time what it should be the {ORDINALS[at]} time only")
            new = self._needed(place, old, new) if len(sources) == 1 else new
            at = next((i for i, pair in enumerate(zip(old, new, strict=True)) if differ(*pair)), None)
            if at is None:  # a copy of the old values would do: what the answer writes into them is then lost
                return ""
            shapes = [x[at].shape for x in (old, new)]
            if shapes[0] != shapes[1] and len(shapes[0]) == len(shapes[1]) and not here.text.startswith("range("):
                changes.append(f"{here.text}{_time(old, new, at)} has shape {shapes[0]}")
                wanted.append(f"an array of shape {shapes[1]}")
                continue
            row, *said = first_difference(*(listed_range(here.text, x[at]) for x in (old, new)))
            outer = next((each.text for each in self.wrong.places if place in each.parts), "")
            within = f" of {outer}" if len(here.text) < 3 and outer or outer.count(here.text) > 1 else ""
            in_rows = old[at].ndim > 1 and old[at].shape == new[at].shape
            several = how_many_differ(old, new) > 1 or in_rows and how_many_differ(old[at], new[at]) > 1
            if here.text == said[0] and len(sources) == 1:  # a number
                where = within and f" in {outer}"
                return self._said([place], f"with {said[1]} in place of {here.text}{where} this result would be right")
            changes.append(f"{row}{here.text}{within}{_time(old, new, at)} is {said[0]}")
            wanted.append(f"{said[1]} and so on" if several else said[1])
        places = "its place" if len(sources) == 1 else "their places"
        return self._said(
            sources,
            f"{listed(changes)}; with {listed(wanted)} in {places} this result would be right",
        )

    def _needed(self, place, old, new):
        """new, with the old values wherever the result is right with them, too: in whole passes first, then in rows."""
        if self.is_kernel:  # a launch takes long
            return new

        def is_right(values):
            came, evidence = self.wrong.run(*self.runs[0].case, {place: values})
            return evidence is None and same(came, self.runs[0].due)

        new = [as_shaped(theirs, ours) for ours, theirs in zip(old, new, strict=True)]
        for at in range(min(len(new), MAX_TRIED)):
            kept = [*new[:at], old[at], *new[at + 1 :]]
            new = kept if is_right(kept) else new
        for at, (ours, theirs) in enumerate(zip(old[:MAX_TRIED], new, strict=False)):
            for row in range(min(len(ours), MAX_TRIED)) if ours.ndim > 1 and ours.shape == theirs.shape else ():
                rows = new[at].astype(np.result_type(ours, theirs))
                rows[row] = ours[row]
                kept = [*new[:at], rows, *new[at + 1 :]]
                new = kept if is_right(kept) else new
        return new

    def _said(self, places, text):
        return "\n".join([*dict.fromkeys(self.wrong.line(place) for place in places), text])


def _time(old, new, at):
    """Which time of several an expression should have had another value."""
    if len(old) < 2:
        return ""
    return f" the {ORDINALS[at]} time" + " (and others)" * (how_many_differ(old, new) > 1)
