"""The softmax of a row by one warp, in CUDA C++."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from course_lib.kernels.cuda.launches import row_sectors
from courseware.checks import Exercise, case_of, expected, show
from courseware.checks.cuda_calls import compare_output, compare_sectors, cuda_checks
from courseware.exercises.common.explanations import explain, explain_softmax


def warp_softmax():
    """CUDA C++ of a kernel that writes the softmax of each row of x to y, with one warp for each row.

    Its signature: extern "C" __global__ void warp_softmax(const float* x, float* y, int n_rows, int n)
    x, y: [n_rows, n], row after row; n_rows and n at least 1. A row may hold -inf, whose weight is 0, but has at least
        one finite element. Elements from -1e7 to 1e7, and differences of 1000 between elements or between rows, must do
        no harm.
    Launched with ceil(n_rows / 4) blocks of 32 x 4 threads: threadIdx.x is the lane, and threadIdx.y the warp. Warp w
        of block b has row 4 b + w, which may be beyond the last one.
    x is read at most twice and y written once, in requests for 32 consecutive elements: lane i takes elements i,
        i + 32, i + 64 and so on. When x is read for the first time, each lane keeps the running max m and the
        running sum l of its own elements; __shfl_xor_sync merges the 32 states, and x is read again for y.
    No header may be included. CUDA's own functions, such as fmaxf and expf, need none; INFINITY and FLT_MAX come from
        headers, and __int_as_float(0x7f800000) is infinity without one.

    >>> x, y = np.zeros((1, 4), np.float32), np.full((1, 4), np.nan, np.float32)
    >>> run_cuda(warp_softmax(), "warp_softmax", 1, (32, 4), x=x, y=y, n_rows=1, n=4).findings
    []
    >>> y
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    return r"""
    extern "C" __global__ void warp_softmax(const float* x, float* y, int n_rows, int n) {
      const float infinity = __int_as_float(0x7f800000);
      const int lane = threadIdx.x, row = blockIdx.x * 4 + threadIdx.y;
      if (row >= n_rows) return;  // the whole warp, so that no lane waits for one that is gone
      x += (long long)row * n;
      y += (long long)row * n;

      float m = -infinity, l = 0.0f;
      for (int i = lane; i < n; i += 32) {
        const float value = x[i], m_new = fmaxf(m, value);
        if (m_new > -infinity) l = l * expf(m - m_new) + expf(value - m_new);
        m = m_new;
      }

      for (int apart = 16; apart > 0; apart /= 2) {
        const float m_other = __shfl_xor_sync(0xffffffff, m, apart);
        const float l_other = __shfl_xor_sync(0xffffffff, l, apart);
        const float m_new = fmaxf(m, m_other);
        if (m_new > -infinity) l = l * expf(m - m_new) + l_other * expf(m_other - m_new);
        m = m_new;
      }

      for (int i = lane; i < n; i += 32) y[i] = expf(x[i] - m) / l;
    }
    """


INPUTS = """\
rng = np.random.default_rng(seed)
x = rng.standard_normal((n_rows, n)).astype(np.float32)
"""
# In the last row the max comes early, in the one before it comes late.
LARGE = "x = 900 * np.sort(x) - 1000 * np.arange(n_rows)[:, None].astype(np.float32)\nx[-1] = x[-1, ::-1]"
MASKED = "x[:, 1:] = np.where(rng.random((n_rows, n - 1)) < 0.5, -np.inf, x[:, 1:])"
LAUNCH = """\
y = np.full_like(x, np.nan)
run_cuda(warp_softmax(), "warp_softmax", -(-n_rows // 4), (32, 4), x=x, y=y, n_rows=n_rows, n=n)"""


def changed(inputs):
    return f"{INPUTS}{inputs}\n{LAUNCH}"


def gives_the_softmax(report, x, y, **_):
    # An element's rounding is a relative error of its exponential.
    size = (1 + np.abs(x[np.isfinite(x)]).max()) * reference.stable_softmax(x)
    return compare_output(report, y, *expected("y", reference.stable_softmax, x, terms=size))


def gives_equal_weights(report, x, y, **_):
    return compare_output(report, y, *expected("y", reference.stable_softmax, x))


def reads_twice(report, x, y, n_rows, n, **_):
    once = row_sectors(n_rows, n)
    enough, least = {"x": (2 * once, 0), "y": (0, once)}, {"x": x.nbytes, "y": y.nbytes}
    return gives_the_softmax(report, x, y) or compare_sectors(report, enough, least)


def steps(report, x, y, **_):
    """Of columns that differ, and have logarithms. Nothing if these rise as they should."""
    if not (np.isfinite(x).all() and (y > 0).all() and np.ptp(x) > 0):
        return ""
    rises, due = np.diff(np.log(y)), np.diff(x)
    wrong = np.argwhere(~np.isclose(rises, due, atol=1e-3)).tolist()
    if not wrong:
        return ""
    row, column = wrong[0]
    sums = y.sum(axis=1)
    if not np.allclose(sums, 1, atol=1e-3) and column < 3:
        return explain_softmax(x, y)
    step = f"from column {column} to {column + 1} the logarithm of row {row} rises by {show(rises[row, column])}"
    return f"its rows sum to {show(sums.round(3))}, and {step}, where x rises by {show(due[row, column])}"


agrees = explain(gives_the_softmax, steps)
check = cuda_checks(INPUTS + LAUNCH, agrees, case_of("n_rows n seed", seed=0))

check("equal elements, one for each lane", [(4, 32)], call=changed("x[:] = 0"))
check("one element for each lane", [(4, 32)])
check("several elements for each lane", [(4, 64), (4, 96)])
check("any length", [(4, 1), (4, 5), (4, 40), (4, 70), (4, 3000)])
check("any number of rows", [(1, 32), (6, 40), (9, 5)])
check("elements of size 1000", [(1, 8), (3, 40), (2, 96)], call=changed(LARGE))
check("all elements -1e7: equal weights", [(1, 8), (3, 40)], call=changed("x[:] = -1e7"), test=gives_equal_weights)
check("elements of -inf", [(1, 8), (2, 40), (5, 96)], call=changed(MASKED))
check("x is read twice, y written once, 32 elements at a time", [(2, 32), (3, 70), (5, 96)], test=reads_twice)
check("any rows", [(3, 33, 1), st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(2, 999))])

EXERCISE = Exercise(__file__, warp_softmax, check, points=4, minutes=20, difficulty="medium")
