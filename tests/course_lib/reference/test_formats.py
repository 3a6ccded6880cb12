"""Float formats against NumPy's where it has them, and PyTorch's bfloat16."""

import numpy as np
import pytest
import torch

from course_lib.reference import formats, naive_softmax
from course_lib.reference.formats import BFLOAT16, FLOAT16, FLOAT32, FORMATS

NUMPY = {FLOAT16: np.float16, FLOAT32: np.float32}
# Every number of a 16-bit format from 0 to its largest, in order.
EVERY = {
    FLOAT16: np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64),
    BFLOAT16: (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64),
}


def numbers_everywhere():
    """Numbers of every size that float64 has room for around the formats, and around their edges."""
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.uniform(1, 2, 100_000), rng.integers(-160, 140, 100_000))
    edges = [f(fmt) for fmt in FORMATS.values() for f in (lambda f: f.largest, lambda f: f.smallest)]
    near = [edge * factor for edge in edges for factor in (0.499, 0.5, 0.501, 1, 1 + 2**-12, 1.5, 2)]
    return np.concatenate([x, -x, near, [0.0, -0.0, np.inf, -np.inf, np.nan]])


@pytest.mark.parametrize("fmt", NUMPY, ids=lambda fmt: fmt.name)
def test_constants_and_rounding_match_numpy(fmt):
    info = np.finfo(NUMPY[fmt])
    constants = fmt.bits, fmt.largest, fmt.smallest_normal, fmt.smallest, fmt.gap(1.0)
    assert constants == (info.bits, info.max, info.smallest_normal, info.smallest_subnormal, info.eps)
    x = numbers_everywhere()
    with np.errstate(over="ignore"):
        expected = x.astype(NUMPY[fmt]).astype(np.float64)
    np.testing.assert_array_equal(fmt.round(x), expected)
    np.testing.assert_array_equal(np.signbit(fmt.round(x[:-1])), np.signbit(expected[:-1]))


def test_rounding_to_bfloat16_matches_pytorch():
    with np.errstate(over="ignore"):
        x = numbers_everywhere().astype(np.float32)
    np.testing.assert_array_equal(BFLOAT16.round(x), torch.from_numpy(x).bfloat16().double())


@pytest.mark.parametrize("fmt", EVERY, ids=lambda fmt: fmt.name)
def test_every_number_is_held_and_its_gap_leads_to_the_next(fmt):
    x = EVERY[fmt]
    assert fmt.holds(x).all() and fmt.holds(-x).all()
    np.testing.assert_array_equal(x[:-1] + fmt.gap(x[:-1]), x[1:])
    assert not fmt.holds(x[:-1] + fmt.gap(x[:-1]) / 2).any()
    assert not fmt.holds([np.inf, -np.inf, np.nan]).any()


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_limits_of_exp_are_tight(fmt):
    with np.errstate(over="ignore"):
        high = formats.largest_exp_input(fmt)
        assert fmt.holds(high) and np.isfinite(fmt.round(np.exp(high)))
        assert fmt.round(np.exp(high + fmt.gap(high))) == np.inf
        for given, result in ((None, fmt.smallest), (fmt.smallest_normal, fmt.smallest_normal)):
            low = formats.smallest_exp_input(fmt, given)
            assert fmt.holds(low) and fmt.round(np.exp(low)) >= result
            assert fmt.round(np.exp(low - fmt.gap(low))) < result


@pytest.mark.parametrize("fmt", NUMPY, ids=lambda fmt: fmt.name)
def test_naive_softmax_matches_numpy_in_its_own_dtype(fmt):
    for shift in (-120, -20, 0, 11, 60, 120):
        x = fmt.round(np.random.default_rng(1).normal(shift, 3, (50, 5)))
        _, total, weights = formats.naive_softmax_steps(x, fmt)
        with np.errstate(all="ignore"):
            expected = naive_softmax(x.astype(NUMPY[fmt])).astype(np.float64)
        np.testing.assert_array_equal(np.isnan(weights), np.isnan(expected), err_msg=f"shift {shift}")
        # Where exps are subnormal, one bit of an exp changes many bits of a weight, and processors differ in that bit.
        with np.errstate(all="ignore"):
            allowed = 8 * fmt.gap(1.0) * (1 + expected) + fmt.smallest / total
        assert (np.isnan(expected) | (abs(weights - expected) <= allowed)).all(), shift
