"""Finds the place in a wrong answer where a change makes it right: what the right answer has there, or a mutation.

A changed answer is tried on every case of every property: a place that is reported is one that is enough.
"""

import ast
import itertools
import re
import time
import warnings

import numpy as np

from courseware.editing import run_source

from .calling import GuardedAnswer, attempt
from .exercise import Exercise, Property
from .expression_trace import line_of, module_of
from .mutation_operators import Change, changed
from .properties import drawn
from .reference_diff import fewest_differences

MAX_SLOW = 3  # changes that do not return in time
LIMIT_S, TRYING_LIMIT_S, TRYING_KERNELS_LIMIT_S = 0.5, 2.0, 5.0  # of processor time: of one, and of all
WITHOUT_BRANCH = "without this branch"
SIZED = re.compile(r"range|cdiv|zeros|ones|full|empty|eye|tri\(")  # what takes a count
_numbers = itertools.count()  # of the sources that are run


def repair(exercise: Exercise, prop: Property, answer: GuardedAnswer, inputs: dict, lines=()) -> tuple[set, str]:
    """(the lines, what to say of them), or nothing if no few changes are enough. lines: suspected ones."""
    function = answer.answer
    try:
        tree, reference = module_of(function), module_of(exercise.answer)
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):  # no function, or its source is not here
        return set(), ""
    if function.__closure__:
        return set(), ""
    trial = _Trial(exercise, prop, function, inputs)
    with np.errstate(all="ignore"):
        changes = list(map(_as_change, fewest_differences(tree, reference, trial.passes)))
        if len(changes) != 1:
            for change in _in_order(tree, lines):
                if trial.is_over():
                    break
                if not _is_odd(change, function) and trial.passes(change.source):
                    return {change.line}, _told([change], function)
    # Of several, none that is a step missing: such changes write another answer around this one.
    if not changes or len(changes) > 1 and (lines or any(change.old is None for change in changes)):
        return set(), ""
    return {change.line for change in changes}, _told(changes, function)


class _Trial:
    """Changed answers, each tried once, as long as there is time."""

    def __init__(self, exercise, prop, function, inputs):
        self.exercise, self.prop, self.function, self.inputs = exercise, prop, function, inputs
        self.launched = "launched(" in prop.call
        self.seen, self.slow = {}, 0
        self.deadline_s = time.thread_time() + (TRYING_KERNELS_LIMIT_S if self.launched else TRYING_LIMIT_S)

    def is_over(self):
        return self.slow >= MAX_SLOW or time.thread_time() > self.deadline_s

    def passes(self, source):
        """Whether this source in place of the answer's does; whatever comes too late does not."""
        if source not in self.seen and not self.is_over():
            namespace = self.exercise.answer.__globals__ | self.function.__globals__
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what no one would write
                    run_source(source, f"<repaired {next(_numbers)}>", namespace)
            except (SyntaxError, NameError, TypeError, ValueError):  # an annotation, or a default of ours
                return False
            other = GuardedAnswer(namespace[self.function.__name__], LIMIT_S)
            evidence = attempt(self.prop, other, self.inputs)
            self.slow += evidence is not None and evidence.timed_out
            self.seen[source] = evidence is None and self._passes_all(other)
        return self.seen.get(source, False)

    def _passes_all(self, answer):
        for prop in self.exercise.properties:
            if self.launched and prop.slow:  # whether it compiles is not what was wrong
                continue
            random = drawn(prop, 0) if prop.draw is not None and not self.launched else ()
            for case in itertools.chain(prop.cases, random):
                if attempt(prop, answer, case) is not None or time.thread_time() > self.deadline_s + TRYING_LIMIT_S:
                    return False
        return True


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
            is_returned = re.match(r"line \d+:  return", line_of(function, change.line))
            return is_returned and len(re.findall(r"\w+", change.within)) > 2
    return False


