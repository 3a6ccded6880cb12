"""Lesson 07, first Triton kernels: the exercises' answers, hints, properties and plausible wrong answers.

Every answer is a kernel. It is launched in Triton's interpreter under the tracer, so that besides its result each
access is judged: inside the tensors, every output written, every element asked for as often as it has to be.
`online_row_stats` is Milakov and Gimelshein (2018), Alg. 3, block by block.
"""

import numpy as np

from course_lib import language, reference
from course_lib.grading import launched  # noqa: F401 - the docstrings' examples launch
from course_lib.grading.checking import arrays, numbers
from course_lib.grading.diagnosis import exact_and_plain
from course_lib.grading.exercise import Exercise, Part, Variant, WrongAnswer, caught_by, option
from course_lib.grading.kernel_calls import TRITON, compare_bytes, compare_launch, kernel_property

LESSON = "07"
TITLE = "First Triton kernels"

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl

SHARED_MISTAKES = {
    "endless": "Which line changes what the loop waits for? A `for` over range(0, n, BLOCK) ends by itself.",
    "error": "Read the line that is shown, and write the shape of each block on it beside it. Shapes are known when "
    "the kernel is compiled, and `x[:, None]` turns [BLOCK] into [BLOCK, 1].",
    "load_mask": "The last block reaches beyond the end. Which of its offsets exist? `tl.load(pointers, mask=..., "
    "other=...)` leaves the others alone.",
    "store_mask": "A store beyond the end writes into whatever lies there. `tl.store` takes the same mask as the load.",
    "unwritten": "Add up what the programs write: program 0 its block, program 1 the next. Which program writes the "
    "elements that are missing, and does its mask let it?",
    "format": "Compare your parameters and what you store with the docstring: names, order, shapes.",
}
SHARED_HINTS = {
    ": timeout": "endless",
    ": exception": "error",
    ": type": "format",
    ": reads outside": "load_mask",
    ": writes outside": "store_mask",
    ": unwritten": "unwritten",
}


def asks(expected_bytes):
    """A test of a launch: exactly the bytes that expected_bytes(**inputs) states, by tensor."""
    return lambda launch, **inputs: compare_bytes(launch, expected_bytes(**inputs))


def agrees(oracle):
    """A test of a launch: in bounds, all written, and the outputs that oracle(**inputs) states."""
    return lambda launch, **inputs: compare_launch(launch, oracle(**inputs))


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y, one block of BLOCK elements for each program.

    x_ptr, y_ptr, out_ptr: float32 [n], contiguous. n: any length of at least 1. BLOCK: a power of two.
    Launched with cdiv(n, BLOCK) programs, along axis 0. Each element is read once and written once.

    >>> x, y = np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])
    >>> launched(vector_add, (2,), {"out_ptr": (3,)}, x_ptr=x, y_ptr=y, n=3, BLOCK=2).outputs["out_ptr"].tolist()
    [11.0, 22.0, 33.0]
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


ADD_CALL = 'launched(vector_add, (-(-len(x) // BLOCK),), {"out_ptr": x.shape}, x_ptr=x, y_ptr=y, n=len(x), BLOCK=BLOCK)'


def add_parts(x, y, BLOCK):
    return [Part("out", x + y, np.float32(x) + np.float32(y), np.abs(x) + np.abs(y), index="element")]


def add_bytes(x, y, BLOCK):
    return {"x": (x.size * 4, 0), "y": (y.size * 4, 0), "out": (0, x.size * 4)}


def add_case(n, block):
    return {"x": np.arange(1.0, n + 1), "y": 10.0 * np.arange(1, n + 1), "BLOCK": block}


