"""Runs a function and keeps the values of all expressions in it, some of which may be given other values."""

import ast
import inspect
import linecache
import textwrap
from types import FunctionType
from typing import NamedTuple

import numpy as np

from .calling import GuardedAnswer
from .exercise import Property
from .slips import observed

MOST_COST_A_RUN = 60
NAME = "_recorded"  # of what records, in the code that runs


class TooMuch(Exception):
    """A run has more to record than is worth the time."""


class Place(NamedTuple):
    """An expression of an answer. parts: the numbers of the places directly inside it."""

    line: int
    text: str
    parts: tuple[int, ...]
    is_result: str  # "all", of what is returned; "part", of one of several; or nothing
    is_given: bool  # an argument or a number


class Recording:
    """A function whose expressions note their values, and one of which may be given others.

    places: the expressions. bounds: those that are bounds of slices. values: of the last run, {number of the place: its values, in order}. cost: what it
    took, where 1 is little; beyond MOST_COST_A_RUN it ends.
    """

    def __init__(self, function: FunctionType):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        (definition,) = tree.body
        definition.decorator_list = []
        returned = [node.value for node in ast.walk(definition) if isinstance(node, ast.Return) and node.value]
        self._results = {
            part: "all" if part is node else "part" for node in returned for part in [node, *getattr(node, "elts", ())]
        }
        self._arguments = {argument.arg for argument in definition.args.args}
        self.places, self._parts, self.bounds, self.values, self._stand_ins = [], [], set(), {}, {}
        definition.body = [self._watched(statement) for statement in definition.body]
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        namespace = function.__globals__ | {name: cell.cell_contents for name, cell in closure} | {NAME: self._note}
        exec(compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec"), namespace)
        self._filename, self._names = function.__code__.co_filename, function.__globals__
        self._answer = GuardedAnswer(namespace[definition.name], limit_s=0.5)

    def run(self, prop: Property, inputs: dict, stand_ins=None):
        """`observed` of it if the expressions at these places have these values, {place: values}."""
        self.values, self.cost, self._stand_ins = {}, 1, stand_ins or {}
        return observed(prop, self._answer, inputs)

    def line(self, place):
        """ "line 3:  s = x - x.max()": the line of a place."""
        number = self.places[place].line
        return f"line {number}:  {linecache.getline(self._filename, number, self._names).strip()}"

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
            self.bounds.update(parts if isinstance(node, ast.Slice) else ())
            return node
        is_given = isinstance(node, ast.Constant) or text in self._arguments
        self._parts.append(len(self.places))
        self.places.append(Place(node.lineno, text, parts, self._results.get(node, ""), is_given))
        call = ast.Call(ast.Name(NAME, ast.Load()), [ast.Constant(self._parts[-1]), node], [])
        return ast.copy_location(call, node)

    def _note(self, place, value):
        if (array := _array(value)) is None:
            return value
        noted = self.values.setdefault(place, [])
        noted.append(array)
        self.cost += 0.05 + array.size / 2000
        if self.cost > MOST_COST_A_RUN:
            raise TooMuch
        if len(noted) > len(self._stand_ins.get(place, ())):
            return value
        new = self._stand_ins[place][len(noted) - 1]
        if new.size == array.size and new.ndim != array.ndim:
            new = new.reshape(array.shape)
        if isinstance(value, range):
            return range(*new.tolist())
        if hasattr(value, "_storage"):  # a tile on the memory machine
            return np.where(True, new.astype(value.dtype), value[(0,) * value.ndim])
        if isinstance(value, np.ndarray) or new.ndim:
            return new.copy()
        return new.item() if type(value) in (bool, int, float) else new[()]


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
