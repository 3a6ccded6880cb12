"""What a learner sees of check, hint, solution, progress and quiz."""

import html
import json
import re
import time

import IPython
import IPython.display
import pytest

from courseware import checks
from courseware.checks import learner, registry
from tests.courseware.checks.cells import function_of

RIGHT = registry.find("00.softmax_scale").answer


def stub(head_dim):
    raise NotImplementedError


wrong = function_of('def wrong(head_dim):\n    print("head_dim is", head_dim)\n    return 1 / head_dim\n')


@pytest.fixture(autouse=True)
def progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.delenv("COURSEWARE_STRICT", raising=False)
    monkeypatch.setattr(learner, "_hints_given", {})
    return tmp_path / "progress.json"


@pytest.fixture
def said(capsys):
    def of(call, *arguments, **named):
        """What the call prints."""
        assert call(*arguments, **named) is None
        return capsys.readouterr().out

    return of


def test_a_stub_gets_one_quiet_line_and_a_right_answer_its_properties(said, progress_file):
    line = "00.softmax_scale: not attempted yet (1 point, about 2 minutes, easy)\n"
    assert said(checks.check, "00.softmax_scale", stub) == line and not progress_file.exists()
    assert said(checks.check, "00.softmax_scale", RIGHT).splitlines() == [
        "00.softmax_scale: passed, 1 of 1 point",
        "  holds: head_dim = 1 gives 1",
        "  holds: any head_dim gives 1 / sqrt(head_dim)",
    ]
    kept = json.loads(progress_file.read_text())
    assert kept["exercises"] == {"00.softmax_scale": "passed"}
    assert kept["answers"]["00.softmax_scale"].startswith("def softmax_scale(head_dim):")  # not all of its file


def test_a_wrong_answer(said, progress_file):
    assert said(checks.check, "00.softmax_scale", wrong).splitlines() == [
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


def test_what_cannot_work_is_said_and_does_not_raise(said):
    for exercise_id, answer, told in (
        ("00.softmax_scal", RIGHT, "There is no exercise '00.softmax_scal'; did you mean 00.softmax_scale"),
        (None, RIGHT, "There is no exercise None"),
        ("00.softmax_scale", 0.5, "pass the function itself, check('00.softmax_scale', softmax_scale)"),
        ("00.softmax_scale", lambda: 1, "takes 0 positional arguments but 1 was given"),
    ):
        assert told in said(checks.check, exercise_id, answer)
    assert all("no exercise" in said(call, "00.none") for call in (checks.hint, checks.solution, checks.restore))
    assert "There is no lesson '99'" in said(checks.quiz, "99")


@pytest.mark.parametrize("strict", [{"strict": True}, {}])
def test_strict_raises_with_the_same_text(strict, monkeypatch, said):
    monkeypatch.setenv("COURSEWARE_STRICT", "0" if strict else "1")
    assert "passed" in said(checks.check, "00.softmax_scale", RIGHT, **strict)
    for answer, told in ((wrong, "fails the test: any head_dim gives"), (stub, "not attempted yet")):
        with pytest.raises(AssertionError, match=told):
            checks.check("00.softmax_scale", answer, **strict)
    with pytest.raises(AssertionError, match="there is no exercise"):
        checks.check("00.none", RIGHT, **strict)


def test_where_progress_is_kept_is_said_in_colab_and_if_it_cannot_be_written(monkeypatch, tmp_path, said):
    monkeypatch.setattr("courseware.widgets.progress_file.COLAB", tmp_path)
    assert said(checks.progress).endswith(f"This is kept in {tmp_path / 'progress.json'}.\n")
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "missing" / "progress.json"))
    text = said(checks.check, "00.softmax_scale", RIGHT)
    assert "progress could not be saved" in text and "passed, 1 of 1" in text


def test_hints_come_one_more_at_a_time(said):
    for level in (1, 2, 3, 3):
        text = said(checks.hint, "00.softmax_scale")
        assert all(f"00.softmax_scale, hint {given} of 3: " in text for given in range(1, level + 1))
        assert registry.find("00.softmax_scale").prose.hints[level - 1].split()[-1] in text
    assert "hint 1 of 3" in said(checks.hint, "00.softmax_scale", level=1)
    assert "hints of level 1 to 3" in said(checks.hint, "00.softmax_scale", level=4)
    # The solution is the answer and the reasoning.
    text = said(checks.solution, "05.merge_states")
    assert "def merge_states(a, b):" in text and "Addition is associative" in text