def draw_add(lengths):
    """Strategy: x and y of one of the lengths, in blocks of 4."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(pick):
            n = pick(st.sampled_from(lengths))
            return {"x": arrays(pick, n), "y": arrays(pick, n), "BLOCK": 4}

        return inputs()

    return draw


ADD = Exercise(
    id="07.vector_add",
    title="Add two vectors, block by block",
    points=2,
    minutes=8,
    difficulty="easy",
    answer=vector_add,
    hints=(
        "With BLOCK = 4, which elements belong to program 0, which to program 1, and which to program pid?",
        "offs = pid * BLOCK + tl.arange(0, BLOCK) are the element numbers of a program, and x_ptr + offs a block of "
        "pointers. Some of the last program's offsets do not exist: mask = offs < n.",
        "Compute offs and mask. x = tl.load(x_ptr + offs, mask=mask), y likewise, then tl.store(out_ptr + offs, x + y, "
        "mask=mask).",
    ),
    reasoning="A program has no loop over elements: its block is one value, and every line works on the whole of "
    "it. What differs between programs is the program id alone, so it must be in the offsets. The grid is rounded up, "
    "so the last block may reach beyond n, and one mask serves the loads and the store. Nothing is added up here that "
    "could be spoiled by the lanes that are switched off: they are computed and thrown away.",
    properties=(
        kernel_property(
            "one whole block: out is x + y",
            ADD_CALL,
            agrees(add_parts),
            (add_case(4, 4), add_case(1, 1)),
            draw_add([4]),
            {"": "sum"},
        ),
        kernel_property(
            "several whole blocks: every program does its own",
            ADD_CALL,
            agrees(add_parts),
            (add_case(8, 4), add_case(96, 32)),
            draw_add([8, 12]),
            {": unwritten": "program", ": reads outside": "program", "": "program"},
        ),
        kernel_property(
            "a length that no block divides: nothing outside is touched",
            ADD_CALL,
            agrees(add_parts),
            (add_case(5, 4), add_case(3, 4), add_case(1, 4), add_case(1000, 256)),
            draw_add([1, 2, 3, 5, 6, 7, 9]),
            {"": "unwritten"},
        ),
        kernel_property(
            "each element is read once and written once",
            ADD_CALL,
            asks(add_bytes),
            (add_case(8, 4), add_case(5, 4), add_case(100, 32)),
            hints={"": "bytes"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "sum": "Write down x, y and out of one block. What is stored should be their sum, element by element.",
        "program": "All programs run the same lines; only tl.program_id(0) differs. Program 1 must begin where program "
        "0 ends, which is BLOCK elements further, not one.",
        "bytes": "Count your tl.load and tl.store lines, and who runs them: one load of x, one of y, one store, each "
        "by one program for each element. A loop over blocks inside a program repeats what the others do.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one whole block: out is x + y",
            WrongAnswer("x added to itself", "sum", {"tl.load(y_ptr": "tl.load(x_ptr"}),
            WrongAnswer("product for sum", "sum", {"x + y, mask": "x * y, mask"}),
            WrongAnswer("mask one too narrow", "unwritten", {"offs < n": "offs < n - 1"}),
        ),
        *caught_by(
            "several whole blocks: every program does its own",
            WrongAnswer("program id not times BLOCK", "program", {"tl.program_id(0) * BLOCK +": "tl.program_id(0) +"}),
            WrongAnswer("no program id", "program", {"tl.program_id(0) * BLOCK + ": ""}),
            WrongAnswer("program id of another axis", "program", {"tl.program_id(0) * B": "tl.program_id(1) * B"}),
        ),
        *caught_by(
            "a length that no block divides: nothing outside is touched",
            WrongAnswer(
                "no mask on a load", "load_mask", {"tl.load(y_ptr + offs, mask=mask)": "tl.load(y_ptr + offs)"}
            ),
            WrongAnswer("no mask on the store", "store_mask", {"x + y, mask=mask": "x + y"}),
            WrongAnswer("mask one too wide", "load_mask", {"offs < n": "offs <= n"}),
            WrongAnswer("whole blocks only", "unwritten", {"offs < n": "offs < n // BLOCK * BLOCK"}),
        ),
        *caught_by(
            "each element is read once and written once",
            WrongAnswer(
                "x loaded twice",
                "bytes",
                {"    y = tl.load": "    x = tl.load(x_ptr + offs, mask=mask)\n    y = tl.load"},
            ),
            WrongAnswer(
                "every program does all blocks",
                "bytes",
                {
                    "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask = offs < n\n": "for i in "
                    "range(0, n, BLOCK):\n      offs = i + tl.arange(0, BLOCK)\n      mask = offs < n\n",
                    "    x = tl.load": "      x = tl.load",
                    "    y = tl.load": "      y = tl.load",
                    "    tl.store": "      tl.store",
                },
            ),
        ),
    ),
    right_answers=(
        Variant(
            "y first, pointers moved",
            {
                "    x = tl.load(x_ptr + offs, mask=mask)\n": "    x_ptr += offs\n    x = tl.load(x_ptr, mask=offs "
                "< n)\n",
                "x + y, mask": "y + x, mask",
            },
        ),
        Variant("with other", {"tl.load(x_ptr + offs, mask=mask)": "tl.load(x_ptr + offs, mask=mask, other=0.0)"}),
    ),
    imports=TRITON,
)


@triton.jit
def row_softmax(x_ptr, out_ptr, stride_xm, stride_xn, stride_om, stride_on, n_cols, BLOCK: tl.constexpr):
    """The softmax of each row, one row for each program.

    x_ptr, out_ptr: float32 [n_rows, n_cols]; element (i, j) of x lies stride_xm * i + stride_xn * j elements after
        x_ptr, and likewise out. n_cols: at least 1. BLOCK: a power of two, at least n_cols.
    Launched with n_rows programs, along axis 0. Each element is read once and written once.
    Scores may be as large as 1e4 in size.

    >>> x = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    >>> launched(row_softmax, (2,), {"out_ptr": (2, 4)}, x_ptr=x, n_cols=4, BLOCK=4).outputs["out_ptr"].round(3)
    array([[0.25 , 0.25 , 0.25 , 0.25 ],
           [0.032, 0.087, 0.237, 0.644]], dtype=float32)
    """
    row = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK)
    mask = offs_n < n_cols
    x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask, other=float("-inf"))
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_om + offs_n * stride_on, p / tl.sum(p, axis=0), mask=mask)


SOFTMAX_CALL = 'launched(row_softmax, (len(x),), {"out_ptr": x.shape}, x_ptr=x, n_cols=x.shape[1], BLOCK=BLOCK)'
NO_DIVIDE = "the exponentials are not divided by their sum"
PADDING_COUNTED = "the lanes beyond the row are counted as scores of 0"
BASE_TWO = "2 ** x stands where exp(x) should"


def softmax_parts(x, BLOCK):
    exact, plain = exact_and_plain(reference.stable_softmax, x)
    shifted = x - x.max(axis=1, keepdims=True)

    def readings():
        padded = np.concatenate([x, np.zeros((len(x), BLOCK - x.shape[1]))], axis=1)
        two = np.exp2(shifted)
        return {
            NO_DIVIDE: np.exp(shifted),
            BASE_TWO: two / two.sum(axis=1, keepdims=True),
            PADDING_COUNTED: reference.stable_softmax(padded)[:, : x.shape[1]],
        }

    return [Part("out", exact, plain, exact * (1 + np.abs(shifted)), readings)]


def softmax_bytes(x, BLOCK):
    return {"x": (x.size * 4, 0), "out": (0, x.size * 4)}


def softmax_case(x, block=None):
    x = np.array(x, dtype=np.float64)
    return {"x": x, "BLOCK": block or 1 << (x.shape[1] - 1).bit_length()}


def draw_matrix(rows, columns, of=None, block=4):
    """Strategy: a matrix x and BLOCK."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(pick):
            shape = pick(st.sampled_from(rows)), pick(st.sampled_from(columns))
            return {"x": arrays(pick, *shape, of=of() if of else numbers()), "BLOCK": block}

        return inputs()

    return draw


