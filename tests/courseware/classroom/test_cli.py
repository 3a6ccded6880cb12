"""`python -m courseware grade`: honest, blank, wrong, endless and crashing answers in one notebook."""

import inspect
import json
import subprocess
import sys

import pytest

from courseware.checks import registry
from courseware.classroom import cli

ANSWERS = {e.id: inspect.getsource(e.answer) for e in registry.of_lesson("05")}
ENDLESS = "def online_normalizer(stream):\n    while True:\n        pass\n"


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


def marks(path, **limit):
    return {row["id"]: row for row in cli.grade_notebook(path, **limit)["exercises"]}


def test_honest_blank_wrong_endless_and_crashing(tmp_path):
    path = notebook(
        tmp_path,
        {
            "00.softmax_scale": "__import__('os')._exit(7)",
            "05.online_normalizer": ENDLESS,
            "05.online_softmax_update": "def online_softmax_update(*state):\n    raise NotImplementedError\n",
            "05.merge_states": ANSWERS["05.merge_states"].replace("w_a * l_a + w_b * l_b", "l_a + l_b"),
            "05.online_attention": ANSWERS["05.online_attention"],
        },
    )
    command = [sys.executable, "-m", "courseware", "grade", str(path), "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    rows = {row["id"]: row for row in report["exercises"]}
    assert (report["points"], report["possible"]) == (4, 14)
    assert {i: (row["points"], row["passed"], row["attempted"]) for i, row in rows.items()} == {
        "00.softmax_scale": (0, False, True),
        "05.online_normalizer": (0, False, True),
        "05.online_softmax_update": (0, False, False),
        "05.merge_states": (0, False, True),
        "05.online_attention": (4, True, True),
    }
    assert "ended the process" in rows["00.softmax_scale"]["message"]
    assert "did not return within 2 s" in rows["05.online_normalizer"]["message"]
    assert "not attempted yet" in rows["05.online_softmax_update"]["message"]
    assert "l is not: l_a + l_b adds numbers" in " ".join(rows["05.merge_states"]["message"].split())


def test_what_signals_cannot_stop_is_killed_and_costs_its_own_marks(tmp_path):
    stuck = "signal = __import__('signal')\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
    answers = {
        "05.online_normalizer": stuck + ENDLESS,
        "05.online_softmax_update": "while True:\n    pass\n",
        "05.merge_states": ANSWERS["05.merge_states"],
    }
    rows = marks(notebook(tmp_path, answers), limit_s=9)
    assert "did not return within 9 s" in rows["05.online_normalizer"]["message"]
    assert "the answer did not return within" in rows["05.online_softmax_update"]["message"]
    assert rows["05.merge_states"]["points"] == 3


def test_an_answer_may_call_an_earlier_one_and_what_it_prints_stays_out_of_the_marks(tmp_path, capfd):
    attention = (
        "print('hello')\n__import__('os').system('echo hello')\n"
        "def online_attention(q, K, V, block):\n"
        "    print('hello')\n"
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
def test_a_cell_that_gives_no_answer_says_why(source, said, tmp_path):
    row = marks(notebook(tmp_path, {"05.online_normalizer": source}))["05.online_normalizer"]
    assert said in row["message"] and row["points"] == 0


@pytest.mark.parametrize("content", [None, "", "{}", '{"cells": []}', '{"cells": [{"cell_type": "code"}]}', "[1]"])
def test_what_is_no_notebook_with_exercises_is_refused(content, tmp_path, capsys):
    path = tmp_path / "lesson.ipynb"
    if content is not None:
        path.write_text(content)
    assert cli.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_an_unknown_exercise_is_refused(tmp_path, capsys):
    assert cli.main([str(notebook(tmp_path, {"05.unknown": "pass"}))]) == 2
    assert "there is no exercise 05.unknown" in capsys.readouterr().err
