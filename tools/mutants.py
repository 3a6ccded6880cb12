"""Changes every answer in small ways and shows that its check refuses each change: `python -m tools.mutants`.

A mutant that a check accepts is a hole in the check, unless it is equivalent to the answer: such mutants are listed in
tests/exercises/equivalent_mutants.toml, each with the reason.
"""

import argparse
import ast
import copy
import datetime
import inspect
import itertools
import json
import multiprocessing
import re
import sys
import textwrap
import threading
import tomllib
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib import grading, runtime
from course_lib.editing import run_source
from course_lib.grading import checking, registry
from course_lib.grading.calling import GuardedAnswer, attempt
from course_lib.grading.kernel_calls import given_names, plain
from course_lib.measure import records

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests/exercises/equivalent_mutants.toml"
RECORD = ROOT / "course_lib/data/mutants.json"
# Exercises whose answers are inputs: one that a mutant makes is as right as ours if it shows what it should.
INPUTS = {"08.find_failing_input"}
LIMIT_S = 600.0  # of one mutant, by the clock: the check has limits of its own, which code stuck in C escapes

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
CASTS = {"astype", "to"}


class Mutant(NamedTuple):
    """line, becomes: what was changed, of the answer as ast.unparse writes it, or of CUDA C++. source: all of it."""

    line: str
    becomes: str
    source: str


def mutants(answer) -> list[Mutant]:
    """All of an answer's mutants, one for each text that comes out."""
    source = textwrap.dedent(inspect.getsource(answer))
    if "__global__" in source:
        right, changed = source, _changed_cuda(source)
    else:
        tree = ast.parse(source)
        right, changed = ast.unparse(_without_docstring(tree)), _changed(tree)
    return [_named(right, text) for text in dict.fromkeys(changed) if text != right]


def _without_docstring(tree):
    del tree.body[0].body[0]
    return tree


def _named(right, text):
    lines = zip(right.splitlines(), text.splitlines(), strict=True)
    return Mutant(*next((old.strip(), new.strip()) for old, new in lines if old != new), text)


def _changed(tree):
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)] + names
    messages = {part for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)}
    for parent in [node for node in ast.walk(tree) if node not in messages]:
        for field, value in ast.iter_fields(parent):
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                for new in _changes(child, names) if isinstance(child, ast.AST) else ():
                    if place is None:
                        setattr(parent, field, new)
                    else:
                        value[place] = new
                    yield ast.unparse(tree)
                if place is None:
                    setattr(parent, field, child)
                else:
                    value[place] = child


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

    def plus(value, by):
        return ast.BinOp(value, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))

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
            return [*new, func.value] if name in CASTS else new
        case ast.Attribute(attr=attr, value=value):
            return [value] * (attr == "T") + ([but(attr=OTHERS[attr])] if attr in OTHERS else [])
        case ast.Slice(lower=lower, upper=upper):
            new = [but(lower=None), but(upper=None)]
            return new + [but(lower=plus(lower, 1))] * bool(lower) + [but(upper=plus(upper, -1))] * bool(upper)
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


# What stands in CUDA C++ -> what could stand there by mistake, with the groups of the match.
CUDA_CHANGES = {
    " < ": [" <= ", " >= "], " > ": [" >= ", " <= "], " <= ": [" < "], " >= ": [" > "], " == ": [" != "],
    " && ": [" || "], r" \|\| ": [" && "], r" \+= ": [" = ", " -= "], " /= ": [" -= "],
    r" \+ ": [" - "], " - ": [" + "], r" \* ": [" / ", " + "], " / ": [" * "], "-infinity": ["infinity", "-1e6f"],
    r"\b0\.0f": ["1.0f"], r"\b1\.0f": ["2.0f"], r"\(long long\)": [""], r"\bif \([^()]*\) ": [""],
    r"(?<!max)\((\w+), ([\w .]+)\)": [r"(\2, \1)"], r"= ([^=?;]+) \? ([^?:]+) : ([^?:;]+);": [r"= \2;", r"= \3;"],
    r"(?m)^( +)(?! |const|float|int|for|__shared__)[^\n]*;(?=$|  //)": [r"\1;"],
    rf"\b({'|'.join(OTHERS)})\b": [lambda match: OTHERS[match[0]]],
    r"\b(?<!\.)\d+\b(?!\.)": [lambda match: str(int(match[0]) + 1), lambda match: str(int(match[0]) - 1)],
}  # fmt: skip


