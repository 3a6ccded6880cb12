"""How an exercise states its properties: `Checks`, the tests that many of them share, and what they draw."""

import contextlib
import functools
import inspect
import random
import re
from collections.abc import Callable

import numpy as np

from .calling import AnswerError, copied, judging
from .diagnosis import compare, show
from .exercise import Evidence, ExpectedOutput, Finding, Property, single_finding

RAISED = "a ValueError, raised"  # expected of a call


class Checks(list):
    """The properties of an exercise, most of which have the call and the test in common; calling it adds the next.

    call: as in Property; the answer itself stands for a call with each of its parameters.
    test(outcome, **names): judges what comes of the call; through(call, test) makes the Property's test of it.
    case: makes inputs of a row of arguments; by default `case_of` the answer.
    """

    def __init__(self, call: str | Callable, test=None, case=None, through=judging, examples=40):
        if callable(call):
            case = case or case_of(call)
            call = f"{call.__name__}({', '.join(inspect.signature(call).parameters)})"
        self.call, self.test, self.case, self.through, self.examples = call, test, case, through, examples

    def __call__(self, name: str, rows, call=None, test=None, calls=None, credit=0) -> None:
        """rows: inputs, each a dictionary or a tuple of arguments for `case`; the last may be a strategy of such rows.

        calls(answer, **inputs): a test that calls the answer itself. credit: as in Property.
        """
        call = call or self.call
        test = calls or self.through(call, test or self.test)
        rows = list(rows)
        draw = None if isinstance(rows[-1], dict | tuple) else rows.pop().map(self._inputs)
        self.append(Property(name, call, test, tuple(map(self._inputs, rows)), draw, self.examples, credit=credit))

    def _inputs(self, row):
        return row if isinstance(row, dict) else self.case(*row)


def case_of(names: str | Callable, **defaults) -> Callable[..., dict]:
    """A function that makes inputs of these names from arguments, given as in a call: lists become float64 arrays.

    names: with spaces between them, or the answer whose arguments they are. defaults: besides those of the answer.
    """
    if isinstance(names, str):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names.split()])
    else:
        signature = inspect.signature(names)
    defaults = {name: p.default for name, p in signature.parameters.items() if p.default is not p.empty} | defaults

    def case(*arguments, **named):
        given = defaults | signature.bind_partial(*arguments, **named).arguments
        inputs = {name: given[name] for name in signature.parameters}
        return {name: np.array(x, np.float64) if isinstance(x, list) else x for name, x in inputs.items()}

    return case


def agrees(oracle: Callable[..., list[ExpectedOutput]]) -> Callable[..., Evidence | None]:
    """A test for `Checks`: the call returns what oracle(**names) states, within the error budget."""
    return lambda returned, **names: compare(returned, oracle(**names))


def keeps_dtype(*names: str, of: tuple[str, ...] = ("float32",)) -> Callable[..., Evidence | None]:
    """A test for `Checks`: outputs called `names` come back in one of these dtypes."""

    def test(returned, **_):
        dtypes = [str(np.asarray(part).dtype) for part in (returned if len(names) > 1 else [returned])]
        wrong = [(name, dtype) for name, dtype in zip(names, dtypes, strict=True) if dtype not in of]
        findings = tuple(Finding(name, "dtype", f"{name} came back as {dtype}") for name, dtype in wrong)
        return Evidence(findings, ", ".join(dtypes), " or ".join(of)) if findings else None

    return test


def not_modified(answer, **inputs) -> Evidence | None:
    """A test that calls the answer itself: the arguments are the same after the call as before."""
    answer(*inputs.values())
    if not answer.modified:
        return None
    code = getattr(answer.answer, "__code__", None)  # the answer's own names, where it is a function of this process
    names = code.co_varnames[: code.co_argcount] if code and code.co_argcount == len(inputs) else list(inputs)
    changed = " and ".join(names[i] for i in answer.modified)
    text = f"the call changed its argument{'s' * (' and ' in changed)} {changed} in place"
    return single_finding("modified", "\n".join(filter(None, [text, _where_changed(answer, inputs)])))


def _where_changed(answer, inputs):
    """The line that changes an array, or nothing: it raises where the arrays are read-only."""
    given = list(copied(inputs).values())
    for each in given:
        if isinstance(each, np.ndarray):
            each.flags.writeable = False
    try:
        answer.run(lambda: answer.answer(*given))
    except AnswerError as error:
        lines = re.findall(r"^  line \d+, in .*$", error.finding.text, re.MULTILINE)
        return lines[-1] if lines and "read-only" in error.finding.text else ""
    return ""


def raises_value_error(answer, **inputs) -> Evidence | None:
    """A test that calls the answer itself: the call raises ValueError."""
    try:
        returned = answer(*inputs.values())
    except AnswerError as error:
        if re.match(r"the answer raised (\w+, a )?ValueError\b", error.finding.text):
            return None
        finding = error.finding
        if own := re.match(r"the answer raised (\w+).*?(\n.*:\s+raise\b.*)$", finding.text, re.DOTALL):
            finding = Finding("", "wrong exception", f"the answer raises {own[1]}, not ValueError{own[2]}")
        return Evidence((finding,), expected=RAISED)
    if isinstance(returned, Exception) or returned is ValueError:
        return single_finding("not raised", "the ValueError is returned; it has to be raised", show(returned), RAISED)
    return single_finding("accepted", "nothing was raised", show(returned), RAISED)


# Hypothesis is imported only where a draw is needed.
@functools.lru_cache(maxsize=256)
def drawn(prop: Property, seed: int) -> list[dict]:
    """What Hypothesis draws as long as nothing fails, kept: drawing takes longer than most answers do."""
    from hypothesis import errors

    inputs = []
    with contextlib.suppress(errors.NoSuchExample):
        found_by(prop, inputs.append, seed)
    return inputs


def found_by(prop: Property, condition: Callable[[dict], bool], seed: int) -> dict:
    """The smallest input drawn for which the condition holds. Raises Hypothesis's NoSuchExample if there is none."""
    from hypothesis import HealthCheck, Phase, find, settings

    phases, unchecked = (Phase.generate, Phase.shrink), list(HealthCheck)
    quiet = settings(
        max_examples=prop.examples, phases=phases, suppress_health_check=unchecked, database=None, deadline=None
    )
    return find(prop.draw, condition, settings=quiet, random=random.Random(seed))
