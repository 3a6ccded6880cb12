"""The bytes of FlashAttention, for both orders of its loops."""

import numpy as np
from hypothesis import strategies as st

from course_lib import traffic
from course_lib.exercises.common.generators import case_of
from course_lib.grading.checking import raises_value_error
from course_lib.grading.diagnosis import compare, show
from course_lib.grading.exercise import Checks, Exercise, ExpectedOutput, Slip, single_finding


def flash_attention_bytes(n, d, block_q, bytes_per_element, order):
    """Bytes that FlashAttention reads and writes for one head, n queries and n keys, nothing masked.

    Tiles are square: block_q rows of Q and O, and as many of K and V; the last tile may be shorter.
    order: "q_outer": Q read once, O written once, K and V read once for every query tile.
        "kv_outer": O, l and m written once at the start; K and V read once; for every key tile Q, O, l and m
        read, and O, l and m written. l and m hold n numbers of 4 bytes each, whatever bytes_per_element is.
    Returns the bytes read and written together, a whole number. Raises ValueError for another order.

    >>> flash_attention_bytes(4, 2, 2, 8, "q_outer")
    384
    """
    n_tiles = (n + block_q - 1) // block_q
    matrix_bytes = n * d * bytes_per_element
    statistics_bytes = 2 * n * 4
    if order == "q_outer":
        return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes
    if order == "kv_outer":
        start_bytes = matrix_bytes + statistics_bytes
        return start_bytes + 2 * matrix_bytes + n_tiles * (3 * matrix_bytes + 2 * statistics_bytes)
    raise ValueError(f"order is {order!r}; accepted: 'q_outer', 'kv_outer'")


def agrees_with_traffic(answer, n, d, block_q, bytes_per_element, order):
    sizes = {"block_q": block_q, "block_k": block_q, "dtype_bytes": bytes_per_element}
    right = traffic.flash_attention(n, n, d, **sizes, order=order).total_bytes
    returned = answer(n, d, block_q, bytes_per_element, order)
    if not isinstance(returned, int | np.integer):
        return compare(returned, [ExpectedOutput("the total", np.float64(right), np.float64(right), 0.0)])
    if returned == right:
        return None
    text = f"{abs(int(returned) - right):,} bytes too {'many' if returned > right else 'few'}"
    return single_finding("values", text, show(returned), show(right))


case = case_of(flash_attention_bytes, order="q_outer")


def draw(order):
    return st.builds(
        case, st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.sampled_from([2, 8]), st.just(order)
    )


Q_OUTER = "2 * matrix_bytes + n_tiles * 2 * matrix_bytes\n"
EVERY_KEY_TILE = "3 * matrix_bytes + 2 * statistics_bytes"
check = Checks(flash_attention_bytes, agrees_with_traffic)

check(
    "q_outer, one tile that holds everything: Q, K, V read once, O written once", [case(4, 2, 4, 8), case(3, 2, 16, 2)]
).catches(
    Slip("elements for bytes", {"n * d * bytes_per_element": "n * d"}),
    Slip("only one of K and V counted", {Q_OUTER: "(2 + n_tiles) * matrix_bytes\n"}),
    Slip("O not written", {Q_OUTER: "matrix_bytes + n_tiles * 2 * matrix_bytes\n"}),
)
check("q_outer: K and V once for every query tile", [case(4, 2, 2, 8), case(4096, 128, 64, 2)]).catches(
    Slip("traffic linear in n", {Q_OUTER: "4 * matrix_bytes\n"}),
    Slip("O written for every key tile", {Q_OUTER: "(1 + 3 * n_tiles) * matrix_bytes\n"}),
)
check("q_outer: a short last tile counts as a tile", [case(5, 2, 2, 2), case(100, 64, 32, 2), draw("q_outer")]).catches(
    Slip("tiles rounded down", {"(n + block_q - 1) // block_q": "max(n // block_q, 1)"})
)
check(
    "kv_outer: Q, O, l and m once for every key tile",
    [case(4, 2, 2, 8, "kv_outer"), case(5, 3, 2, 2, "kv_outer"), draw("kv_outer")],
).catches(
    Slip("the first writes forgotten", {"start_bytes + 2 *": "2 *"}),
    Slip("statistics forgotten", {"statistics_bytes = 2 * n * 4": "statistics_bytes = 0"}),
    Slip("statistics in the inputs' dtype", {"2 * n * 4": "2 * n * bytes_per_element"}),
    Slip("the keys are still in the inner loop", {'if order == "q_outer":': 'if order in ("q_outer", "kv_outer"):'}),
    Slip("O written, not read back", {EVERY_KEY_TILE: "2 * matrix_bytes + 2 * statistics_bytes"}),
)
check(
    "another order is refused with a ValueError",
    [case(4, 2, 2, 2, "rows"), case(4, 2, 2, 2, "k_outer")],
    test=raises_value_error,
).catches(Slip("any other order is kv_outer", {'if order == "kv_outer":': "if True:"}))

EXERCISE = Exercise(__file__, flash_attention_bytes, check, points=3, minutes=8, difficulty="medium")
