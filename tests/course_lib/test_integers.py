"""A size that was read off a NumPy array counts like any other, and does not overflow."""

import numpy as np
import pytest
import torch

from course_lib import runtime, traffic
from course_lib.hardware import GPUS
from course_lib.kernels import cuda
from course_lib.kernels.cuda import launches
from course_lib.serving.model import load
from course_lib.serving.paged_cache import PagePool
from course_lib.serving.server import Server
from courseware.checks import run_cuda
from courseware.simulators.sm_simulator import RUNGS, predict, run_ring, simulate

X = torch.linspace(0, 1, 40).reshape(5, 8)
KERNEL = "__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }"
N = 65_536  # its square is 0 in 32 bits
TILES = {"block_q": 64, "block_k": 64}


def pages(i):
    pool = PagePool(i(6), i(4))
    first = pool.start()
    return pool.append(first, i(6)), pool.append(pool.share(first, i(5)), i(1)), pool.tables([first]), pool.references


def served(i):
    server = Server(load(), n_pages=i(8), page_size=i(16))
    return server.submit("the ", i(2)), server.run(), server.log


CALLS = [  # those of N, in 32 bits and more
    lambda i: traffic.attention_flops(i(N), i(N), i(64)),
    lambda i: traffic.standard_attention(i(N), i(N), i(64), dtype_bytes=i(4), heads=i(32), batch=i(2)),
    lambda i: traffic.flash_attention(i(N), i(N), i(64), **{name: i(size) for name, size in TILES.items()}),
    lambda i: traffic.flash_attention_backward(i(N), i(N), i(64), **TILES, dq_blocks=(i(32), i(32)), kv_heads=i(1)),
    lambda i: traffic.decode([i(N)] * N, i(64), heads=i(8), kv_heads=i(2), splits=i(3)),
    lambda i: traffic.choose_block_sizes(i(100_000), i(64)),
    lambda i: traffic.lower_bound_elems(i(N), i(64), i(N)),
    lambda i: launches.plain_counts(i(N), i(N), i(8)),
    lambda i: GPUS["H100"].resident_blocks(shared_bytes=i(100_000), registers=i(128), num_warps=i(4)),
    lambda i: (cuda.solve(X, X, X, out := torch.empty_like(X), i(5), i(5), i(8)), out.tolist()),
    lambda i: run_cuda(KERNEL, "k", i(1), (i(4), i(1)), x=np.zeros(4, np.float32), n=i(4)),
    lambda i: simulate(RUNGS[3], i(128), i(64), i(2), i(4), query_tiles=i(2), consumers=i(2)),
    lambda i: predict.__wrapped__(RUNGS[2], i(64), i(64), i(2), i(4)),
    lambda i: run_ring([("copy", i(0), i(0))], [("mma", i(0), i(0))], i(2), consumers=i(2)),
    pages,
    served,
]


@pytest.mark.parametrize("call", CALLS)
def test_numpy_integers_are_integers(call):
    if runtime.cxx_compiler() is None and call in CALLS[9:11]:
        pytest.skip("there is no C++ compiler")
    for kind in (np.int64, np.int32, np.uint8)[: 2 if CALLS.index(call) < 9 else 3]:
        assert str(call(kind)) == str(call(int))  # not np.int64(5)
