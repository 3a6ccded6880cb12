"""Lesson 01, dot products: the exercises' answers, hints, properties and plausible wrong answers.

The scale 1/sqrt(d) is from Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1. F3 is a widely
copied count of attention's FLOPs that leaves out one of its two products.
"""

import numbers as number_types

import numpy as np

from course_lib import reference, traffic
from course_lib.grading.calling import AnswerError
from course_lib.grading.checking import agrees, not_modified
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
from course_lib.reference.dot import resolve_scale

LESSON = "01"
TITLE = "Dot products"

SHARED_MISTAKES = {
    "error": "Run the call above in a cell of its own and print the shapes of what meets on the line that is "
    "shown. Which shape does that line expect?",
    "format": "Compare the docstring's Returns with your return statement.",
    "modified": "+=, *=, /= and out= write into the caller's array. A new array, as in a * b, does not.",
}
SHARED_HINTS = {": exception": "error", ": none": "format", ": type": "format"}


def positive_numbers():
    from hypothesis import strategies as st

    return st.integers(0, 4).map(float)


def counting_numbers():
    from hypothesis import strategies as st

    return st.integers(1, 4).map(float)


def signed_numbers():
    """Strategy: numbers of size 4 at most, the simplest first."""
    from hypothesis import strategies as st

    whole = [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0]
    return st.sampled_from(whole + [x / 8 for x in range(-31, 32) if x % 8])


def array(draw, *shape, of=signed_numbers):
    """An array of `shape` drawn element by element, so that each shrinks on its own."""
    return np.array([draw(of()) for _ in range(int(np.prod(shape)))], dtype=np.float64).reshape(shape)


def vectors(a, b):
    return {"a": np.array(a, dtype=np.float64), "b": np.array(b, dtype=np.float64)}


def draw_vectors(d_min, d_max, of=signed_numbers):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            d = draw(st.integers(d_min, d_max))
            return {"a": array(draw, d, of=of), "b": array(draw, d, of=of)}

        return inputs()

    return draw


def dot(a, b):
    """The dot product of two vectors: the sum of a[i] * b[i].

    a, b: [d], floats, d at least 1. Returns a number.
    Raises ValueError if the two differ in length. The inputs are not modified.

    >>> print(dot(np.array([1.0, 2.0]), np.array([2.0, 1.0])))
    4.0
    """
    if a.shape != b.shape:  # NumPy would stretch a vector of length 1 to the other's length
        raise ValueError(f"a has shape {a.shape} and b {b.shape}")
    return (a * b).sum()


ADDED = "the components are added, not multiplied"
ALL_POSITIVE = "every product is counted as positive"
FIRST_TWO = "only the first two products are added"


def dot_parts(a, b):
    exact, plain = exact_and_plain(reference.dot, a, b)

    def readings():
        products = a * b
        return {
            ADDED: (a + b).sum(),
            FIRST_TWO: products[:2].sum(),
            ALL_POSITIVE: np.abs(products).sum(),
        }

    return [Part("the dot product", exact, plain, np.abs(a) @ np.abs(b), readings)]


def refuses(answer, a, b):
    try:
        returned = answer(a, b)
    except AnswerError as error:
        if error.finding.text.startswith("the answer raised ValueError"):
            return None
        return Evidence((error.finding,), expected="a ValueError")
    text = f"vectors of {len(a)} and {len(b)} components were accepted"
    return Evidence((Finding("", "accepted", text),), show(returned), "a ValueError")


def draw_unequal_lengths():
    from hypothesis import strategies as st

    @st.composite
    def inputs(draw):
        d = draw(st.integers(1, 3))
        pair = array(draw, d), array(draw, d + draw(st.integers(1, 2)))
        return dict(zip("ab", pair if draw(st.booleans()) else pair[::-1], strict=True))

    return inputs()


DOT_CALL = "dot(a, b)"

