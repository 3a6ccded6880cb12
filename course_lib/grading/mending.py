"""Finds the place in a wrong answer where another value would make its result right.

The answer and the right one are run with every expression recorded. Then expressions of the answer are given, one at a
time, the values that an expression of the right answer has, those first that are most alike. Where the result is right
from then on, there is the mistake.
"""

import ast
import difflib
import inspect
import itertools
import linecache
import textwrap
from types import FunctionType
from typing import NamedTuple

import numpy as np

from .calling import GuardedAnswer
from .diagnosis import show
from .exercise import Exercise, Property
from .slips import observed, same

MOST_CASES, MOST_NOTED, MOST_WORK = 12, 1_000_000, 1500
NAME = "_recorded"  # of what records, in the code that runs


class Place(NamedTuple):
    """An expression of an answer. parts: the numbers of the places directly inside it."""

    line: int
    text: str
    parts: tuple[int, ...]
    is_result: bool
    is_given: bool  # an argument or a number


class Recording:
    """A function whose expressions note their values, and one of which may be given others.

    places: the expressions. values: of the last run, {number of the place: its values, in order}. noted_elems: how
    many numbers these are.
    """

    def __init__(self, function: FunctionType):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        (definition,) = tree.body
        definition.decorator_list = []
        returned = [node.value for node in ast.walk(definition) if isinstance(node, ast.Return) and node.value]
        self._results = returned + [part for node in returned if isinstance(node, ast.Tuple) for part in node.elts]
        self._arguments = {argument.arg for argument in definition.args.args}
        self.places, self._parts, self.values, self._stand_ins = [], [], {}, {}
        definition.body = [self._watched(statement) for statement in definition.body]
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        namespace = function.__globals__ | {name: cell.cell_contents for name, cell in closure} | {NAME: self._note}
        exec(compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec"), namespace)
        self.filename, self.names = function.__code__.co_filename, function.__globals__
        self._answer = GuardedAnswer(namespace[definition.name], limit_s=0.5)

    def run(self, prop: Property, inputs: dict, stand_ins=None):
        """`observed` of it if the expressions at these places have these values, {place: values}."""
        self.values, self.noted_elems, self._stand_ins = {}, 0, stand_ins or {}
        return observed(prop, self._answer, inputs)

    def _watched(self, node):
        """The node, in which every expression is handed to `_note`."""
        if isinstance(node, ast.JoinedStr | ast.Lambda):
            return node
        text, outer, self._parts = ast.unparse(node), self._parts, []
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [self._watched(child) if isinstance(child, ast.AST) else child for child in value]
            elif isinstance(value, ast.AST) and not (field == "func" and isinstance(value, ast.Name)):
                setattr(node, field, self._watched(value))
        parts, self._parts = tuple(self._parts), outer
        is_value = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not is_value or isinstance(node, ast.Slice | ast.Starred | ast.Tuple):
            self._parts += parts
            return node
        is_given = isinstance(node, ast.Constant) or text in self._arguments
        self._parts.append(len(self.places))
        self.places.append(Place(node.lineno, text, parts, node in self._results, is_given))
        call = ast.Call(ast.Name(NAME, ast.Load()), [ast.Constant(self._parts[-1]), node], [])
        return ast.copy_location(call, node)

    def _note(self, place, value):
        if (array := _array(value)) is None:
            return value
        noted = self.values.setdefault(place, [])
        noted.append(array)
        self.noted_elems += 1 + array.size
        if len(noted) > len(self._stand_ins.get(place, ())):
            return value
        new = self._stand_ins[place][len(noted) - 1]
        if new.size == array.size:
            new = new.reshape(array.shape)
        if isinstance(value, range):
            return range(*new.tolist())
        if hasattr(value, "_storage"):  # a tile on the memory machine
            return np.where(True, new.astype(value.dtype), value[(0,) * value.ndim])
        if isinstance(value, np.ndarray) or new.ndim:
            return new.copy()
        return new.item() if isinstance(value, int | float) else new[()]


def _array(value):
    """The values as an array, or None of what is no number and no array of them."""
    if hasattr(value, "_storage"):
        return value._values_on(value._storage.machine).copy()
    if isinstance(value, range):
        return np.array([value.start, value.stop, value.step])
    if isinstance(value, bool | int | float | np.ndarray | np.generic):
        array = np.array(value)
        return array if array.dtype.kind in "biuf" and array.size else None
    return None


def mended(exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict) -> str:
    """The line, the value that one of its expressions has, and the one that makes the result right; or nothing."""
    try:
        search = _Search(Recording(answer.answer), Recording(exercise.answer))
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):  # it is no function, or its source is not here
        return ""
    with np.errstate(all="ignore"):
        return search.told(exercise, prop, inputs)


