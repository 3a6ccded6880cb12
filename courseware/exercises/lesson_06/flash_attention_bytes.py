"""The bytes of FlashAttention, for both orders of its loops."""

import numpy as np
from hypothesis import strategies as st

from course_lib import traffic
from courseware.checks import Checks, Exercise, case_of, raises_value_error, single_finding
from courseware.checks.diagnosis import compare, exactly, show


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


def agrees_with_traffic(returned, n, d, block_q, bytes_per_element, order):
    sizes = {"block_q": block_q, "block_k": block_q, "dtype_bytes": bytes_per_element}
    right = traffic.flash_attention(n, n, d, **sizes, order=order).total_bytes
    if not isinstance(returned, int | np.integer):
        return compare(returned, exactly("the total", right, 0.0))
    if returned == right:
        return None
    text = f"{abs(int(returned) - right):,} bytes too {'many' if returned > right else 'few'}"
    text += f"; Q, K, V and O have {n * d * bytes_per_element:,} bytes each"
    if order == "kv_outer":
        text += f", l and m {4 * n:,}"
    return single_finding("values", text, show(returned), show(right))


def draw(order):
    return st.tuples(*(st.integers(1, most) for most in (12, 4, 5)), st.sampled_from([2, 8]), st.just(order))


check = Checks(flash_attention_bytes, agrees_with_traffic, case_of(flash_attention_bytes, order="q_outer"))

check("q_outer, one tile that holds everything: Q, K, V read once, O written once", [(4, 3, 4, 8), (3, 5, 3, 2)])
check("q_outer, several tiles: Q and O once, K and V once for every query tile", [(6, 5, 2, 8), (4096, 128, 64, 2)])
check("q_outer, a block_q that does not divide n: the rows that exist, for every tile", [(5, 2, 2, 2), draw("q_outer")])
check(
    "kv_outer: everything that is read and written",
    [*((*sizes, "kv_outer") for sizes in [(6, 5, 2, 8), (5, 3, 2, 2), (20, 7, 3, 4), (9, 4, 7, 2)]), draw("kv_outer")],
)
check(
    "another order is refused with a ValueError",
    [(4, 2, 2, 2, order) for order in ("q_inner", "k_outer", "outer", "", "Q_OUTER", "q_outer_kv_outer")],
    calls=raises_value_error,
)

EXERCISE = Exercise(__file__, flash_attention_bytes, check, points=3, minutes=8, difficulty="medium")
