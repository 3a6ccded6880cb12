"""What a learner sees of check, hint, solution, progress and quiz."""

import html
import json
import re
import time

import pytest

from courseware import checks
from courseware.checks import learner, registry
from tests.courseware.checks.cells import function_of

RIGHT = registry.find("00.softmax_scale").answer


def stub(head_dim):
    """A stub."""
    raise NotImplementedError


def wrong(head_dim):
    print("head_dim is", head_dim)
    return 1 / head_dim


@pytest.fixture(autouse=True)
def progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.delenv("COURSEWARE_STRICT", raising=False)
    monkeypatch.setattr(learner, "_hints_given", {})
    return tmp_path / "progress.json"


def test_a_stub_gets_one_quiet_line(capsys, progress_file):
    assert checks.check("00.softmax_scale", stub) is None
    said = capsys.readouterr().out
    assert said == "00.softmax_scale: not attempted yet (1 point, about 2 minutes, easy)\n"
    assert not progress_file.exists()


def test_a_right_answer(capsys, progress_file):
    checks.check("00.softmax_scale", RIGHT)
    assert capsys.readouterr().out.splitlines() == [
        "00.softmax_scale: passed, 1 of 1 point",
        "  holds: head_dim = 1 gives 1",
        "  holds: any head_dim gives 1 / sqrt(head_dim)",
    ]
    kept = json.loads(progress_file.read_text())
    assert kept["exercises"] == {"00.softmax_scale": "passed"}
    assert kept["answers"]["00.softmax_scale"].startswith("def softmax_scale(head_dim):")  # not all of its file


def test_a_wrong_answer(capsys, progress_file):
    checks.check("00.softmax_scale", wrong)
    assert capsys.readouterr().out.splitlines() == [
        "00.softmax_scale: not passed yet",
        "diagnosis The result is 1 / head_dim.",
        "          the scale is too small by the factor 0.7071",
        "  fails the test: any head_dim gives 1 / sqrt(head_dim). The smallest input found:",
        "    softmax_scale(2)",
        "returned  0.5",
        "expected  0.707107",
        "Hint: Which function of head_dim gives 0.5 for head_dim = 4?",
        "",
        "Your answer printed:",
        "    head_dim is 2",
    ]
    assert json.loads(progress_file.read_text()) == {"exercises": {"00.softmax_scale": "attempted"}}


@pytest.mark.parametrize(
    "exercise_id, answer, said",
    [
        ("00.softmax_scal", RIGHT, "There is no exercise '00.softmax_scal'; did you mean 00.softmax_scale"),
        (None, RIGHT, "There is no exercise None"),
        ("00.softmax_scale", 0.5, "pass the function itself, check('00.softmax_scale', softmax_scale)"),
        ("00.softmax_scale", None, "What came is None"),
        ("00.softmax_scale", lambda: 1, "takes 0 positional arguments but 1 was given"),
    ],
)
def test_a_check_that_cannot_work_says_so_and_does_not_raise(exercise_id, answer, said, capsys):
    checks.check(exercise_id, answer)
    assert said in capsys.readouterr().out


def test_what_does_not_exist_is_said(capsys):
    for tell in (checks.hint, checks.solution, checks.restore):
        tell("00.none")
        assert "There is no exercise" in capsys.readouterr().out
    checks.quiz("99")
    assert "There is no lesson '99'" in capsys.readouterr().out


@pytest.mark.parametrize("strict", [{"strict": True}, {}])
def test_strict_raises_with_the_same_text(strict, monkeypatch, capsys):
    monkeypatch.setenv("COURSEWARE_STRICT", "0" if strict else "1")
    checks.check("00.softmax_scale", RIGHT, **strict)
    assert "passed" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="fails the test: any head_dim gives"):
        checks.check("00.softmax_scale", wrong, **strict)
    with pytest.raises(AssertionError, match="not attempted yet"):
        checks.check("00.softmax_scale", stub, **strict)
    with pytest.raises(AssertionError, match="there is no exercise"):
        checks.check("00.none", RIGHT, **strict)


def test_where_progress_is_kept_is_said_if_it_cannot_be_written_and_in_colab(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("courseware.widgets.progress_file.COLAB", tmp_path)
    checks.progress()
    assert capsys.readouterr().out.endswith(f"This is kept in {tmp_path / 'progress.json'}.\n")
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "missing" / "progress.json"))
    checks.check("00.softmax_scale", RIGHT)
    said = capsys.readouterr().out
    assert "progress could not be saved" in said and "passed, 1 of 1" in said


def test_hints_come_one_more_at_a_time(capsys):
    texts = registry.find("00.softmax_scale").prose.hints
    for level in (1, 2, 3, 3):
        checks.hint("00.softmax_scale")
        said = capsys.readouterr().out
        assert said.startswith(f"00.softmax_scale, hint {level} of 3: ")
        assert texts[level - 1].split()[-1] in said
    checks.hint("00.softmax_scale", level=1)
    assert "hint 1 of 3" in capsys.readouterr().out
    checks.hint("00.softmax_scale", level=4)
    assert "hints of level 1 to 3" in capsys.readouterr().out


def test_the_solution_is_the_answer_and_the_reasoning(capsys):
    checks.solution("05.merge_states")
    said = capsys.readouterr().out
    assert "def merge_states(a, b):" in said and "w_a * l_a + w_b * l_b" in said
    assert "Addition is associative" in said


