"""The largest tiles that fit in SRAM. The answer lives in `traffic`, where the notebook finds it, too."""

import numpy as np
from hypothesis import strategies as st

from course_lib.traffic import choose_block_sizes
from courseware.checks import Checks, Evidence, Exercise, Finding, raises_value_error, show, single_finding


def judges(wrong):
    """A test: the answer returns two counts of at least 1, and wrong(block_q, block_k, **inputs) finds nothing."""

    def test(returned, **inputs):
        pair = isinstance(returned, tuple | list | np.ndarray) and len(returned) == 2
        if not pair or not all(isinstance(size, int | np.integer) and size >= 1 for size in returned):
            text = "the answer did not return two whole numbers of at least 1, both of type int"
            return single_finding("type", text, show(returned), "(block_q, block_k)")
        finding = wrong(*map(int, returned), **inputs)
        return Evidence((finding,), show(returned), show(choose_block_sizes(**inputs))) if finding else None

    return test


def too_large(block_q, block_k, sram_bytes, d, dtype_bytes, multiple_of):
    needed_bytes = dtype_bytes * (block_q * d + 2 * block_k * d + block_q * block_k)
    if needed_bytes <= sram_bytes:
        return None
    text = f"tiles of {block_q} x {block_k} need {needed_bytes:,} bytes, and there are {sram_bytes:,}"
    return Finding("", "too large", text)


def no_multiple(block_q, block_k, sram_bytes, d, dtype_bytes, multiple_of):
    if block_q % multiple_of == 0 == block_k % multiple_of:
        return None
    return Finding("", "multiple", f"{block_q} and {block_k} are not both multiples of {multiple_of}")


def too_small(block_q, block_k, **inputs):
    best_q, best_k = choose_block_sizes(**inputs)
    scores, most = block_q * block_k, best_q * best_k
    if scores >= most:
        return None
    return Finding("", "smaller", f"{best_q} x {best_k} = {most} scores fit, too; yours are {scores}")


def wrong_tie(block_q, block_k, **inputs):
    best_q, best_k = choose_block_sizes(**inputs)
    if (block_q, block_k) == (best_q, best_k):
        return None
    return Finding(
        "", "tie", f"{best_q} x {best_k} makes as many scores as {block_q} x {block_k}, with a larger block_q"
    )


SIZES = st.tuples(st.integers(800, 6000), st.integers(1, 12), st.sampled_from([2, 4]), st.sampled_from([1, 2, 4]))
check = Checks(choose_block_sizes, judges(too_large))

check("the four tiles fit in sram_bytes", [(9000, 32, 2, 16), (100_000, 64, 2, 16), (800, 7, 4, 1), SIZES])
check("both sizes are multiples of multiple_of", [(40_000, 48, 2, 32), SIZES], test=judges(no_multiple))
check(
    "no pair that fits makes more scores",
    [(8192, 32, 2, 16), (100_000, 64, 2, 16), (16_000_000, 64, 2, 128), (2048, 16, 2, 16), (5000, 3, 2, 2), SIZES],
    test=judges(too_small),
)
check("of equal products, the larger block_q", [(1000, 4, 2, 4), (900, 1, 2, 1), SIZES], test=judges(wrong_tie))
check(
    "2 bytes an element and multiples of 16, unless told otherwise",
    [(100_000, 64, 2, 16), (9000, 32, 2, 16)],
    test=judges(wrong_tie),
    call="choose_block_sizes(sram_bytes, d)",
)
check(
    "ValueError if the smallest tiles do not fit",
    [(2047, 16, 2, 16), (100, 64, 2, 16), (1023, 5, 4, 16), (4351, 12, 2, 32), (385, 64, 2, 1)],
    calls=raises_value_error,
)

EXERCISE = Exercise(__file__, choose_block_sizes, check, points=2, minutes=8, difficulty="easy")
