"""Changes every answer in small ways and shows that its check refuses each change: `python -m tools.mutants`.

A mutant that a check accepts is a hole in the check, unless it is equivalent to the answer: such mutants are listed in
tests/courseware/exercises/equivalent_mutants.toml, each with the reason.
"""

import argparse
import ast
import functools
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
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib import runtime
from courseware import checks
from courseware.bench import records
from courseware.checks import registry
from courseware.checks.calling import GuardedAnswer, attempt
from courseware.checks.kernel_calls import given_names, plain
from courseware.checks.mutation_operators import OTHERS, changed
from courseware.checks.properties import drawn
from courseware.editing import run_source

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests/courseware/exercises/equivalent_mutants.toml"
RECORD = ROOT / "courseware/data/mutants.json"
# Exercises whose answers are inputs: one that a mutant makes is as right as ours if it shows what it should.
INPUTS = {"08.find_failing_input"}
LIMIT_S = 600.0  # of one mutant, by the clock: the check has limits of its own, which code stuck in C escapes


class Mutant(NamedTuple):
    """line, becomes: what was changed, of the answer as ast.unparse writes it, or of CUDA C++. source: all of it."""

    line: str
    becomes: str
    source: str


def mutants(answer) -> list[Mutant]:
    """All of an answer's mutants, one for each text that comes out."""
    source = textwrap.dedent(inspect.getsource(answer))
    if "__global__" in source:
        right, texts = source, _changed_cuda(source)
    else:
        tree = ast.parse(source)
        del tree.body[0].body[0]  # the docstring
        right = ast.unparse(tree)
        texts = (change.source for change in changed(tree))
    return [_named(right, text) for text in dict.fromkeys(texts) if text != right]


def _named(right, text):
    lines = zip(right.splitlines(), text.splitlines(), strict=True)
    return Mutant(*next((old.strip(), new.strip()) for old, new in lines if old != new), text)


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


def guarded(exercise, source) -> GuardedAnswer:
    """The answer that this source defines."""
    namespace = {"np": np} | (given_names() if "triton" in exercise.imports else {})
    # Of two kernels that share a file name, Triton would run the second in place of the first.
    run_source(source, f"<mutant {zlib.crc32(source.encode()):08x}>", namespace)
    return GuardedAnswer(plain(namespace[exercise.answer.__name__]))


def accepted(exercise_id, source) -> bool:
    """Whether the exercise's check accepts this source as an answer."""
    exercise = registry.find(exercise_id)
    # As `grade`, but without looking for the smallest input that shows a failure.
    answer = guarded(exercise, source)
    for prop in exercise.properties:
        inputs = itertools.chain(prop.cases, drawn(prop, 0) if prop.draw is not None else ())
        if any(attempt(prop, answer, given) is not None for given in inputs):
            return False
    return True


@functools.cache
def equivalents() -> dict[str, list[str]]:
    """{exercise id: the edits of equivalent_mutants.toml}."""
    edits = defaultdict(list)
    for of_a_reason in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).values():
        for names, its in of_a_reason.items():
            for name in names.split():
                edits[name] += its
    return dict(edits)


def is_made_by(edit: str, mutant: Mutant) -> bool:
    """Whether an edit of equivalent_mutants.toml, whose head says how they are written, makes this mutant."""
    old, arrow, new = edit.partition(" => ")
    if not arrow:
        return old in mutant.line and old in mutant.becomes
    first, *others = new.split("...")
    for found in re.finditer(re.escape(old).replace(re.escape("..."), "(.*)"), mutant.line):
        put = first + "".join(same + text for same, text in zip(found.groups(), others, strict=True))
        if mutant.line[: found.start()] + put + mutant.line[found.end() :] == mutant.becomes:
            return True
    return False


def is_equivalent(exercise_id: str, mutant: Mutant) -> bool:
    """Whether equivalent_mutants.toml lists this mutant."""
    return any(is_made_by(edit, mutant) for edit in equivalents().get(exercise_id, ()))


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
    origin = {"date": records.today(), "commit": records.head()}
    exercises = {**record["exercises"], name: counts | origin}
    in_order = {name: exercises[name] for name in checks.exercises() if name in exercises}
    records.write(RECORD, {"command": "make mutants", "exercises": in_order})


def main():
    parser = argparse.ArgumentParser("python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="exercises or lessons (05.merge_states 06); without, all")
    only = set(parser.parse_args().only)
    known = {each for name in checks.exercises() for each in (name, name[:2])}
    if unknown := sorted(only - known):
        parser.error(f"there is no exercise or lesson {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    runtime.choose()
    names = [name for name in checks.exercises() if (not only or {name, name[:2]} & only) and name not in INPUTS]
    made = {name: mutants(registry.find(name).answer) for name in names}
    total, holes = Counter(), 0
    for name, found in survivors(made):
        listed = {mutant[:2] for mutant in made[name] if is_equivalent(name, mutant)}
        equivalent = {mutant[:2] for mutant in found} & listed
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