def large():
    from hypothesis import strategies as st

    return st.integers(-8, 8).map(lambda i: i * 250.0)


WIDE = np.random.default_rng(7).standard_normal((3, 45)).round(3)

SOFTMAX = Exercise(
    id="07.row_softmax",
    title="Softmax of every row",
    points=3,
    minutes=10,
    difficulty="medium",
    answer=row_softmax,
    hints=(
        "A block's size is a power of two, a row's length is not. Which score must the lanes beyond the row hold, so "
        "that they change neither the maximum nor the sum?",
        "exp(-inf - m) = 0 and max(m, -inf) = m, so load with other=float('-inf'). Row pid begins at x_ptr + pid * "
        "stride_xm, and its elements are stride_xn apart.",
        "row = tl.program_id(0); offs = tl.arange(0, BLOCK); mask = offs < n_cols; load with mask and other; p = "
        "tl.exp(x - tl.max(x, axis=0)); store p / tl.sum(p, axis=0) with the mask, at out's own strides.",
    ),
    reasoning="The row is read once, into one block that stays on the chip; maximum, exponentials, sum and division "
    "all work on that block, and the result is written once. Padding lanes hold -inf: the maximum ignores them and "
    "exp turns them into 0. The strides are arguments because a row need not begin where the one before it ends.",
    properties=(
        kernel_property(
            "a row as long as the block",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (softmax_case([[0, 1, 2, 3]]), softmax_case([[1.0]]), softmax_case([[2, 1]])),
            draw_matrix([1], [4]),
            {
                ": reads outside": "stride",
                f"out: {NO_DIVIDE}": "divide",
                f"out: {BASE_TWO}": "base",
                "": "values",
            },
        ),
        kernel_property(
            "every program has its row, wherever it begins",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (softmax_case([[0, 1, 2, 3], [3, 1, 0, 0]]), softmax_case([[0, 1], [1, 0], [2, 5]])),
            draw_matrix([2, 3], [4]),
            {": reads outside": "stride", ": writes outside": "stride", ": unwritten": "stride", "": "stride"},
        ),
        kernel_property(
            "rows shorter than the block: the rest of it counts for nothing",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (softmax_case([[1, 2, 3]], 4), softmax_case([[-3, -5, -4]], 8), softmax_case(WIDE)),
            draw_matrix([1, 2], [1, 2, 3]),
            {f"out: {PADDING_COUNTED}": "other", ": nan": "other", "": "other"},
        ),
        kernel_property(
            "scores near 1000 and -1000 neither overflow nor vanish",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (softmax_case([[1000, 999]]), softmax_case([[-1000, -999]]), softmax_case([[-1e4, 1e4, 0]])),
            draw_matrix([1], [2, 3, 4], large),
            {"": "shift"},
        ),
        kernel_property(
            "each element is read once and written once",
            SOFTMAX_CALL,
            asks(softmax_bytes),
            (softmax_case([[1, 2, 3], [2, 2, 2]]), softmax_case(WIDE)),
            hints={"": "bytes"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "divide": "The exponentials of a row add up to tl.sum(p, axis=0). What must a softmax's row add up to?",
        "base": "tl.exp2(x) is 2 ** x. Use tl.exp, or multiply x by log2(e) = 1.4427 first.",
        "values": "Follow the four numbers of the input through your lines: maximum, exponentials, sum, quotients.",
        "stride": "Row i of x begins stride_xm * i elements after x_ptr, its neighbours stride_xn apart; out has "
        "strides "
        "of its own. A row need not begin where the one before it ends, so n_cols is no substitute for a stride.",
        "other": "What do the lanes beyond the row hold? They enter the maximum and the sum with everything else. "
        "Give them, by `other`, the score whose exponential is 0; without `other` nothing is promised.",
        "shift": "exp overflows beyond 88.7 in float32, and of -1000 it is 0. Subtract the row's own maximum first.",
        "bytes": "One tl.load of the row is enough: the block stays on the chip, and maximum, exponentials and sum can "
        "all use it.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "a row as long as the block",
            WrongAnswer(
                "row and column strides swapped",
                "stride",
                {"row * stride_xm + offs_n * stride_xn": "row * stride_xn + offs_n * stride_xm"},
            ),
            WrongAnswer("not divided by the sum", "divide", {"p / tl.sum(p, axis=0)": "p"}),
            WrongAnswer("exp2 without log2 e", "base", {"tl.exp(": "tl.exp2("}),
            WrongAnswer("divided by the largest", "values", {"p / tl.sum(p, axis=0)": "x / tl.max(x, axis=0)"}),
        ),
        *caught_by(
            "every program has its row, wherever it begins",
            WrongAnswer("n_cols for the stride", "stride", {"row * stride_xm": "row * n_cols"}),
            WrongAnswer("the first row for all", "stride", {"row * stride_xm + ": ""}),
            WrongAnswer("x's strides for out, one row", "stride", {"row * stride_om + ": ""}),
        ),
        *caught_by(
            "rows shorter than the block: the rest of it counts for nothing",
            WrongAnswer("padding of 0", "other", {'float("-inf"))': "0.0)"}),
            WrongAnswer("no other", "other", {', other=float("-inf")': ""}),
            WrongAnswer("no mask on the load", "load_mask", {', mask=mask, other=float("-inf")': ""}),
            WrongAnswer("no mask on the store", "store_mask", {"axis=0), mask=mask)": "axis=0))"}),
        ),
        *caught_by(
            "scores near 1000 and -1000 neither overflow nor vanish",
            WrongAnswer("max not subtracted", "shift", {"tl.exp(x - tl.max(x, axis=0))": "tl.exp(x)"}),
            WrongAnswer(
                "max starts at 0",
                "shift",
                {"tl.exp(x - tl.max(x, axis=0))": "tl.exp(x - tl.maximum(tl.max(x, axis=0), 0.0))"},
            ),
        ),
        *caught_by(
            "each element is read once and written once",
            WrongAnswer(
                "the row loaded for each use",
                "bytes",
                {
                    "    p = tl.exp(x - tl.max(x, axis=0))": "    m = tl.max(x, axis=0)\n    x = tl.load(x_ptr + row * "
                    "stride_xm + offs_n * stride_xn, mask=mask, other=-float('inf'))\n    p = tl.exp(x - m)"
                },
            ),
        ),
    ),
    right_answers=(
        Variant(
            "the sum's logarithm subtracted",
            {
                "    p = tl.exp(x - tl.max(x, axis=0))": "    x = x - tl.max(x, axis=0)\n    lse = tl.log(tl.sum("
                "tl.exp(x), axis=0))",
                "p / tl.sum(p, axis=0)": "tl.exp(x - lse)",
            },
        ),
        Variant(
            "exponentials of the rest set to 0",
            {
                ', other=float("-inf"))': ", other=0.0)",
                "tl.exp(x - tl.max(x, axis=0))": "tl.where(mask, tl.exp(x - tl.max(tl.where(mask, x, -1e30), "
                "axis=0)), 0.0)",
            },
        ),
        Variant(
            "in base 2", {"tl.exp(x - tl.max(x, axis=0))": "tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)"}
        ),
    ),
    imports=TRITON,
)


@triton.jit
def scores_tile(
    q_ptr, k_ptr, s_ptr,
    stride_qm, stride_qd,
    stride_kn, stride_kd,
    stride_sm, stride_sn,
    n_q, n_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S = scale * Q K^T, one tile of BLOCK_M queries by BLOCK_N keys for each program.

    q_ptr: float32 [n_q, HEAD_DIM]; k_ptr: float32 [n_k, HEAD_DIM]; s_ptr: float32 [n_q, n_k]; each with strides of
        its own, in elements. n_q, n_k: at least 1. BLOCK_D: a power of two, at least HEAD_DIM.
    BLOCK_M, BLOCK_N: powers of two. Compiled, tl.dot takes no BLOCK_D below 16; the interpreter takes any.
    Launched with cdiv(n_q, BLOCK_M) programs along axis 0 and cdiv(n_k, BLOCK_N) along axis 1.
    Each program reads its rows of Q and of K once, and writes its tile once. Use tl.dot with
        input_precision="ieee".

    >>> q, k = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> blocks = {"HEAD_DIM": 2, "BLOCK_M": 2, "BLOCK_N": 2, "BLOCK_D": 2}
    >>> launch = launched(scores_tile, (1, 2), {"s_ptr": (2, 3)}, q_ptr=q, k_ptr=k, n_q=2, n_k=3, scale=1.0, **blocks)
    >>> launch.outputs["s_ptr"].tolist()
    [[1.0, 0.0, 2.0], [1.0, 2.0, 4.0]]
    """
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m, mask_n, mask_d = offs_m < n_q, offs_n < n_k, offs_d < HEAD_DIM
    # [BLOCK_M, BLOCK_D] and [BLOCK_N, BLOCK_D]
    q_ptrs = q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd
    k_ptrs = k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd
    q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)
    k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
    # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s_ptrs = s_ptr + offs_m[:, None] * stride_sm + offs_n[None, :] * stride_sn
    tl.store(s_ptrs, s, mask=mask_m[:, None] & mask_n[None, :])


SCORES_CALL = (
    "launched(scores_tile, (-(-len(q) // BLOCK_M), -(-len(k) // BLOCK_N)), {'s_ptr': (len(q), len(k))}, q_ptr=q, "
    "k_ptr=k, n_q=len(q), n_k=len(k), scale=scale, HEAD_DIM=q.shape[1], BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, "
    "BLOCK_D=BLOCK_D)"
)
NO_SCALE = "the scale is left out"
SCALED_TWICE = "the scale is applied twice"


def scores_parts(q, k, scale, **blocks):
    def plain(q, k):
        return q @ k.T * q.dtype.type(scale)

    exact, rounded = exact_and_plain(plain, q, k)
    sizes = np.abs(q) @ np.abs(k).T * abs(scale)
    return [Part("s", exact, rounded, sizes, lambda: {NO_SCALE: q @ k.T, SCALED_TWICE: exact * scale})]


def scores_bytes(q, k, BLOCK_M, BLOCK_N, **rest):
    tiles_m, tiles_n = -(-len(q) // BLOCK_M), -(-len(k) // BLOCK_N)
    return {"q": (q.size * 4 * tiles_n, 0), "k": (k.size * 4 * tiles_m, 0), "s": (0, len(q) * len(k) * 4)}


def scores_inputs(q, k, block_m, block_n, scale=0.5, block_d=None):
    q, k = np.array(q, dtype=np.float64), np.array(k, dtype=np.float64)
    block_d = block_d or 1 << (q.shape[1] - 1).bit_length()
    return {"q": q, "k": k, "scale": scale, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": block_d}


def scores_case(n_q, n_k, d, *blocks):
    """Integers, each row and column of the product unlike the others."""
    q = (np.arange(n_q * d) * 7 % 11 - 4.0).reshape(n_q, d)
    k = (np.arange(n_k * d) * 5 % 13 - 5.0).reshape(n_k, d)
    return scores_inputs(q, k, *blocks)


def draw_scores(n_q, n_k, d, block_d):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(pick):
            rows_q, rows_k, columns = (pick(st.sampled_from(choices)) for choices in (n_q, n_k, d))
            q, k = arrays(pick, rows_q, columns), arrays(pick, rows_k, columns)
            return scores_inputs(q, k, 2, 4, 0.5, block_d)

        return inputs()

    return draw


SCORES = Exercise(
    id="07.scores_tile",
    title="A tile of scores",
    points=3,
    minutes=12,
    difficulty="medium",
    answer=scores_tile,
    hints=(
        "A tile of queries is a matrix of pointers. Which offset belongs to row i and column c of it, and how do "
        "offs_m[:, None] and offs_d[None, :] make all of them at once?",
        "q [BLOCK_M, BLOCK_D] and k [BLOCK_N, BLOCK_D] are loaded alike. The product needs K with its axes exchanged: "
        "tl.trans(k). Lanes beyond HEAD_DIM take part in every sum, so they must hold 0.",
        "offs_m from program_id(0), offs_n from program_id(1), offs_d = tl.arange(0, BLOCK_D). Load q and k with masks "
        "mask_m[:, None] & mask_d[None, :], other=0.0. s = tl.dot(q, tl.trans(k), input_precision='ieee') * scale. "
        "Store with mask_m[:, None] & mask_n[None, :].",
    ),
    reasoning="Two program ids choose the tile: axis 0 its queries, axis 1 its keys. Rows and columns of a block of "
    "pointers come from broadcasting a column of row offsets against a row of column offsets. Rows beyond n_q or n_k "
    "only make scores that are never stored, but columns beyond HEAD_DIM are summed into every score, so those lanes "
    "must be 0. K is read again for every tile of queries: that is the traffic that lesson 06 counted.",
    properties=(
        kernel_property(
            "one tile: scale times Q K^T",
            SCORES_CALL,
            agrees(scores_parts),
            (scores_case(2, 4, 2, 2, 4), scores_case(4, 4, 4, 4, 4)),
            draw_scores([2], [4], [2], 2),
            {
                f"s: {NO_SCALE}": "scale",
                f"s: {SCALED_TWICE}": "scale",
                ": exception": "transpose",
                ": reads outside": "product",
                "": "product",
            },
        ),
        kernel_property(
            "several tiles: axis 0 counts query tiles, axis 1 key tiles",
            SCORES_CALL,
            agrees(scores_parts),
            (scores_case(4, 4, 2, 2, 4), scores_case(2, 8, 2, 2, 4), scores_case(6, 8, 2, 2, 4)),
            draw_scores([2, 4], [4, 8], [2], 2),
            {": reads outside": "axes", ": writes outside": "axes", ": unwritten": "axes", "": "axes"},
        ),
        kernel_property(
            "lengths that no tile divides: nothing outside is touched",
            SCORES_CALL,
            agrees(scores_parts),
            (scores_case(3, 4, 2, 2, 4), scores_case(2, 5, 2, 2, 4), scores_case(5, 9, 2, 2, 4)),
            draw_scores([1, 2, 3], [1, 2, 3, 5], [2], 2),
        ),
        kernel_property(
            "a head_dim that is no power of two",
            SCORES_CALL,
            agrees(scores_parts),
            (scores_case(2, 4, 3, 2, 4), scores_case(2, 4, 1, 2, 4, 0.5, 4), scores_case(18, 33, 20, 16, 16)),
            draw_scores([2], [4], [1, 3], 4),
            {": nan": "pad", ": reads outside": "pad", "": "pad"},
        ),
        kernel_property(
            "each program reads its rows once and writes its tile once",
            SCORES_CALL,
            asks(scores_bytes),
            (scores_case(4, 8, 2, 2, 4), scores_case(5, 9, 3, 2, 4)),
            hints={"": "bytes"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "scale": "The docstring has one factor in front of Q K^T: the argument scale, once.",
        "transpose": "tl.dot multiplies [M, D] by [D, N]. Write the shapes of both arguments beside your line.",
        "product": "Entry (i, j) is the sum over c of q[i, c] * k[j, c]: a row of Q with a row of K. Which stride "
        "moves "
        "along which axis, in each of the three tensors?",
        "axes": "Axis 0 of the grid counts tiles of queries, BLOCK_M rows each, axis 1 tiles of keys, BLOCK_N rows "
        "each. "
        "Which of the two program ids belongs into offs_m?",
        "pad": "The sum inside tl.dot runs over all BLOCK_D columns. Those beyond HEAD_DIM belong to no row: mask them "
        "and say with `other` what they hold, so that they add nothing.",
        "bytes": "Count the loads that one program makes: its rows of Q, its rows of K, each once, and one store.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one tile: scale times Q K^T",
            WrongAnswer("scale missing", "scale", {" * scale\n    s_ptrs": "\n    s_ptrs"}),
            WrongAnswer("scaled twice", "scale", {" * scale\n    s_ptrs": " * scale * scale\n    s_ptrs"}),
            WrongAnswer("K not transposed", "transpose", {"tl.trans(k)": "k"}),
            WrongAnswer(
                "row and column strides of K swapped",
                "product",
                {
                    "offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd": "offs_n[:, None] * stride_kd + "
                    "offs_d[None, :] * stride_kd"
                },
            ),
        ),
        *caught_by(
            "several tiles: axis 0 counts query tiles, axis 1 key tiles",
            WrongAnswer(
                "program ids exchanged",
                "axes",
                {
                    "tl.program_id(0) * BLOCK_M": "tl.program_id(1) * BLOCK_M",
                    "tl.program_id(1) * BLOCK_N": "tl.program_id(0) * BLOCK_N",
                },
            ),
            WrongAnswer("BLOCK_M for both", "axes", {"tl.program_id(1) * BLOCK_N": "tl.program_id(1) * BLOCK_M"}),
            WrongAnswer("the first keys for all", "axes", {"tl.program_id(1) * BLOCK_N + ": ""}),
        ),
        *caught_by(
            "lengths that no tile divides: nothing outside is touched",
            WrongAnswer(
                "queries not masked", "load_mask", {"mask=mask_m[:, None] & mask_d[None, :]": "mask=mask_d[None, :]"}
            ),
            WrongAnswer(
                "keys not masked", "load_mask", {"mask=mask_n[:, None] & mask_d[None, :]": "mask=mask_d[None, :]"}
            ),
            WrongAnswer("store not masked", "store_mask", {"s, mask=mask_m[:, None] & mask_n[None, :])": "s)"}),
            WrongAnswer("whole tiles only", "unwritten", {"offs_n < n_k,": "offs_n < n_k // BLOCK_N * BLOCK_N,"}),
        ),
        *caught_by(
            "a head_dim that is no power of two",
            WrongAnswer(
                "columns not masked", "pad", {"mask=mask_m[:, None] & mask_d[None, :]": "mask=mask_m[:, None]"}
            ),
            WrongAnswer(
                "no other",
                "pad",
                {"mask=mask_n[:, None] & mask_d[None, :], other=0.0": "mask=mask_n[:, None] & mask_d[None, :]"},
            ),
            WrongAnswer(
                "padding of 1",
                "pad",
                {
                    "mask=mask_m[:, None] & mask_d[None, :], other=0.0": "mask=mask_m[:, None] & mask_d[None, :], "
                    "other=1.0",
                    "mask=mask_n[:, None] & mask_d[None, :], other=0.0": "mask=mask_n[:, None] & mask_d[None, :], "
                    "other=1.0",
                },
            ),
        ),
        *caught_by(
            "each program reads its rows once and writes its tile once",
            WrongAnswer(
                "Q loaded twice",
                "bytes",
                {
                    "    k = tl.load": "    q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], "
                    "other=0.0)\n    k = tl.load"
                },
            ),
        ),
    ),
    right_answers=(
        Variant(
            "scaled queries, K loaded transposed",
            {
                "offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd": "offs_n[None, :] * stride_kn + "
                "offs_d[:, None] * stride_kd",
                "mask=mask_n[:, None] & mask_d[None, :]": "mask=mask_n[None, :] & mask_d[:, None]",
                'tl.dot(q, tl.trans(k), input_precision="ieee") * scale': "tl.dot(q * scale, k, "
                'input_precision="ieee")',
            },
        ),
        Variant(
            "sums without tl.dot",
            {
                'tl.dot(q, tl.trans(k), input_precision="ieee") * scale': "tl.sum(q[:, None, :] * k[None, :, :], "
                "axis=2) * scale"
            },
        ),
    ),
    imports=TRITON,
)


@triton.jit
def online_row_stats(x_ptr, m_ptr, l_ptr, stride_xm, stride_xn, n_cols, BLOCK: tl.constexpr):
    """Maximum and softmax normaliser of each row in one pass, one row for each program.

    x_ptr: float32 [n_rows, n_cols], with strides in elements. m_ptr, l_ptr: float32 [n_rows], contiguous.
    n_cols: any length of at least 1, also far beyond BLOCK. BLOCK: a power of two.
    m is the largest score of the row, l the sum of exp(score - m). A score may be -inf (a masked key); a row of
        nothing else has m = -inf, l = 0.
    Launched with n_rows programs, along axis 0. Each element is read once, BLOCK of them at a time.

    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> launch = launched(online_row_stats, (1,), {"m_ptr": (1,), "l_ptr": (1,)}, x_ptr=x, n_cols=4, BLOCK=2)
    >>> print("m", launch.outputs["m_ptr"], "l", launch.outputs["l_ptr"].round(3))
    m [4.] l [1.553]
    """
    row = tl.program_id(0)
    m_i = float("-inf")
    l_i = 0.0
    for start in range(0, n_cols, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=offs_n < n_cols, other=float("-inf"))
        m_new = tl.maximum(m_i, tl.max(x, axis=0))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf minus -inf would be NaN
        l_i = l_i * tl.exp(m_i - m_ref) + tl.sum(tl.exp(x - m_ref), axis=0)
        m_i = m_new
    tl.store(m_ptr + row, m_i)
    tl.store(l_ptr + row, l_i)


STATS_CALL = (
    'launched(online_row_stats, (len(x),), {"m_ptr": (len(x),), "l_ptr": (len(x),)}, x_ptr=x, n_cols=x.shape[1], '
    "BLOCK=BLOCK)"
)
NOT_RESCALED = "the old sum is kept as it was although the max has risen"
UPSIDE_DOWN = "the old sum is multiplied by exp(m_new - m_old), the rescale upside down"


def row_stats(x):
    m = x.max(axis=1)
    finite = np.where(np.isneginf(m), x.dtype.type(0), m)
    return m, np.exp(x - finite[:, None]).sum(axis=1)


def stats_parts(x, BLOCK):
    (m, l), plain = exact_and_plain(row_stats, x)

    def readings():
        wrong = {NOT_RESCALED: [], UPSIDE_DOWN: []}
        for row in x:
            blocks = [row[i : i + BLOCK] for i in range(0, len(row), BLOCK)]
            for name, sums in wrong.items():
                m_i, l_i = -np.inf, 0.0
                for block in blocks:
                    m_new = max(m_i, block.max())
                    ref = 0.0 if m_new == -np.inf else m_new
                    factor = 1.0 if name == NOT_RESCALED else np.exp(ref - m_i) if m_i > -np.inf else 0.0
                    m_i, l_i = m_new, l_i * factor + np.exp(block - ref).sum()
                sums.append(l_i)
        return {name: np.array(sums) for name, sums in wrong.items()}

    return [Part("m", m, plain[0], 0.0), Part("l", l, plain[1], l, readings)]


def stats_bytes(x, BLOCK):
    return {"x": (x.size * 4, 0), "m": (0, len(x) * 4), "l": (0, len(x) * 4)}


def masked_scores():
    from hypothesis import strategies as st

    return st.sampled_from([-np.inf, 0.0, 1.0, -1.0, 2.0, -np.inf])


STATS = Exercise(
    id="07.online_row_stats",
    title="Row statistics in one pass",
    points=4,
    minutes=15,
    difficulty="hard",
    answer=online_row_stats,
    hints=(
        "Between two blocks a program keeps two numbers. What are they before the first block, and what must happen to "
        "the second when the first rises?",
        "It is lesson 05's update with a block of scores: m_new = max(m, max of the block), l = l * exp(m - m_new) "
        "+ sum "
        "of exp(block - m_new). The last block may be short: mask it, with other=-inf.",
        "m_i = float('-inf'); l_i = 0.0; for start in range(0, n_cols, BLOCK): load the block; m_new = tl.maximum(m_i, "
        "tl.max(x, axis=0)); m_ref = tl.where(m_new == float('-inf'), 0.0, m_new); l_i = l_i * tl.exp(m_i - m_ref) + "
        "tl.sum(tl.exp(x - m_ref), axis=0); m_i = m_new. Store both after the loop.",
    ),
    reasoning="A row of any length passes through a block of fixed size, and the state between blocks is two numbers "
    "in registers: this loop, with a matrix product added, is the inside of FlashAttention's kernel. range takes "
    "n_cols, known only at launch; BLOCK is known when the kernel is compiled. m_ref differs from m_new only while "
    "nothing has been visible, when the difference would be NaN.",
    properties=(
        kernel_property(
            "one block: the max, and the sum of exp(score - max)",
            STATS_CALL,
            agrees(stats_parts),
            (softmax_case([[1, 2, 3, 4]]), softmax_case([[-1, -3]]), softmax_case([[-2.0]])),
            draw_matrix([1], [4]),
            {"m l": "start", "m": "start", "l": "term"},
        ),
        kernel_property(
            "a later block with a smaller max leaves m alone",
            STATS_CALL,
            agrees(stats_parts),
            (softmax_case([[4, 3, 2, 1]], 2), softmax_case([[2, 1, 0, -1, -2, -3]], 2)),
            hints={"m l": "running_max", "m": "running_max", "l": "running_max"},
        ),
        kernel_property(
            "a new max rescales the old sum",
            STATS_CALL,
            agrees(stats_parts),
            (softmax_case([[1, 2, 3, 4]], 2), softmax_case([[1, 2]], 1), softmax_case([[0, 0, 3, 3, 5, 4]], 2)),
            draw_matrix([1], [4], block=2),
            {f"l: {NOT_RESCALED}": "rescale", f"l: {UPSIDE_DOWN}": "upside_down", "": "rescale"},
        ),
        kernel_property(
            "a length that no block divides: all of the row, and nothing else",
            STATS_CALL,
            agrees(stats_parts),
            (
                softmax_case([[-1, -2, -5]], 2),
                softmax_case([[1, 2, 3]], 4),
                softmax_case(WIDE[:1], 16),
                softmax_case([[1, 2, 3, 4, 5]], 2),
            ),
            draw_matrix([1], [1, 2, 3, 5], block=4),
            {": nan": "tail", "m l": "tail", "m": "tail", "l": "tail"},
        ),
        kernel_property(
            "every program has its row, wherever it begins",
            STATS_CALL,
            agrees(stats_parts),
            (softmax_case([[1, 2, 3, 4], [8, 7, 6, 7]], 2), softmax_case([[0, 1], [2, 3], [5, 9]], 2)),
            draw_matrix([2, 3], [4], block=2),
            {": reads outside": "stride", ": unwritten": "stride", "": "stride"},
        ),
        kernel_property(
            "masked scores (-inf) add nothing, also when they come first",
            STATS_CALL,
            agrees(stats_parts),
            (
                softmax_case([[-np.inf, -np.inf, 1, 2]], 2),
                softmax_case([[-np.inf, -np.inf]], 2),
                softmax_case([[1, -np.inf, 0, 1]], 2),
            ),
            draw_matrix([1], [4], masked_scores, block=2),
            {"": "masked"},
        ),
        kernel_property(
            "each element is read once",
            STATS_CALL,
            asks(stats_bytes),
            (softmax_case([[1, 2, 3, 4, 5]], 2), softmax_case(WIDE, 16)),
            hints={"": "bytes"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "start": "What is the largest of no scores? 0 is larger than every negative score, so the running max cannot "
        "start there.",
        "term": "With one block, l is the sum of exp(score - m). Is m subtracted from every score before tl.exp?",
        "running_max": "Two maxima are at work: of the blocks so far, and of this block. tl.maximum of the two is the "
        "new running max, and it is what the block's exponentials are measured from.",
        "rescale": "The old sum is measured from the old max. Which factor turns every exp(s - m_old) in it into "
        "exp(s - m_new)?",
        "upside_down": "When the max rises, the old terms must shrink. Is your factor less than 1 or more?",
        "tail": "The last block is short. Does the loop reach it, and which score do the lanes beyond the row hold? "
        "Only -inf changes neither the max nor the sum.",
        "stride": "Row i begins stride_xm * i elements after x_ptr, its neighbours are stride_xn apart, and its two "
        "results belong at m_ptr + i and l_ptr + i.",
        "masked": "-inf minus -inf is NaN, and it happens while every score so far is masked: then the max is -inf. "
        "Which finite number could you subtract instead, so that exp(-inf - it) is 0?",
        "bytes": "A second loop reads the row again. The running max makes one pass enough.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one block: the max, and the sum of exp(score - max)",
            WrongAnswer("running max starts at 0", "start", {'m_i = float("-inf")\n': "m_i = 0.0\n"}),
            WrongAnswer("max not subtracted", "term", {"tl.exp(x - m_ref)": "tl.exp(x)"}),
        ),
        *caught_by(
            "a later block with a smaller max leaves m alone",
            WrongAnswer(
                "tile max for running max", "running_max", {"tl.maximum(m_i, tl.max(x, axis=0))": "tl.max(x, axis=0)"}
            ),
            WrongAnswer(
                "terms measured from the tile max",
                "running_max",
                {"tl.exp(x - m_ref)": "tl.exp(x - tl.max(x, axis=0))"},
            ),
        ),
        *caught_by(
            "a new max rescales the old sum",
            WrongAnswer("no rescale of l", "rescale", {"l_i * tl.exp(m_i - m_ref)": "l_i"}),
            WrongAnswer(
                "rescale upside down",
                "upside_down",
                {"l_i * tl.exp(m_i - m_ref)": "l_i * tl.exp(tl.where(m_i == float('-inf'), 0.0, m_ref - m_i))"},
            ),
        ),
        *caught_by(
            "a length that no block divides: all of the row, and nothing else",
            WrongAnswer(
                "last block dropped", "tail", {"range(0, n_cols, BLOCK)": "range(0, n_cols // BLOCK * BLOCK, BLOCK)"}
            ),
            WrongAnswer("padding of 0", "tail", {'other=float("-inf"))': "other=0.0)"}),
            WrongAnswer("no mask", "load_mask", {', mask=offs_n < n_cols, other=float("-inf")': ""}),
            WrongAnswer("no other", "tail", {', other=float("-inf")': ""}),
        ),
        *caught_by(
            "every program has its row, wherever it begins",
            WrongAnswer(
                "strides swapped",
                "stride",
                {"row * stride_xm + offs_n * stride_xn": "row * stride_xn + offs_n * stride_xn"},
            ),
            WrongAnswer("n_cols for the stride", "stride", {"row * stride_xm": "row * n_cols"}),
            WrongAnswer("all results in one place", "stride", {"tl.store(l_ptr + row, l_i)": "tl.store(l_ptr, l_i)"}),
        ),
        *caught_by(
            "masked scores (-inf) add nothing, also when they come first",
            WrongAnswer("-inf minus -inf", "masked", {'tl.where(m_new == float("-inf"), 0.0, m_new)': "m_new"}),
        ),
        *caught_by(
            "each element is read once",
            WrongAnswer(
                "two passes",
                "bytes",
                {
                    "    for start in": "    for start in range(0, n_cols, BLOCK):\n        offs_n = start + "
                    "tl.arange(0, BLOCK)\n"
                    "        x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=offs_n < n_cols, "
                    "other=-float('inf'))\n        m_i = tl.maximum(m_i, tl.max(x, axis=0))\n    for start in"
                },
            ),
        ),
    ),
    right_answers=(
        Variant(
            "a state for each lane, merged at the end",
            {
                'm_i = float("-inf")\n': 'm_i = tl.full([BLOCK], float("-inf"), tl.float32)\n',
                "l_i = 0.0\n": "l_i = tl.zeros([BLOCK], tl.float32)\n",
                "tl.maximum(m_i, tl.max(x, axis=0))": "tl.maximum(m_i, x)",
                "tl.sum(tl.exp(x - m_ref), axis=0)": "tl.exp(x - m_ref)",
                "    tl.store(m_ptr + row, m_i)\n": "    m_all = tl.max(m_i, axis=0)\n    l_i = tl.sum(l_i * "
                "tl.exp(m_i - "
                "tl.where(m_all == float('-inf'), 0.0, m_all)), axis=0)\n    tl.store(m_ptr + row, m_all)\n",
            },
        ),
        Variant(
            "in base 2, with a where for the sum",
            {
                "tl.exp(m_i - m_ref)": "tl.exp2((m_i - m_ref) * 1.4426950408889634)",
                "tl.sum(tl.exp(x - m_ref), axis=0)": "tl.sum(tl.where(offs_n < n_cols, tl.exp(x - m_ref), 0.0), "
                "axis=0)",
            },
        ),
    ),
    imports=TRITON,
)


EXERCISES = (ADD, SOFTMAX, SCORES, STATS)


QUIZ = [
    {
        "question": "A kernel with BLOCK = 256 works on n = 1000 elements. How many programs are launched, and how "
        "many "
        "lanes of the last one are masked off?",
        "type": "multiple_choice",
        "answers": [
            option("3 programs, none", False, "3 x 256 = 768: the last 232 elements would be left out."),
            option("4 programs, 24 lanes", True, "cdiv(1000, 256) = 4, and 4 x 256 - 1000 = 24."),
            option("4 programs, 232 lanes", False, "232 is how many of the last program's lanes are switched on."),
        ],
    },
    {
        "question": "In a row softmax, what must the lanes beyond the end of the row hold?",
        "type": "multiple_choice",
        "answers": [
            option("0", False, "exp(0 - m) would be added to the sum, and a row of negative scores gets 0 as its max."),
            option("Anything: they are masked in the store", False, "They take part in the max and the sum before it."),
            option("-inf", True, "It changes neither the max nor the sum."),
        ],
    },
    {
        "question": "tl.load(pointers, mask=mask), without other=: what do lanes hold that are masked off?",
        "type": "multiple_choice",
        "answers": [
            option(
                "Nothing that is promised", True, "The plain interpreter gives 0, the tracer NaN, a GPU what it has."
            ),
            option("0", False, "So it is in the plain interpreter; a GPU promises no such thing."),
            option("The element at the end of the tensor", False, "A lane that is masked off reads nothing."),
        ],
    },
    {
        "question": "scores_tile runs on 4 x 2 tiles. How often is each element of K asked for?",
        "type": "multiple_choice",
        "answers": [
            option("Once", False, "That is so for each program that needs it; and there are several of those."),
            option("2 times", False, "2 is the number of key tiles: so often each element of Q is asked for."),
            option("4 times", True, "Once for each tile of queries."),
        ],
    },
    {
        "question": "A kernel is right on many inputs in the interpreter. What has been shown?",
        "type": "multiple_choice",
        "answers": [
            option("That it runs fast on a GPU", False, "The interpreter's time says nothing about a GPU's."),
            option(
                "That it compiles and gives the same on a GPU",
                False,
                "The interpreter takes what the compiler refuses, and knows no limit of shared memory.",
            ),
            option(
                "That these programs, run one after another, give the right results",
                True,
                "Races, limits and rounding are a GPU's own.",
            ),
        ],
    },
]
