"""The Hopper kernels compiled for compute capability 9.0, without a GPU: they fit, and hardly spill."""

import itertools

from tests.courseware.bench.compiled import compiled
from tests.courseware.bench.test_resources import PINNED, SHARED_BYTES
from tools.resources import Request

EVERY = tuple(
    Request(head_dim, 90, dtype, causal, kernel=kernel)
    for kernel, head_dim, dtype, causal in itertools.product(
        ("hopper", "hopper_dkdv", "hopper_dq"), (64, 128), ("float16", "bfloat16"), (False, True)
    )
)
# (kernel, head_dim, causal): bytes of stack, at most. The forward uses them once in a query tile, not in the loop.
KNOWN_SPILLS = {("hopper", 128, False): 8, ("hopper", 128, True): 56, ("hopper_dkdv", 128, True): 16}
REGISTERS_AT_ENTRY = 168  # of 384 threads: what a multiprocessor's 65,536 allow


def test_they_fit_and_hardly_spill():
    found = compiled(EVERY)
    for request in EVERY:
        used = found[request]
        assert used.shared_bytes <= SHARED_BYTES[90], used
        assert used.registers <= REGISTERS_AT_ENTRY and used.tensor_cores and not used.serialized, used
        spills = KNOWN_SPILLS.get((request.kernel, request.head_dim, request.causal), 0)
        assert used.stack_bytes <= spills or not PINNED, (request, used)
