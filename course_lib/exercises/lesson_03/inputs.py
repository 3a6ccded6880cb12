"""Inputs of lesson 03's exercises, and what each of them promises about its argument and its dtype."""

import numpy as np
from hypothesis import strategies as st

from course_lib.exercises.common.generators import NUMBERS, arrays
from course_lib.grading import ExpectedOutput, compare, not_modified, show, single_finding
from course_lib.grading.diagnosis import FLOOR

# Two rows of float16; the second has more terms of exp(0) = 1 than float16's largest number.
HALF = "x = (spread * np.random.default_rng(3).standard_normal(n)).astype(np.float16)"
HALVES = {"n": 3000, "spread": 3.0}, {"n": 70_000, "spread": 0.0}


def case(x, **others):
    return {"x": np.array(x, dtype=np.float64), **others}


def index_of(x):
    return "entry" if np.ndim(x) == 1 else "row"


@st.composite
def logits(draw, dimensions=(1, 2), of=NUMBERS, offsets=None, with_axis=False):
    """Arrays x of 1 to 3 entries an axis. offsets: of a number that is added to each row by itself."""
    n_dimensions = draw(st.integers(*dimensions))
    shape = [draw(st.integers(1, 3)) for _ in range(n_dimensions)]
    x = arrays(draw, *shape, of=of)
    if offsets is not None:
        x = x + arrays(draw, *shape[:-1], 1, of=offsets)
    axis = {"axis": draw(st.integers(-n_dimensions, n_dimensions - 1))} if with_axis else {}
    return {"x": x} | axis


def rounds_once(name, reference):
    """A test: float16 x gives what rounding the exact result to float16 gives, and no more error than that."""

    def test(returned, x, n, spread, **others):
        exact = reference(x.astype(np.float64), **others)
        # Half a step of float16, as a part of what `compare` allows.
        terms = 0.51 * np.spacing(exact.astype(np.float16)).astype(np.float64) / FLOOR
        return compare(returned, [ExpectedOutput(name, exact, exact, terms, "entry")])

    return test


def keeps_digits(name, reference):
    """A test: float64 x gives a result that is right in float64."""

    def test(returned, x, **others):
        exact = reference(x, **others)
        off = np.abs(np.asarray(returned, dtype=np.float64) / exact - 1).max()
        if off <= 1e-13:
            return None
        text = f"{name} is right to about {int(-np.log10(off))} digits only, where float64 has 15: was something kept "
        return single_finding("digits", text + "in float32, or added on the way?", show(returned), show(exact))

    return test


def keeps_promises(dtype_of):
    """A test that calls the answer: it modifies no argument, and its result has dtype dtype_of(x.dtype)."""

    def test(answer, **inputs):
        if evidence := not_modified(answer, **inputs):
            return evidence
        returned, expected = answer(*inputs.values()), dtype_of(inputs["x"].dtype)
        dtype = np.asarray(returned).dtype
        if dtype == expected:
            return None
        text = f"the result has dtype {dtype} for x of dtype {inputs['x'].dtype}"
        return single_finding("dtype", text, str(dtype), str(expected))

    return test