DOT = Exercise(
    id="01.dot",
    title="The dot product",
    points=1,
    minutes=5,
    difficulty="easy",
    answer=dot,
    hints=(
        "For (1, 2) and (2, 1): which two products are there, and what is done with them?",
        "a * b multiplies component by component. What turns that vector into one number? And what does "
        "NumPy make of a * b when b has a single component?",
        "If a.shape != b.shape, raise ValueError. Otherwise return (a * b).sum().",
    ),
    reasoning="The product a * b pairs the components up and the sum makes one number of them. The check of "
    "the shapes is there because NumPy would not complain: it stretches a vector of length 1 to the length "
    "of the other (broadcasting), and zip stops at the shorter of the two. An answer from vectors that do "
    "not belong together is worse than an error.",
    properties=(
        Property(
            "two components each: a[0] b[0] + a[1] b[1]",
            DOT_CALL,
            agrees(dot_parts),
            (vectors([1, 2], [3, 1]), vectors([2, 0], [1, 4])),
            draw_vectors(2, 2, positive_numbers),
            {
                f"the dot product: {ADDED}": "add",
                "the dot product: shape": "one_number",
                "": "formula",
            },
        ),
        Property(
            "products of unlike signs cancel",
            DOT_CALL,
            agrees(dot_parts),
            (vectors([1, -2], [3, 1]), vectors([1, 1], [1, -1]), vectors([-1, -2], [1, 2])),
            draw_vectors(2, 2),
            {f"the dot product: {ALL_POSITIVE}": "sign", "": "formula"},
        ),
        Property(
            "any number of components, from one up",
            DOT_CALL,
            agrees(dot_parts),
            (vectors([1, 2, 3], [1, 1, 2]), vectors([3], [2]), vectors(range(64), [1, -1] * 32)),
            draw_vectors(1, 5),
            {"": "all", ": exception": "all"},
        ),
        Property(
            "vectors of different lengths are refused with a ValueError",
            DOT_CALL,
            refuses,
            (vectors([1, 2], [3]), vectors([1, 2], [3, 4, 5])),
            draw_unequal_lengths,
            {": accepted": "lengths", ": exception": "lengths"},
        ),
        not_modified(DOT_CALL, (vectors([1, 2], [3, 1]),)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "add": "Components that belong together are multiplied; only the products are added.",
        "all": "Each i from 0 to d - 1 has one product. How many products does your code add for d = 3?",
        "one_number": "What came back is still a vector of products. A dot product is one number: their sum.",
        "sign": "A product may be negative: two vectors can disagree in one component and agree in another. "
        "Only so can a dot product be 0 for vectors at a right angle.",
        "formula": "Write the products of the example down one by one, add them, and compare with your code.",
        "lengths": "zip stops at the shorter vector, and NumPy stretches one of length 1. Compare the shapes "
        "first, and raise ValueError where they differ.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "two components each: a[0] b[0] + a[1] b[1]",
            WrongAnswer("adds components", "add", {"(a * b).sum()": "(a + b).sum()"}),
            WrongAnswer("products not added up", "one_number", {"(a * b).sum()": "a * b"}),
        ),
        *caught_by(
            "products of unlike signs cancel",
            WrongAnswer("absolute values", "sign", {"(a * b).sum()": "np.abs(a * b).sum()"}),
        ),
        *caught_by(
            "any number of components, from one up",
            WrongAnswer("made for the plane", "all", {"(a * b).sum()": "a[0] * b[0] + a[1] * b[1]"}),
        ),
        *caught_by(
            "vectors of different lengths are refused with a ValueError",
            WrongAnswer("zip", "lengths", function=lambda a, b: sum(x * y for x, y in zip(a, b))),  # noqa: B905
            WrongAnswer("broadcasting", "lengths", function=lambda a, b: (a * b).sum()),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer("product in place", "modified", {"return (a * b)": "a *= b\n    return a"}),
        ),
    ),
    right_answers=(
        Variant("a loop", function=lambda a, b: _dot_by_loop(a, b)),
        Variant("the operator @", function=lambda a, b: a @ b),
        Variant("in float32", {"(a * b).sum()": "np.einsum('i,i', np.float32(a), np.float32(b))"}),
    ),
)


