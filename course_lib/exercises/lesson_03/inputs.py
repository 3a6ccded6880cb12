"""Inputs of lesson 03's exercises, and what each of them promises about its argument and its dtype."""

import numpy as np
from hypothesis import strategies as st

from course_lib.exercises.common.generators import NUMBERS, arrays
from course_lib.grading import not_modified, single_finding

FAR_ABOVE = st.integers(3, 8).map(lambda i: i * 250.0)
# Two rows of float16; the second has more terms of exp(0) = 1 than float16's largest number.
HALVES = {"x": np.random.default_rng(3).normal(0, 3, 3000).astype(np.float16)}, {"x": np.zeros(70_000, np.float16)}


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
