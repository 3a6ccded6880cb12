"""An answer can do what it likes: it is told in time, at the learner's own line, and the caller goes on."""

import re
import signal
import sys
import threading
import time

import numpy as np
import pytest

from courseware.checks.calling import AnswerError, GuardedAnswer


def cell(source):
    """The functions of a notebook cell, with line numbers that count within the cell."""
    import linecache

    filename = f"<cell {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {"np": np}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def finding(answer, *arguments, limit_s=2.0):
    with pytest.raises(AnswerError) as caught:
        GuardedAnswer(answer, limit_s)(*arguments)
    return caught.value.finding


def test_an_exception_is_told_at_the_learners_line_without_other_frames():
    answer = cell("def helper(x):\n    return np.linalg.inv(x)\n\ndef answer(x):\n    y = helper(x)\n    return y\n")
    told = finding(answer["answer"], np.zeros((2, 2)))
    assert told.kind == "exception"
    assert told.text.splitlines() == [
        "the answer raised LinAlgError, a ValueError: Singular matrix",
        "  line 5, in answer:  y = helper(x)",
        "  line 2, in helper:  return np.linalg.inv(x)",
    ]


def test_an_unknown_name_is_told_apart_for_its_hint():
    assert finding(cell("def answer():\n    return npp.zeros(2)\n")["answer"]).kind == "unknown name"
    assert finding(cell("def answer():\n    x += 1\n")["answer"]).kind == "exception"  # UnboundLocalError


def test_an_address_in_a_message_is_left_out():
    told = finding(cell("def answer():\n    raise ValueError(object())\n")["answer"])
    assert told.text.splitlines()[0] == "the answer raised ValueError: <object object>"


def test_an_unfinished_answer_says_where():
    source = "def answer(x):\n    if x > 0:\n        return x\n    raise NotImplementedError\n"
    told = finding(cell(source)["answer"], -1)
    assert "not finished" in told.text and "line 4, in answer:  raise NotImplementedError" in told.text


def test_deep_recursion_is_told_in_a_few_lines():
    told = finding(cell("def answer(n):\n    return answer(n + 1)\n")["answer"], 0)
    assert "RecursionError" in told.text and len(told.text.splitlines()) < 8


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt()", "MemoryError()", "GeneratorExit()"])
def test_nothing_gets_out(error):
    told = finding(cell(f"def answer():\n    raise {error}\n")["answer"])
    assert error.split("(")[0] in told.text and "line 2" in told.text


ENDLESS = {
    "a loop": "def answer():\n    while True:\n        pass\n",
    "a loop that catches every Exception": (
        "def answer():\n"
        "    while True:\n"
        "        try:\n"
        "            sum(range(1000))\n"
        "        except Exception:\n"
        "            pass\n"
    ),
    "a loop that prints": "def answer():\n    while True:\n        print('again ' * 100)\n",
}
SWALLOWING = (
    "def answer():\n"
    "    try:\n"
    "        while True:\n"
    "            pass\n"
    "    except:\n"
    "        pass\n"
    "    while True:\n"
    "        pass\n"
)


@pytest.mark.parametrize("source", [*ENDLESS.values(), SWALLOWING], ids=[*ENDLESS, "one that swallows the alarm"])
def test_an_answer_that_does_not_return_is_stopped(source):
    start = time.monotonic()
    told = finding(cell(source)["answer"], limit_s=0.3)
    said, *loop = told.text.splitlines()
    assert told.kind == "timeout" and said == "the answer did not return within 0.3 s; it was in this loop"
    assert re.fullmatch(r"  line [27], in answer:  while True:", *loop)
    assert time.monotonic() - start < 5


def test_what_waits_is_given_longer_than_what_computes():
    """So an answer may be slow by the clock because the machine is busy, and one that sleeps is stopped too."""
    assert GuardedAnswer(lambda: time.sleep(0.5) or 42, 0.2)() == 42
    start = time.monotonic()
    told = finding(lambda: time.sleep(60), limit_s=0.1)
    assert (told.kind, told.text) == ("timeout", "the answer did not return within 0.1 s")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_the_same_outside_the_main_thread(source):
    answer, told = cell(source)["answer"], []
    thread = threading.Thread(target=lambda: told.append(finding(answer, limit_s=0.3)))
    before = threading.active_count()
    thread.start()
    thread.join(10)
    assert [found.kind for found in told] == ["timeout"]
    # The loop itself is stopped too, not left to run.
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_outside_the_main_thread_answers_return_and_raise_as_in_it():
    seen = []

    def work():
        seen.append(GuardedAnswer(lambda x: x + 1)(1))
        seen.append(finding(cell("def answer():\n    raise KeyError('k')\n")["answer"]).text)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [2, "the answer raised KeyError: 'k'\n  line 2, in answer:  raise KeyError('k')"]


def test_the_alarm_is_put_back():
    before = signal.getsignal(signal.SIGALRM)
    GuardedAnswer(lambda: None)()
    finding(cell(ENDLESS["a loop"])["answer"], limit_s=0.1)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_what_an_answer_prints_is_kept_and_cut(capsys):
    guarded = GuardedAnswer(lambda n: print("x" * n))
    guarded(5)
    assert guarded.printed == "xxxxx"
    guarded(10_000)
    assert guarded.printed.endswith(" ... (cut)") and len(guarded.printed) < 700
    assert capsys.readouterr().out == ""


def test_inputs_are_copies_and_changes_are_noticed():
    def answer(a, state, n):
        state[1][0] = 7
        return a

    a, state = np.zeros(3), (1.0, np.zeros(2))
    guarded = GuardedAnswer(answer)
    returned = guarded(a, state, 3)
    assert returned is not a and state[1][0] == 0
    assert guarded.modified == (1,)
    guarded.answer = lambda *arguments: None
    guarded(a, state, 3)
    assert guarded.modified == ()


def test_a_number_replaced_in_a_list_is_noticed():
    guarded = GuardedAnswer(lambda numbers, words, n: numbers.__setitem__(1, 5))
    guarded([3, 4], ["load"], 3)
    assert guarded.modified == (0,)
    guarded([3, 5], ["load"], 3)
    assert guarded.modified == ()


def test_numpys_warnings_are_quiet(recwarn):
    GuardedAnswer(lambda: np.exp(np.array(1e4)) - np.array(np.inf))()
    assert not recwarn.list
    assert np.geterr()["over"] == "warn"


def test_the_real_stdout_is_back_after_a_failure():
    before = sys.stdout
    finding(cell("def answer():\n    raise ValueError\n")["answer"])
    assert sys.stdout is before


def test_unwritten_memory_holds_nan_while_an_answer_runs():
    """Otherwise an answer that returns np.empty_like(x) may return the right result of the call before."""
    empty = np.empty

    def unwritten(x):
        return np.empty_like(x), np.empty(2), np.empty(2, int), np.empty(9, bool)

    floats, others, whole, truths = GuardedAnswer(unwritten)(np.zeros(3))
    assert truths.all()
    assert np.isnan(floats).all() and np.isnan(others).all() and (whole == np.iinfo(int).max).all()
    assert np.empty is empty
