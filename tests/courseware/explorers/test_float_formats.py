import re

import numpy as np
import pytest

from course_lib.reference import example, formats, scores, stable_softmax
from courseware.explorers import float_formats as explorer

SENTENCE = explorer.sentence_logits()
LOGITS = {
    "the sentence": SENTENCE,
    "float16 overflows": SENTENCE + 8,
    "float16's sum overflows": np.full(4, 10.0),
    "all sums overflow": np.full(4, 88.5),
    "float16 underflows": SENTENCE - 30,
    "all overflow": SENTENCE + 110,
    "all underflow": SENTENCE - 120,
    "float16 loses digits": np.array([-17.25, -17.25, -16.25, -16.25]),
    "a lost tail": np.array([0.0, -20.0, -30.0, 5.0]),
    "between the numbers of bfloat16": SENTENCE + 84.75,
}
each_logits = pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)


def test_the_sentence_is_the_last_querys_unscaled_scores():
    np.testing.assert_array_equal(SENTENCE, scores(example.Q, example.K, 1.0)[-1])


@each_logits
def test_every_number_agrees_with_the_library(logits):
    model = explorer.run(logits)
    np.testing.assert_array_equal(model.true, stable_softmax(logits))
    assert [row.number_format for row in model.rows] == list(formats.FORMATS.values())
    for row in model.rows:
        exp_x, total, weights = formats.naive_softmax_steps(logits, row.number_format)
        np.testing.assert_array_equal(row.logits, row.number_format.round(logits))
        np.testing.assert_array_equal(row.exp_x, exp_x)
        np.testing.assert_array_equal(row.total, total[0])
        np.testing.assert_array_equal(row.weights, weights)


def test_zones_are_where_exp_changes():
    for row in explorer.run(SENTENCE).rows:
        fmt = row.number_format
        below = [fmt.round(np.exp(z - fmt.gap(z))) for z in row.zones]
        at = [fmt.round(np.exp(z)) for z in row.zones]
        above = fmt.round(np.exp(row.zones[2] + fmt.gap(row.zones[2])))
        assert below[0] == 0 < at[0] and below[1] < fmt.smallest_normal <= at[1]
        assert at[2] < np.inf == above


@pytest.mark.parametrize(
    "name, verdicts",
    [
        ("the sentence", [explorer.ORDINARY] * 3),
        ("float16 overflows", [explorer.NAN_OVERFLOW, explorer.ORDINARY, explorer.ORDINARY]),
        ("float16's sum overflows", [explorer.ZEROS, explorer.ORDINARY, explorer.ORDINARY]),
        ("all sums overflow", [explorer.NAN_OVERFLOW, explorer.ZEROS, explorer.ZEROS]),
        ("float16 underflows", [explorer.NAN_UNDERFLOW, explorer.ORDINARY, explorer.ORDINARY]),
        ("all overflow", [explorer.NAN_OVERFLOW] * 3),
        ("all underflow", [explorer.NAN_UNDERFLOW] * 3),
        ("a lost tail", [explorer.LOST, explorer.ORDINARY, explorer.ORDINARY]),
        ("float16 loses digits", [explorer.DIGITS, explorer.ORDINARY, explorer.ORDINARY]),
    ],
)
def test_the_verdict_names_what_went_wrong(name, verdicts):
    assert [row.verdict for row in explorer.run(LOGITS[name]).rows] == verdicts


def test_a_verdict_says_what_the_weights_are():
    for shift in np.arange(-120, 120.5, 0.5):
        for row in explorer.run(SENTENCE + shift).rows:
            w = row.weights
            assert row.verdict.startswith("NaN") == np.isnan(w).any(), shift
            assert (row.verdict == explorer.ZEROS) == (w == 0).all(), shift
            assert (row.verdict == explorer.LOST) == ((w == 0).any() and (w > 0).any()), shift
            full = (row.exp_x >= row.number_format.smallest_normal).all()
            if row.verdict in (explorer.DIGITS, explorer.ORDINARY):
                assert (w > 0).all() and full == (row.verdict == explorer.ORDINARY), shift


@each_logits
def test_every_number_in_the_text_comes_from_the_model(logits):
    model = explorer.run(logits)
    first, *lines = explorer.describe(model).split("<br>")
    number = r"-?(?:\d[\d.e+-]*\d|\d|inf|nan)"

    def vectors(line):
        found = re.findall(r"\(([^)]*)\)", line)
        return [float(x) for vector in found for x in re.findall(number, vector)]

    np.testing.assert_allclose(vectors(first), [*model.logits, *model.true], rtol=5.001e-4)
    for line, row in zip(lines, model.rows, strict=True):
        assert line.startswith(f"<b>{row.number_format.name}</b>") and line.endswith(f"<b>{row.verdict}.</b>")
        np.testing.assert_allclose(vectors(line), [*row.exp_x, *row.weights], rtol=5.001e-4)
        (total,) = re.findall(rf"sum ({number}),", line)
        np.testing.assert_allclose(float(total), row.total, rtol=5.001e-4)


