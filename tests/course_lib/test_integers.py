"""A size that was read off a NumPy array counts like any other, and does not overflow."""

import numpy as np
import pytest

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.kernels.cuda import launches
from course_lib.serving.paged_cache import PagePool
from courseware.simulators.sm_simulator import RUNGS, predict, run_ring, simulate

N = 65_536  # its square is 0 in 32 bits
LARGE = [
    lambda i: traffic.attention_flops(i(N), i(N), i(64)),
    lambda i: traffic.standard_attention(i(N), i(N), i(64), dtype_bytes=i(4), heads=i(32), batch=i(2)),
    lambda i: traffic.flash_attention(i(N), i(N), i(64), block_q=i(64), block_k=i(64)),
    lambda i: traffic.flash_attention_backward(i(N), i(N), i(64), block_q=64, block_k=64, dq_blocks=(i(32), i(32))),
    lambda i: traffic.decode([i(N)] * N, i(64), heads=i(8), kv_heads=i(2), splits=i(3)),
    lambda i: traffic.lower_bound_elems(i(N), i(64), i(N)),
    lambda i: launches.plain_counts(i(N), i(N), i(8)),
    lambda i: GPUS["H100"].resident_blocks(shared_bytes=i(100_000), registers=i(128), num_warps=i(4)),
]
SMALL = [  # solve, run_cuda, append and submit get such sizes in their own tests
    lambda i: simulate(RUNGS[3], i(128), i(64), i(2), i(4), consumers=i(2)),
    lambda i: predict.__wrapped__(RUNGS[2], i(64), i(64), i(2), i(4)),
    lambda i: run_ring([("copy", i(0), i(0))], [("mma", i(0), i(0))], i(2), consumers=i(2)),
    lambda i: (p := PagePool(i(6), i(4)), p.start(), p.append(0, i(6)), p.share(0, i(5)), p.append(1), p.free)[1:],
]


@pytest.mark.parametrize("call", LARGE + SMALL)
def test_numpy_integers_are_integers(call):
    for kind in (np.int64, np.int32) if call in LARGE else (np.int64, np.uint8):
        assert str(call(kind)) == str(call(int))  # not np.int64(5)
