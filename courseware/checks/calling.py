"""Calls an answer, here or in the worker's process, and keeps what the properties ask of a call."""

import ast
import time
from collections.abc import Callable

import numpy as np

from courseware.worker.running import CALL_LIMIT_S, run

from .exercise import Evidence, Finding, Property, single_finding

FIXED = "default_rng(0)"  # in a call that is shown
_seed = [0]  # of the generators of such calls


class AnswerError(Exception):
    """The answer raised, or did not return in time. Carries the Finding."""

    def __init__(self, finding):
        super().__init__(finding.text)
        self.finding = finding


def is_remote(answer: Callable) -> bool:
    """Whether it runs in a process of its own, for a mark."""
    return getattr(answer, "is_remote", False)


class GuardedAnswer:
    """The answer, called on copies of its arguments.

    modified: positions of the arguments that the last call changed in place.
    printed: the beginning of what it wrote to stdout.
    seen: what its calls returned, and whatever else a property notes with `note`: two answers that make the same
        mistake are recognised by it. Who wants to know clears it first.
    loads: how often the last call loaded each element of a tensor, where a kernel's launch or a machine counts it.
    """

    def __init__(self, answer, limit_s=CALL_LIMIT_S):
        self.answer, self.limit_s = answer, limit_s
        self.modified, self.printed, self.seen, self.loads = (), "", [], {}

    def note(self, *values):
        """Keep values that show what the answer did, besides what its calls return."""
        self.seen.extend(copied(value) for value in values)

    def __call__(self, *arguments):
        given = tuple(copied(a) for a in arguments)
        returned = self.run(lambda: self.answer(*given))
        after = getattr(self.answer, "after", given)  # the worker has copies of its own
        self.modified = tuple(i for i, a in enumerate(arguments) if not _same(a, after[i]))
        self.loads = next((a.loads() for a in arguments if hasattr(type(a), "loads")), {})
        self.note(returned, self.modified, *(a.traces() for a in arguments if hasattr(type(a), "traces")))
        return returned

    def run(self, call):
        """call(), which runs the answer in a way of its own. Raises AnswerError, and nothing else."""
        outcome = run(call, self.limit_s, getattr(self.answer, "processor_s", time.thread_time))
        self.printed = outcome.printed
        if outcome.raised is None:
            return outcome.returned
        name, text = outcome.raised
        kind = {"TimeUp": "timeout", "MachineBusy": "timeout", "NameError": "unknown name"}.get(name, "exception")
        self.note("timeout" if kind == "timeout" else name)
        raise AnswerError(Finding("", kind, text))


def attempt(prop: Property, answer: GuardedAnswer, inputs: dict) -> Evidence | None:
    """What the property finds against the answer on one input. Whatever the answer does, nothing is raised."""
    try:
        with np.errstate(all="ignore"):  # what a wrong answer returns overflows
            return prop.test(answer, **copied(inputs))
    except AnswerError as error:
        return Evidence((error.finding,))
    except Exception as error:  # an object that even comparing fails on
        return single_finding("type", f"what the answer returned cannot be used: {error!r}")


def copied(value):
    """A copy of arrays, also inside tuples, lists and dictionaries; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(copied(v) for v in value)  # a namedtuple takes them singly
    if isinstance(value, dict):
        return {key: copied(v) for key, v in value.items()}
    return value


def _same(before, after):
    if isinstance(before, np.ndarray):
        return before.shape == after.shape and np.array_equal(before, after, equal_nan=True)
    if isinstance(before, (tuple, list)):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(value, after[key]) for key, value in before.items())
    # In a list, one number may have taken another's place.
    return not isinstance(before, int | str) or before == after


def draw_with(seed: int) -> bool:
    """From now on, what a call draws with a fixed generator comes from this one. 0 in self-study, as it reads there.

    Returns whether it was another before.
    """
    before, _seed[0] = _seed[0], seed
    return before != seed


def as_drawn(call: str) -> str:
    """The call with the generator that it draws from."""
    return call.replace(FIXED, f"default_rng({_seed[0]})")


def judging(call: str, test: Callable, **given) -> Callable:
    """The test of a Property that does what `call` says, and has judged what comes of it: test(outcome, **names).

    call: Python in terms of the inputs, statements and then the line that calls the answer or launches it. Its value
    is the outcome; the names are those of the inputs and of what the statements define.
    given: what the call finds defined besides np and the inputs, also in place of what it imports by that name.
    """
    *statements, last = ast.parse(call.replace(FIXED, "default_rng(_seed[0])")).body
    called = last.value.func if last.value.func.id not in given else last.value.args[0]
    called = called.func if isinstance(called, ast.Call) else called
    kept = [s for s in statements if not (isinstance(s, ast.ImportFrom) and s.names[0].name in given)]
    prepare = compile(ast.Module(kept, []), "<call>", "exec")
    run = compile(ast.Expression(last.value), "<call>", "eval")

    def call_and_test(answer, **inputs):
        names = {"np": np, "_seed": _seed, **given, **inputs}
        exec(prepare, names)
        outcome = eval(run, names | {called.id: answer})
        return test(outcome, **{name: names[name] for name in names.keys() - {"np", "_seed", "__builtins__", *given}})

    return call_and_test
