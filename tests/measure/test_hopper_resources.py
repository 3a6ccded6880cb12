"""The Hopper kernel compiled for compute capability 9.0, without a GPU: it fits, and hardly spills."""

import itertools

from tests.measure.compiled import compiled
from tests.measure.test_resources import PINNED, SHARED_BYTES
from tools.resources import Request

EVERY = tuple(
    Request(head_dim, 90, dtype, causal, kernel="hopper")
    for head_dim, dtype, causal in itertools.product((64, 128), ("float16", "bfloat16"), (False, True))
)
# (head_dim, causal): bytes of stack, at most, which are used once in a query tile and not in the loop over keys.
KNOWN_SPILLS = {(128, False): 8, (128, True): 56}
REGISTERS_AT_ENTRY = 168  # of 384 threads: what a multiprocessor's 65,536 allow


def test_it_fits_and_hardly_spills():
    found = compiled(EVERY)
    for request in EVERY:
        used = found[request]
        assert used.shared_bytes <= SHARED_BYTES[90], used
        assert used.registers <= REGISTERS_AT_ENTRY and used.tensor_cores and not used.serialized, used
        assert used.stack_bytes <= KNOWN_SPILLS.get((request.head_dim, request.causal), 0) or not PINNED, (
            request,
            used,
        )
