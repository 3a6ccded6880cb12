"""`python -m courseware grade`: honest, blank, wrong, endless and crashing answers in one notebook.

What `marking` says of each is asked in test_classroom.py.
"""

import inspect
import json
import subprocess
import sys

import pytest

from courseware.checks import registry
from courseware.classroom import cli, marking
from courseware.worker import sandbox

ANSWERS = {e.id: inspect.getsource(e.answer) for e in registry.of_lesson("05")}


def notebook(tmp_path, sources):
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Lesson"]},
        {"cell_type": "code", "metadata": {}, "source": "raise SystemExit('cells of no exercise are not run')"},
    ]
    for exercise_id, source in sources.items():
        lines = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "metadata": {"exercise": exercise_id}, "source": lines})
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


STUCK = "signal = __import__('signal')\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
STUCK += "def stable_softmax(x):\n    while True:\n        pass\n"
# exercise -> (source, points, is it attempted, words of the message)
MARKED = {
    "00.softmax_scale": ("__import__('os')._exit(7)", 0, True, "ended the process"),
    # What no signal stops is killed, and costs its own marks.
    "03.stable_softmax": (STUCK, 0, True, "the answer did not return within"),
    "05.online_softmax_update": ("def online_softmax_update(*state):\n    raise NotImplementedError\n", 0, False,
                                 "not attempted yet"),
    "05.merge_states": (ANSWERS["05.merge_states"].replace("w_a * l_a + w_b * l_b", "l_a + l_b"), 0, True,
                        "l is not: l_a + l_b adds numbers"),
    "05.online_attention": (ANSWERS["05.online_attention"], 4, True, "passed"),
}  # fmt: skip


def test_honest_blank_wrong_endless_and_crashing(tmp_path):
    path = notebook(tmp_path, {exercise_id: source for exercise_id, (source, *_) in MARKED.items()})
    command = [sys.executable, "-m", "courseware", "grade", str(path), "--json", "--limit", "4"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    possible = sum(exercise.points for number in ("00", "03", "05") for exercise in registry.of_lesson(number))
    assert (report["points"], report["possible"]) == (4, possible)
    rows = {row["id"]: row for row in report["exercises"]}
    for exercise_id, (_, points, attempted, said) in MARKED.items():
        row = rows[exercise_id]
        assert (row["points"], row["passed"], row["attempted"]) == (points, points > 0, attempted), row
        assert said in " ".join(row["message"].split())


def test_an_answer_may_call_an_earlier_one_and_what_it_prints_stays_out_of_the_marks(tmp_path, capfd):
    attention = (
        "print('hello')\n__import__('os').system('echo hello')\n"
        "def online_attention(q, K, V, block):\n    print('hello')\n"
        "    state = np.float64(-np.inf), np.float64(0), np.zeros(V.shape[1])\n"
        "    for i in range(0, len(K), block):\n"
        "        s = K[i:i + block] @ q / len(q) ** 0.5\n"
        "        state = online_softmax_update(*state, s, V[i:i + block])\n"
        "    return state[2] / state[1]\n"
    )
    assert cli.main([str(notebook(tmp_path, ANSWERS | {"05.online_attention": attention}))]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["05.online_normalizer", "2", "of", "2", "passed"]
    assert lines[-1].split() == ["total", "13", "of", "13"] and "hello" not in str(lines)


@pytest.mark.parametrize(
    "source, said",
    [("def online_normalizer(stream:\n", "its cell does not run: SyntaxError"),
     ("1 / 0\n", "its cell does not run: ZeroDivisionError"),
     ("def another(stream):\n    return 0, 0\n", "its cell defines no online_normalizer"),
     ("online_normalizer = 3\n", "online_normalizer is no function")],
)  # fmt: skip
def test_a_cell_that_gives_no_answer_says_why(source, said):
    outcome = marking.outcome_of("05.online_normalizer", [("05.online_normalizer", source)], None, sandbox.works())
    assert said in outcome["message"] and "passed" not in outcome


UNKNOWN = '{"cells": [{"cell_type": "code", "metadata": {"exercise": "05.unknown"}, "source": "pass"}]}'


@pytest.mark.parametrize(
    "content, said",
    [(None, "No such file"), ("", "not a Jupyter notebook"),
     *((text, "no cell of it") for text in (UNKNOWN, "{}", "[1]", '{"cells": []}', '{"cells": [{"source": ""}]}'))],
)  # fmt: skip
def test_what_is_no_notebook_with_exercises_is_refused(content, said, tmp_path, capsys):
    path = tmp_path / "lesson.ipynb"
    if content is not None:
        path.write_text(content)
    assert cli.main([str(path)]) == 2
    assert f"{path}: {said}" in capsys.readouterr().err
