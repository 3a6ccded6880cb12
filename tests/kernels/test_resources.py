"""The forward kernel compiled, without a GPU, for every generation the course speaks of: it fits and does not spill."""

import itertools

import pytest

from course_lib.hardware import GPUS
from course_lib.kernels.resources import Request, forward_resources

# sm_89 runs what is shipped for sm_80, in less shared memory.
SHARED_BYTES = {
    arch: min(gpu.shared_bytes_per_block for gpu in GPUS.values() if gpu.compute_capability in capabilities)
    for arch, capabilities in {75: [(7, 5)], 80: [(8, 0), (8, 9)], 90: [(9, 0)], 100: [(10, 0)]}.items()
}
HEAD_DIMS = (16, 32, 64, 80, 128, 256)


@pytest.mark.parametrize("dtype", ("float16", "float32"))
@pytest.mark.parametrize("arch", (80, 90, 100))
def test_shipped_configurations_fit_and_do_not_spill(arch, dtype):
    requests = [
        Request(head_dim, arch, dtype, causal) for head_dim, causal in itertools.product(HEAD_DIMS, (False, True))
    ]
    for request, used in zip(requests, forward_resources(requests), strict=True):
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.stack_bytes == 0, (request, used)
        assert used.registers <= 255, (request, used)
        # IEEE fp32 products are no tensor-core work.
        assert used.tensor_cores == (dtype == "float16"), (request, used)


def test_bf16_takes_what_fp16_takes():
    for arch in (80, 90, 100):
        half, brain = forward_resources([Request(128, arch, dtype, True) for dtype in ("float16", "bfloat16")])
        assert (half.shared_bytes, half.stack_bytes) == (brain.shared_bytes, brain.stack_bytes)


def test_a_t4_gets_the_configuration_that_spills_least():
    """sm_75: no tensor cores from this compiler, hence slow; larger tiles spill thousands of bytes a thread."""
    for head_dim in (64, 128, 256):
        requests = [Request(head_dim, 75, causal=True)]
        requests += [
            Request(head_dim, 75, causal=True, config=c) for c in ((16, 32, 4, 1), (32, 16, 4, 1), (64, 64, 4, 1))
        ]
        shipped, *others = forward_resources(requests)
        assert shipped.shared_bytes <= SHARED_BYTES[75]
        assert not shipped.tensor_cores
        assert shipped.stack_bytes <= min(other.stack_bytes for other in others), (shipped, others)
        assert others[-1].stack_bytes > 1000
    for head_dim in (64, 128, 256):
        (single,) = forward_resources([Request(head_dim, 75, "float32", True)])
        assert single.shared_bytes <= SHARED_BYTES[75]


def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="the compiler failed"):
        forward_resources([Request(64, 90, config=(48, 64, 4, 2))])