def test_progress_is_drawn_per_lesson(said):
    said(checks.check, "00.softmax_scale", RIGHT)
    said(checks.check, "05.online_normalizer", lambda stream: 0)
    lines = said(checks.progress).splitlines()
    in_words = {" ".join(line.split()) for line in lines}  # how wide the columns are depends on the longest title
    tried = "05.online_normalizer tried, not passed yet"
    assert {"00 Start here 1 of 1 █", "05 Online softmax 0 of 4 ░░░░", "00.softmax_scale passed", tried} <= in_words
    possible = sum(registry.find(exercise_id).points for exercise_id in checks.exercises())
    assert lines[-1] == f"1 of {len(checks.exercises())} exercises, 1 of {possible} points"


def test_a_quiz_is_text_outside_a_notebook_and_in_one_unfolds_without_a_script(monkeypatch, said):
    text, questions = said(checks.quiz, "05"), registry.quiz("05")
    options = [option for question in questions for option in question["answers"]]
    assert all(shown in text for shown in [q["question"] for q in questions] + [o["feedback"] for o in options])
    notebook = Notebook(monkeypatch)
    checks.quiz("05")
    content = notebook.shown[0]["text/html"]
    assert content.count("<details>") == len(options) and "<script" not in content
    assert content.count("class='right'") == len(questions)


class Notebook:
    """Stands in for IPython: takes what would be displayed, and what is then displayed in its place."""

    def __init__(self, monkeypatch):
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
        while not notebook.shown:
            time.sleep(0.01)
        return RIGHT(head_dim)

    checks.check("00.softmax_scale", slow)
    said, result, *_ = (shown["text/plain"] for shown in notebook.shown)
    assert said == "00.softmax_scale: still looking" and result.startswith("00.softmax_scale: passed")
    assert notebook.updates == [{"text/plain": "", "text/html": ""}]


def test_in_a_notebook_the_card_says_what_the_text_says(monkeypatch):
    notebook = Notebook(monkeypatch)
    for answer in (stub, wrong, RIGHT):
        checks.check("00.softmax_scale", answer)
    for shown, mood in zip(notebook.shown, ("quiet", "failed", "passed"), strict=True):
        assert f'<div class="course {mood}">' in shown["text/html"]
        words = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", shown["text/html"]))
        said = set(re.findall(r"[\w.]+", shown["text/plain"])) - {"diagnosis", "holds", "fails"}
        assert {word for word in said if word not in words} == set()
    checks.check("05.merge_states", lambda a, b: a["<x>"])
    assert "<x>" not in notebook.shown[-1]["text/html"]


def test_the_card_s_buttons_give_hints_one_by_one_and_the_solution():
    result = checks.grade("00.softmax_scale", wrong)
    card, row, hints, answer = learner._with_buttons(registry.find("00.softmax_scale"), result).children
    assert "not passed yet" in card.value
    next_hint, solution = row.children
    for level in (1, 2, 3, 3):
        next_hint.click()
        assert "hint 1 of 3" in hints.value and f"hint {level} of 3" in hints.value
    solution.click()
    assert "def softmax_scale(head_dim):" in answer.value and "hint 3 of 3" in hints.value


def test_an_answer_that_passed_comes_back_into_its_cell(monkeypatch):
    source, put = "def softmax_scale(head_dim):\n    return 1 / np.sqrt(head_dim)\n", []
    for answer in (function_of(source), wrong):
        checks.check("00.softmax_scale", answer)
    notebook = Notebook(monkeypatch)
    notebook.set_next_input = lambda source, replace: put.append((source, replace))
    checks.restore("00.softmax_scale")
    assert put == [(source.rstrip(), True)] and source.rstrip() in notebook.shown[0]["text/plain"]


def test_what_passed_before_a_stub_is_said(said, progress_file):
    said(checks.check, "00.softmax_scale", RIGHT)
    text = said(checks.check, "00.softmax_scale", stub)
    assert "passed before" in text and 'restore("00.softmax_scale")' in text
    progress_file.write_text('{"exercises": {"00.softmax_scale": "passed"}}')  # from before answers were kept
    assert "It was not kept" in said(checks.check, "00.softmax_scale", stub)
    assert "no answer of 00.softmax_scale that passed is kept" in said(checks.restore, "00.softmax_scale")
