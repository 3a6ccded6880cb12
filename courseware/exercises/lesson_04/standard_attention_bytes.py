"""What attention moves between HBM and SRAM, pass by pass."""

import numbers

from hypothesis import strategies as st

from course_lib import traffic
from courseware.checks import Checks, Evidence, Exercise, compare, exactly, show, single_finding


def standard_attention_bytes(n, d, bytes_per_element):
    """Bytes that attention moves between HBM and SRAM if each line of this program is a pass of its own, for one head:

        S = Q @ K.T
        S = S * scale
        S = np.where(visible, S, -np.inf)
        P = softmax(S)
        O = P @ V

    n: queries, and as many keys; d: head_dim; bytes_per_element: 2 for fp16, 4 for fp32, of all but `visible`,
        which is [n, n] of bool, 1 byte each. Whole numbers.
    Each pass reads what stands on the right of its line, once, and writes what stands on the left, once. scale
    and -np.inf are numbers, and cost nothing.
    Returns a dict of five whole numbers, the bytes that each pass reads and writes together: "Q K^T", "scale",
        "mask", "softmax" and "P V".

    >>> standard_attention_bytes(4, 3, 8)["Q K^T"]
    320
    """
    square = n * n * bytes_per_element
    matrix = n * d * bytes_per_element
    visible = n * n
    return {
        "Q K^T": 2 * matrix + square,
        "scale": 2 * square,
        "mask": 2 * square + visible,
        "softmax": 2 * square,
        "P V": square + 2 * matrix,
    }


def passes(n, d, bytes_per_element):
    """The five passes, from the bytes by tensor of three passes; scale and mask rewrite S, and the mask reads bools."""
    moved = traffic.standard_attention(n, n, d, dtype_bytes=bytes_per_element).by_tensor
    again = moved["S"].read_bytes + moved["S"].write_bytes
    return {
        "Q K^T": moved["Q"].read_bytes + moved["K"].read_bytes + moved["S"].write_bytes,
        "scale": again,
        "mask": again + moved["S"].write_bytes // bytes_per_element,
        "softmax": moved["S"].read_bytes + moved["P"].write_bytes,
        "P V": moved["P"].read_bytes + moved["V"].read_bytes + moved["O"].write_bytes,
    }


def right_passes(names):
    """A test: the returned dict has these of the five passes right."""

    def test(returned, **sizes):
        expected = passes(**sizes)
        if not isinstance(returned, dict) or set(returned) != set(expected):
            came = ", ".join(map(repr, returned)) if isinstance(returned, dict) else show(returned)
            text = "the answer did not return a dict with the five passes as keys, and no other"
            return single_finding("type", text, came, ", ".join(map(repr, expected)))
        found = [compare(returned[name], exactly(name, expected[name], 0.0)) for name in names]
        wrong = tuple(finding for evidence in found if evidence for finding in evidence.findings)
        return Evidence(wrong, _shown(returned), _shown(expected)) if wrong else None

    return test


def _shown(moved):
    return ", ".join(f"{name}: {show(n_bytes)}" for name, n_bytes in moved.items())


def whole(returned, **_):
    for name, value in returned.items():
        if not isinstance(value, numbers.Integral):
            return single_finding("float", f"{name} came back as {type(value).__name__}, not as an int")
    return None


SIZES = st.tuples(st.integers(1, 64), st.integers(1, 64), st.sampled_from([2, 4, 8]))
CASES = [(4, 3, 8), (7, 5, 2), (10, 6, 4), (1024, 64, 4), SIZES]
ALL = ("Q K^T", "scale", "mask", "softmax", "P V")
check = Checks(standard_attention_bytes, right_passes(("Q K^T", "P V")))

check("Q K^T reads Q and K and writes S; P V reads P and V and writes O", CASES)
check("scale and softmax read n n elements and write as many", CASES, test=right_passes(("scale", "softmax")))
check("the mask's pass, in which an element of `visible` has 1 byte", CASES, test=right_passes(ALL))
check("131072 tokens do not overflow", [(131072, 128, 4)], test=right_passes(ALL))
check("the bytes are whole numbers, of type int", [(3, 5, 2)], test=whole)

EXERCISE = Exercise(__file__, standard_attention_bytes, check, points=2, minutes=10, difficulty="medium")
