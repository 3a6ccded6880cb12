"""The forward kernel compiled, without a GPU, for every generation the course speaks of: it fits and does not spill."""

import itertools

import pytest
import triton

from course_lib.hardware import GPUS
from course_lib.kernels.resources import Request, forward_resources

# sm_89 runs what is shipped for sm_80, in less shared memory.
SHARED_BYTES = {
    arch: min(gpu.shared_bytes_per_block for gpu in GPUS.values() if gpu.compute_capability in capabilities)
    for arch, capabilities in {75: [(7, 5)], 80: [(8, 0), (8, 9)], 90: [(9, 0)], 100: [(10, 0)]}.items()
}
# Compiling takes a second or two each: both ends, the usual ones, and one that is padded.
HEAD_DIMS = (16, 64, 80, 128, 256)


# What spills is this compiler's doing; other versions only have to fit.
PINNED = triton.__version__ == "3.7.1"


def stack_limit_bytes(request, used):
    """A division's subroutine takes up to 24 bytes, once a tile of queries: no spill of the loop's.

    Without tensor cores the causal kernel's second pass does spill, which runs only where a value is NaN or
    infinite; compiled without it, the kernel stays within 24 bytes too.
    """
    return 24 if used.tensor_cores or not request.causal else 2048


@pytest.mark.parametrize("dtype", ("float16", "float32"))
@pytest.mark.parametrize("arch", (80, 90, 100))
def test_shipped_configurations_fit_and_do_not_spill(arch, dtype):
    requests = [
        Request(head_dim, arch, dtype, causal) for head_dim, causal in itertools.product(HEAD_DIMS, (False, True))
    ]
    for request, used in zip(requests, forward_resources(requests), strict=True):
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.stack_bytes <= stack_limit_bytes(request, used) or not PINNED, (request, used)
        assert used.registers <= 255, (request, used)
        # IEEE fp32 products are no tensor-core work.
        assert used.tensor_cores == (dtype == "float16"), (request, used)


def test_bf16_takes_what_fp16_takes():
    for arch in (80, 90, 100):
        half, brain = forward_resources([Request(128, arch, dtype, True) for dtype in ("float16", "bfloat16")])
        assert (half.shared_bytes, half.stack_bytes) == (brain.shared_bytes, brain.stack_bytes)


def test_a_t4_gets_a_configuration_that_does_not_spill():
    """sm_75: no tensor cores from this compiler, hence slow; larger tiles spill thousands of bytes a thread."""
    shipped = [Request(d, 75, dtype, True) for d in (64, 128, 256) for dtype in ("float16", "float32")]
    for request, used in zip(shipped, forward_resources(shipped), strict=True):
        assert used.shared_bytes <= SHARED_BYTES[75], (request, used)
        assert used.stack_bytes <= stack_limit_bytes(request, used) or not PINNED, (request, used)
        assert not used.tensor_cores
    (large,) = forward_resources([Request(64, 75, config=(64, 64, 4, 1))])
    assert large.stack_bytes > 1000


def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="the compiler failed"):
        forward_resources([Request(64, 90, config=(48, 64, 4, 2))])
