"""Takes each misconception out of the list and grades its variants without it: `python -m tools.ablation`.

A misconception earns its place if the message is worse without it, or if it explains an idea of a lesson, which its
heading says (`#### Idea: ...`). Printed are those for which the message is as good, because it names a line that the
mistake changes, and those that are taken for another misconception.
"""

import argparse
import difflib
import inspect
import multiprocessing
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

from course_lib import runtime
from courseware import checks
from courseware.checks import misconceptions, registry
from courseware.editing import with_nodes_replaced


def graded_without(exercise_id: str, name: str) -> tuple[str, str]:
    """(what becomes of the messages if the misconception is not listed, one of them): "another", if one variant is
    taken for another misconception; "worse", if the message of one does not name a line that it changes; or "as good".
    """
    exercise, message = registry.find(exercise_id), ""
    listed = misconceptions.variants(exercise)
    others = {key: value for key, value in listed.items() if key[0].name != name}
    right = with_nodes_replaced(exercise.answer, [], "right")
    for answer in [guarded.answer for (its, _), guarded in listed.items() if its.name == name]:
        with mock.patch.object(misconceptions, "variants", lambda _: others):
            result = checks.grade(exercise_id, answer)
        if result.misconception:
            return "another", result.message
        message = message or result.message
        diagnosis = result.message.partition("  fails the test:")[0]
        named = set(map(int, re.findall(r"\bline (\d+)", diagnosis)))
        if not named & changed_lines(getattr(right, "fn", right), answer):
            return "worse", result.message
    return "as good", message


def changed_lines(right, wrong) -> set[int]:
    """Numbers of the lines of the function `wrong` that are not those of `right`, or that follow a missing one."""
    texts = (inspect.getsource(function).splitlines() for function in (right, wrong))
    changes = difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes()
    return {line + 1 for tag, _, _, j1, j2 in changes if tag != "equal" for line in range(j1, max(j2, j1 + 1))}


def main():
    parser = argparse.ArgumentParser("python -m tools.ablation", description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="exercises or lessons (05.merge_states 06); without, all")
    only = set(parser.parse_args().only)
    runtime.choose()
    names = [name for name in checks.exercises() if not only or {name, name[:2]} & only]
    tried = [
        (name, misconception.name, misconception.is_idea)
        for name in names
        for misconception in registry.find(name).misconceptions
    ]
    totals = Counter()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), runtime.choose) as pool:
        outcomes = pool.map(graded_without, *zip(*(each[:2] for each in tried), strict=True))
        for (name, misconception, is_idea), (became, message) in zip(tried, outcomes, strict=True):
            became = "an idea" if is_idea and became == "as good" else became
            totals[became] += 1
            if became in ("as good", "another"):
                print(f"{became}: {name}, {misconception}\n{message}\n", flush=True)
    print(", ".join(f"{became}: {count}" for became, count in totals.items()))
    return bool(totals["as good"] + totals["another"])


if __name__ == "__main__":
    sys.exit(main())
