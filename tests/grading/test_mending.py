"""The place in an answer where another value would make its result right."""

import numpy as np
import pytest

from course_lib.editing import run_source
from course_lib.grading import registry
from course_lib.grading.calling import GuardedAnswer
from course_lib.grading.mending import mended
from course_lib.grading.recording import Recording


def told(exercise_id, answer):
    exercise = registry.find(exercise_id)
    prop = exercise.properties[0]
    return mended(exercise, prop, GuardedAnswer(answer), prop.cases[0])


def stable_softmax_by(line):
    namespace = {"np": np}
    source = f"def stable_softmax(x, axis=-1):\n    m = x.max(axis=axis, keepdims=True)\n{line}\n    return p / l\n"
    run_source(source, f"<{line}>", namespace)
    return namespace["stable_softmax"]


SUM = "    l = p.sum(axis=axis, keepdims=True)"


@pytest.mark.parametrize(
    "lines, said",
    [
        # Wrong though made of right values.
        (f"    p = np.exp(m - x)\n{SUM}", "line 3:  p = np.exp(m - x)\nm - x is [3., 2., 1., 0.]; with [1., 2., 3."),
        (f"    p = np.exp(x - m)\n{SUM.replace('sum', 'mean')}", "is [0.38825]; with [1.553002] in its place"),
        # A step is missing.
        (f"    p = x - m\n{SUM}", "x - m is [-3., -2., -1., 0.]; with [0.049787, 0.135335, 0.367879, 1. ]"),
        # Two at once.
        (
            f"    p = np.exp2(x - m)\n{SUM} + 1",
            "line 3:  p = np.exp2(x - m)\nline 4:  l = p.sum(axis=axis, keepdims=True) + 1\n"
            "np.exp2(x - m) is [0.125, 0.25 , 0.5 , 1. ] and p.sum(axis=axis, keepdims=True) + 1 is [2.875]; with",
        ),
        ("    q = np.exp(x - m)\n    p = q / q.sum(axis, keepdims=True)\n    l = 3", "keepdims=True) is right already"),
        # Nothing is told of what no value of the right answer mends.
        ("    p = np.sin(x)\n    l = 1", ""),
    ],
)
def test_the_place_and_the_value_that_would_be_right_are_told(lines, said):
    found = told("03.stable_softmax", stable_softmax_by(lines))
    assert said in found and bool(said) == bool(found)


def test_a_pass_of_a_loop_is_named():
    def online_normalizer(stream):
        m, l = -np.inf, 0.0
        for s in stream:
            m_new = max(m, s)
            if m_new == -np.inf:
                continue
            l = l * np.exp(m - m_new) + (1.0 if s > m else np.exp(m - s))
            m = m_new
        return m, l

    exercise = registry.find("05.online_normalizer")
    (prop,) = (prop for prop in exercise.properties if prop.name.startswith("a smaller score"))
    found = mended(exercise, prop, GuardedAnswer(online_normalizer), prop.cases[0])
    assert "np.exp(m - s)" in found and "2.71828; with 0.367879" in found


@pytest.mark.parametrize("answer", [lambda x, axis=-1: x, np.exp, "no function"])
def test_of_an_answer_whose_source_is_no_function_nothing_is_told(answer):
    assert told("03.stable_softmax", answer) == ""


def test_a_run_ends_when_it_has_too_much_to_record():
    def stable_softmax(x, axis=-1):
        for _ in range(10**6):
            x = x + 0
        return x

    prop = registry.find("03.stable_softmax").properties[0]
    recording = Recording(stable_softmax)
    recording.run(prop, prop.cases[0])
    assert len(recording.values) < 20 and sum(map(len, recording.values.values())) < 10_000


def test_the_right_answer_given_its_own_values_is_right():
    exercise = registry.find("04.attention")
    recording = Recording(exercise.answer)
    prop = exercise.properties[0]
    assert recording.run(prop, prop.cases[0])[1] is None
    for place, values in dict(recording.values).items():
        assert recording.run(prop, prop.cases[0], {place: values})[1] is None
        if recording.places[place].is_result:
            assert recording.run(prop, prop.cases[0], {place: [1 + each for each in values]})[1] is not None