def _in_order(tree, lines):
    """All changes, those in these lines first, and one more or one less last: on some inputs it is as good."""
    for order in itertools.product((True, False) if lines else (False,), (False, True)):
        yield from changed(tree, _more, lambda line, new, order=order: order == (line in lines, _is_by_one(new)))


def _is_by_one(new):
    return isinstance(new, ast.BinOp) and isinstance(new.right, ast.Constant)


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
        case ast.Constant(value=0):
            return [ast.parse('float("-inf")', mode="eval").body]
        case ast.Call(func=ast.Attribute(attr="max" | "min" | "sum" | "mean"), args=args, keywords=keywords):
            kept = ast.keyword("keepdims", ast.Constant(True))
            return [] if any(k.arg == "keepdims" for k in keywords) else [ast.Call(node.func, args, [*keywords, kept])]
    return []


def _as_change(difference):
    """A difference from the right answer as one of the changes that are put into words."""
    parent, field, place, old, new = difference
    block = getattr(parent, field)
    at = old or (block[place - 1] if place else parent)
    within = ast.unparse(parent) if isinstance(parent, ast.expr) else ""
    return Change(getattr(at, "lineno", getattr(parent, "lineno", 0)), old, new, within, "")


def _told(changes, function):
    lines = [line_of(function, number) for number in dict.fromkeys(change.line for change in changes)]
    words = list(dict.fromkeys(map(_in_words, changes)))
    return "\n".join([*lines, f"{', and '.join(words)} the result would be right"])


def _in_words(change):
    """What kind of change it is, and where; not what stands there afterwards, which is for the learner to find."""
    old, new = change.old, change.new
    text = ast.unparse(old) if isinstance(old, ast.expr) else ""
    within = f" in {change.within}" if change.within and text and change.within.count(text) + len(text) < 60 else ""
    match old, new:
        case None, _:
            return "with one more step after this line"
        case ast.stmt(), ast.Pass() | None:
            return "without this line"
        case ast.If(test=test), ast.If(test=ast.Constant() as other) if test is not other:
            return WITHOUT_BRANCH
        case ast.stmt(), _:
            return "with something else in place of this line"
        case ast.operator() | ast.cmpop() | ast.boolop(), _:
            return f"with another operator{f' in {change.within}' if change.within else ''}"
        case ast.Constant(value=int() | float()), _:
            return f"with another number in place of {text}{within}"
        case ast.Name(), ast.Name():
            return f"with another variable in place of {text}{within}"
        case ast.Name(), ast.UnaryOp(op=ast.Invert()):
            return f"with ~ before {text}{within}"
        case ast.Name(), ast.BinOp(right=ast.Constant(value=1)):
            return f"with one more, or one less, than {text}{within}"
        case ast.Call(args=args), ast.Call(args=others) if sorted(map(ast.dump, args)) == sorted(map(ast.dump, others)):
            if [*map(ast.dump, args)] != [*map(ast.dump, others)]:
                return f"with the arguments of {text} in another order"
            kept = {keyword.arg for keyword in new.keywords} - {keyword.arg for keyword in old.keywords}
            which = "an axis kept" if "keepdims" in kept else "one more keyword" if kept else "fewer or other keywords"
            return f"with {which} in {text}"
        case ast.Tuple(elts=elts), ast.Tuple(elts=others) if len(elts) == len(others):
            return f"with {text} in another order"
        case ast.BinOp(left=left, right=right), ast.BinOp(left=other) if other is right and left is not right:
            return f"with the sides of {text} exchanged"
        case ast.BinOp(left=left, right=right), _ if new in (left, right):
            return f"without {ast.unparse(right if new is left else left)} in {text}"
        case ast.expr(), _ if new in ast.walk(old):
            return f"with only a part of {text}"
    if any(ast.dump(old) == ast.dump(node) for node in ast.walk(new)):
        return f"with one more step applied to {text}{within}"
    return f"with something else in place of {text or change.within or 'a part of this line'}"
