"""FLOPs per byte requested, of standard attention and of FlashAttention."""

import numpy as np
from hypothesis import strategies as st

from course_lib import traffic
from courseware.checks import Checks, Exercise, ExpectedOutput, agrees, case_of
from courseware.exercises.common.explanations import explain


def arithmetic_intensity(n, d, bytes_per_element, block_q=None):
    """FLOPs per byte requested, of one head of attention's forward with n queries and keys, nothing masked.

    n, d, bytes_per_element: whole numbers of at least 1.
    block_q: rows of a query tile of FlashAttention, at least 1 and perhaps more than n. Queries are outermost: Q is
        read once, O written once, K and V are read once for every query tile; the last tile may be shorter. None:
        standard attention, which reads Q, K and V once, writes S and P to HBM, reads both back, and writes O once.
    The FLOPs are those of the two matrix products, 4 n n d either way. Returns a float.

    >>> print(f"{arithmetic_intensity(4, 2, 8):.4f} {arithmetic_intensity(4, 2, 8, block_q=2):.4f}")
    0.1667 0.3333
    """
    matrix = n * d
    if block_q is None:
        elements = 4 * matrix + 4 * n * n
    else:
        n_tiles = -(-n // block_q)
        elements = 2 * matrix + 2 * matrix * n_tiles
    flops = 4 * n * n * d
    return flops / (elements * bytes_per_element)


def count(n, d, bytes_per_element, block_q):
    if block_q is None:
        return traffic.standard_attention(n, n, d, dtype_bytes=bytes_per_element)
    return traffic.flash_attention(n, n, d, block_q=block_q, block_k=n, dtype_bytes=bytes_per_element)


def intensity(**sizes):
    exact = np.float64(count(**sizes).arithmetic_intensity)
    return [ExpectedOutput("the intensity", exact, np.float32(exact), exact)]


def elements(returned, bytes_per_element, **sizes):
    counted = count(bytes_per_element=bytes_per_element, **sizes)
    each = {name: sum(moved) // bytes_per_element for name, moved in counted.by_tensor.items()}
    n_elements = sum(each.values())
    moved = ", ".join(f"{n:,} of {name}" for name, n in each.items())
    text = f"elements moved: {moved}, {n_elements:,} in all, which take {counted.total_bytes:,} bytes"
    said = counted.flops / returned if returned > 0 else 0
    if said < 1 or abs(said - round(said)) > 1e-6 * said:
        return text
    text += f"; if the answer's FLOPs are 4 n n d, it divides them by {said:,.0f}"
    whole = said % bytes_per_element < 1e-6 * said and round(said) != n_elements
    return text + f", which would be the bytes of {said / bytes_per_element:,.0f} elements" * whole


def sizes(n, block_q):
    return st.tuples(n, st.integers(1, 6), st.sampled_from([2, 4]), block_q)


case = case_of(arithmetic_intensity, bytes_per_element=2)
check = Checks(arithmetic_intensity, explain(agrees(intensity), elements), case)

check(
    "standard attention: Q, K, V, O once, S and P written and read back",
    [(4, 2, 8), (1024, 64), (7, 3, 4), sizes(st.integers(1, 12), st.none())],
)
check("FlashAttention: K and V once for every query tile", [(4, 2, 8, 2), (4096, 128, 2, 128)])
check(
    "any block_q: the last tile has the rows that are left, and reads every key",
    [(5, 2, 2, 2), (100, 64, 2, 32), (3, 2, 2, 16), sizes(st.integers(1, 12), st.integers(1, 16))],
)

EXERCISE = Exercise(__file__, arithmetic_intensity, check, points=2, minutes=7, difficulty="easy")
