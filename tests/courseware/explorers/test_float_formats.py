import re

import numpy as np
import pytest

from course_lib.reference import example, formats, scores, stable_softmax
from courseware.explorers import float_formats as explorer
from courseware.explorers.float_formats import DIGITS, LOST, NAN_OVERFLOW, NAN_UNDERFLOW, ORDINARY, ZEROS

from .conftest import numbers, shapes, tips

SENTENCE = explorer.sentence_logits()
# Logits, and the verdicts of float16, bfloat16 and float32.
CASES = {
    "the sentence": (SENTENCE, [ORDINARY] * 3),
    "float16 overflows": (SENTENCE + 8, [NAN_OVERFLOW, ORDINARY, ORDINARY]),
    "float16's sum overflows": (np.full(4, 10.0), [ZEROS, ORDINARY, ORDINARY]),
    "all sums overflow": (np.full(4, 88.5), [NAN_OVERFLOW, ZEROS, ZEROS]),
    "float16 underflows": (SENTENCE - 30, [NAN_UNDERFLOW, ORDINARY, ORDINARY]),
    "all overflow": (SENTENCE + 110, [NAN_OVERFLOW] * 3),
    "all underflow": (SENTENCE - 120, [NAN_UNDERFLOW] * 3),
    "float16 loses digits": (np.array([-17.25, -17.25, -16.25, -16.25]), [DIGITS, ORDINARY, ORDINARY]),
    "a lost tail": (np.array([0.0, -20.0, -30.0, 5.0]), [LOST, ORDINARY, ORDINARY]),
    "between the numbers of bfloat16": (SENTENCE + 84.75, [NAN_OVERFLOW] * 3),
}


@pytest.mark.parametrize("logits, verdicts", CASES.values(), ids=CASES)
def test_model_and_page_agree_with_the_library(logits, verdicts):
    model, shown = explorer.run(logits), explorer.page(0, **dict(zip(example.TOKENS, logits, strict=True)))
    true = stable_softmax(logits)
    np.testing.assert_array_equal(model.true, true)
    assert [row.number_format for row in model.rows] == list(formats.FORMATS.values())
    assert [row.verdict for row in model.rows] == verdicts
    first, *lines = shown.text.split("<br>")
    np.testing.assert_allclose(numbers(" ".join(re.findall(r"\(.*?\)", first))), [*logits, *true], rtol=5.001e-4)
    for line, row in zip(lines, model.rows, strict=True):
        fmt = row.number_format
        exp_x, total, weights = formats.naive_softmax_steps(logits, fmt)
        np.testing.assert_array_equal(row.exp_x, exp_x)
        np.testing.assert_array_equal(row.weights, weights)
        assert line.startswith(f"<b>{fmt.name}</b>") and line.endswith(f"<b>{row.verdict}.</b>")
        said = numbers(line.removeprefix(f"<b>{fmt.name}</b>").rpartition(". <b>")[0])
        np.testing.assert_allclose(said, [*exp_x, *total, *weights], rtol=5.001e-4)
        # The dots and the bars.
        dots, bars = [np.transpose([fmt.round(logits), exp_x]), np.transpose([weights, true])]
        found = [numbers(tip.replace("exp", "").replace("truly", "")) for tip in tips(shown, rf"\w+ in {fmt.name}: ")]
        np.testing.assert_allclose(found, [*dots, *bars], rtol=5.001e-4)


def test_zones_and_colours_are_where_exp_changes():
    np.testing.assert_array_equal(SENTENCE, scores(example.Q, example.K, 1.0)[-1])
    for row in explorer.run(SENTENCE).rows:
        fmt = row.number_format
        below = [fmt.round(np.exp(z - fmt.gap(z))) for z in row.zones]
        at = [fmt.round(np.exp(z)) for z in row.zones]
        above = fmt.round(np.exp(row.zones[2] + fmt.gap(row.zones[2])))
        assert below[0] == 0 < at[0] and below[1] < fmt.smallest_normal <= at[1]
        assert at[2] < np.inf == above
        logits = [row.zones[0] - fmt.gap(row.zones[0]), *row.zones[:2], row.zones[2] + fmt.gap(row.zones[2])]
        page = explorer.page(0, **dict(zip(example.TOKENS, logits, strict=True)))
        dots = [dot["class"] for dot in shapes(page) if re.match(rf"\w+ in {fmt.name}.* exp", dot["data-tip"])]
        assert dots == ["grey", "K", "Q", "bad"]