def _dot_by_loop(a, b):
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def cosine_similarity(a, b):
    """The cosine of the angle between two vectors: their dot product over the product of their lengths.

    a, b: [d], floats, of one length d. Returns a number from -1 (opposite) through 0 (at a right angle) to 1
        (the same direction). A vector of zeros has no direction: return 0.0 then.
    The inputs are not modified.

    >>> print(f"{cosine_similarity(np.array([1.0, 2.0]), np.array([2.0, 1.0])):.4f}")
    0.8000
    """
    lengths = np.sqrt(a @ a) * np.sqrt(b @ b)
    if lengths == 0:
        return 0.0
    return a @ b / lengths


NOT_DIVIDED = "the dot product is not divided by the lengths"
NO_ROOT = "the dot product is divided by the squares of the lengths"
UNSIGNED = "the sign is lost"


def cosine_parts(a, b):
    exact, plain = exact_and_plain(reference.cosine_similarity, a, b)

    def readings():
        length_a, length_b = np.linalg.norm(a), np.linalg.norm(b)
        return {
            NOT_DIVIDED: a @ b,
            NO_ROOT: a @ b / (length_a * length_b) ** 2,
            UNSIGNED: abs(exact),
        }

    return [Part("the cosine", exact, plain, 1.0, readings)]


def draw_on_a_line():
    from hypothesis import strategies as st

    @st.composite
    def inputs(draw):
        a = array(draw, 2, of=counting_numbers)
        return {"a": a, "b": draw(st.sampled_from([2.0, 3.0, -1.0, -2.0])) * a}

    return inputs()


def draw_cosine_vectors():
    return draw_vectors(1, 4)().filter(lambda pair: pair["a"].any() and pair["b"].any())


def draw_stretched():
    from hypothesis import strategies as st

    return st.tuples(draw_cosine_vectors(), st.sampled_from([1e-6, 1e6])).map(
        lambda drawn: {"a": drawn[0]["a"] * drawn[1], "b": drawn[0]["b"] * drawn[1]}
    )


COSINE_CALL = "cosine_similarity(a, b)"

