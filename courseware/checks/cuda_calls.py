"""Answers in CUDA C++: functions that return a kernel's source, which runs thread by thread on the CPU.

A property is made with `cuda_checks`: its call, as the learner reads it and can paste it, is the call that is made,
`run_cuda(answer(), "its_name", grid, block, **arguments)`. The kernel is compiled and run in processes of their own, by
`cuda_emulator`. What it finds wrong with its accesses comes before what it computes.

Without a C++ compiler, the check says so.
"""

import re
import subprocess
from collections.abc import Callable

import numpy as np

from course_lib import runtime
from courseware.worker import sandbox
from courseware.worker.rules import with_own_names, without_prefix
from courseware.worker.running import MachineBusy

from .calling import AnswerError, GuardedAnswer, is_remote, judging
from .diagnosis import compare, named, show
from .exercise import Evidence, Exercise, ExpectedOutput, Finding, single_finding
from .properties import Checks

LIMIT_S = 2.0  # of processor time for one launch; those of our exercises take some hundredths of a second
EXAMPLES = 5  # random inputs for a property that draws them; each is a process of its own
# Findings of the runner that are called otherwise here, where another kind of exercise has the name already.
KINDS = {"time limit": "timeout", "unwritten": "unwritten shared"}


class _Source(str):
    """What a guarded answer returned. answer: the GuardedAnswer. renamed: the source `with_own_names`."""

    answer: GuardedAnswer
    renamed: str


def run_cuda(source: str, kernel: str, grid, block, **arguments):
    """Run a CUDA kernel thread by thread on the CPU, and return the Report of `cuda_emulator.runner.launch`.

    source: CUDA C++. kernel: the name of its __global__ function. grid, block: how many blocks, and threads of a block;
        an int or a tuple of up to three.
    arguments: in the order of the kernel's parameters: ints, floats, and NumPy arrays, in which the kernel's stores are
        found afterwards.
    Raises what `launch` raises, and of a property, whose source comes from a guarded answer, AnswerError for whatever
    the compiler or the runner finds wrong.
    """
    # Not at the top: this imports PyTorch.
    from courseware.simulators.cuda_emulator.compiling import CompileError
    from courseware.simulators.cuda_emulator.runner import launch

    def run():
        text, name = (source.renamed, with_own_names(kernel)[0]) if hasattr(source, "renamed") else (source, kernel)
        return launch(text, name, grid=grid, block=block, arguments=arguments, limit_s=LIMIT_S)

    if (answer := getattr(source, "answer", None)) is None:
        return run()
    made = [value for value in arguments.values() if isinstance(value, np.ndarray) and np.isnan(value).all()]
    try:
        report = run()
    except CompileError as error:
        text = f"the CUDA source does not compile: {without_prefix(str(error))}"
        raise _noted(answer, "compile error", text) from None
    except (TypeError, ValueError) as error:
        raise _noted(answer, "launch", f"the kernel cannot be launched: {error}") from None
    except subprocess.TimeoutExpired:
        if is_remote(answer.answer):
            raise MachineBusy from None
        raise _noted(answer, "timeout", "the kernel was not done, though it used little processor time") from None
    except RuntimeError as error:
        if "died of signal" not in str(error):
            raise
        text = "the kernel writes beyond its own memory, and its process died: is an index outside an array of its own?"
        raise _noted(answer, "stack overflow", text) from None
    if not report.findings or not report.complete:  # a race leaves to chance what is computed
        answer.note(*made)
    if report.findings:
        first = report.findings[0]
        kind, text = KINDS.get(first.kind, first.kind), without_prefix(first.text)
        if kind == "timeout":  # which of the threads had its turn is a matter of chance
            where = f", in line {first.line}" if first.line else ""
            text = f"the kernel was still running after {LIMIT_S:g} s{where}"
        raise _noted(answer, kind, _with_lines(text, source), _of_race(text, arguments) if kind == "race" else "")
    return report


def _of_race(text, arguments):
    """What tells a race from others: which accesses meet, and whether in an argument or in shared memory."""
    array = re.search(r" of (\w+), which ", text)
    return " and ".join(sorted(re.findall(r"\b(?:loads|stores)\b", text))) + f" {array and array[1] in arguments}"


