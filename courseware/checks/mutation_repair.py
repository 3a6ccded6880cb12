"""Finds the one place in a wrong answer where a small change makes it right: another operator, number or variable.

Unlike `mending`, this needs no value of the right answer, and the changed answer is tried on every case of every
property: a place that is told is one that is enough.
"""

import ast
import inspect
import itertools
import linecache
import re
import textwrap
import time
import warnings

import numpy as np

from courseware.editing import run_source

from .calling import GuardedAnswer, attempt
from .drawing import drawn
from .exercise import Exercise, Property
from .mutation_operators import changed

MAX_CHANGES, MAX_KERNEL_LAUNCHES = 600, 200  # tried on the input that failed
MAX_SLOW = 3  # of these, that do not return in time
LIMIT_S, TRYING_LIMIT_S = 0.5, 2.0  # of processor time: of one, and of all
WITHOUT_BRANCH = "without this branch"
SIZED = re.compile(r"range|cdiv|zeros|ones|full|empty|eye|tri\(")  # what takes a count
_numbers = itertools.count()  # of the sources that are run


def repairing_mutation(
    exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict, lines=()
) -> tuple[int, str]:
    """(the line, what to say of it), or (0, "") if no change of one place is enough. lines: those to try first."""
    function = answer.answer
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        (definition,) = tree.body
        if function.__closure__ or not isinstance(definition, ast.FunctionDef):
            return 0, ""
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):  # no function, or its source is not here
        return 0, ""
    definition.decorator_list = []
    launched, slow, deadline_s = "launched(" in prop.call, 0, time.thread_time() + TRYING_LIMIT_S
    seen = {ast.unparse(tree)}
    with np.errstate(all="ignore"):
        for change in itertools.islice(_in_order(tree, lines), MAX_KERNEL_LAUNCHES if launched else MAX_CHANGES):
            if change.source in seen or _is_odd(change, function):
                continue
            seen.add(change.source)
            other = _answer_of(change.source, function)
            evidence = attempt(prop, other, inputs)
            if evidence is None and _passes(exercise, other, launched):
                return change.line, _told(change, function)
            slow += evidence is not None and evidence.timed_out
            if slow == MAX_SLOW or time.thread_time() > deadline_s:
                break
    return 0, ""


def _is_odd(change, function):
    """What would mend a result, but is hardly the mistake: a condition that always holds, another result returned,
    one more of a whole array, the arguments of range in another order.

    A branch that is never taken is none of these: a special case that should not be one.
    """
    match change.old, change.new:
        case ast.If(orelse=orelse), ast.If(test=test):
            return test.value or bool(orelse)
        case ast.Call(func=ast.Name(id="range"), args=args), ast.Call(args=others):
            return sorted(map(ast.dump, args)) == sorted(map(ast.dump, others))
        case ast.Name(), ast.BinOp():
            return re.search(r"[.@]", change.within) is not None and SIZED.search(change.within) is None
        case ast.Name(), ast.Name():
            line = linecache.getline(function.__code__.co_filename, change.line, function.__globals__)
            return line.strip().startswith("return") and len(re.findall(r"\w+", change.within)) > 2
    return False


def _in_order(tree, lines):
    """All changes, those in these lines first."""
    for first in (True, False) if lines else (False,):
        yield from (change for change in changed(tree, _more) if (change.line in lines) == first)