COSINE = Exercise(
    id="01.cosine_similarity",
    title="Similarity of direction alone",
    points=2,
    minutes=10,
    difficulty="easy",
    answer=cosine_similarity,
    hints=(
        "a . b = |a| |b| cos(angle). You can compute the left side, and both lengths. What remains?",
        "The length of a is the square root of a . a. Divide by both lengths, and ask what happens when one "
        "of them is 0.",
        "lengths = sqrt(a @ a) * sqrt(b @ b); return 0.0 if lengths is 0, and otherwise a @ b / lengths.",
    ),
    reasoning="Dividing by both lengths leaves what depends on direction alone, so stretching either vector "
    "changes nothing. The only division that can fail is by the length of a vector of zeros; that case is "
    "asked for, not hidden under a small number added to the divisor, which would also change the answer "
    "for every short vector.",
    properties=(
        Property(
            "along, across and against one another: 1, 0, -1, whatever the lengths",
            COSINE_CALL,
            agrees(cosine_parts),
            (vectors([2, 0], [3, 0]), vectors([1, 0], [0, 2]), vectors([1, 1], [-2, -2])),
            draw_on_a_line,
            {
                f"the cosine: {NOT_DIVIDED}": "divide",
                f"the cosine: {NO_ROOT}": "root",
                f"the cosine: {UNSIGNED}": "sign",
                "": "formula",
            },
        ),
        Property(
            "any two vectors, in any number of dimensions",
            COSINE_CALL,
            agrees(cosine_parts),
            (vectors([1, 0, 0], [1, 0, 1]), vectors([1, 2], [2, 1]), vectors([3], [-2])),
            draw_cosine_vectors,
            {"": "dimensions", ": exception": "dimensions"},
        ),
        Property(
            "vectors a million times shorter or longer have the same cosine",
            COSINE_CALL,
            agrees(cosine_parts),
            (vectors([1e-6, 0], [1e-6, 1e-6]), vectors([1e6, 2e6], [2e6, 1e6])),
            draw_stretched,
            {"": "epsilon"},
        ),
        Property(
            "a vector of zeros gives 0, not NaN",
            COSINE_CALL,
            agrees(cosine_parts),
            (vectors([0, 0], [1, 2]), vectors([1, 2], [0, 0]), vectors([0, 0], [0, 0])),
            hints={"": "zeros", ": exception": "zeros"},
        ),
        not_modified(COSINE_CALL, (vectors([3, 4], [4, 3]),)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "divide": "The dot product grows with either vector's length. Divide by both lengths.",
        "root": "a . a is the square of a's length. Which operation leads from it to the length?",
        "sign": "Vectors that point in opposite directions have cosine -1, not 1.",
        "formula": "Compare with (1, 2) and (2, 1): the dot product is 4, both lengths are sqrt(5), and the "
        "cosine 4 / 5.",
        "dimensions": "The lengths and the dot product are sums over all d components; nothing in the "
        "formula is about a plane.",
        "epsilon": "A small number added to the divisor is no longer small when the vectors are short. Ask "
        "for the one case that needs care, a length of 0, and leave all others exact.",
        "zeros": "0 / 0 is NaN. What does the docstring promise for a vector without direction?",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "along, across and against one another: 1, 0, -1, whatever the lengths",
            WrongAnswer("the dot product", "divide", {"return a @ b / lengths": "return a @ b"}),
            WrongAnswer("root missing", "root", {"np.sqrt(a @ a) * np.sqrt(b @ b)": "(a @ a) * (b @ b)"}),
            WrongAnswer("sign lost", "sign", {"return a @ b": "return abs(a @ b)"}),
        ),
        *caught_by(
            "any two vectors, in any number of dimensions",
            WrongAnswer(
                "made for the plane",
                "dimensions",
                {"return a @ b / lengths": ("return np.cos(np.arctan2(a[1], a[0]) - np.arctan2(b[1], b[0]))")},
            ),
        ),
        *caught_by(
            "vectors a million times shorter or longer have the same cosine",
            WrongAnswer("1e-8 in the divisor", "epsilon", {"a @ b / lengths": "a @ b / (lengths + 1e-8)"}),
        ),
        *caught_by(
            "a vector of zeros gives 0, not NaN",
            WrongAnswer("0 / 0", "zeros", {"    if lengths == 0:\n        return 0.0\n": ""}),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "normalises in place",
                "modified",
                {"return a @ b / lengths": "a /= np.sqrt(a @ a)\n    return a @ b / np.sqrt(b @ b)"},
            ),
        ),
    ),
    right_answers=(
        Variant("unit vectors first", function=lambda a, b: _cosine_of_unit_vectors(a, b)),
        Variant("in float32", {"    lengths =": "    a, b = np.float32(a), np.float32(b)\n    lengths ="}),
        Variant("through the distance of the unit vectors", function=lambda a, b: _cosine_by_distance(a, b)),
    ),
)


def _cosine_of_unit_vectors(a, b):
    if not a.any() or not b.any():
        return 0
    return (a / np.linalg.norm(a)) @ (b / np.linalg.norm(b))


def _cosine_by_distance(a, b):
    length_a, length_b = np.linalg.norm(a), np.linalg.norm(b)
    if length_a == 0 or length_b == 0:
        return 0.0
    return 1 - ((a / length_a - b / length_b) ** 2).sum() / 2


def scores(Q, K, scale=None):
    """The score of every query with every key: their dot product times scale.

    Q: [n_q, d], one query a row. K: [n_k, d], one key a row. scale: a number, 0 included; None means
        1 / sqrt(d).
    Returns [n_q, n_k]: row i, column j holds the score of query i with key j, in float32 or float64.
    The inputs are not modified.

    >>> Q, K = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> print(scores(Q, K, scale=1.0), scores(Q, K).round(4))
    [[1. 2. 3. 4.]] [[0.7071 1.4142 2.1213 2.8284]]
    """
    if scale is None:
        scale = 1 / np.sqrt(Q.shape[1])
    return Q @ K.T * scale


