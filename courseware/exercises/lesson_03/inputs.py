"""Inputs of lesson 03's exercises, and what each of them promises about its argument and its dtype."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from courseware.checks import compare, exactly, not_modified, show, single_finding
from courseware.checks.diagnosis import FLOOR, named
from courseware.exercises.common.generators import NUMBERS, arrays

# Rows of float16. In a short one every rounded term counts; the long one of equal logits has more terms of exp(0) = 1
# than float16's largest number.
HALF = "x = (spread * np.random.default_rng(3).standard_normal(n)).astype(np.float16)"
SHORT_HALVES = {"n": 4, "spread": 1.0}, {"n": 20, "spread": 1.0}
HALVES = {"n": 3000, "spread": 3.0}, {"n": 70_000, "spread": 0.0}


def case(x, **others):
    return {"x": np.array(x, dtype=np.float64), **others}


EACH_DTYPE = [case([[1, 2]]), *({"x": np.array([1, 2], dtype)} for dtype in (np.float16, np.float32))]


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


def agrees_and_vanishes(oracle):
    """A test: the call returns what oracle(**names) states. Of a weight that has to be 0, it says what it is."""

    def test(returned, **inputs):
        (part,) = oracle(**inputs)
        evidence = compare(returned, [part])
        if evidence is None or np.shape(returned) != part.expected.shape or np.ndim(returned) != 1:
            return evidence
        above = np.flatnonzero((part.expected == 0) & (np.asarray(returned) != 0))
        if not above.size or not np.abs(np.asarray(returned)[above]).max() < 1e-9:
            return evidence
        text = f"{part.name} is {returned[above[0]]:.3g} instead of 0 at {named('entry', above.tolist())}"
        return replace(evidence, findings=(replace(evidence.findings[0], text=text),))

    return test


def rounds_once(name, reference):
    """A test: float16 x gives what rounding the exact result to float16 gives, and no more error than that."""

    def test(returned, x, n, spread, **others):
        exact = reference(x.astype(np.float64), **others)
        # Half a step of float16, as a part of what `compare` allows.
        terms = 0.51 * np.spacing(exact.astype(np.float16)).astype(np.float64) / FLOOR
        evidence = compare(returned, exactly(name, exact, terms, "entry"))
        return evidence and replace(evidence, expected=show(exact.astype(np.float16)))

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
