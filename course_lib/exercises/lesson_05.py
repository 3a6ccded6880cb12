"""Lesson 05, online softmax: the exercises' answers, hints, properties and plausible wrong answers.

The update is Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), Alg. 3, with the
weighted sum of values carried along as in FlashAttention-2 (Dao, 2023), Alg. 1, lines 9 and 10. Claims A, B and C
are widely copied versions of it that are wrong; they are among the wrong answers below.
"""

import numpy as np

from course_lib import reference
from course_lib.grading.checking import agrees, arrays, not_modified, numbers
from course_lib.grading.diagnosis import compare, exact_and_plain, show
from course_lib.grading.exercise import (
    Evidence,
    Exercise,
    Finding,
    Part,
    Property,
    Variant,
    WrongAnswer,
    caught_by,
    option,
)
from course_lib.grading.read_counting import Rows, growth_bytes_per_item

LESSON = "05"
TITLE = "Online softmax"

# What a slip in the rescale makes of an output, in the words that the learner reads.
NOT_RESCALED = "the old sum is kept as it was although the max has risen"
UPSIDE_DOWN = "the old sum is multiplied by exp(m_new - m_old), the rescale upside down"
NOT_SHIFTED = "exp(score) is summed without subtracting m"
DIVIDED = "acc is divided by l already"
POWERS_OF_TWO = "2 ** x stands where exp(x) should"

SHARED_MISTAKES = {
    "precision": "The sums lose digits. float16 holds about 3 decimal digits, and every addition rounds "
    "again: keep m, l and acc in float32 or better, whatever the inputs are.",
    "endless": "Which line changes what the loop waits for? A `for` over the stream or over range(0, n, "
    "block) ends by itself.",
    "error": "Run the call above in a cell of its own and look at the shapes on the line that is shown: "
    "which leading axes do m, l and acc have there, and which does your line expect?",
    "format": "Compare the last line of the docstring's Returns with your return statement.",
    "masked": "-inf minus -inf is NaN, and it happens when nothing has been visible so far: then the max "
    "is -inf. What finite number could you subtract instead, so that exp(-inf - it) is 0?",
    "base": "The weights are powers of e. 2 ** x is exp(x) only if x was multiplied by log2(e) first; "
    "kernels do that to the scores, once.",
}
SHARED_HINTS = {
    ": precision": "precision",
    ": timeout": "endless",
    ": exception": "error",
    ": none": "format",
    ": type": "format",
    ": shape": "error",
    f": {POWERS_OF_TWO}": "base",
    ": nan": "masked",
}


def finite(m):
    """m with 0 for -inf: what can be subtracted from a score of -inf."""
    return np.where(m == -np.inf, 0.0, m)


def keeps_float32(call, cases):
    """Property: a float32 state stays float32."""

    def test(answer, **inputs):
        returned = answer(*inputs.values())
        dtypes = [np.asarray(part).dtype for part in returned]
        findings = tuple(
            Finding(name, "dtype", f"{name} came back as {dtype}")
            for name, dtype in zip(("m", "l", "acc"), dtypes, strict=True)
            if dtype != np.float32
        )
        return Evidence(findings, ", ".join(map(str, dtypes)), "float32, float32, float32") if findings else None

    return Property("float32 in, float32 out", call, test, cases, hints={"": "dtype"})


def online_normalizer(stream):
    """Running max and normaliser of a softmax, in one pass over its scores.

    stream: iterable of floats that can be gone through once; it has no length and no indices. A score may be
        -inf (a masked key), never +inf or NaN.
    Returns (m, l), two floats: m is the largest score and l the sum of exp(s - m) over all scores s. If every
        score is -inf, or there is none, that is (-inf, 0.0).
    Keep two numbers between one score and the next, however long the stream.

    >>> m, l = online_normalizer([1.0, 2.0, 3.0, 4.0])
    >>> print(f"{m:.4f} {l:.4f}")
    4.0000 1.5530
    """
    m, l = -np.inf, 0.0
    for s in stream:
        m_new = max(m, s)
        if m_new == -np.inf:  # every score so far is masked, and -inf minus -inf would be NaN
            continue
        l = l * np.exp(m - m_new) + np.exp(s - m_new)
        m = m_new
    return m, l


def normalizer_parts(stream):
    scores = np.array(stream, dtype=np.float64)
    values = np.zeros((len(scores), 1))
    empty = (-np.inf, 0.0, np.zeros(1))
    exact, plain = exact_and_plain(reference.online_softmax_update, *empty, scores, values)
    m, l, _ = exact

    def l_readings():
        rising = len(scores) == 2 and scores[1] > scores[0]
        carried = {NOT_RESCALED: 2.0, UPSIDE_DOWN: 1.0 + np.exp(scores[1] - scores[0])} if rising else {}
        return carried | {NOT_SHIFTED: np.exp(scores).sum(), POWERS_OF_TWO: np.exp2(scores - finite(m)).sum()}

    return [Part("m", m, plain[0], 0.0), Part("l", l, plain[1], l, l_readings)]


def draw_stream(of=None, min_size=1, max_size=6):
    def draw():
        from hypothesis import strategies as st

        return st.fixed_dictionaries(
            {"stream": st.lists(of() if of else numbers(), min_size=min_size, max_size=max_size)}
        )

    return draw


def draw_pair(rising):
    def draw():
        from hypothesis import strategies as st

        step = st.integers(1, 6).map(float)
        return st.tuples(numbers(), step).map(
            lambda pair: {"stream": [pair[0], pair[0] + (pair[1] if rising else -pair[1])]}
        )

    return draw


def masked_scores():
    from hypothesis import strategies as st

    return st.sampled_from([-np.inf, 0.0, 1.0, -1.0, 2.0, -np.inf])


def large_scores():
    from hypothesis import strategies as st

    return st.integers(-8, 8).map(lambda i: i * 250.0)


def large_positive_scores():
    from hypothesis import strategies as st

    return st.integers(0, 8).map(lambda i: i * 250.0)


def normalizer_reads_once(answer, stream):
    return compare(answer(iter(stream)), normalizer_parts(stream))