TRANSPOSED = "queries and keys are in each other's place"
UNSCALED = "there is no scale"
SCALED_BY_D = "the dot products are divided by d, not by sqrt(d)"
SCALED_BY_KEYS = "the dot products are divided by sqrt(n_k), not by sqrt(d)"
DEFAULT_SCALE = "1 / sqrt(d) is taken although a scale is given"


def scores_parts(Q, K, scale):
    exact, plain = exact_and_plain(lambda q, k: reference.scores(q, k, scale), Q, K)

    def readings():
        raw, d = Q @ K.T, Q.shape[1]
        found = {UNSCALED: raw, SCALED_BY_D: raw / d, SCALED_BY_KEYS: raw / np.sqrt(len(K))}
        if scale is not None:
            found |= {DEFAULT_SCALE: raw / np.sqrt(d)}
        if len(Q) == len(K):
            found[TRANSPOSED] = exact.T
        return found

    factor = abs(resolve_scale(scale, Q.shape[1]))
    size = np.abs(Q) @ np.abs(K).T * factor
    return [Part("S", exact, plain, size, readings, index="query")]


def matrices(Q, K, scale):
    return {"Q": np.array(Q, dtype=np.float64), "K": np.array(K, dtype=np.float64), "scale": scale}


def draw_matrices(*scales, of=signed_numbers):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n_q, n_k, d = (draw(st.integers(1, 3)) for _ in range(3))
            return {
                "Q": array(draw, n_q, d, of=of),
                "K": array(draw, n_k, d, of=of),
                "scale": draw(st.sampled_from(scales)),
            }

        return inputs()

    return draw


SCORES_CALL = "scores(Q, K, scale)"