class _Search:
    """old, new: of each case, the values of the wrong answer's places and of the right one's."""

    def __init__(self, wrong, right):
        self.wrong, self.right = wrong, right

    def told(self, exercise, prop, inputs):
        cases = [(prop, inputs), *((prop, case) for case in prop.cases if case is not inputs)][:MOST_CASES]
        others = [(p, case) for p in exercise.properties if p.call == prop.call != p for case in p.cases]
        self.cases, self.due, self.old, self.new = cases, [], [], []
        for case in cases + others[: MOST_CASES - len(cases)]:
            self.wrong.run(*case)
            self.due.append(self.right.run(*case)[0])
            self.old.append(self.wrong.values)
            if self.wrong.noted_elems > MOST_NOTED:
                return ""
            self.new.append(self.right.values)
        self.sources = []  # places of the right answer, results first, with values of their own
        for source in sorted(self.new[0], key=lambda source: not self.right.places[source].is_result):
            if not any(_alike(self.new, source, self.new, other) for other in self.sources):
                self.sources.append(source)
        self.known = {}  # places of the wrong answer -> the source that has the same values
        for place in self.old[0]:
            alike = (source for source in self.sources if _alike(self.old, place, self.new, source, strict=False))
            self.known[place] = next(alike, None)
        self.work = 0
        places = [place for place in sorted(self.old[0], key=self._tier) if not self.wrong.places[place].is_result]
        single = sum(place.is_result for place in self.right.places) == 1
        for place in places:
            source = self.known[place]
            if source is not None and single and self.right.places[source].is_result:
                here = self.wrong.places[place]
                return f"{self._line(here)}\n{here.text} is right already; what is made of it is not"
            for source in self._stand_ins(place):
                if self._mends({place: source}):
                    return f"T{self._tier(place)} " + self._told({place: source})
        for pair in itertools.combinations([place for place in places if self._tier(place) in (0, 2)][:8], 2):
            for sources in itertools.product(*(self._stand_ins(place)[:4] for place in pair)):
                if self._mends(mended := dict(zip(pair, sources, strict=True))):
                    return "PAIR " + self._told(mended)
        return ""

    def _tier(self, place):
        """The lower, the sooner it is tried: first what is wrong though all its parts are right."""
        here = self.wrong.places[place]
        if here.is_given:
            return 4
        if self.known[place] is not None:
            return 1
        if not here.parts:  # a variable, which is made elsewhere
            return 3
        return 0 if all(map(self._is_right, here.parts)) else 2

    def _is_right(self, place):
        here = self.wrong.places[place]
        if place not in self.known:
            return all(map(self._is_right, here.parts))
        return here.is_given or self.known[place] is not None

    def _stand_ins(self, place):
        """Places of the right answer whose values might belong here, the most alike first."""
        here, known, old = self.wrong.places[place], self.known[place], self.old[0][place]
        found = []
        for source in self.sources:
            there, new = self.right.places[source], self.new[0][source]
            if there.is_result or not _fits(old, new):
                continue
            if known is not None and not self._contains(source, known):  # an operation may be missing, but no other
                continue
            if here.is_given and len({repr(values.get(source)) for values in self.new}) > 1:
                continue
            shapes = [[each.shape for each in values] for values in (old, new)]
            likeness = difflib.SequenceMatcher(None, here.text, there.text).ratio()
            found.append((shapes[0] == shapes[1], likeness, -source))
        return [-source for *_, source in sorted(found, reverse=True)]

    def _contains(self, source, known):
        parts = self.right.places[source].parts
        return any(_alike(self.new, part, self.new, known) or self._contains(part, known) for part in parts)

    def _mends(self, sources):
        """Whether every case has the right result with these stand-ins, {place: source}."""
        if self.work > MOST_WORK:
            return False
        for case, due, old, new in zip(self.cases, self.due, self.old, self.new, strict=False):
            if any(place in old and source not in new for place, source in sources.items()):
                return False
            came, evidence = self.wrong.run(*case, {p: new[source] for p, source in sources.items() if p in old})
            self.work += 1 + self.wrong.noted_elems // 500
            if evidence is not None or not same(came, due):
                return False
        return True

    def _told(self, sources):
        lines, changes, wanted = {}, [], []
        for place, source in sources.items():
            here, old, new = self.wrong.places[place], self.old[0][place], self.new[0][source]
            at = next(i for i in range(len(old)) if not np.array_equal(old[i], new[i], equal_nan=True))
            was, stand_in, row = old[at], new[at], ""
            if was.size == stand_in.size:
                stand_in = stand_in.reshape(was.shape)
            if was.shape == stand_in.shape and was.ndim > 1:
                index = next(i for i in range(len(was)) if not np.array_equal(was[i], stand_in[i], equal_nan=True))
                was, stand_in, row = was[index], stand_in[index], f"row {index} of "
            said = [" ".join(show(each if each.ndim else each.item()).split()) for each in (was, stand_in)]
            if said[0] == said[1]:
                said = [f"{text} in {each.dtype}" for text, each in zip(said, (was, stand_in), strict=True)]
            outer = next((each.text for each in self.wrong.places if place in each.parts), "")
            within = f" of {outer}" if outer and (len(here.text) < 3 or outer.count(here.text) > 1) else ""
            time = f" in pass {at + 1}" if len(old) > 1 else ""
            lines[self._line(here)] = None
            changes.append(f"{row}{here.text}{within}{time} is {said[0]}")
            wanted.append(said[1])
        places = "its place" if len(sources) == 1 else "their places"
        told = f"{' and '.join(changes)}; with {' and '.join(wanted)} in {places} the result would be right"
        return "\n".join([*lines, told])

    def _line(self, place):
        return f"line {place.line}:  {linecache.getline(self.wrong.filename, place.line, self.wrong.names).strip()}"


def _fits(old, new):
    """Whether the right answer's values could stand for the wrong one's."""
    pairs = list(zip(old, new, strict=False))
    alike = all((a.dtype == bool) == (b.dtype == bool) for a, b in pairs)
    return len(old) == len(new) and alike and any(not np.array_equal(*pair, equal_nan=True) for pair in pairs)


def _alike(values, place, others, source, strict=True):
    """Whether two expressions have the same values in every case that comes to both."""
    pairs = [(a[place], b[source]) for a, b in zip(values, others, strict=True) if place in a and source in b]
    return bool(pairs) and all(
        (len(some) == len(other) or not strict) and all(map(_equal, some, other)) for some, other in pairs
    )


def _equal(one, other):
    if one.size != other.size or (one.dtype == bool) != (other.dtype == bool):
        return False
    return np.allclose(one.ravel(), other.ravel(), rtol=1e-9, atol=0, equal_nan=True)
