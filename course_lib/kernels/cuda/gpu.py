"""Compiles CUDA C++ with NVRTC and launches it on torch's CUDA tensors, with NVIDIA's cuda-core."""

import ctypes
import functools

import torch

from . import launches


def on_gpu(Q, K, V, output, M, N, d):
    """`solve` on CUDA tensors, which it has checked."""
    with torch.cuda.device(Q.device):
        gpu = torch.cuda.get_device_properties(Q.device)
        planned = launches.shipped(
            M, N, d, sms=gpu.multi_processor_count, max_shared_bytes=gpu.shared_memory_per_block_optin
        )
        run(planned, {"Q": Q, "K": K, "V": V, "output": output})


def run(planned, tensors):
    """Make the launches on torch's current stream. tensors: {parameter: CUDA tensor}, "states" not among them."""
    # 16-byte loads need aligned tensors, and a view may begin anywhere.
    aligned = {name: x if x.data_ptr() % 16 == 0 else x.clone() for name, x in tensors.items()}
    floats = launches.states_floats(planned)
    aligned["states"] = torch.empty(floats, device="cuda") if floats else aligned["output"]
    for launch in planned:
        launched(launch, aligned)
    if aligned["output"] is not tensors["output"]:
        tensors["output"].copy_(aligned["output"])


def launched(launch, tensors):
    """Make one launch. tensors: of every parameter whose value in the Launch is None."""
    core = cuda_core()
    index = torch.cuda.current_device()
    kernel = _kernel(launch.source, launch.kernel, launch.shared_bytes, index)
    arguments = [_argument(tensors[name] if value is None else value) for name, value in launch.arguments.items()]
    config = core.LaunchConfig(grid=launch.grid, block=launch.block, shmem_size=launch.shared_bytes)
    core.launch(_stream(torch.cuda.current_stream().cuda_stream, index), config, kernel, *arguments)


def _argument(value):
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


def cuda_core():
    """The module cuda.core. Raises ImportError with what to install."""
    try:
        import cuda.core as core
    except ImportError as error:
        version = (torch.version.cuda or "13").split(".")[0]
        raise ImportError(
            "CUDA kernels are compiled for a GPU with NVIDIA's cuda-core, which is not installed: "
            f"pip install 'cuda-core[cu{version}]'"
        ) from error
    return core


@functools.cache
def _stream(handle, index):
    class OfTorch:
        def __cuda_stream__(self):
            return 0, handle

    return _device(index).create_stream(OfTorch())


@functools.cache
def _device(index):
    device = cuda_core().Device(index)
    device.set_current()
    return device


@functools.cache
def compiled(source, kernel, arch):
    """The cubin of one kernel of the source. arch: such as "sm_90". No GPU is needed."""
    core = cuda_core()
    options = core.ProgramOptions(arch=arch, std="c++17")
    return core.Program(source, "c++", options).compile("cubin", name_expressions=[kernel])


@functools.cache
def _kernel(source, kernel, shared_bytes, index):
    """A kernel that may have so much dynamic shared memory, of which CUDA gives 48 KiB without being asked."""
    from cuda.bindings import driver

    _device(index)
    major, minor = torch.cuda.get_device_capability(index)
    found = compiled(source, kernel, f"sm_{major}{minor}").get_kernel(kernel)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, shared_bytes, driver.CUkernel(int(found.handle)), index)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{shared_bytes} bytes of shared memory for {kernel}: {error.name}")
    return found