SCORES = Exercise(
    id="01.scores",
    title="The matrix of scores",
    points=2,
    minutes=10,
    difficulty="easy",
    answer=scores,
    hints=(
        "Q is [n_q, d] and K is [n_k, d]. Which of the two must be turned on its side so that a matrix "
        "product pairs every query with every key?",
        "Q @ K.T is [n_q, n_k]. The scale multiplies all of it. When is the default taken: when scale is "
        "None, or when it is 0 too?",
        "If scale is None, scale = 1 / sqrt(Q.shape[1]). Return Q @ K.T * scale.",
    ),
    reasoning="Row i of Q @ K.T is query i with every key: each entry is a sum of d products, and d is the "
    "length of a query, the last axis of Q. The default is asked for by `is None`, since `scale or ...` "
    "takes it for a scale of 0 as well. Scaling Q first would do the same for fewer multiplications, as "
    "long as it is done on a copy.",
    properties=(
        Property(
            "row i, column j is the dot product of query i and key j",
            SCORES_CALL,
            agrees(scores_parts),
            (
                matrices([[1, 2]], [[1, 0], [0, 1], [2, 1]], 1.0),
                matrices([[1, 0], [0, 1]], [[1, 2], [3, 4]], 1.0),
            ),
            draw_matrices(1.0, of=counting_numbers),
            {"": "pairs", ": exception": "pairs"},
        ),
        Property(
            "without a scale, 1 / sqrt(d)",
            SCORES_CALL,
            agrees(scores_parts),
            (
                matrices([[1, 1, 1, 1]], [[1, 2, 3, 4], [0, 0, 1, 0]], None),
                matrices([[1, 2]], [[1, 0], [0, 1], [1, 1], [2, 1]], None),
            ),
            draw_matrices(None),
            {
                f"S: {UNSCALED}": "unscaled",
                f"S: {SCALED_BY_D}": "root",
                f"S: {SCALED_BY_KEYS}": "which_length",
                "S: precision": "precision",
                "": "default",
                ": exception": "default",
            },
        ),
        Property(
            "a scale that is given is used as it is, 0 too",
            SCORES_CALL,
            agrees(scores_parts),
            (matrices([[1, 2]], [[2, 1]], 0.5), matrices([[1, 2]], [[2, 1]], 0.0)),
            draw_matrices(0.5, 0.0, 2.0, -1.0),
            {f"S: {DEFAULT_SCALE}": "is_none", "": "given"},
        ),
        not_modified(SCORES_CALL, (matrices([[1, 2]], [[1, 0], [2, 1]], None),)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "pairs": "Queries are rows of the result, keys its columns: [n_q, d] times [d, n_k]. Which of the "
        "two is turned on its side?",
        "unscaled": "scale=None does not mean no scale. With d components of size 1, how large is a dot "
        "product, and what does the docstring divide it by?",
        "root": "It is the spread of a dot product that grows like sqrt(d), and the variance like d. Divide "
        "by the spread.",
        "which_length": "A score is a sum over d, the length of one query or key. How many keys there are "
        "does not matter to it: which axis of Q holds d?",
        "precision": "float16 holds about 3 decimal digits. Leave the arrays as they come, or use float32.",
        "default": "Compare with one query (1, 1, 1, 1) and one key (1, 2, 3, 4): 10 / sqrt(4) = 5.",
        "is_none": "`scale or default` takes the default for a scale of 0 too, since 0 counts as false. Ask "
        "whether scale `is None`.",
        "given": "The result is the dot products times scale, no more and no less.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "row i, column j is the dot product of query i and key j",
            WrongAnswer("transposed", "pairs", {"Q @ K.T": "K @ Q.T"}),
        ),
        *caught_by(
            "without a scale, 1 / sqrt(d)",
            WrongAnswer("scale missing", "unscaled", {"scale = 1 / np.sqrt(Q.shape[1])": "scale = 1"}),
            WrongAnswer("scale 1/d", "root", {"1 / np.sqrt(Q.shape[1])": "1 / Q.shape[1]"}),
            WrongAnswer("scale from the number of keys", "which_length", {"Q.shape[1]": "len(K)"}),
            WrongAnswer("kept in float16", "precision", {"Q @ K.T * scale": "np.float16(Q @ K.T * scale)"}),
        ),
        *caught_by(
            "a scale that is given is used as it is, 0 too",
            WrongAnswer(
                "a scale of 0 taken for none",
                "is_none",
                {
                    "    if scale is None:\n        scale = 1 / np.sqrt(Q.shape[1])\n": (
                        "    scale = scale or 1 / np.sqrt(Q.shape[1])\n"
                    )
                },
            ),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer("Q scaled in place", "modified", {"return Q @ K.T * scale": "Q *= scale\n    return Q @ K.T"}),
        ),
    ),
    right_answers=(
        Variant("pair by pair", function=lambda Q, K, scale=None: _scores_by_loops(Q, K, scale)),
        Variant("in float32, by einsum", {"Q @ K.T": "np.einsum('id,jd->ij', np.float32(Q), np.float32(K))"}),
        Variant("a copy of Q is scaled first", {"Q @ K.T * scale": "(Q * scale) @ K.T"}),
    ),
)


def _scores_by_loops(Q, K, scale):
    factor = len(Q[0]) ** -0.5 if scale is None else scale
    return np.array([[sum(x * y for x, y in zip(q, k, strict=True)) * factor for k in K] for q in Q])


def attention_flops(n_q, n_k, d):
    """Floating-point operations of the two matrix products of attention.

    n_q, n_k: queries and keys. d: length of a query, of a key and of a value. Whole numbers of at least 1.
    Returns an int: the multiplications and additions of S = Q K^T, [n_q, d] times [d, n_k], and of P V,
        [n_q, n_k] times [n_k, d]. A sum of k products counts as k multiplications and k additions. Scale and
        softmax are not counted.

    >>> attention_flops(4, 4, 2)
    128
    """
    return 4 * n_q * n_k * d


HALF = "one of the two products is left out, or only multiplications are counted"
QUARTER = "one of the two products is left out, and only multiplications are counted"
FIRST_ADDITION = "a sum of k products is counted as k - 1 additions"
ONLY_N_Q = "n_q stands where n_k should"
ONLY_N_K = "n_k stands where n_q should"


