"""Runs a function and keeps the values of all expressions in it, some of which may be given other values."""

import ast
import inspect
import itertools
import linecache
import re
import textwrap
from types import FunctionType
from typing import NamedTuple

import numpy as np

from courseware.editing import run_source

from .calling import GuardedAnswer
from .exercise import Property
from .misconceptions import observed

MAX_COST_PER_RUN, MAX_COST_PER_LAUNCH = 60, 600
LAUNCH_LIMIT_S = 5.0
GIVEN = re.compile(r"-[\d.e+]+$|machine\.load\(.*\)$")  # a number with a sign; without one it is a constant
NAME = "_recorded"  # of what records, in the code that runs
_numbers = itertools.count()  # of the sources that are run


def module_of(function: FunctionType) -> ast.Module:
    """A function's definition, without decorators and docstring, with the lines of its file."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    (definition,) = tree.body
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError("a lambda")
    definition.decorator_list = []
    if ast.get_docstring(definition) is not None:
        del definition.body[0]
    return tree


def line_of(function: FunctionType, number: int) -> str:
    """ "line 3:  s = x - x.max()", of the file that the function comes from."""
    text = linecache.getline(function.__code__.co_filename, number, function.__globals__)
    return f"line {number}:  {text.strip()}"


class Place(NamedTuple):
    """An expression of an answer. parts: the numbers of the places directly inside it."""

    line: int
    text: str
    parts: tuple[int, ...]
    is_result: str  # "all", of what is returned; "part", of one of several; or nothing
    is_given: bool  # an argument or a number


class ExpressionTrace:
    """A function, or a kernel, whose expressions note their values, and one of which may be given others.

    places: the expressions. Of these, bounds: of slices; lists: that were lists; joined: by `and` or `or`; leaving: the
    conditions of what leaves a loop, a pass of it, or the function. values: of the last run, {number of the place: its
    values, in order}. cost: what it took, where 1 is little; beyond max_cost it ends.
    """

    def __init__(self, function: FunctionType, is_kernel: bool = False):
        """is_kernel: whether it is launched. What a kernel stores stands for what a function returns."""
        tree = module_of(function)
        (definition,) = tree.body
        nodes = list(ast.walk(definition))
        inside = {node for each in nodes[1:] if isinstance(each, ast.FunctionDef) for node in ast.walk(each)}
        returned = [each.value for each in nodes if isinstance(each, ast.Return) and each.value and each not in inside]
        names = {node.id for node in returned if isinstance(node, ast.Name)}
        self._results = {node.value: "part" for node in nodes if _is_put_into(names, node)}
        self._results |= {value: "part" for value in map(_stored, nodes) if value is not None}
        self._results |= {part: "part" for node in returned for part in getattr(node, "elts", ())}
        self._results |= dict.fromkeys(returned, "all")
        self.max_cost = MAX_COST_PER_LAUNCH if is_kernel else MAX_COST_PER_RUN
        self._arguments = {argument.arg for argument in definition.args.args}
        self.function = function
        self.places, self._parts = [], []
        self.bounds, self.lists, self.joined, self.leaving = set(), set(), set(), set()
        definition.body = [self._watched(statement) for statement in definition.body]
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        namespace = function.__globals__ | {name: cell.cell_contents for name, cell in closure} | {NAME: self._note}
        # Triton reads a kernel's source again, so that there has to be one.
        run_source(ast.unparse(tree), f"<recorded {next(_numbers)}>", namespace)
        self._answer = GuardedAnswer(namespace[definition.name], LAUNCH_LIMIT_S if is_kernel else 0.5)

    def run(self, prop: Property, inputs: dict, stand_ins=None):
        """`observed` of it if the expressions at these places have these values, {place: values}."""
        self.values, self.cost, self._stand_ins = {}, 1, stand_ins or {}
        return observed(prop, self._answer, inputs)

    def line(self, place):
        return line_of(self.function, self.places[place].line)

    def _watched(self, node):
        """The node, in which every expression is handed to `_note`."""
        if isinstance(node, ast.JoinedStr | ast.Lambda):
            return node
        text, outer, self._parts = ast.unparse(node), self._parts, []
        for field, value in ast.iter_fields(node):
            is_name_called = field == "func" and isinstance(value, ast.Name)
            if isinstance(value, list):
                value[:] = [self._watched(child) if isinstance(child, ast.AST) else child for child in value]
            elif isinstance(value, ast.AST) and field != "annotation" and not is_name_called:
                setattr(node, field, self._watched(value))
        parts, self._parts = tuple(self._parts), outer
        is_value = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not is_value or isinstance(node, ast.Slice | ast.Starred | ast.Tuple):
            self._parts += parts
            self.bounds.update(parts if isinstance(node, ast.Slice) else ())
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Break | ast.Continue):
                self.leaving.update(parts[:1])
            return node
        is_given = isinstance(node, ast.Constant) or GIVEN.match(text) is not None or text in self._arguments
        self._parts.append(len(self.places))
        self.joined.update(parts if isinstance(node, ast.BoolOp) else ())
        self.places.append(Place(node.lineno, text, parts, self._results.get(node, ""), is_given))
        call = ast.Call(ast.Name(NAME, ast.Load()), [ast.Constant(self._parts[-1]), node], [])
        return ast.copy_location(call, node)

    def _note(self, place, value):
        if isinstance(value, list):
            self.lists.add(place)
        if (array := _array(value)) is None:
            return value
        noted = self.values.setdefault(place, [])
        noted.append(array)
        self.cost += 0.05 + array.size / 2000
        if self.cost > self.max_cost:
            raise RuntimeError("there is more to record than is worth the time")
        if len(noted) > len(self._stand_ins.get(place, ())):
            return value
        new = as_shaped(self._stand_ins[place][len(noted) - 1], array)
        if isinstance(value, range):
            return range(*new.tolist())
        if hasattr(value, "handle"):
            return _block_like(value, new)
        if hasattr(value, "_storage"):  # a tile on the memory machine
            return np.where(True, new.astype(value.dtype), value[(0,) * value.ndim])
        if isinstance(value, np.ndarray) or new.ndim:
            return new.copy()
        return new.item() if type(value) in (bool, int, float) else new[()]


def _is_put_into(names, node):
    """Whether a statement stores what is no constant into a place of one of these arrays: out[i] = p / l."""
    places = node.targets if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant) else ()
    return any(isinstance(place, ast.Subscript) and getattr(place.value, "id", "") in names for place in places)


def _stored(node):
    """What tl.store or a machine's store puts into memory, if the node calls one of them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "store":
        place = 1 if ast.unparse(node.func.value) == "tl" else 2
        return node.args[place] if place < len(node.args) else None
    return None


def _block_like(block, new):
    """A block of Triton's interpreter with other values, or the same one if they do not fit into it."""
    handle = block.handle
    if new.size != handle.data.size:
        return block
    data = new.reshape(handle.data.shape).astype(handle.data.dtype)
    return type(block)(type(handle)(data, handle.dtype), block.type)


def _array(value):
    """The values as an array, or None of what is no number and no array of them."""
    if hasattr(value, "handle") and hasattr(value.handle, "data"):
        scalar, data = value.type.scalar, value.handle.data.copy()
        if scalar.is_ptr() or scalar.is_bf16():  # of bfloat16, the interpreter holds the bits
            return None
        return data if value.type.is_block() else data.reshape(())
    if hasattr(value, "_storage"):
        return value._values_on(value._storage.machine).copy()
    if isinstance(value, range):
        return np.array([value.start, value.stop, value.step])
    if isinstance(value, bool | int | float | np.ndarray | np.generic):
        array = np.array(value)
        return array if array.dtype.kind in "biuf" and array.size else None
    return None


def as_shaped(new, old):
    """The values in the shape of what they stand for, if they are as many."""
    return new.reshape(old.shape) if new.size == old.size and new.ndim != old.ndim else new
