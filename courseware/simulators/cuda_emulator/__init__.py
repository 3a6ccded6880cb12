"""Runs a CUDA kernel on a CPU, thread by thread: every access to memory is seen.

runner     launches a program and reports
compiling  makes the program, of the kernel, the headers and runner.cc, which says how they depend on each other
request    what one request of a warp costs: sectors, and passes over the banks
report     what a launch did, and what is wrong with it
"""

import numpy as np

from course_lib.kernels.cuda import launches


def solve(Q, K, V, output, M, N, d):
    """`course_lib.kernels.cuda.solve` on NumPy arrays, which it has checked."""
    from . import runner

    # One SM: the keys are not split, and there are no states.
    (launch,) = launches.shipped(M, N, d, sms=1, max_shared_bytes=runner.MAX_DYNAMIC_SHARED_BYTES)
    arrays = {"Q": Q, "K": K, "V": V, "output": output, "states": np.empty(1, np.float32)}
    report = runner.run(launch, arrays, limit_s=3600)
    if report.findings:
        raise RuntimeError(str(report.findings[0]))