def flops_parts(n_q, n_k, d):
    exact = np.float64(traffic.attention_flops(n_q, n_k, d))
    readings = {
        HALF: exact / 2,
        QUARTER: exact / 4,
        FIRST_ADDITION: n_q * n_k * (2 * d - 1) + n_q * d * (2 * n_k - 1),
        ONLY_N_Q: exact / n_k * n_q,
        ONLY_N_K: exact / n_q * n_k,
    }
    return [Part("the count", exact, exact, exact, lambda: readings)]


def is_whole(answer, n_q, n_k, d):
    returned = answer(n_q, n_k, d)
    if evidence := compare(returned, flops_parts(n_q, n_k, d)):
        return evidence
    if isinstance(returned, number_types.Integral):
        return None
    text = f"the count came back as {type(returned).__name__}, not as an int"
    return Evidence((Finding("the count", "float", text),), show(returned), str(4 * n_q * n_k * d))


def sizes(n_q, n_k, d):
    return {"n_q": n_q, "n_k": n_k, "d": d}


def draw_sizes():
    from hypothesis import strategies as st

    return st.fixed_dictionaries({"n_q": st.integers(1, 64), "n_k": st.integers(1, 64), "d": st.integers(1, 64)})


FLOPS_CALL = "attention_flops(n_q, n_k, d)"

FLOPS = Exercise(
    id="01.attention_flops",
    title="The FLOPs of attention",
    points=1,
    minutes=5,
    difficulty="easy",
    answer=attention_flops,
    hints=(
        "How many entries has S, and how many multiplications and additions does each of them take?",
        "S has n_q n_k entries of d products each; the second product has n_q d entries of n_k products "
        "each. Each product costs one multiplication and one addition.",
        "2 n_q n_k d for the first matrix product and 2 n_q n_k d for the second: return 4 * n_q * n_k * d.",
    ),
    reasoning="An [m, k] by [k, n] product has m n entries, each a sum of k products: k multiplications and, "
    "with the sum started at 0, k additions, hence 2 m n k. Attention has two of them over the same three "
    "numbers: Q K^T with k = d, and P V with k = n_k. Scale and softmax add a few operations per score, a "
    "share of about 1/d.",
    properties=(
        Property(
            "one query, one key, d = 2: 8",
            FLOPS_CALL,
            agrees(flops_parts),
            (sizes(1, 1, 2),),
            hints={
                f"the count: {HALF}": "half",
                f"the count: {QUARTER}": "quarter",
                f"the count: {FIRST_ADDITION}": "first_addition",
                "": "formula",
            },
        ),
        Property(
            "any numbers of queries, keys and components",
            FLOPS_CALL,
            agrees(flops_parts),
            (sizes(4, 4, 2), sizes(2, 3, 5), sizes(1024, 1024, 64)),
            draw_sizes,
            {
                f"the count: {ONLY_N_Q}": "square",
                f"the count: {ONLY_N_K}": "square",
                "": "formula",
            },
        ),
        Property(
            "131072 queries and keys do not overflow",
            FLOPS_CALL,
            agrees(flops_parts),
            (sizes(131072, 131072, 128),),
            hints={"": "overflow"},
        ),
        Property(
            "the count is a whole number, of type int",
            FLOPS_CALL,
            is_whole,
            (sizes(3, 5, 2),),
            hints={"the count: float": "whole"},
        ),
    ),
    mistakes={key: text for key, text in SHARED_MISTAKES.items() if key != "modified"}
    | {
        "half": "There are two matrix products, Q K^T and P V, and each of their products comes with an "
        "addition. Which of these does your count leave out?",
        "quarter": "Each product of two numbers comes with an addition, and after Q K^T there is P V.",
        "first_addition": "That is the smallest number of additions. The convention starts each sum at 0 and "
        "counts one addition for every multiplication, which is also what a multiply-add unit does.",
        "square": "The numbers of queries and keys need not be equal: S has n_q n_k entries.",
        "formula": "Count by hand for one query, one key and d = 2: how many multiplications and additions "
        "make the score, and how many the output?",
        "overflow": "An int32 ends at 2147483647. Python's own int does not end.",
        "whole": "Operations are counted in whole numbers: no float factor and no / in the formula.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one query, one key, d = 2: 8",
            WrongAnswer("F3: one of the two products", "half", {"4 * n_q": "2 * n_q"}),
            WrongAnswer("multiplications of one product", "quarter", {"4 * n_q": "n_q"}),
            WrongAnswer(
                "k - 1 additions for k products",
                "first_addition",
                {"4 * n_q * n_k * d": "n_q * n_k * (2 * d - 1) + n_q * d * (2 * n_k - 1)"},
            ),
            WrongAnswer("sizes added", "formula", {"4 * n_q * n_k * d": "4 * (n_q + n_k) * d"}),
        ),
        *caught_by(
            "any numbers of queries, keys and components",
            WrongAnswer("as many keys as queries", "square", {"n_q * n_k": "n_q * n_q"}),
        ),
        *caught_by(
            "131072 queries and keys do not overflow",
            WrongAnswer("int32", "overflow", {"4 * n_q * n_k * d": "np.prod([4, n_q, n_k, d], dtype=np.int32)"}),
        ),
        *caught_by(
            "the count is a whole number, of type int",
            WrongAnswer("a float", "whole", {"4 * n_q": "4.0 * n_q"}),
        ),
    ),
    right_answers=(
        Variant(
            "product by product",
            {"return 4 * n_q * n_k * d": ("qk = n_q * n_k * 2 * d\n    pv = n_q * d * 2 * n_k\n    return qk + pv")},
        ),
        Variant("int64", {"4 * n_q": "np.int64(4) * n_q"}),
    ),
)