def test_progress_is_drawn_per_lesson(capsys):
    checks.check("00.softmax_scale", RIGHT)
    checks.check("05.online_normalizer", lambda stream: 0)
    capsys.readouterr()
    checks.progress()
    lines = capsys.readouterr().out.splitlines()
    in_words = {" ".join(line.split()) for line in lines}  # how wide the columns are depends on the longest title
    assert {"00 Start here █ 1 of 1", "05 Online softmax ░░░░ 0 of 4", "00.softmax_scale passed"} <= in_words
    assert "05.online_normalizer tried, not passed yet" in in_words
    possible = sum(registry.find(exercise_id).points for exercise_id in checks.exercises())
    assert lines[-1] == f"1 of {possible} points"


def test_a_quiz_is_text_outside_a_notebook_and_in_one_unfolds_without_a_script(monkeypatch, capsys):
    checks.quiz("05")
    said = capsys.readouterr().out
    questions = registry.quiz("05")
    options = [option for question in questions for option in question["answers"]]
    assert all(question["question"] in said for question in questions)
    assert all(option["feedback"] in said for option in options)
    notebook = Notebook(monkeypatch)
    checks.quiz("05")
    content = notebook.shown[0]["text/html"]
    assert content.count("<details>") == len(options) and "<script" not in content
    assert content.count("class='right'") == sum(option["correct"] for option in options) > 0


class Notebook:
    """Stands in for IPython: takes what would be displayed, and what is then displayed in its place."""

    def __init__(self, monkeypatch):
        import IPython
        import IPython.display

        self.shown, self.updates = [], []
        monkeypatch.setattr(IPython, "get_ipython", lambda: self)
        monkeypatch.setattr(IPython.display, "display", self.display)

    def display(self, shown, raw=False, display_id=False):
        self.shown.append(shown)
        return self

    def update(self, shown, raw=False):
        self.updates.append(shown)


def test_of_a_check_that_takes_long_it_is_said_as_long_as_it_lasts(monkeypatch):
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(learner, "PATIENCE_S", 0.01)

    def slow(head_dim):
        deadline_s = time.monotonic() + 1
        while not notebook.shown and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return RIGHT(head_dim)

    checks.check("00.softmax_scale", slow)
    said, result = (shown["text/plain"] for shown in notebook.shown)
    assert said == "00.softmax_scale: still looking" and result.startswith("00.softmax_scale: passed")
    assert notebook.updates == [{"text/plain": "", "text/html": ""}]


def test_in_a_notebook_text_and_html_say_the_same(monkeypatch):
    notebook = Notebook(monkeypatch)
    checks.check("00.softmax_scale", wrong)
    (shown,) = notebook.shown
    assert shown["text/plain"].startswith("00.softmax_scale: not passed yet")
    assert '<div class="course failed">' in shown["text/html"] and "any head_dim gives" in shown["text/html"]
    notebook.shown.clear()
    checks.check("05.merge_states", lambda a, b: a["<x>"])
    assert "<x>" not in notebook.shown[0]["text/html"]


def test_the_card_says_what_the_text_says(monkeypatch):
    notebook = Notebook(monkeypatch)
    for answer in (stub, wrong, RIGHT):
        checks.check("00.softmax_scale", answer)
        shown = notebook.shown.pop()
        words = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", shown["text/html"]))
        said = set(re.findall(r"[\w.]+", shown["text/plain"])) - {"diagnosis", "holds", "fails"}
        assert {word for word in said if word not in words} == set()


def test_the_card_s_buttons_give_hints_one_by_one_and_the_solution():
    exercise = registry.find("00.softmax_scale")
    card, row, said = learner._with_buttons(exercise, checks.grade("00.softmax_scale", wrong)).children
    assert "not passed yet" in card.value
    next_hint, solution = row.children
    for level in (1, 2, 3, 3):
        next_hint.click()
        assert f"hint {level} of 3" in said.value
    solution.click()
    assert "def softmax_scale(head_dim):" in said.value


CELL = """import math

def helper(x):
    return 1 / math.sqrt(x)

def softmax_scale(head_dim):
    return helper(head_dim)
"""


def test_an_answer_that_passed_comes_back_into_its_cell(monkeypatch, capsys, progress_file):
    checks.check("00.softmax_scale", function_of(CELL))
    checks.check("00.softmax_scale", wrong)
    assert json.loads(progress_file.read_text())["answers"] == {"00.softmax_scale": CELL}
    capsys.readouterr()
    checks.restore("00.softmax_scale")
    assert CELL.rstrip() in capsys.readouterr().out

    notebook = Notebook(monkeypatch)
    put = []
    notebook.set_next_input = lambda source, replace: put.append((source, replace))
    checks.restore("00.softmax_scale")
    assert put == [(CELL.rstrip(), True)] and "def helper(x):" in notebook.shown[0]["text/plain"]


def test_what_passed_before_a_stub_is_said(capsys, progress_file):
    checks.check("00.softmax_scale", RIGHT)
    capsys.readouterr()
    checks.check("00.softmax_scale", stub)
    said = capsys.readouterr().out
    assert "passed before" in said and 'restore("00.softmax_scale")' in said
    progress_file.write_text('{"exercises": {"00.softmax_scale": "passed"}}')  # from before answers were kept
    checks.check("00.softmax_scale", stub)
    assert "It was not kept" in capsys.readouterr().out
    checks.restore("00.softmax_scale")
    assert "no answer of 00.softmax_scale that passed is kept" in capsys.readouterr().out
