"""What standard attention moves between HBM and SRAM, stage by stage."""

import numbers

import numpy as np
from hypothesis import strategies as st

from course_lib import traffic
from course_lib.grading import Checks, Exercise, ExpectedOutput, compare, show, single_finding


def standard_attention_bytes(n, d, bytes_per_element):
    """Bytes that standard attention moves between HBM and SRAM, stage by stage, for one head.

    n: queries, and as many keys; d: head_dim; bytes_per_element: 2 for fp16, 4 for fp32. Whole numbers.
    Returns a dict of six whole numbers, in bytes: "S written", "S read", "P written", "P read",
        "Q K V read" (all three together) and "O written". Each element is read or written once a stage.

    >>> standard_attention_bytes(4, 2, 8)["S written"]
    128
    """
    square = n * n * bytes_per_element
    matrix = n * d * bytes_per_element
    return {
        "S written": square,
        "S read": square,
        "P written": square,
        "P read": square,
        "Q K V read": 3 * matrix,
        "O written": matrix,
    }


def stages(n, d, bytes_per_element):
    """The six stages, from the closed form's bytes by tensor."""
    moved = traffic.standard_attention(n, n, d, dtype_bytes=bytes_per_element).by_tensor
    return {
        "S written": moved["S"].write_bytes,
        "S read": moved["S"].read_bytes,
        "P written": moved["P"].write_bytes,
        "P read": moved["P"].read_bytes,
        "Q K V read": sum(moved[name].read_bytes for name in "QKV"),
        "O written": moved["O"].write_bytes,
    }


def right_stages(names):
    """A test: the returned dict has these of the six stages right."""

    def test(returned, **sizes):
        expected = stages(**sizes)
        if not isinstance(returned, dict):
            return single_finding("type", f"the answer returned {show(returned)}, not a dict")
        if set(returned) != set(expected):
            missing, unknown = sorted(set(expected) - set(returned)), sorted(map(str, set(returned) - set(expected)))
            lacks = [f"the dict lacks {', '.join(map(repr, missing))}"] if missing else []
            has = [f"the dict has {', '.join(map(repr, unknown))}, which is no stage"] if unknown else []
            text = "; ".join(lacks + has)
            return single_finding("stages", text, ", ".join(map(str, returned)), ", ".join(expected))
        exact = {name: np.float64(expected[name]) for name in names}
        parts = [ExpectedOutput(name, n_bytes, n_bytes, n_bytes) for name, n_bytes in exact.items()]
        return compare(tuple(returned[name] for name in names), parts)

    return test


def whole(returned, **_):
    for name, value in returned.items():
        if not isinstance(value, numbers.Integral):
            return single_finding("float", f"{name} came back as {type(value).__name__}, not as an int")
    return None


SIZES = st.tuples(st.integers(1, 64), st.integers(1, 64), st.sampled_from([2, 4, 8]))
SQUARES = ("S written", "S read", "P written", "P read")
MATRICES = ("Q K V read", "O written")
check = Checks(standard_attention_bytes, right_stages(SQUARES))

check("S and P: written once and read once, n n elements each", [(4, 2, 8), (1024, 64, 2), SIZES])
check("Q, K and V read, O written: n d elements each", [(4, 2, 8), (1024, 64, 2), SIZES], test=right_stages(MATRICES))
check("131072 tokens do not overflow", [(131072, 128, 4)], test=right_stages(SQUARES + MATRICES))
check("the bytes are whole numbers, of type int", [(3, 5, 2)], test=whole)

EXERCISE = Exercise(__file__, standard_attention_bytes, check, points=2, minutes=8, difficulty="easy")
