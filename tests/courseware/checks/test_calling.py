"""An answer can do what it likes: it is told in time, at the learner's own line, and the caller goes on."""

import re
import signal
import sys
import threading
import time

import numpy as np
import pytest

from courseware.checks.calling import AnswerError, GuardedAnswer
from tests.courseware.checks.cells import function_of


def finding(answer, *arguments, limit_s=2.0):
    with pytest.raises(AnswerError) as caught:
        GuardedAnswer(answer, limit_s)(*arguments)
    return caught.value.finding


def test_an_exception_is_told_at_the_learners_line_without_other_frames():
    source = "def helper(x):\n    return np.linalg.inv(x)\n\ndef answer(x):\n    y = helper(x)\n    return y\n"
    assert finding(function_of(source), np.zeros((2, 2))).text.splitlines() == [
        "the answer raised LinAlgError, a ValueError: Singular matrix",
        "  line 5, in answer:  y = helper(x)",
        "  line 2, in helper:  return np.linalg.inv(x)",
    ]


@pytest.mark.parametrize(
    "line, kind, said",
    [("return npp.zeros(2)", "unknown name", "NameError"),
     ("x += 1", "exception", "UnboundLocalError"),
     ("raise ValueError(object())", "exception", "the answer raised ValueError: <object object>\n"),  # no address
     ("raise NotImplementedError", "exception", "the answer is not finished"),
     ("return answer()", "exception", "RecursionError"),
     # Nothing gets out.
     ("raise SystemExit", "exception", "SystemExit"),
     ("raise KeyboardInterrupt", "exception", "KeyboardInterrupt")],
)  # fmt: skip
def test_what_is_raised_is_told_in_a_few_lines(line, kind, said):
    stdout = sys.stdout
    told = finding(function_of(f"def answer():\n    {line}\n"))
    assert told.kind == kind and sys.stdout is stdout
    assert said in told.text and f"line 2, in answer:  {line}" in told.text and len(told.text.splitlines()) < 8


ENDLESS = [
    "    while True:\n        pass\n",
    "    while True:\n        try:\n            sum(range(1000))\n        except Exception:\n            pass\n",
    "    while True:\n        print('again ' * 100)\n",
]
SWALLOWING = f"    try:\n        while True:\n            pass\n    except:\n        pass\n{ENDLESS[0]}"


@pytest.mark.parametrize("body", [*ENDLESS, SWALLOWING])
def test_an_answer_that_does_not_return_is_stopped(body):
    start, alarm = time.monotonic(), signal.getsignal(signal.SIGALRM)
    told = finding(function_of(f"def answer():\n{body}"), limit_s=0.3)
    assert signal.getsignal(signal.SIGALRM) is alarm and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    said, *loop = told.text.splitlines()
    assert told.kind == "timeout" and said == "the answer did not return within 0.3 s; it was in this loop"
    assert re.fullmatch(r"  line [27], in answer:  while True:", *loop)
    assert time.monotonic() - start < 5


def test_what_waits_is_given_longer_than_what_computes():
    """So an answer may be slow by the clock because the machine is busy, and one that sleeps is stopped too."""
    assert GuardedAnswer(lambda: time.sleep(0.5) or 42, 0.2)() == 42
    start = time.monotonic()
    told = finding(lambda: time.sleep(60), limit_s=0.1)
    assert (told.kind, told.text) == ("timeout", "the answer did not return within 2 s by the clock")
    assert time.monotonic() - start < 5


def test_outside_the_main_thread_answers_return_and_raise_and_are_stopped_as_in_it():
    seen, before = [], threading.active_count()

    def work():
        seen.append(GuardedAnswer(lambda x: x + 1)(1))
        seen.append(finding(function_of("def answer():\n    raise KeyError('k')\n")).text)
        seen.extend(finding(function_of(f"def answer():\n{body}"), limit_s=0.3).kind for body in ENDLESS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    said = "the answer raised KeyError: 'k'\n  line 2, in answer:  raise KeyError('k')"
    assert seen == [2, said, *["timeout"] * len(ENDLESS)]
    # The loops themselves are stopped too, not left to run.
    assert any(threading.active_count() == before or time.sleep(0.01) for _ in range(500))


def test_what_an_answer_prints_is_kept_and_cut(capsys):
    guarded = GuardedAnswer(lambda n: print("x" * n))
    guarded(10_000)
    assert guarded.printed.endswith(" ... (cut)") and len(guarded.printed) < 700
    assert capsys.readouterr().out == ""


def test_inputs_are_copies_and_changes_are_noticed():
    def answer(a, state, numbers, n):
        state[1][0], numbers[1] = 7, 5
        return a

    given = np.zeros(3), (1.0, np.zeros(2)), [3, 4], 3
    guarded = GuardedAnswer(answer)
    assert guarded(*given) is not given[0] and given[1][1][0] == 0 and guarded.modified == (1, 2)
    guarded(given[0], (1.0, np.array([7.0, 0.0])), [3, 5], 3)
    assert guarded.modified == ()


def test_numpys_warnings_are_quiet(recwarn):
    GuardedAnswer(lambda: np.exp(np.array(1e4)) - np.array(np.inf))()
    assert not recwarn.list and np.geterr()["over"] == "warn"


def test_unwritten_memory_holds_nan_while_an_answer_runs():
    """Otherwise an answer that returns np.empty_like(x) may return the right result of the call before."""
    empty = np.empty
    unwritten = GuardedAnswer(lambda x: (np.empty_like(x), np.empty(2), np.empty(2, int), np.empty(9, bool)))
    floats, others, whole, truths = unwritten(np.zeros(3))
    assert truths.all() and (whole == np.iinfo(int).max).all()
    assert np.isnan(floats).all() and np.isnan(others).all() and np.empty is empty