def _changed_cuda(source):
    before, code, after = re.fullmatch(r'(.*r"""[^{]*)(.*)(""".*)', source, re.DOTALL).groups()
    comments = [range(*match.span()) for match in re.finditer("//.*", code)]
    for pattern, replacements in CUDA_CHANGES.items():
        for match in re.finditer(pattern, code):
            for new in replacements:
                new = new(match) if callable(new) else match.expand(new)
                if not any(match.start() in comment for comment in comments):
                    yield before + code[: match.start()] + new + code[match.end() :] + after


def accepted(exercise_id, source) -> bool:
    """Whether the exercise's check accepts this source as an answer."""
    exercise = registry.find(exercise_id)
    namespace = {"np": np} | (given_names() if "triton" in exercise.imports else {})
    # Of two kernels that share a file name, Triton would run the second in place of the first.
    run_source(source, f"<mutant {zlib.crc32(source.encode()):08x}>", namespace)
    answer = plain(namespace[exercise.answer.__name__])
    # As `grade`, but without looking for the smallest input that shows a failure.
    guarded = GuardedAnswer(answer)
    for prop in exercise.properties:
        inputs = itertools.chain(prop.cases, checking.drawn(prop, 0) if prop.draw is not None else ())
        if any(attempt(prop, guarded, given) is not None for given in inputs):
            return False
    return True


def equivalents() -> dict[str, list[dict]]:
    """{exercise id: entries of equivalent_mutants.toml}: "line", "becomes" (a list) and "because"."""
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))


def entry_of(mutant: Mutant, entries: list[dict]) -> dict | None:
    """The entry that names this mutant."""
    return next((e for e in entries if e["line"] == mutant.line and mutant.becomes in e["becomes"]), None)


def survivors(made: dict[str, list[Mutant]]):
    """Of {exercise id: mutants}, one exercise after the other: (id, those that the check accepts)."""
    worker = threading.local()

    def start():
        worker.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), runtime.choose)

    def judged(exercise_id, mutant):
        try:
            return worker.pool.submit(accepted, exercise_id, mutant.source).result(LIMIT_S)
        except (TimeoutError, BrokenProcessPool):  # it hangs in C, or took its process down: refused
            for process in list(worker.pool._processes.values()):
                process.kill()
            start()
            return False

    with ThreadPoolExecutor(2, initializer=start) as threads:
        verdicts = threads.map(judged, *zip(*((name, mutant) for name in made for mutant in made[name]), strict=True))
        for name, its in made.items():
            yield name, [mutant for mutant, held in zip(its, itertools.islice(verdicts, len(its)), strict=True) if held]


def recorded(name: str, counts: dict) -> None:
    """Put the counts of one exercise into the record."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"exercises": {}}
    origin = {"date": datetime.date.today().isoformat(), "commit": records.head()}
    exercises = {**record["exercises"], name: counts | origin}
    in_order = {name: exercises[name] for name in grading.exercises() if name in exercises}
    RECORD.write_text(json.dumps({"command": "make mutants", "exercises": in_order}, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser("python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="exercises or lessons (05.merge_states 06); without, all")
    only = set(parser.parse_args().only)
    runtime.choose()
    names = [name for name in grading.exercises() if (not only or {name, name[:2]} & only) and name not in INPUTS]
    made = {name: mutants(registry.find(name).answer) for name in names}
    total, holes = Counter(), 0
    for name, found in survivors(made):
        entries = equivalents().get(name, [])
        equivalent = {mutant[:2] for mutant in found if entry_of(mutant, entries)}
        listed = {(entry["line"], becomes) for entry in entries for becomes in entry["becomes"]}
        numbers = len(made[name]), len(made[name]) - len(found), sum(mutant[:2] in equivalent for mutant in found)
        counts = dict(zip(("made", "refused", "equivalent"), numbers, strict=True))
        recorded(name, counts)
        total.update(counts)
        print(f"{name:<28} {records.in_words(counts)}", flush=True)
        for what, pairs in (("accepted", {m[:2] for m in found}), ("listed as equivalent, but refused", listed)):
            for line, becomes in sorted(pairs - equivalent):
                print(f"  {what}:\n    {line}\n    {becomes}", flush=True)
                holes += 1
    print(f"{'all':<28} {records.in_words(dict(total))}")
    return bool(holes)


if __name__ == "__main__":
    sys.exit(main())