EXERCISES = (DOT, COSINE, SCORES, FLOPS)


QUIZ = [
    {
        "question": "A key is stretched to twice its length. What happens to its dot product with a query, "
        "and to the cosine?",
        "type": "multiple_choice",
        "answers": [
            option("Both double", False, "The cosine divides by the length again."),
            option(
                "The dot product doubles, the cosine stays",
                True,
                "The dot product is length times length times cosine; only the first changed.",
            ),
            option("Neither changes", False, "Every product in the sum doubles."),
        ],
    },
    {
        "question": "Entries of queries and keys are independent, with mean 0 and variance 1. From d = 64 to "
        "d = 256, the typical size of a dot product grows",
        "type": "multiple_choice",
        "answers": [
            option("by 4, as d does", False, "That is the variance. Terms of unlike signs cancel in part."),
            option("not at all", False, "Only if it were divided by sqrt(d)."),
            option("by 2, the root of 4", True, "The variance is d, so the spread is sqrt(d): from 8 to 16."),
        ],
    },
    {
        "question": "What goes wrong when scores of spread 16 enter a softmax without a scale?",
        "type": "multiple_choice",
        "answers": [
            option(
                "Almost all weight falls on one key, and the weights hardly respond to their scores",
                True,
                "The entropy is near 0, and so is p (1 - p), the slope of a weight.",
            ),
            option("The weights no longer add up to 1", False, "They do, whatever the scores are."),
            option("All keys get the same weight", False, "That is what too small a scale does."),
        ],
    },
    {
        "question": "Why 1/sqrt(d) and not 1/d?",
        "type": "multiple_choice",
        "answers": [
            option("1/d would overflow", False, "It makes the scores smaller."),
            option(
                "With 1/d even a key that equals the query hardly stands out",
                True,
                "Its score is about d, and d / d = 1 among scores near 0: in 64 keys, a weight of a few percent.",
            ),
            option("A root is cheaper than a division", False, "Either is one multiplication per score."),
            option("There is no difference for the softmax", False, "A factor on the scores is no shift."),
        ],
    },
    {
        "question": "Q K^T with d = 128, in fp16 and with many queries and keys, does about 128 FLOPs for "
        "each byte. An H100's ridge is at 295. What limits it there?",
        "type": "multiple_choice",
        "answers": [
            option("The arithmetic", False, "To the left of the ridge the arithmetic units wait."),
            option("The number of keys", False, "More keys mean more FLOPs and bytes alike."),
            option(
                "The memory: most of the time goes into writing the scores",
                True,
                "At 128 FLOPs per byte the memory can feed less than half of the peak.",
            ),
        ],
    },
]