def normalizer_memory(answer, n):
    growth = growth_bytes_per_item(lambda n: answer(float(i % 7) for i in range(n)), n // 8, n)
    if growth < 1:
        return None
    text = f"memory grows with the stream, by about {round(growth, -1):.0f} bytes a score: the scores are kept"
    return Evidence((Finding("", "memory", text),))


NORMALIZER_CALL = "online_normalizer(stream)"

NORMALIZER = Exercise(
    id="05.online_normalizer",
    title="Max and normaliser in one pass",
    points=2,
    minutes=8,
    difficulty="easy",
    answer=online_normalizer,
    hints=(
        "After the scores 1 and 2 you hold m = 2 and l = exp(1 - 2) + exp(2 - 2). Then 3 arrives. Which "
        "number is every term of l measured from now, and which should it be?",
        "Every term of the old l is exp(s - m_old). Multiplying all of them by one and the same factor "
        "turns them into exp(s - m_new), so multiply their sum. Which factor?",
        "Start with m = -inf, l = 0. For each score s: m_new = max(m, s); l = l * exp(m - m_new) + exp(s - "
        "m_new); m = m_new. Skip the step while m_new is -inf, where the difference would be NaN.",
    ),
    reasoning="The invariant is l = sum of exp(s - m) over the scores seen so far. Taking a new score "
    "moves the reference point from m to m_new, and exp(s - m_new) = exp(s - m) * exp(m - m_new) for every "
    "old score, so one multiplication of l repairs all of its terms at once. If the max does not move the "
    "factor is 1. At the first visible score the factor is exp(-inf) = 0, which is why -inf is the right "
    "start: it forgets an empty sum.",
    properties=(
        Property(
            "one score alone: m is the score and l is 1",
            NORMALIZER_CALL,
            agrees(normalizer_parts),
            ({"stream": [0.0]}, {"stream": [-3.0]}, {"stream": [3.0]}),
            draw_stream(max_size=1),
            {
                f"l: {NOT_SHIFTED}": "not_shifted",
                "m l": "start",
                "m": "start",
                "l": "start",
                ": swapped": "order",
            },
        ),
        Property(
            "a smaller score leaves m alone and adds exp(s - m) to l",
            NORMALIZER_CALL,
            agrees(normalizer_parts),
            ({"stream": [2.0, 1.0]}, {"stream": [-1.0, -3.0]}),
            draw_pair(rising=False),
            {"m l": "running_max", "m": "running_max", "": "term"},
        ),
        Property(
            "a new max rescales the old sum",
            NORMALIZER_CALL,
            agrees(normalizer_parts),
            ({"stream": [1.0, 2.0]}, {"stream": [-3.0, -1.0]}),
            draw_pair(rising=True),
            {f"l: {NOT_RESCALED}": "rescale", f"l: {UPSIDE_DOWN}": "upside_down", "": "term"},
        ),
        Property(
            "any stream gives the max and the sum of exp(s - max)",
            NORMALIZER_CALL,
            agrees(normalizer_parts),
            (
                {"stream": [1.0, 2.0, 3.0, 4.0]},
                {"stream": [2.0] * 5},
                {"stream": [(i * 37 % 64) / 8 for i in range(64)]},
            ),
            draw_stream(),
            {"": "invariant"},
        ),
        Property(
            "scores near 1000 and -1000 neither overflow nor vanish",
            NORMALIZER_CALL,
            agrees(normalizer_parts),
            ({"stream": [1000.0, 999.0]}, {"stream": [-1000.0, -1001.0]}, {"stream": [-1e30, -2e30]}),
            draw_stream(large_scores),
            {"m l": "start", "m": "start", "": "not_shifted"},
        ),
        Property(
            "masked scores (-inf) add nothing, also when they come first",
            NORMALIZER_CALL,
            agrees(normalizer_parts),
            ({"stream": [-np.inf]}, {"stream": [-np.inf, 1.0]}, {"stream": [1.0, -np.inf]}, {"stream": []}),
            draw_stream(masked_scores, min_size=0, max_size=4),
            {"": "masked"},
        ),
        Property(
            "the stream is gone through once",
            "online_normalizer(iter(stream))",
            normalizer_reads_once,
            ({"stream": [0.0, 1.0]},),
            hints={"": "one_pass", ": exception": "one_pass", ": nan": "one_pass"},
        ),
        Property(
            "what is kept does not grow with the stream",
            "online_normalizer(float(i % 7) for i in range(n))",
            normalizer_memory,
            ({"n": 2048},),
            hints={": memory": "memory"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "start": "What is the largest of no scores, and the sum of none? 0 is larger than a negative "
        "score, so it cannot be where the max starts; and a sum starts at 0 before its first term arrives.",
        "not_shifted": "exp overflows beyond 88.7 in float32 and 709 in float64. Every term has to be "
        "exp(s - m), at most 1, from the first score on.",
        "order": "The answer is (m, l), the max first.",
        "running_max": "Two different numbers are at work: the max of what came before, and the score that "
        "came now. The running max is the larger of the two; m_j = max(m_{j-1}, m_j) with one letter for "
        "both hides it.",
        "term": "With m unchanged, l grows by exp(s - m) and by nothing else; with a new max, the new "
        "score's own term is exp(0) = 1.",
        "rescale": "The old terms are still measured from the old max. Which single factor turns every "
        "exp(s - m_old) into exp(s - m_new)?",
        "upside_down": "When the max rises the old terms must shrink. Is your factor less than 1 or more?",
        "invariant": "Write the invariant as an assertion after each step: l equals the sum of exp(s - m) "
        "over all scores so far. At which score does it break?",
        "one_pass": "A stream can be gone through once: no max(stream) before the loop, no len, no second "
        "loop. What must be repaired when a later score turns out larger?",
        "memory": "The scores are being collected. A running max and a running sum need two numbers, "
        "however many scores come.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one score alone: m is the score and l is 1",
            WrongAnswer("running max starts at 0", "start", {"m, l = -np.inf, 0.0": "m, l = 0.0, 0.0"}),
            WrongAnswer(
                "normaliser starts at 1",
                "start",
                {
                    "m, l = -np.inf, 0.0": "m, l = -np.inf, 1.0",
                    "l = l * np.exp(m - m_new)": "l = (l * np.exp(m - m_new) if m > -np.inf else l)",
                },
            ),
            WrongAnswer(
                "no max subtraction",
                "not_shifted",
                {"l = l * np.exp(m - m_new) + np.exp(s - m_new)": "l = l + np.exp(s)"},
            ),
            WrongAnswer("returns (l, m)", "order", {"return m, l": "return l, m"}),
        ),
        *caught_by(
            "a smaller score leaves m alone and adds exp(s - m) to l",
            WrongAnswer("claim C: the current score for the running max", "running_max", {"max(m, s)": "s"}),
            WrongAnswer(
                "exp2 without log2(e)",
                "base",
                {"np.exp(m - m_new) + np.exp(s - m_new)": "np.exp2(m - m_new) + np.exp2(s - m_new)"},
            ),
            WrongAnswer(
                "float16 accumulation",
                "precision",
                {"        m = m_new\n": "        m, l = m_new, np.float16(l)\n"},
            ),
        ),
        *caught_by(
            "a new max rescales the old sum",
            WrongAnswer("no rescale of l", "rescale", {"l * np.exp(m - m_new)": "l"}),
            WrongAnswer(
                "alpha upside down",
                "upside_down",
                {"l * np.exp(m - m_new)": "l * (np.exp(m_new - m) if m > -np.inf else 0.0)"},
            ),
        ),
        *caught_by(
            "scores near 1000 and -1000 neither overflow nor vanish",
            WrongAnswer("finite stand-in for -inf", "start", {"m, l = -np.inf, 0.0": "m, l = -1e6, 0.0"}),
        ),
        *caught_by(
            "masked scores (-inf) add nothing, also when they come first",
            WrongAnswer(
                "-inf minus -inf",
                "masked",
                {
                    (
                        "        if m_new == -np.inf:  # every score so far is masked, and -inf minus "
                        "-inf would be NaN\n"
                        "            continue\n"
                    ): ""
                },
            ),
        ),
        *caught_by(
            "the stream is gone through once",
            WrongAnswer(
                "two passes over the stream",
                "one_pass",
                {"m, l = -np.inf, 0.0": "m, l = max(stream, default=-np.inf), 0.0"},
            ),
        ),
        *caught_by(
            "what is kept does not grow with the stream",
            WrongAnswer(
                "collects the scores",
                "memory",
                {"m, l = -np.inf, 0.0": "stream = list(stream)\n    m, l = max(stream, default=-np.inf), 0.0"},
            ),
        ),
    ),
    right_answers=(
        Variant(
            "rescales only when the max moves",
            {
                ("        l = l * np.exp(m - m_new) + np.exp(s - m_new)\n        m = m_new\n"): (
                    "        if s > m:\n"
                    "            l = l * np.exp(m - s) + 1.0\n"
                    "            m = s\n"
                    "        else:\n"
                    "            l += np.exp(s - m)\n"
                )
            },
        ),
        Variant("log-sum-exp", function=lambda stream: _normalizer_by_lse(stream)),
        Variant(
            "pairs of NumPy scalars, float32",
            {"        m_new = max": ("        s = np.float32(s)\n        m_new = max")},
        ),
    ),
)


def _normalizer_by_lse(stream):
    m = lse = -np.inf
    for s in stream:
        m, lse = np.maximum(m, s), np.logaddexp(lse, s)
    return m, np.exp(lse - m) if m > -np.inf else 0.0


def online_softmax_update(m, l, acc, scores, values):
    """State of a softmax-weighted sum after one more block of scores and values.

    m: [...], the largest score so far. l: [...], the sum of exp(s - m) so far. acc: [..., d_v], the sum of
        exp(s - m) * value so far, not divided by l. Before the first block they are -inf, 0 and 0.
    scores: [..., block]; a score may be -inf (a masked key). values: [block, d_v], one row a key.
        [...] is any leading shape: none for one query, [rows] for many.
    Returns (m, l, acc) with the same shapes and dtype, the block included. The inputs are not modified. While
        every score is -inf the state stays (-inf, 0, 0), and no step makes a NaN.

    >>> m, l, acc = np.float64(2.0), np.float64(1.3679), np.array([0.7358, 2.0])    # after scores 1 and 2
    >>> scores, values = np.array([3.0, 4.0]), np.array([[1.0, 1.0], [3.0, -1.0]])
    >>> m, l, acc = online_softmax_update(m, l, acc, scores, values)
    >>> print(f"{m:.3f} {l:.3f}", acc.round(3))
    4.000 1.553 [ 3.467 -0.361]
    """
    m_new = np.maximum(m, scores.max(axis=-1))
    shift = np.where(m_new == -np.inf, 0.0, m_new)  # finite, so that -inf - shift is -inf and never NaN
    alpha = np.exp(m - shift)
    p = np.exp(scores - shift[..., None])
    return m_new, alpha * l + p.sum(axis=-1), alpha[..., None] * acc + p @ values


def update_parts(m, l, acc, scores, values):
    exact, plain = exact_and_plain(reference.online_softmax_update, m, l, acc, scores, values)
    m_new, l_new, acc_new = exact
    acc_terms = reference.online_softmax_update(m, l, np.abs(acc), scores, np.abs(values))[2]

    def slips():
        """name -> (weight of the old sums, weights of the block)."""
        shift, block_max = finite(m_new), finite(scores.max(axis=-1))
        alpha, p = np.exp(m - shift), np.exp(scores - shift[..., None])
        return {
            NOT_RESCALED: (np.ones_like(alpha), p),
            UPSIDE_DOWN: (np.where(m == -np.inf, 0.0, np.exp(m_new - m)), p),
            NOT_SHIFTED: (np.ones_like(alpha), np.exp(scores)),
            POWERS_OF_TWO: (np.exp2(m - shift), np.exp2(scores - shift[..., None])),
            "the block's terms are measured from its own max": (alpha, np.exp(scores - block_max[..., None])),
            "the old sum is left out": (np.zeros_like(alpha), p),
            "the block is left out": (alpha, np.zeros_like(p)),
        }

    def m_readings():
        return {"only this block's max is kept": scores.max(axis=-1), "the old max is kept": m}

    def l_readings():
        return {name: old * l + new.sum(axis=-1) for name, (old, new) in slips().items()}

    def acc_readings():
        readings = {name: old[..., None] * acc + new @ values for name, (old, new) in slips().items()}
        return readings | {DIVIDED: reference.softmax.normalise_state(l_new, acc_new)}

    return [
        Part("m", m_new, plain[0], 0.0, m_readings),
        Part("l", l_new, plain[1], l_new, l_readings),
        Part("acc", acc_new, plain[2], acc_terms, acc_readings),
    ]


def draw_update(relation="any", rows=False, empty=False, of=None):
    """relation: where the block's scores lie from m: "below", "above" (its max) or "any"."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            shape = (draw(st.integers(2, 3)),) if rows else ()
            block, d_v = draw(st.integers(1, 3)), draw(st.integers(1, 2))
            gap = st.integers(1, 4).map(float)
            m = arrays(draw, *shape)
            if relation == "below":
                scores = m[..., None] - arrays(draw, *shape, block, of=gap)
            elif relation == "above":
                scores = m[..., None] + arrays(draw, *shape, block, of=gap)
            else:
                scores = arrays(draw, *shape, block, of=of() if of else None)
            l, acc = 1.0 + arrays(draw, *shape, of=st.integers(0, 3).map(float)), arrays(draw, *shape, d_v)
            if empty:
                m, l, acc = m - np.inf, l * 0, np.zeros_like(acc)
            values = arrays(draw, block, d_v)
            m, l = m[()], l[()]  # one query's m and l are numbers
            return {"m": m, "l": l, "acc": acc, "scores": scores, "values": values}

        return inputs()

    return draw


def update_case(m, l, acc, scores, values):
    """Lists as arrays; m and l of one query as NumPy numbers."""
    as_floats = [np.array(x, dtype=np.float64)[()] for x in (m, l, acc, scores, values)]
    return dict(zip(("m", "l", "acc", "scores", "values"), as_floats, strict=True))


def update_chain(answer, blocks):
    """Every state on the way equals that of the blocks so far taken at once."""
    state = (np.float64(-np.inf), np.float64(0.0), np.zeros(blocks[0][1].shape[1]))
    for i in range(len(blocks)):
        state = answer(*state, *blocks[i])
        scores = np.concatenate([scores for scores, _ in blocks[: i + 1]])
        values = np.concatenate([values for _, values in blocks[: i + 1]])
        start = (np.float64(-np.inf), np.float64(0.0), np.zeros(values.shape[1]))
        if evidence := compare(state, update_parts(*start, scores, values)):
            return evidence
    return None


def draw_blocks():
    from hypothesis import strategies as st

    @st.composite
    def inputs(draw):
        d_v = draw(st.integers(1, 2))
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        return {"blocks": [(arrays(draw, size), arrays(draw, size, d_v)) for size in sizes]}

    return inputs()


UPDATE_CALL = "online_softmax_update(m, l, acc, scores, values)"
UPDATE_ROWS = update_case([0, 2], [1, 1], [[1], [1]], [[1, 0], [0, 1]], [[1], [2]])

UPDATE = Exercise(
    id="05.online_softmax_update",
    title="One more block of scores and values",
    points=4,
    minutes=12,
    difficulty="medium",
    answer=online_softmax_update,
    hints=(
        "Three numbers come in and three go out. When the block's largest score is above m, which of the "
        "three are still measured from the old m?",
        "Compute m_new first. alpha = exp(m - m_new) carries both old sums over to the new max, and p = "
        "exp(scores - m_new) are the block's own terms. Where m_new is -inf, subtract 0 instead.",
        "m_new = maximum(m, scores.max(axis=-1)); shift = m_new, but 0 where that is -inf; alpha = exp(m - "
        "shift); p = exp(scores - shift[..., None]); l = alpha * l + p.sum(axis=-1); acc = alpha[..., "
        "None] * acc + p @ values.",
    ),
    reasoning="l and acc are sums of terms that all carry the factor exp(-m). Raising m to m_new "
    "multiplies that factor by alpha = exp(m - m_new), so one multiplication repairs each sum, and the "
    "block's terms are added in the new unit. acc stays unnormalised: dividing once at the end is "
    "FlashAttention-2's choice; FlashAttention-1 divides at every step and must then multiply back by the "
    "old l before the next. The only trap is a query that has seen no key: there m_new is -inf, and "
    "subtracting 0 in its place leaves exp(-inf) = 0, where -inf - -inf would be NaN.",
    properties=(
        Property(
            "the first block, from the state (-inf, 0, 0)",
            UPDATE_CALL,
            agrees(update_parts),
            (
                update_case(-np.inf, 0, [0], [-1, -2], [[1], [2]]),
                update_case(-np.inf, 0, [0, 0], [1, 2], [[2, 0], [0, 2]]),
            ),
            draw_update(empty=True),
            {
                f"l acc: {NOT_SHIFTED}": "not_shifted",
                f"acc: {DIVIDED}": "normalised",
                ": swapped": "format",
                "": "first_block",
            },
        ),
        Property(
            "a block below the running max leaves m and the old sums alone",
            UPDATE_CALL,
            agrees(update_parts),
            (update_case(2, 1, [1], [1], [[1]]), update_case(0, 2, [1], [-1, -2], [[1], [3]])),
            draw_update("below"),
            {
                "m": "block_max",
                "m l": "block_max",
                "m acc": "block_max",
                "m l acc": "block_max",
                "": "own_max",
            },
        ),
        Property(
            "a block above the running max rescales l and acc",
            UPDATE_CALL,
            agrees(update_parts),
            (update_case(1, 1, [1], [2], [[1]]), update_case(-3, 2, [3], [-2, -1], [[1], [2]])),
            draw_update("above"),
            {
                f"l: {NOT_RESCALED}": "rescale_l",
                f"acc: {NOT_RESCALED}": "rescale_acc",
                f"l acc: {NOT_RESCALED}": "rescale_both",
                f"l acc: {UPSIDE_DOWN}": "upside_down",
                f"l: {UPSIDE_DOWN}": "upside_down",
                f"acc: {UPSIDE_DOWN}": "upside_down",
                "": "rescale_both",
            },
        ),
        Property(
            "many queries at once, each with its own max",
            UPDATE_CALL,
            agrees(update_parts),
            (
                UPDATE_ROWS,
                update_case([0, 0, 5], [1, 2, 1], [[1, 0], [1, 1], [0, 1]], [[1], [-2], [3]], [[1, 2]]),
                update_case([[0, 1]], [[1, 1]], [[[1], [1]]], [[[1, 0], [0, 2]]], [[1], [2]]),
            ),
            draw_update(rows=True),
            {"": "rows", ": exception": "rows", ": shape": "rows"},
        ),
        Property(
            "a block in which every key is masked changes nothing",
            UPDATE_CALL,
            agrees(update_parts),
            (
                update_case(1, 1, [1], [-np.inf], [[1]]),
                update_case(-np.inf, 0, [0], [-np.inf], [[1]]),
                update_case([-np.inf, 0], [0, 1], [[0], [1]], [[-np.inf, -np.inf], [-np.inf, 1]], [[1], [2]]),
            ),
            draw_update(of=masked_scores, empty=True),
            {"": "masked"},
        ),
        Property(
            "scores near 1000 and -1000 neither overflow nor vanish",
            UPDATE_CALL,
            agrees(update_parts),
            (
                update_case(1000, 1, [1], [999, 1001], [[1], [2]]),
                update_case(-np.inf, 0, [0], [-1000, -1001], [[1], [2]]),
            ),
            draw_update(of=large_scores),
            {"": "not_shifted", ": nan": "not_shifted"},
        ),
        Property(
            "block after block gives the state of all blocks at once, whatever the blocks' sizes",
            "m, l, acc = np.float64(-np.inf), np.float64(0.0), np.zeros(blocks[0][1].shape[1])\n"
            "for scores, values in blocks:\n"
            "    m, l, acc = online_softmax_update(m, l, acc, scores, values)\n"
            "m, l, acc",
            update_chain,
            (
                {"blocks": [(np.array([float(s)]), np.array([[1.0, s]])) for s in (1, 2, 3, 4)]},
                {"blocks": [(np.array([3.0, 0.0]), np.eye(2)), (np.array([1.0]), np.ones((1, 2)))]},
            ),
            draw_blocks,
            {"": "invariant"},
        ),
        not_modified(UPDATE_CALL, (UPDATE_ROWS,)),
        keeps_float32(UPDATE_CALL, ({name: x.astype(np.float32) for name, x in UPDATE_ROWS.items()},)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "first_block": "Before the first block m is -inf, so alpha = exp(-inf) = 0 and nothing old "
        "remains: l is the sum of exp(scores - m_new), and acc the same weights times the values.",
        "not_shifted": "exp overflows beyond 88.7 in float32. Subtract m_new from the scores and from the "
        "old m before any exp, so that no exponent is positive.",
        "normalised": "acc here is the bare sum; the division by l comes once, at the very end. If you "
        "divide at every step (FlashAttention-1) you must multiply by the old l again before the next "
        "block is added.",
        "block_max": "There are two maxima: the block's, and the running one, which is the larger of the "
        "block's and the old m. m_j = max(m_{j-1}, m_j) writes both with one letter; only the running one "
        "may be kept.",
        "own_max": "m did not move, so the old sums keep their weight 1 and the block's terms are measured "
        "from m, not from the block's own max.",
        "rescale_l": "acc is carried over to the new max and l is not. Both are sums of exp(s - m_old) "
        "terms: what applies to one applies to the other.",
        "rescale_acc": "l is carried over to the new max and acc is not. Both are sums of exp(s - m_old) "
        "terms: what applies to one applies to the other.",
        "rescale_both": "The old sums are still measured from the old max: both need the factor alpha = "
        "exp(m_old - m_new) before anything measured from the new max is added.",
        "upside_down": "When the max rises the old sums must shrink. Is your alpha less than 1 or more?",
        "rows": "Each query has its own max. Take maxima and sums along the last axis only, and give m_new "
        "and alpha a last axis, [..., None], where they meet scores and acc.",
        "invariant": "Assert after each block that l is the sum of exp(s - m) over all scores so far. "
        "Which block breaks it?",
        "modified": "+=, *= and out= write into the caller's array. A new array, acc = alpha[..., None] * "
        "acc + ..., does not.",
        "dtype": "Somewhere a float64 array entered: np.zeros and np.full make float64 unless told "
        "otherwise, and a float64 array turns what it meets into float64.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "the first block, from the state (-inf, 0, 0)",
            WrongAnswer(
                "no max subtraction",
                "not_shifted",
                {
                    "alpha = np.exp(m - shift)": "alpha = np.ones_like(shift)",
                    "p = np.exp(scores - shift[..., None])": "p = np.exp(scores)",
                },
            ),
            WrongAnswer(
                "exp2 without log2(e)",
                "base",
                {"np.exp(m - shift)": "np.exp2(m - shift)", "p = np.exp(": "p = np.exp2("},
            ),
            WrongAnswer(
                "claim A: acc divided by l and not multiplied back",
                "normalised",
                {
                    "    return m_new, alpha * l + p.sum(axis=-1), alpha[..., None] * acc + p @ values": (
                        "    l_new = alpha * l + p.sum(axis=-1)\n"
                        "    return m_new, l_new, (alpha[..., None] * acc + p @ values) / l_new[..., "
                        "None]"
                    )
                },
            ),
            WrongAnswer(
                "float16 accumulation",
                "precision",
                {"np.exp(scores - shift[..., None])": "np.float16(np.exp(scores - shift[..., None]))"},
            ),
        ),
        *caught_by(
            "a block below the running max leaves m and the old sums alone",
            WrongAnswer(
                "claim C: the block's max for the running max",
                "block_max",
                {"np.maximum(m, scores.max(axis=-1))": "scores.max(axis=-1)"},
            ),
            WrongAnswer(
                "block measured from its own max",
                "own_max",
                {
                    "np.exp(scores - shift[..., None])": (
                        "np.exp(np.maximum(scores, -1e300) - np.maximum(scores.max(axis=-1, "
                        "keepdims=True), -1e300)) * (scores > -np.inf)"
                    )
                },
            ),
        ),
        *caught_by(
            "a block above the running max rescales l and acc",
            WrongAnswer("no rescale of l", "rescale_l", {"alpha * l": "l"}),
            WrongAnswer("no rescale of acc", "rescale_acc", {"alpha[..., None] * acc": "acc"}),
            WrongAnswer(
                "claim B: neither old sum rescaled",
                "rescale_both",
                {"alpha * l": "l", "alpha[..., None] * acc": "acc"},
            ),
            WrongAnswer(
                "alpha upside down",
                "upside_down",
                {"alpha = np.exp(m - shift)": "alpha = np.where(m == -np.inf, 0.0, np.exp(shift - m))"},
            ),
        ),
        *caught_by(
            "many queries at once, each with its own max",
            WrongAnswer(
                "one max for all queries",
                "rows",
                {"np.maximum(m, scores.max(axis=-1))": "np.maximum(m, scores.max())"},
            ),
            WrongAnswer(
                "works for one query only",
                "rows",
                {"np.maximum(m, scores.max(axis=-1))": "np.float64(max(m, scores.max()))"},
            ),
        ),
        *caught_by(
            "a block in which every key is masked changes nothing",
            WrongAnswer(
                "-inf minus -inf",
                "masked",
                {"shift = np.where(m_new == -np.inf, 0.0, m_new)": "shift = m_new"},
            ),
            WrongAnswer(
                "-1e6 stands in for -inf",
                "masked",
                {"scores.max(axis=-1))": "np.maximum(scores.max(axis=-1), -1e6))"},
            ),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "acc updated in place",
                "modified",
                {
                    "    return m_new, alpha * l + p.sum(axis=-1), alpha[..., None] * acc + p @ values": (
                        "    acc *= alpha[..., None]\n"
                        "    acc += p @ values\n"
                        "    return m_new, alpha * l + p.sum(axis=-1), acc"
                    )
                },
            ),
        ),
        *caught_by(
            "float32 in, float32 out",
            WrongAnswer(
                "float64 whatever came",
                "dtype",
                {"acc + p @ values": "acc + np.zeros(acc.shape) + p @ values"},
            ),
        ),
    ),
    right_answers=(
        Variant("query by query and key by key", function=lambda *arguments: _update_by_loops(*arguments)),
        Variant("in float32 throughout", function=lambda *arguments: _update_in_float32(*arguments)),
        Variant(
            "exp2 with log2(e) folded in",
            {
                "np.exp(m - shift)": "np.exp2((m - shift) * np.float32(1.44269504))",
                "np.exp(scores - shift[..., None])": "np.exp2((scores - shift[..., None]) * np.float32(1.44269504))",
            },
        ),
    ),
)


def _update_by_loops(m, l, acc, scores, values):
    new_m, new_l, new_acc = np.array(m), np.array(l), np.array(acc)
    for row in np.ndindex(new_m.shape):
        for s, v in zip(scores[row], values, strict=True):
            if s == -np.inf:
                continue
            if s > new_m[row]:
                factor = np.exp(new_m[row] - s)
                new_l[row], new_acc[row], new_m[row] = new_l[row] * factor, new_acc[row] * factor, s
            weight = np.exp(s - new_m[row])
            new_l[row] += weight
            new_acc[row] += weight * v
    return new_m, new_l, new_acc


def _update_in_float32(*arguments):
    m, l, acc, scores, values = (np.asarray(x, dtype=np.float32) for x in arguments)
    block_m = scores.max(axis=-1, keepdims=True)
    block_p = np.where(block_m == -np.inf, np.float32(0), np.exp(scores - block_m))
    m_new = np.maximum(m[..., None], block_m)
    visible = m_new > -np.inf
    old = np.where(visible, np.exp(m[..., None] - m_new), np.float32(0))
    new = np.where(visible, np.exp(block_m - m_new), np.float32(0))
    l_new = old[..., 0] * l + new[..., 0] * block_p.sum(axis=-1)
    return m_new[..., 0], l_new, old * acc + new * np.einsum("...k,kd->...d", block_p, values)


def merge_states(a, b):
    """Combine two partial softmax states into the state of their union.

    a, b: states (m, l, acc) of two disjoint sets of keys. m: [...], the set's largest score. l: [...], its
        sum of exp(s - m). acc: [..., d_v], its sum of exp(s - m) * value, not divided by l. The state of a
        set with no visible key is (-inf, 0, 0). [...] is any leading shape: none for one query, [rows] for
        many.
    Returns (m, l, acc) with the same shapes and dtype, as if both sets had been one. The inputs are not
        modified.

    >>> a = (np.float64(2.0), np.float64(1.3679), np.array([0.7358, 2.0]))      # scores 1, 2
    >>> b = (np.float64(4.0), np.float64(1.3679), np.array([3.3679, -0.6321]))  # scores 3, 4
    >>> m, l, acc = merge_states(a, b)
    >>> print(f"{m:.3f} {l:.3f}", acc.round(3))
    4.000 1.553 [ 3.467 -0.361]
    """
    m_a, l_a, acc_a = a
    m_b, l_b, acc_b = b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0.0, m)  # two empty states: -inf - 0, not -inf - -inf
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b


NEITHER_MERGED = "neither sum is rescaled to the larger max"
MERGED_UPSIDE_DOWN = "the rescale is upside down"
WRONG_ONE = "the wrong one of the two sums is rescaled"
OUTPUTS_ADDED = "each part's acc is first divided by its own l"


def merge_parts(a, b):
    exact, plain = exact_and_plain(reference.merge_states, a, b)
    m, l, acc = exact
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    acc_terms = reference.merge_states((m_a, l_a, np.abs(acc_a)), (m_b, l_b, np.abs(acc_b)))[2]

    def slips():
        """name -> (weight of a's sums, weight of b's)."""
        shift = finite(m)
        w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
        return {
            NEITHER_MERGED: (np.ones_like(w_a), np.ones_like(w_b)),
            WRONG_ONE: (w_b, w_a),
            MERGED_UPSIDE_DOWN: (np.exp(m - finite(m_a)), np.exp(m - finite(m_b))),
            POWERS_OF_TWO: (np.exp2(m_a - shift), np.exp2(m_b - shift)),
        }

    def m_readings():
        return {"a's max is kept": m_a, "b's max is kept": m_b}

    def l_readings():
        return {name: x * l_a + y * l_b for name, (x, y) in slips().items()}

    def acc_readings():
        readings = {name: x[..., None] * acc_a + y[..., None] * acc_b for name, (x, y) in slips().items()}
        normalise = reference.softmax.normalise_state
        outputs = reference.merge_states((m_a, l_a, normalise(l_a, acc_a)), (m_b, l_b, normalise(l_b, acc_b)))
        return readings | {DIVIDED: normalise(l, acc), OUTPUTS_ADDED: outputs[2]}

    return [
        Part("m", m, plain[0], 0.0, m_readings),
        Part("l", l, plain[1], l, l_readings),
        Part("acc", acc, plain[2], acc_terms, acc_readings),
    ]


def merge_associates(answer, a, b, c):
    whole = merge_parts(reference.merge_states(a, b), c)
    for order in ("left", "right"):
        inner = answer(a, b) if order == "left" else answer(b, c)
        if evidence := compare(inner, merge_parts(*((a, b) if order == "left" else (b, c)))):
            return evidence
        outer = answer(tuple(inner), c) if order == "left" else answer(a, tuple(inner))
        if evidence := compare(outer, whole):
            return evidence
    return None


def merge_commutes(answer, a, b):
    return compare(answer(a, b), merge_parts(a, b)) or compare(answer(b, a), merge_parts(b, a))


def state_of(m, l, acc):
    return tuple(np.array(x, dtype=np.float64)[()] for x in (m, l, acc))


EMPTY = state_of(-np.inf, 0, [0])


def draw_states(names="ab", larger=None, rows=False, empty=False, spread=1.0):
    """larger: the state whose max is the larger one. empty: a state may be (-inf, 0, 0)."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            shape = (draw(st.integers(2, 3)),) if rows else ()
            d_v = draw(st.integers(1, 2))
            states = {}
            for name in names:
                m = spread * arrays(draw, *shape)
                if name == larger:
                    m = states["a"][0] + arrays(draw, *shape, of=st.integers(1, 4).map(float))
                l, acc = (
                    1.0 + arrays(draw, *shape, of=st.integers(0, 3).map(float)),
                    arrays(draw, *shape, d_v),
                )
                if empty and draw(st.booleans()):
                    m, l, acc = m - np.inf, l * 0, np.zeros_like(acc)
                states[name] = (m[()], l[()], acc)
            return states

        return inputs()

    return draw


def draw_states_a_larger():
    return draw_states(larger="b")().map(lambda states: {"a": states["b"], "b": states["a"]})


MERGE_CALL = "merge_states(a, b)"
MERGE_ROWS = {
    "a": state_of([0, 2], [1, 2], [[1], [1]]),
    "b": state_of([1, 1], [2, 1], [[3], [1]]),
}

MERGE = Exercise(
    id="05.merge_states",
    title="Merge two partial states",
    points=3,
    minutes=6,
    difficulty="medium",
    answer=merge_states,
    hints=(
        "Each state's sums are measured from its own max. Which max must both be measured from before they "
        "can be added?",
        "With m the larger of the two maxima, a's sums need the factor exp(m_a - m) and b's the factor "
        "exp(m_b - m); one of the two factors is 1. Neither state is older than the other.",
        "m = maximum(m_a, m_b); shift = m, but 0 where that is -inf; w_a = exp(m_a - shift), w_b = exp(m_b "
        "- shift); l = w_a * l_a + w_b * l_b; acc = w_a[..., None] * acc_a + w_b[..., None] * acc_b.",
    ),
    reasoning="Both states are sums in a unit of their own, exp(m_a) and exp(m_b). Written in the common "
    "unit exp(m) they simply add, and addition is associative and commutative, so any tree of merges gives "
    "the same result: over the splits of a long key sequence, or over several GPUs. The online update is "
    "the special case in which b is the state of one block. The empty set's state (-inf, 0, 0) is the "
    "identity, provided that -inf - -inf is never evaluated.",
    properties=(
        Property(
            "the sum of a with the smaller max is rescaled",
            MERGE_CALL,
            agrees(merge_parts),
            (
                {"a": state_of(0, 1, [1]), "b": state_of(1, 2, [3])},
                {"a": state_of(-3, 2, [1]), "b": state_of(-1, 3, [2])},
            ),
            draw_states(larger="b"),
            {
                f"l: {NEITHER_MERGED}": "rescale_l",
                f"acc: {NEITHER_MERGED}": "rescale_acc",
                f"l acc: {NEITHER_MERGED}": "rescale_both",
                f"l acc: {MERGED_UPSIDE_DOWN}": "upside_down",
                f"l acc: {WRONG_ONE}": "wrong_one",
                f"acc: {DIVIDED}": "normalised",
                f"acc: {OUTPUTS_ADDED}": "normalised",
                ": swapped": "format",
                "": "common_max",
            },
        ),
        Property(
            "the sum of b with the smaller max is rescaled",
            MERGE_CALL,
            agrees(merge_parts),
            (
                {"a": state_of(1, 2, [3]), "b": state_of(0, 1, [1])},
                {"a": state_of(-1, 3, [2]), "b": state_of(-3, 2, [1])},
            ),
            draw_states_a_larger,
            {"": "symmetry", f"l: {NEITHER_MERGED}": "rescale_l"},
        ),
        Property(
            "many queries at once, each with its own max",
            MERGE_CALL,
            agrees(merge_parts),
            (MERGE_ROWS,),
            draw_states(rows=True),
            {"": "rows", ": exception": "rows", ": shape": "rows"},
        ),
        Property(
            "the state of no keys, (-inf, 0, 0), changes nothing on either side",
            MERGE_CALL,
            merge_commutes,
            (
                {"a": EMPTY, "b": state_of(-2, 1, [1])},
                {"a": EMPTY, "b": EMPTY},
                {
                    "a": state_of([-np.inf, 1], [0, 1], [[0], [2]]),
                    "b": state_of([-np.inf, -np.inf], [0, 0], [[0], [0]]),
                },
            ),
            draw_states(empty=True),
            {"": "masked"},
        ),
        Property(
            "maxima 1000 apart, and maxima near -1000",
            MERGE_CALL,
            merge_commutes,
            (
                {"a": state_of(1000, 1, [1]), "b": state_of(0, 1, [1])},
                {"a": state_of(-1000, 1, [1]), "b": state_of(-1001, 1, [2])},
            ),
            draw_states(spread=500.0),
            {"": "overflow", ": nan": "overflow"},
        ),
        Property(
            "merging is associative",
            "merge_states(merge_states(a, b), c), merge_states(a, merge_states(b, c))",
            merge_associates,
            ({"a": state_of(0, 1, [1]), "b": state_of(2, 1, [2]), "c": state_of(1, 1, [3])},),
            draw_states("abc", empty=True),
            {"": "common_max"},
        ),
        not_modified(MERGE_CALL, (MERGE_ROWS,)),
        keeps_float32(
            MERGE_CALL,
            ({name: tuple(x.astype(np.float32) for x in state) for name, state in MERGE_ROWS.items()},),
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "rescale_l": "acc is carried over to the larger max and l is not: (l_a + l_b) adds numbers in two "
        "units. Both sums of a state need its factor.",
        "rescale_acc": "l is carried over to the larger max and acc is not. Both sums of a state need its factor.",
        "rescale_both": "l_a is measured from m_a and l_b from m_b: they cannot be added as they are, and "
        "nor can the accs. Each needs the factor exp(own max - common max).",
        "upside_down": "A state whose max is below the common one must shrink. Is your factor less than 1 or more?",
        "wrong_one": "The state that already holds the larger max keeps its sums; it is the other one that "
        "must shrink.",
        "normalised": "acc is the bare sum, not divided by l. If you add normalised outputs, each must "
        "first be multiplied by its own l, which is acc again.",
        "common_max": "Both states must be measured from one max, the larger of the two, and both of a "
        "state's sums with it.",
        "symmetry": "The other way round it worked. Neither a nor b is the newer one: either may hold the larger max.",
        "rows": "In one row a may hold the larger max and in the next b: a Python `if` or max() cannot "
        "decide for all rows. np.maximum and a factor for each side can; a factor that meets acc "
        "needs a last axis, [..., None].",
        "overflow": "An exponent is positive somewhere: exp(m_a - m_b) overflows when the two are far "
        "apart. Measured from the larger max, no exponent is above 0.",
        "modified": "+=, *= and out= write into the caller's array. Build a new one.",
        "dtype": "Somewhere a float64 array entered: np.zeros and np.full make float64 unless told "
        "otherwise, and a float64 array turns what it meets into float64.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "the sum of a with the smaller max is rescaled",
            WrongAnswer("no rescale of l", "rescale_l", {"w_a * l_a + w_b * l_b": "l_a + l_b"}),
            WrongAnswer(
                "no rescale of acc",
                "rescale_acc",
                {"w_a[..., None] * acc_a + w_b[..., None] * acc_b": "acc_a + acc_b"},
            ),
            WrongAnswer(
                "claim B: neither rescaled",
                "rescale_both",
                {
                    "w_a * l_a + w_b * l_b": "l_a + l_b",
                    "w_a[..., None] * acc_a + w_b[..., None] * acc_b": "acc_a + acc_b",
                },
            ),
            WrongAnswer(
                "factors upside down",
                "upside_down",
                {
                    "np.exp(m_a - shift), np.exp(m_b - shift)": (
                        "np.exp(shift - np.where(m_a == -np.inf, shift, m_a)), np.exp(shift - "
                        "np.where(m_b == -np.inf, shift, m_b))"
                    )
                },
            ),
            WrongAnswer(
                "a's factor on b",
                "wrong_one",
                {"w_a, w_b = np.exp(": "w_b, w_a = np.exp("},
            ),
            WrongAnswer(
                "exp2 without log2(e)",
                "base",
                {"np.exp(m_a - shift), np.exp(m_b - shift)": "np.exp2(m_a - shift), np.exp2(m_b - shift)"},
            ),
            WrongAnswer(
                "claim A: adds normalised outputs",
                "normalised",
                {
                    "w_a[..., None] * acc_a + w_b[..., None] * acc_b": (
                        "w_a[..., None] * acc_a / np.where(l_a == 0, 1, l_a)[..., None] + w_b[..., None] "
                        "* acc_b / np.where(l_b == 0, 1, l_b)[..., None]"
                    )
                },
            ),
            WrongAnswer(
                "float16 weights",
                "precision",
                {"    return m,": "    w_a, w_b = np.float16(w_a), np.float16(w_b)\n    return m,"},
            ),
        ),
        *caught_by(
            "the sum of b with the smaller max is rescaled",
            WrongAnswer(
                "claim C: b taken for the newer, its max for the running max",
                "symmetry",
                {"m = np.maximum(m_a, m_b)": "m = np.asarray(m_b)"},
            ),
            WrongAnswer(
                "b is never rescaled",
                "symmetry",
                {"np.exp(m_b - shift)": "np.ones_like(shift) * (m_b > -np.inf)"},
            ),
        ),
        *caught_by(
            "many queries at once, each with its own max",
            WrongAnswer("an if for all rows", "rows", {"m = np.maximum(m_a, m_b)": "m = m_a if m_a > m_b else m_b"}),
        ),
        *caught_by(
            "the state of no keys, (-inf, 0, 0), changes nothing on either side",
            WrongAnswer("-inf minus -inf", "masked", {"shift = np.where(m == -np.inf, 0.0, m)": "shift = m"}),
        ),
        *caught_by(
            "maxima 1000 apart, and maxima near -1000",
            WrongAnswer(
                "one exponent for both sides",
                "overflow",
                {
                    "w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)": (
                        "ratio = np.exp(np.where(m_a == -np.inf, -2e3, m_a) - np.where(m_b == -np.inf, "
                        "-2e3, m_b))\n"
                        "    w_b = np.exp(m_b - shift)\n"
                        "    w_a = np.where(m_b == -np.inf, np.exp(m_a - shift), ratio * w_b)"
                    )
                },
            ),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "a's acc updated in place",
                "modified",
                {
                    "    return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b": (
                        "    acc_a *= w_a[..., None]\n"
                        "    acc_a += w_b[..., None] * acc_b\n"
                        "    return m, w_a * l_a + w_b * l_b, acc_a"
                    )
                },
            ),
        ),
        *caught_by(
            "float32 in, float32 out",
            WrongAnswer(
                "float64 whatever came",
                "dtype",
                {"m_a, l_a, acc_a = a": "m_a, l_a, acc_a = (np.asarray(x, dtype=np.float64) for x in a)"},
            ),
        ),
    ),
    right_answers=(
        Variant("row by row, larger first", function=lambda a, b: _merge_by_rows(a, b)),
        Variant(
            "in float32 throughout",
            {
                "    m_a, l_a, acc_a = a\n": (
                    "    a, b = ([np.asarray(x, np.float32) for x in state] for state in (a, b))\n"
                    "    m_a, l_a, acc_a = a\n"
                )
            },
        ),
        Variant("through log-sum-exp", function=lambda a, b: _merge_by_lse(a, b)),
        Variant(
            "one factor, from the difference of the maxima",
            {
                "w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)": (
                    "gap = np.exp(-np.abs(np.where(m_a == m_b, 0.0, m_a - m_b)))\n"
                    "    w_a, w_b = np.where(m_a >= m_b, m_a.dtype.type(1), gap), np.where(m_b >= "
                    "m_a, m_a.dtype.type(1), gap)"
                )
            },
        ),
    ),
)


def _merge_by_rows(a, b):
    m, l, acc = (np.array(x) for x in a)
    for row in np.ndindex(m.shape):
        low, high = sorted(((m[row], l[row], acc[row]), (b[0][row], b[1][row], b[2][row])), key=lambda state: state[0])
        factor = 0.0 if low[0] == -np.inf else np.exp(low[0] - high[0])
        m[row], l[row], acc[row] = high[0], high[1] + factor * low[1], high[2] + factor * low[2]
    return m, l, acc


def _merge_by_lse(a, b):
    dtype = a[2].dtype
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = (tuple(np.asarray(x, dtype=np.float64) for x in state) for state in (a, b))
    m, lse = np.maximum(m_a, m_b), np.logaddexp(m_a + np.log(l_a), m_b + np.log(l_b))
    visible = m > -np.inf
    w_a, w_b = (np.where(visible, np.exp(m_x - m), 0.0)[..., None] for m_x in (m_a, m_b))
    l = np.where(visible, np.exp(lse - m), 0.0)
    return m.astype(dtype), l.astype(dtype), (w_a * acc_a + w_b * acc_b).astype(dtype)


def online_attention(q, K, V, block):
    """Attention of one query, reading the keys and values block by block, in one pass.

    q: [d]. K: [n, d]. V: [n, d_v]. block: keys read at a time, at least 1; it need not divide n.
    Returns [d_v]: the sum over keys of softmax(K q / sqrt(d)) times their rows of V, in float32 or float64.
    K and V may be larger than memory: read them by slicing rows, as in K[start:stop], at most `block` rows at
        a time and every row once; len(K) and K.shape cost nothing. What is kept between two blocks does not
        grow with n.

    >>> q = np.array([1.0, 2.0])
    >>> K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> V = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, -1.0]])
    >>> print(online_attention(q, K, V, block=2).round(4))
    [ 2.0112 -0.0112]
    """
    n, d = K.shape
    m, l, acc = -np.inf, 0.0, np.zeros(V.shape[1])
    for start in range(0, n, block):
        scores = K[start : start + block] @ q / np.sqrt(d)
        m_new = max(m, scores.max())
        alpha = np.exp(m - m_new)
        p = np.exp(scores - m_new)
        l = alpha * l + p.sum()
        acc = alpha * acc + p @ V[start : start + block]
        m = m_new
    return acc / l


UNSCALED = "the scores are not multiplied by 1/sqrt(d)"
SCALED_BY_D = "the scores are divided by d, not by sqrt(d)"
NOT_DIVIDED = "the sum is not divided by l at the end"
TAIL_DROPPED = "the keys after the last full block are left out"
L_NOT_RESCALED = "l is not rescaled when the max rises"
ACC_NOT_RESCALED = "acc is not rescaled when the max rises"
NEITHER_RESCALED = "neither l nor acc is rescaled when the max rises"
BOTH_UPSIDE_DOWN = "l and acc are multiplied by exp(m_new - m_old), the rescale upside down"
NOT_MULTIPLIED_BACK = "the old output is divided by its l and not multiplied back by it"
FROM_OWN_MAX = "each block's terms are measured from the block's own max"


def blockwise(scores, V, block, *, l_factor=np.exp, acc_factor=np.exp, own_max=False, normalise_each=False):
    """The recurrence with a slip in it, for the readings: the factors are functions of m_old - m_new."""
    m, l, acc = -np.inf, 0.0, np.zeros(V.shape[1])
    for start in range(0, len(scores), block):
        s = scores[start : start + block]
        m_new = max(m, s.max())
        p = np.exp(s - (s.max() if own_max else m_new))
        step = m - m_new if m > -np.inf else 0.0  # nothing to rescale before the first block
        l = l * l_factor(step) + p.sum()
        acc = acc * acc_factor(step) + p @ V[start : start + block]
        if normalise_each:
            acc = acc / l
        m = m_new
    return acc if normalise_each else acc / l


def batch_attention(q, K, V):
    """softmax(K q / sqrt(d)) V with all scores at once. V may have a width of its own."""
    return reference.stable_softmax(reference.scores(q[None], K))[0] @ V


def attention_parts(q, K, V, block):
    exact, plain = exact_and_plain(batch_attention, q, K, V)

    def readings():
        raw = K @ q
        scores = raw / np.sqrt(len(q))
        full = len(K) // block * block

        def weighted(s):
            return reference.stable_softmax(s) @ V[: len(s)]

        def kept(step):
            return 1.0

        def inverted(step):
            return np.exp(-step)

        return {
            UNSCALED: weighted(raw),
            SCALED_BY_D: weighted(raw / len(q)),
            NOT_DIVIDED: np.exp(scores - scores.max()) @ V,
            POWERS_OF_TWO: weighted(scores * np.log(2)),
            TAIL_DROPPED: weighted(scores[:full]) if full else np.zeros(V.shape[1]),
            L_NOT_RESCALED: blockwise(scores, V, block, l_factor=kept),
            ACC_NOT_RESCALED: blockwise(scores, V, block, acc_factor=kept),
            NEITHER_RESCALED: blockwise(scores, V, block, l_factor=kept, acc_factor=kept),
            BOTH_UPSIDE_DOWN: blockwise(scores, V, block, l_factor=inverted, acc_factor=inverted),
            FROM_OWN_MAX: blockwise(scores, V, block, own_max=True),
            NOT_MULTIPLIED_BACK: blockwise(scores, V, block, normalise_each=True),
        }

    # A score's own rounding, relative to its terms, is a relative error of its weight.
    conditioning = 1 + (np.abs(K) @ np.abs(q)).max() / np.sqrt(len(q))
    return [Part("out", exact, plain, conditioning * np.abs(V).max(), readings, index="column")]


def weight_parts(q, K, block):
    """With V the identity the output is the weight of every key, so a slip shows by block of keys."""
    (part,) = attention_parts(q, K, np.eye(len(K)), block)
    return [
        Part(
            "the weight of each key",
            part.expected,
            part.plain,
            part.terms,
            part.readings,
            index="key",
            tile=block,
        )
    ]


def weights(answer, q, K, block):
    return compare(answer(q, K, np.eye(len(K)), block), weight_parts(q, K, block))


def attention_permuted(answer, q, K, V, order, block):
    return compare(answer(q, K[order], V[order], block), attention_parts(q, K, V, block))


def attention_reads(answer, q, K, V, block):
    """Each row of K and V is read once, at most `block` rows at a time."""
    rows = {"K": Rows(K), "V": Rows(V)}
    answer(q, rows["K"], rows["V"], block)
    findings = []
    for name, served in rows.items():
        if served.most_at_once > block:
            text = f"{served.most_at_once} rows of {name} were read at once, with block = {block}"
            findings.append(Finding(name, "at once", text))
        elif served.reads.max() > 1:
            row = int(served.reads.argmax())
            findings.append(Finding(name, "again", f"row {row} of {name} was read {served.reads[row]} times"))
    if not findings:
        return None
    return Evidence(
        tuple(findings),
        "; ".join(f"{name} read {show(served.reads)} times, row by row" for name, served in rows.items()),
        f"every row once, at most {block} at a time",
    )


def attention_memory(answer, n, block):
    q = np.ones(4)
    served = {size: (Rows(np.ones((size, 4))), Rows(np.ones((size, 4)))) for size in (n // 8, n)}
    growth = growth_bytes_per_item(lambda size: answer(q, *served[size], block), n // 8, n)
    if growth < 1:
        return None
    text = (
        f"what is kept between blocks grows with n, by about {round(growth, -1):.0f} bytes a key "
        "(one float64 score is 8)"
    )
    return Evidence((Finding("", "memory", text),))


def attention_dtype(answer, q, K, V, block):
    (part,) = attention_parts(*(x.astype(np.float64) for x in (q, K, V)), block)
    returned = answer(q, K, V, block)
    if evidence := compare(returned, [part]):
        return evidence
    if returned.dtype in (np.float32, np.float64):
        return None
    return Evidence((Finding("out", "precision", f"the output came back as {returned.dtype}"),), str(returned.dtype))


def attention_case(q, K, V, block):
    return {"q": np.array(q, float), "K": np.array(K, float), "V": np.array(V, float), "block": block}


def weight_case(q, K, block):
    return {"q": np.array(q, float), "K": np.array(K, float), "block": block}


def score_case(scores, block):
    """With d = 1 and q = [1] the keys are the scores, and no scale can hide or make a mistake."""
    return weight_case([1], [[s] for s in scores], block)


def draw_one_block():
    from hypothesis import strategies as st

    @st.composite
    def inputs(draw):
        n, d = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        return {"q": arrays(draw, d), "K": arrays(draw, n, d), "block": n}

    return inputs()


def draw_scores(order="any", of=None, full_blocks=False):
    """order of the scores from block to block: "falling", "rising" or "any"."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            block = draw(st.integers(1, 3))
            n = block * draw(st.integers(2, 3)) if full_blocks else draw(st.integers(1, 7))
            scores = arrays(draw, n, of=of() if of else None)
            if order != "any":
                scores = np.sort(scores)[:: 1 if order == "rising" else -1]
            return score_case(scores, block)

        return inputs()

    return draw


def draw_attention(permuted=False):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n, d, d_v = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
            drawn = {"q": arrays(draw, d), "K": arrays(draw, n, d), "V": arrays(draw, n, d_v)}
            if permuted:
                drawn["order"] = draw(st.permutations(range(n)))
            return drawn | {"block": draw(st.integers(1, 4))}

        return inputs()

    return draw


ATTENTION_CALL = "online_attention(q, K, V, block)"
WEIGHTS_CALL = "online_attention(q, K, np.eye(len(K)), block)"
EXAMPLE = attention_case([1, 2], [[1, 0], [0, 1], [1, 1], [2, 1]], [[2, 0], [0, 2], [1, 1], [3, -1]], 2)

ATTENTION = Exercise(
    id="05.online_attention",
    title="Attention of one query in one pass",
    points=4,
    minutes=9,
    difficulty="hard",
    answer=online_attention,
    hints=(
        "After some blocks you hold m, l and acc. Which one division turns them into the output, and when "
        "may it happen?",
        "Loop over range(0, n, block) and slice K and V with the same bounds; a slice that runs past the "
        "end is simply shorter. Inside the loop stands the update you have already written, with scores "
        "K_block @ q / sqrt(d).",
        "m, l, acc = -inf, 0, zeros(d_v). For start in range(0, n, block): scores = K[start:start+block] @ "
        "q / sqrt(d); update m, l, acc with the scores and V[start:start+block]. After the loop return acc "
        "/ l.",
    ),
    reasoning="The softmax's denominator l and the weighted sum acc are carried in one unit, exp(m), and "
    "repaired by one factor whenever m rises; their quotient no longer depends on the unit. So the N "
    "scores never exist at the same time, which is the whole of FlashAttention's saving in memory: what "
    "remains is to do this for a tile of queries at once. K and V are each read once, a block at a time, "
    "and the last block may be short.",
    properties=(
        Property(
            "one block that holds every key gives softmax(K q / sqrt(d))",
            WEIGHTS_CALL,
            weights,
            (
                weight_case([1, 1, 1, 1], [[1, 1, 1, 1], [0, 0, 0, 0]], 2),
                score_case([2, 0, 1], 3),
                score_case([5], 1),
            ),
            draw_one_block,
            {
                f"the weight of each key: {UNSCALED}": "scale",
                f"the weight of each key: {SCALED_BY_D}": "scale_d",
                f"the weight of each key: {NOT_DIVIDED}": "divide",
                "": "one_block",
            },
        ),
        Property(
            "blocks that leave the max alone",
            WEIGHTS_CALL,
            weights,
            (score_case([1, 1], 1), score_case([2, 1, 0, 1], 2), score_case([0, 0, 0, 0], 2)),
            draw_scores("falling", full_blocks=True),
            {
                f"the weight of each key: {NOT_MULTIPLIED_BACK}": "multiply_back",
                f"the weight of each key: {FROM_OWN_MAX}": "own_max",
                "": "own_max",
            },
        ),
        Property(
            "blocks that raise the max, each of them",
            WEIGHTS_CALL,
            weights,
            (score_case([0, 1], 1), score_case([0, 1, 2, 3], 2), score_case([-4, -3, -1], 1)),
            draw_scores("rising", full_blocks=True),
            {
                f"the weight of each key: {L_NOT_RESCALED}": "rescale_l",
                f"the weight of each key: {ACC_NOT_RESCALED}": "rescale_acc",
                f"the weight of each key: {NEITHER_RESCALED}": "rescale_both",
                f"the weight of each key: {BOTH_UPSIDE_DOWN}": "upside_down",
                "": "rescale_both",
            },
        ),
        Property(
            "the last block may be short, and a block may be longer than the sequence",
            WEIGHTS_CALL,
            weights,
            (score_case([0, 0, 0], 2), score_case([1, 0, 2, 1, 0], 3), score_case([1, 0], 4)),
            draw_scores(),
            {"": "tail", ": nan": "tail", ": exception": "tail"},
        ),
        Property(
            "any q, K, V and block give attention's output",
            ATTENTION_CALL,
            agrees(attention_parts),
            (EXAMPLE, attention_case([1], [[1], [0], [2]], [[1, 2, 3], [4, 5, 6], [0, 0, 1]], 1)),
            draw_attention(),
            {"": "values", ": exception": "values", ": shape": "values"},
        ),
        Property(
            "scores near 1000 in one block do not overflow",
            WEIGHTS_CALL,
            weights,
            (score_case([1000, 999], 2), score_case([1000], 1)),
            hints={"": "not_shifted", ": nan": "not_shifted"},
        ),
        Property(
            "the max falls by 1000 from one block to the next",
            WEIGHTS_CALL,
            weights,
            (score_case([1000, 0], 1), score_case([1000, 999, 0, -1], 2)),
            draw_scores("falling", of=large_positive_scores),
            {"": "block_max", ": nan": "block_max"},
        ),
        Property(
            "all scores strongly negative",
            WEIGHTS_CALL,
            weights,
            (score_case([-1000, -1001], 1), score_case([-1000] * 3, 2)),
            draw_scores(of=large_scores),
            {"": "start", ": nan": "start"},
        ),
        Property(
            "permuting the keys together with their values changes nothing",
            "online_attention(q, K[order], V[order], block)",
            attention_permuted,
            ({**EXAMPLE, "order": [3, 1, 0, 2], "block": 2} | {"block": EXAMPLE["block"]},),
            draw_attention(permuted=True),
            {"": "invariant"},
        ),
        Property(
            "every row of K and V is read once, at most `block` rows at a time",
            "online_attention(q, Rows(K), Rows(V), block)",
            attention_reads,
            (EXAMPLE, attention_case([1], [[0], [1], [2]], [[1], [2], [3]], 2)),
            hints={
                "K V: at once": "at_once",
                "K: at once": "at_once",
                "V: at once": "at_once",
                "K V: again": "again",
                "K: again": "again",
                "V: again": "again",
            },
        ),
        Property(
            "what is kept between two blocks does not grow with n",
            "online_attention(np.ones(4), Rows(np.ones((n, 4))), Rows(np.ones((n, 4))), block)",
            attention_memory,
            ({"n": 2048, "block": 64},),
            hints={": memory": "memory"},
        ),
        Property(
            "float32 inputs give float32 or float64",
            ATTENTION_CALL,
            attention_dtype,
            ({name: x if name == "block" else x.astype(np.float32) for name, x in EXAMPLE.items()},),
        ),
        not_modified(ATTENTION_CALL, (EXAMPLE,)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "scale": "The scores are K q / sqrt(d). Without the scale the softmax is too sharp, the more so "
        "the larger d is.",
        "scale_d": "The scale is 1 / sqrt(d): a dot product of d terms has a spread that grows with "
        "sqrt(d), not with d.",
        "divide": "acc is a sum of exp(s - m) * value. The weights add up to 1 only after one division, "
        "once all blocks are in.",
        "one_block": "With a single block nothing is online yet: the output is softmax(K q / sqrt(d)) "
        "times the values. Check the scores first, then the division by l.",
        "multiply_back": "If the output is normalised at every step, the old output stands for l_old "
        "terms: multiply it by l_old (and by alpha) before the block's sum is added, then divide by l_new. "
        "Or keep acc unnormalised to the end.",
        "own_max": "Everything in l and acc must be measured from one max, the running one. The block's "
        "own max only helps to find it.",
        "rescale_l": "acc follows the new max and l does not. Multiply both by alpha = exp(m_old - m_new).",
        "rescale_acc": "l follows the new max and acc does not. Multiply both by alpha = exp(m_old - m_new).",
        "rescale_both": "What was summed before the max rose is still measured from the old max: l and acc "
        "both need alpha = exp(m_old - m_new).",
        "upside_down": "When the max rises the old sums must shrink. Is your alpha less than 1 or more?",
        "tail": "How many blocks are there when block does not divide n? range(0, n, block) starts each of "
        "them, the short one too, and a slice past the end is shorter by itself.",
        "values": "q and K share d, K and V share n, and the output has V's d_v: none of the three need be "
        "equal to another.",
        "not_shifted": "exp(1000) is infinite, in float64 too. Every exponent must be a score minus a max, at most 0.",
        "block_max": "The running max never falls: it is the larger of the old one and the block's. "
        "Measured from a block's own max, alpha = exp(m_old - m_new) can exceed every number there is.",
        "start": "0 is larger than every one of these scores, so a max that starts at 0 never meets them, "
        "and their exponentials vanish. What is the largest of no scores?",
        "invariant": "Assert after each block that l is the sum of exp(s - m) over all scores so far. "
        "Which block breaks it?",
        "at_once": "Slice K[start:stop] and V[start:stop] inside the loop: an operation on the whole of K "
        "or V (K @ q, K.T, np.asarray(K)) reads all of it, and makes all n scores at once.",
        "again": "One pass: a row that has been read is gone. What would a second look at K tell you that "
        "m, l and acc do not know already? When the max rises, alpha repairs them.",
        "memory": "Something is collected, block by block: the scores, or the blocks themselves. m, l and "
        "acc are enough.",
        "modified": "+=, *= and out= write into the caller's array. Scale the scores, not q or K.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one block that holds every key gives softmax(K q / sqrt(d))",
            WrongAnswer("scale missing", "scale", {" @ q / np.sqrt(d)": " @ q"}),
            WrongAnswer("scale 1/d", "scale_d", {"/ np.sqrt(d)": "/ d"}),
            WrongAnswer("final division missing", "divide", {"return acc / l": "return acc"}),
            WrongAnswer(
                "exp2 without log2(e)",
                "base",
                {
                    "np.exp(m - m_new)": "np.exp2(m - m_new)",
                    "np.exp(scores - m_new)": "np.exp2(scores - m_new)",
                },
            ),
            WrongAnswer(
                "float16 accumulation",
                "precision",
                {"        m = m_new\n": "        m, acc = m_new, np.float16(acc)\n"},
            ),
        ),
        *caught_by(
            "blocks that leave the max alone",
            WrongAnswer(
                "claim A: normalised at every step, not multiplied back",
                "multiply_back",
                {
                    "        m = m_new\n": "        m, acc = m_new, acc / l\n",
                    "return acc / l": "return acc",
                },
            ),
            WrongAnswer(
                "blocks measured from their own max",
                "own_max",
                {"np.exp(scores - m_new)": "np.exp(scores - scores.max())"},
            ),
        ),
        *caught_by(
            "blocks that raise the max, each of them",
            WrongAnswer("no rescale of l", "rescale_l", {"l = alpha * l": "l = l"}),
            WrongAnswer("no rescale of acc", "rescale_acc", {"acc = alpha * acc": "acc = acc"}),
            WrongAnswer(
                "claim B: (l_old O + sum) / (l_old + l_new), l_old from the old max",
                "rescale_both",
                {
                    ("        l = alpha * l + p.sum()\n        acc = alpha * acc + p @ V[start : start + block]\n"): (
                        "        acc = (l * acc + p @ V[start : start + block]) / (l + p.sum())\n"
                        "        l = l + p.sum()\n"
                    ),
                    "return acc / l": "return acc",
                },
            ),
            WrongAnswer(
                "alpha upside down",
                "upside_down",
                {"alpha = np.exp(m - m_new)": "alpha = np.exp(m_new - m) if m > -np.inf else 0.0"},
            ),
        ),
        *caught_by(
            "the last block may be short, and a block may be longer than the sequence",
            WrongAnswer("last block dropped", "tail", {"range(0, n, block)": "range(0, n - block + 1, block)"}),
        ),
        *caught_by(
            "any q, K, V and block give attention's output",
            WrongAnswer(
                "output of q's length",
                "values",
                {"np.zeros(V.shape[1])": "np.zeros(len(V)) if len(V) == V.shape[1] else np.zeros(d)"},
            ),
        ),
        *caught_by(
            "scores near 1000 in one block do not overflow",
            WrongAnswer(
                "no max subtraction",
                "not_shifted",
                {"m_new = max(m, scores.max())": "m_new = 0.0", "alpha = np.exp(m - m_new)": "alpha = 1.0"},
            ),
        ),
        *caught_by(
            "the max falls by 1000 from one block to the next",
            WrongAnswer(
                "claim C: the block's max for the running max",
                "block_max",
                {"max(m, scores.max())": "scores.max()"},
            ),
        ),
        *caught_by(
            "all scores strongly negative",
            WrongAnswer("running max starts at 0", "start", {"m, l, acc = -np.inf, 0.0,": "m, l, acc = 0.0, 0.0,"}),
        ),
        *caught_by(
            "every row of K and V is read once, at most `block` rows at a time",
            WrongAnswer(
                "all scores at once",
                "at_once",
                {
                    "    for start in range": ("    all_scores = K @ q / np.sqrt(d)\n    for start in range"),
                    "K[start : start + block] @ q / np.sqrt(d)": "all_scores[start : start + block]",
                },
            ),
            WrongAnswer(
                "calls the reference",
                "at_once",
                function=lambda q, K, V, block: batch_attention(q, np.asarray(K), np.asarray(V)),
            ),
            WrongAnswer(
                "a first pass for the max",
                "again",
                {"m, l, acc = -np.inf,": "m, l, acc = max((K[i] @ q) / np.sqrt(d) for i in range(n)),"},
            ),
        ),
        *caught_by(
            "what is kept between two blocks does not grow with n",
            WrongAnswer(
                "collects the scores block by block",
                "memory",
                function=lambda q, K, V, block: _attention_collecting_scores(q, K, V, block),
            ),
            WrongAnswer(
                "collects the blocks, then computes the batch answer",
                "memory",
                function=lambda q, K, V, block: _attention_collecting_blocks(q, K, V, block),
            ),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "scales q in place",
                "modified",
                {
                    "    n, d = K.shape\n": ("    n, d = K.shape\n    q /= np.sqrt(d)\n"),
                    " @ q / np.sqrt(d)": " @ q",
                },
            ),
        ),
    ),
    right_answers=(
        Variant("key by key", function=lambda q, K, V, block: _attention_key_by_key(q, K, V, block)),
        Variant(
            "FlashAttention-1: normalised at every step",
            {
                ("        l = alpha * l + p.sum()\n        acc = alpha * acc + p @ V[start : start + block]\n"): (
                    "        l_new = alpha * l + p.sum()\n"
                    "        acc = (alpha * l * acc + p @ V[start : start + block]) / l_new\n"
                    "        l = l_new\n"
                ),
                "return acc / l": "return acc",
            },
        ),
        Variant(
            "merged block states, in float32, next block fetched early",
            function=lambda *arguments: _attention_by_merges(*arguments),
        ),
        Variant(
            "exp2 with log2(e) in the scale, V read first",
            {
                "scores = K[start : start + block] @ q / np.sqrt(d)": (
                    "v = V[start : start + block]\n"
                    "        scores = K[start : start + block] @ (q * (np.log2(np.e) / np.sqrt(d)))"
                ),
                "np.exp(m - m_new)": "np.exp2(m - m_new)",
                "np.exp(scores - m_new)": "np.exp2(scores - m_new)",
                "p @ V[start : start + block]": "p @ v",
            },
        ),
    ),
)


def _attention_collecting_scores(q, K, V, block):
    scores = [float(s) for i in range(0, len(K), block) for s in K[i : i + block] @ q / np.sqrt(len(q))]
    m = max(scores)
    p = np.exp(np.array(scores) - m)
    return sum(p[i : i + block] @ V[i : i + block] for i in range(0, len(V), block)) / p.sum()


def _attention_collecting_blocks(q, K, V, block):
    starts = range(0, len(K), block)
    keys = np.concatenate([K[i : i + block] for i in starts])
    values = np.concatenate([V[i : i + block] for i in starts])
    return batch_attention(q, keys, values)


def _attention_key_by_key(q, K, V, block):
    m, l, acc = -np.inf, 0.0, 0.0
    for k, v in zip(K, V, strict=True):
        s = sum(x * y for x, y in zip(k, q, strict=True)) / len(q) ** 0.5
        if s > m:
            l, acc, m = l * np.exp(m - s), acc * np.exp(m - s), s
        l += np.exp(s - m)
        acc = acc + np.exp(s - m) * v
    return acc / l


def _attention_by_merges(q, K, V, block):
    q = np.asarray(q, dtype=np.float32)
    state, nearby = None, (K[:block], V[:block])
    for stop in range(block, len(K) + block, block):
        k, v = (x.astype(np.float32) for x in nearby)
        nearby = (K[stop : stop + block], V[stop : stop + block])
        scores = k @ q / np.sqrt(np.float32(len(q)))
        p = np.exp(scores - scores.max())
        new = (scores.max(), p.sum(), p @ v)
        state = new if state is None else merge_states(state, new)
    return state[2] / state[1]


EXERCISES = (NORMALIZER, UPDATE, MERGE, ATTENTION)


QUIZ = [
    {
        "question": "A new block raises the running max from m_old to m_new. What must l be multiplied by "
        "before the block's terms are added?",
        "type": "multiple_choice",
        "answers": [
            option("exp(m_new - m_old)", False, "That is above 1: the old sum would grow, and can overflow."),
            option("exp(m_old - m_new)", True, "It turns every old term exp(s - m_old) into exp(s - m_new)."),
            option("1: l never changes after the fact", False, "Its terms are measured from a max that is gone."),
            option("m_old / m_new", False, "The max stands in an exponent, so differences matter, not ratios."),
        ],
    },
    {
        "question": "Why must the running max start at -inf and not at 0?",
        "type": "multiple_choice",
        "answers": [
            option(
                "0 would make the first alpha 1",
                False,
                "It would, but alpha then multiplies sums that are 0.",
            ),
            option("exp(0) is not defined", False, "It is 1."),
            option(
                "Scores far below 0 would all be measured from 0, and their exponentials would vanish",
                True,
                "l would be 0, and the output 0/0.",
            ),
        ],
    },
    {
        "question": "Eight workers each hold the state (m, l, acc) of an eighth of the keys. In which "
        "order may the states be merged?",
        "type": "multiple_choice",
        "answers": [
            option("Only in the order of the keys", False, "A sum does not depend on the order of its terms."),
            option("Only by growing m", False, "merge_states takes the larger max, wherever it is."),
            option(
                "Only one after the other, never as a tree",
                False,
                "Merging is associative, so any tree will do.",
            ),
            option(
                "In any order and any grouping",
                True,
                "Merging is associative and commutative; only the rounding differs.",
            ),
        ],
    },
    {
        "question": "One query has seen nothing but masked keys. Which state does it hold?",
        "type": "multiple_choice",
        "answers": [
            option(
                "(-inf, 0, 0)",
                True,
                "The state of the empty set, which merges with any other without a trace.",
            ),
            option("(0, 0, 0)", False, "A max of 0 would outrank negative scores that come later."),
            option("(-inf, 1, 0)", False, "There is no term in the sum, so l is 0."),
            option("(NaN, NaN, NaN)", False, "Only if -inf minus -inf was evaluated, which the guard prevents."),
        ],
    },
    {
        "question": "FlashAttention-1 keeps the output normalised after each block. What does the next "
        "step need that FlashAttention-2 does without?",
        "type": "multiple_choice",
        "answers": [
            option("A second pass over the keys", False, "Both read every key once for a tile of queries."),
            option(
                "Multiplying the old output by the old l again",
                True,
                "The normalised output stands for l_old terms; without this the answer is wrong, as in claim A.",
            ),
            option("The scores of the earlier blocks", False, "Neither keeps them."),
        ],
    },
]
