"""Changes a function's source in one place, as a mistake or its repair would.

`tools/mutants.py` changes our answers, which the checks must then refuse; `repair` changes a learner's.
"""

import ast
import copy
import re
from collections.abc import Iterator
from typing import NamedTuple

OPERATORS = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.And: [ast.Or], ast.Or: [ast.And], ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div],
    ast.Div: [ast.Mult], ast.FloorDiv: [ast.Div], ast.Mod: [ast.FloorDiv], ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd],
}  # fmt: skip
# Of functions and constants, in Python and in CUDA C++: the other one.
OTHERS = {
    "max": "min", "maximum": "minimum", "exp": "exp2", "log": "log2", "any": "all", "zeros": "ones",
    "float32": "float16", "HEAD_DIM": "BLOCK_D",
    "fmaxf": "fminf", "expf": "exp2f", "__shfl_xor_sync": "__shfl_down_sync", "lane": "warp", "x": "y",
    "k_tile": "v_tile", "K": "V", "M": "N", "m": "m_new", "l": "m", "alpha": "p",
}  # fmt: skip
OTHERS = {new: old for old, new in OTHERS.items()} | OTHERS
# Calls in whose place one of their arguments could stand.
WRAPPING = set("abs exp exp2 float float32 float64 int log2 max maximum min minimum sqrt trans where".split())


class Change(NamedTuple):
    """new: what stands in place of old. within: the expression around it, as it was. source: the whole function."""

    line: int
    old: ast.AST
    new: ast.AST
    within: str
    source: str


def changed(tree: ast.AST, more=lambda node, names: [], is_wanted=lambda line, new: True) -> Iterator[Change]:
    """Every change of one place in a function. more(node, names): further nodes that could stand there.

    is_wanted(line, new): whether that change is made at all: to write each down takes most of the time.
    """
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)] + names
    messages = {part for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)}
    for parent in [node for node in ast.walk(tree) if node not in messages]:
        for field, value in ast.iter_fields(parent):
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                line = getattr(child, "lineno", getattr(parent, "lineno", 0))
                others = [*_changes(child, names), *more(child, names)] if isinstance(child, ast.AST) else []
                wanted = [new for new in others if is_wanted(line, new)]
                within = ast.unparse(parent) if wanted and isinstance(parent, ast.expr) else ""
                for new in [*wanted, child] if wanted else ():
                    if place is None:
                        setattr(parent, field, new)
                    else:
                        value[place] = new
                    if new is not child:
                        yield Change(line, child, new, within, ast.unparse(tree))


def _changes(node, names):
    """Nodes that could stand in this one's place by mistake. names: the function's variables, as often as assigned."""

    def but(**fields):
        other = copy.copy(node)
        vars(other).update(fields)
        return other

    def without(field):
        values = getattr(node, field)
        return [but(**{field: values[:i] + values[i + 1 :]}) for i in range(len(values))]

    def exchanged(field):
        values = getattr(node, field)
        return [but(**{field: values[:i] + values[i : i + 2][::-1] + values[i + 2 :]}) for i in range(len(values) - 1)]

    match node:
        case ast.cmpop() | ast.operator() | ast.boolop():
            return [new() for new in OPERATORS.get(type(node), [])]
        case ast.BinOp(left=left, op=op, right=right):
            if isinstance(op, ast.MatMult):
                return [but(left=right, right=left)]
            commutes = isinstance(op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr)
            rounded_up = ast.UnaryOp(ast.USub(), but(left=ast.UnaryOp(ast.USub(), left)))
            new = [left, right] if commutes else [left, right, but(left=right, right=left)]
            return [*new, rounded_up] if isinstance(op, ast.FloorDiv) else new
        case ast.UnaryOp(operand=ast.BinOp(left=ast.UnaryOp(operand=left), op=ast.FloorDiv()) as quotient):
            return [ast.BinOp(left, quotient.op, quotient.right)]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.BoolOp():
            return node.values
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.If():
            return [but(test=ast.Constant(True)), but(test=ast.Constant(False))]
        case ast.comprehension():
            return without("ifs")
        case ast.Constant(value=bool(value)):
            return [ast.Constant(not value)]
        case ast.Constant(value=int(value)):
            return [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.Constant(value=float(value)):
            return [ast.Constant(new) for new in (float(f"{value:.4g}"), 1.0 - value)]
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant("-inf")]):
            return [ast.Constant(-1e6), ast.Constant(0.0)]
        case ast.Attribute(attr="inf"):
            return [ast.Constant(1e6), ast.Constant(0.0)]
        case ast.Call(func=func, args=args):
            name = getattr(func, "attr", getattr(func, "id", ""))
            new = without("keywords") + (args if name in WRAPPING else [])
            if not re.match("max|min", name):
                new += exchanged("args")
            if name == "range":  # all but the last, all but the first
                start, stop, step = args if len(args) == 3 else (ast.Constant(0), args[-1], ast.Constant(1))
                shorter = start, ast.BinOp(stop, ast.Sub(), step), step
                new += [but(args=list(shorter)), but(args=[ast.BinOp(start, ast.Add(), step), stop, step])]
            return [*new, func.value] if name in ("astype", "to") else new
        case ast.Attribute(attr=attr, value=value):
            return [value] * (attr == "T") + ([but(attr=OTHERS[attr])] if attr in OTHERS else [])
        case ast.Slice(lower=lower, upper=upper):
            more = [but(lower=ast.BinOp(lower, ast.Add(), ast.Constant(1)))] if lower else []
            less = [but(upper=ast.BinOp(upper, ast.Sub(), ast.Constant(1)))] if upper else []
            return [but(lower=None), but(upper=None), *more, *less]
        case ast.Tuple():
            return exchanged("elts")
        case ast.Name(id=name, ctx=ast.Load()):
            others = [OTHERS[name]] if name in OTHERS and name not in names else []
            return [but(id=other) for other in dict.fromkeys(others + _alike(name, names))]
        case ast.AugAssign(target=target, value=value):
            return [ast.Pass(), ast.Assign([target], value, lineno=0)]
        case ast.Assign(targets=[ast.Name(id=name)]) if names.count(name) < 2:
            return []
        case ast.Assign(targets=[ast.Name() | ast.Subscript()]) | ast.Expr() | ast.Delete():
            return [ast.Pass()]
        case ast.Continue() | ast.Break() | ast.Raise():
            return [ast.Pass()]
    return []


def _alike(name, names):
    """The next name of the same kind: with the same first part, with the same last part, of a single letter."""
    new = []
    for part in (0, -1) if name in names else ():
        alike = [n for n in names if n.split("_")[part] == name.split("_")[part] or len(n) == len(name) == 1]
        kind = list(dict.fromkeys(alike))
        new.append(kind[(kind.index(name) + 1) % len(kind)])
    return [n for n in new if n != name]
