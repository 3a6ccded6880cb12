"""The kernels of masks and variants compiled, without a GPU, for every generation: they fit, and few spill."""

import itertools

import pytest

from tests.courseware.bench.compiled import compiled
from tests.courseware.bench.test_resources import DIVISION_BYTES, PINNED, SHARED_BYTES
from tools.resources import Request

KERNELS = "list_forward", "list_dkdv", "list_dq"
ARCHS = (80, 90)


def requests(arch):
    cases = itertools.product(KERNELS, (64, 128), (False, True))
    return [Request(d, arch, kernel=kernel, everything=everything) for kernel, d, everything in cases]


EVERY = tuple(request for arch in ARCHS for request in requests(arch))

# (kernel, arch, head_dim, everything): bytes of stack, at most, where registers spill; still the fastest of all.
KNOWN_SPILLS = {("list_dkdv", 90, 128, False): 56, ("list_dkdv", 90, 128, True): 184}


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_launched_fits_and_only_known_configurations_spill(arch):
    found = compiled(requests(arch))
    for request in requests(arch):
        used = found[request]
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.registers <= 255 and used.tensor_cores, (request, used)
        known = KNOWN_SPILLS.get((request.kernel, arch, request.head_dim, request.everything), DIVISION_BYTES)
        assert used.stack_bytes <= known or not PINNED, (request, used)
        assert not used.serialized or not PINNED, (request, used)