@each_logits
def test_drawing_shows_the_model(logits, heights):
    model = explorer.run(logits)
    lines, weights = explorer.draw(model).axes
    for row, dots in zip(model.rows, lines.collections, strict=True):
        np.testing.assert_array_equal(dots.get_offsets()[:, 0], row.logits)
    edges = [zone.get_x() + zone.get_width() for zone in lines.patches]
    np.testing.assert_allclose(edges, [e for row in model.rows for e in (*row.zones, explorer.LINE_END)], rtol=1e-6)
    drawn = np.array([row.weights for row in model.rows])
    np.testing.assert_array_equal([heights(bars) for bars in weights.containers[::2]], np.nan_to_num(drawn))
    np.testing.assert_array_equal([heights(bars) for bars in weights.containers[1::2]], [model.true] * 3)
    texts = [text.get_text() for text in weights.texts]
    assert texts.count("NaN") == np.isnan(drawn).sum() and texts.count("0") == (drawn == 0).sum()
    assert [row.verdict in " ".join(t.replace("\n", " ") for t in texts) for row in model.rows] == [True] * 3


def test_dots_are_coloured_by_what_exp_makes_of_them():
    fmt = formats.FLOAT16
    exps = [np.inf, 0.0, 1.0, fmt.smallest_normal, fmt.smallest]
    names = [explorer._colour(exp_x, fmt) for exp_x in exps]
    blue, orange = explorer.BLUE, explorer.ORANGE
    assert names == [explorer.VERMILLION, explorer.GREY, blue, blue, orange]


def test_digits_fall_where_the_subnormals_are():
    (axes,) = explorer.draw_digits().axes
    for line, fmt in zip(axes.lines, formats.FORMATS.values(), strict=True):
        x, digits = line.get_data()
        assert x[0] == fmt.smallest and digits[0] == 1
        assert digits[-1] == fmt.mantissa_bits + 1 and x[-1] <= fmt.largest < 2 * x[-1]
        np.testing.assert_array_equal(digits == fmt.mantissa_bits + 1, x >= fmt.smallest_normal)


def test_broken_rows_are_counted_row_by_row():
    found = explorer.broken_rows([2.0], n=64, d=64, scale=1 / 8, seed=3)
    rng = np.random.default_rng(3)
    Q, K = rng.normal(size=(64, 64)), rng.normal(size=(64, 64))
    S = 4 * Q @ K.T / 8
    with np.errstate(all="ignore"):
        exp_s = np.exp(S.astype(np.float16))
        w = exp_s / exp_s.sum(axis=1, keepdims=True, dtype=np.float16)
    nan, zero = found["float16"]
    assert nan[0] == np.isnan(w).any(axis=1).mean() > 0
    assert zero[0] == (w == 0).all(axis=1).mean() > 0
    assert found["float32"][0] == found["float32"][1] == 0


def test_broken_rows_are_drawn():
    sizes = np.array([0.5, 1, 2])
    found = explorer.broken_rows(sizes, n=64)
    (axes,) = explorer.draw_broken_rows(sizes, found, "title").axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    for name, (nan, _) in found.items():
        np.testing.assert_array_equal(drawn[f"{name}: NaN"], nan)


@pytest.fixture
def shell(shell_of):
    return shell_of(explorer.explore())


def test_the_explorer_follows_every_control(shell):
    def shown(shift_all, **moved):
        model = explorer.run(SENTENCE + shift_all + [moved.get(name, 0) for name in example.TOKENS])
        return explorer.describe(model), explorer.draw(model)

    moves = [(name, value + 8, {name: 8}) for name, value in zip(example.TOKENS, SENTENCE, strict=True)]
    shell.assert_follows(shown, {"shift_all": 8}, [*moves, ("shift all", 0, {"shift_all": 0})])


def test_the_controls_reach_every_verdict_and_no_dot_leaves_the_line(shell):
    reach = shell["down"].max + shell["shift all"].max
    assert reach < explorer.LINE_END and shell["down"].min == -shell["down"].max
    for logits in LOGITS.values():
        assert np.abs(logits - logits.mean()).max() <= shell["down"].max and np.abs(logits).max() <= reach
