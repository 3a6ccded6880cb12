"""The kernels of masks and variants compiled, without a GPU, for every generation: they fit, and few spill."""

import itertools

import pytest

from course_lib.measure.resources import Request
from tests.measure.compiled import compiled
from tests.measure.test_resources import DIVISION_BYTES, PINNED, SHARED_BYTES

KERNELS = "list_forward", "list_dkdv", "list_dq"
# (dtype, head_dim, everything)
CASES = (
    ("float16", 64, False), ("float16", 64, True), ("float16", 128, False), ("float16", 128, True),
    ("float16", 256, False), ("float32", 128, False),
)  # fmt: skip
ARCHS = (75, 80, 90, 100)


def requests(arch):
    cases = CASES[:1] if arch == 75 else CASES
    return [
        Request(d, arch, dtype, kernel=kernel, everything=everything)
        for kernel, (dtype, d, everything) in itertools.product(KERNELS, cases)
    ]


EVERY = tuple(request for arch in ARCHS for request in requests(arch))

# (kernel, arch, dtype, head_dim, everything): bytes of stack, which are register spills.
KNOWN_SPILLS = {}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_launched_fits_and_only_known_configurations_spill(arch):
    spilling, serialized = {}, []
    found = compiled(requests(arch))
    for request in requests(arch):
        used = found[request]
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.registers <= 255 and used.tensor_cores == (arch != 75), (request, used)
        if used.stack_bytes > DIVISION_BYTES:
            key = (request.kernel, arch, request.dtype, request.head_dim, request.everything)
            spilling[key] = used.stack_bytes
        serialized += [request] * used.serialized
    known = {key: spilled_bytes for key, spilled_bytes in KNOWN_SPILLS.items() if key[1] == arch}
    assert not PINNED or spilling == known
    assert not PINNED or not serialized