def _answer_of(source, function):
    namespace = dict(function.__globals__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what no one would write
        run_source(source, f"<repaired {next(_numbers)}>", namespace)
    return GuardedAnswer(namespace[function.__name__], LIMIT_S)


def _passes(exercise, answer, launched):
    deadline_s = time.thread_time() + TRYING_LIMIT_S
    for prop in exercise.properties:
        if launched and prop.slow:  # whether it compiles is not what was wrong
            continue
        cases = itertools.chain(prop.cases, drawn(prop, 0) if prop.draw is not None and not launched else ())
        for case in cases:
            if attempt(prop, answer, case) is not None or time.thread_time() > deadline_s:
                return False
    return True


def _more(node, names):
    """What else could stand in a node's place: any operator, another variable, one more or less, an axis kept."""
    match node:
        case ast.operator() if not isinstance(node, ast.MatMult):
            return [ast.Add(), ast.Sub(), ast.Mult(), ast.Div(), ast.FloorDiv()]
        case ast.cmpop():
            return [ast.Lt(), ast.LtE(), ast.Gt(), ast.GtE(), ast.Eq(), ast.NotEq()]
        case ast.Name(id=name, ctx=ast.Load()) if name in names:
            by_one = [ast.BinOp(ast.Name(name), op, ast.Constant(1)) for op in (ast.Add(), ast.Sub())]
            opposite = ast.UnaryOp(ast.Invert(), ast.Name(name))
            return [ast.Name(other) for other in dict.fromkeys(names) if other != name] + [opposite, *by_one]
        case ast.Call(func=ast.Attribute(attr="max" | "min" | "sum" | "mean"), args=args, keywords=keywords):
            kept = ast.keyword("keepdims", ast.Constant(True))
            return [] if any(k.arg == "keepdims" for k in keywords) else [ast.Call(node.func, args, [*keywords, kept])]
    return []


def _told(change, function):
    line = linecache.getline(function.__code__.co_filename, change.line, function.__globals__).strip()
    return f"line {change.line}:  {line}\n{_in_words(change)} the result would be right"


def _in_words(change):
    """What kind of change it is, and where; not what stands there afterwards, which is for the learner to find."""
    old, new = change.old, change.new
    text = ast.unparse(old) if isinstance(old, ast.expr) else ""
    within = f" in {change.within}" if change.within and text and change.within.count(text) + len(text) < 60 else ""
    match old, new:
        case ast.stmt(), ast.Pass():
            return "without this line"
        case ast.AugAssign(), _:
            return "with = in place of an assignment that adds to what is there,"
        case ast.If(), _:
            return WITHOUT_BRANCH
        case ast.operator() | ast.cmpop() | ast.boolop(), _:
            return f"with another operator{f' in {change.within}' if change.within else ''}"
        case ast.Constant(value=int() | float()), _:
            return f"with another number in place of {text}{within}"
        case ast.Name(), ast.Name():
            return f"with another variable in place of {text}{within}"
        case ast.Name(), ast.UnaryOp():
            return f"with ~ before {text}{within}"
        case ast.Name(), _:
            return f"with one more, or one less, than {text}{within}"
        case ast.Call(args=args), ast.Call(args=others) if len(args) == len(others) and args != others:
            return f"with the arguments of {text} in another order"
        case ast.Tuple(), ast.Tuple():
            return f"with {text} in another order"
        case ast.Call(func=ast.Name(id="range")), ast.Call():
            return f"with other bounds in {text}"
        case ast.Call(keywords=keywords), ast.Call(keywords=others) if len(keywords) < len(others):
            return f"with an axis kept in {text}"
        case ast.Call(func=ast.Attribute(attr=name, value=value)), _ if new is value:
            return f"without .{name}(...) in {text}"
        case ast.Call(args=args), _ if new in args:
            return f"with one of its arguments in place of {text}"
        case ast.Call(), ast.Call():
            return f"without one of the keywords of {text}"
        case ast.IfExp(), _:
            return f"whatever the condition in {text}"
        case ast.BinOp(left=left, right=right), ast.BinOp(left=other) if other is right and left is not right:
            return f"with the sides of {text} exchanged"
        case ast.BinOp(left=left, right=right), _ if new in (left, right):
            return f"without {ast.unparse(right if new is left else left)} in {text}"
        case ast.Slice(), _:
            return f"with other bounds in {change.within}"
        case ast.comprehension(), _:
            return f"without the condition in {change.within}"
    return f"with something else in place of {text or change.within}"