def _noted(answer, kind, text, details=""):
    answer.note(f"{kind} {details}".strip())
    return AnswerError(Finding("", kind, text))


def _with_lines(text, source):
    """The text, and below it the lines of the source whose numbers it names."""
    lines = source.splitlines()
    numbers = dict.fromkeys(int(number) for number in re.findall(r"\b[Ll]ine (\d+)", text))
    quoted = [f"  line {number}:  {lines[number - 1].strip()}" for number in numbers if 0 < number <= len(lines)]
    return "\n".join([text, *quoted])


def cuda_checks(call: str, test: Callable[..., Evidence | None], case: Callable[..., dict] | None = None) -> Checks:
    """`Checks` of an answer in CUDA C++, whose tests are test(report, **names).

    call: "run_cuda(its_name(), ...)" in terms of the inputs, after statements that make the arrays. The names are those
    of the inputs and of what these statements define.
    """
    return Checks(call, test, case, _through, EXAMPLES)


def _through(call, test):
    judged = judging(call, test, run_cuda=run_cuda)
    return lambda answer, **inputs: judged(lambda: _source_of(answer), **inputs)


def _source_of(answer):
    returned = answer.run(answer.answer)  # not noted: two answers with the same mistake are not the same text
    if not isinstance(returned, str):
        text = f"the answer returned {show(returned)}, not CUDA C++ as text"
        raise _noted(answer, "none" if returned is None else "type", text)
    renamed, reason = with_own_names(returned)
    if reason:
        raise _noted(answer, "rule", f"the kernel is not run: {reason}")
    source = _Source(returned)
    source.answer, source.renamed = answer, renamed
    return source


def compare_output(report, array: np.ndarray, part: ExpectedOutput) -> Evidence | None:
    """None if every element of the array called part.name was stored and is within its budget.

    The array was NaN before the launch. Findings' kinds besides those of `compare`: "never stored".
    """
    missing = np.isnan(array)
    # A kernel may compute NaN, too: but not if it has stored less than the whole array.
    if missing.any() and report.tensors[part.name].stores.bytes < array.nbytes:
        rows = sorted(set(np.nonzero(missing)[0].tolist()))
        where = named(part.index, rows)
        if missing.ndim == 2 and (missing[rows] == missing[rows[0]]).all():  # the same columns of each
            columns = np.flatnonzero(missing[rows[0]]).tolist()
            whole = f"every {part.index}" if len(rows) == len(missing) else where
            where = f"{named('column', columns)} of {whole}" if len(columns) < missing.shape[1] else where
        text = f"{part.name}: {int(missing.sum())} of {missing.size} elements are never stored ({where})"
        return single_finding("never stored", text, part=part.name)
    return compare(array, [part])


def compare_sectors(report, enough: dict, least_bytes: dict | None = None) -> Evidence | None:
    """None if no more sectors were moved than enough[name] = (loaded, stored), for each array of the arguments.

    least_bytes: name -> what must have been moved at least, to or from it. What is not counted is no access.
    """
    findings = []
    for name, least in (least_bytes or {}).items():
        moved = report.tensors[name].loads.bytes + report.tensors[name].stores.bytes
        if moved < least:
            findings.append(Finding(name, "too few", f"{moved:,} bytes of {name} were moved, and {least:,} have to be"))
    for name, most in enough.items():
        moved = report.tensors[name].loads.sectors, report.tensors[name].stores.sectors
        for verb, count, limit in zip(("loads", "stores"), moved, most, strict=True):
            if count > limit:
                # How many times as many is part of the mistake's signature.
                kind = f"{verb} {count / limit:.2g} times" if limit else verb
                text = f"the launch {verb} {count} sectors of {name}, where {limit} are enough"
                findings.append(Finding(name, kind, text))
    return Evidence(tuple(findings)) if findings else None


def confine() -> None:
    """From now on, compile and run CUDA kernels in the sandbox."""
    from courseware.simulators.cuda_emulator import compiling

    compiling.confined, compiling.programs = sandbox.command, compiling.own_folder


def lacks_compiler(exercise: Exercise) -> bool:
    """Whether the exercise is checked with a C++ compiler that this machine does not have."""
    return getattr(exercise.properties, "through", None) is _through and runtime.cxx_compiler() is None
