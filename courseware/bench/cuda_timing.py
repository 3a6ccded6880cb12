"""Lesson 12's CUDA kernels on a GPU: their times beside PyTorch's in fp32, and Nsight Compute's counters.

`ncu` runs this module as a program, as it runs `counters`.
"""

from functools import partial

import torch

from course_lib.kernels import cuda
from course_lib.kernels.cuda import gpu
from courseware.bench import timing
from courseware.bench.accuracy import exact_attention, relative_error
from courseware.bench.counters import counted_by_ncu, run_profiled
from courseware.bench.cuda_ladder import rungs
from courseware.bench.experiments import FP32_PEERS

# (heads, M, N, d). Several heads are as many calls of `solve`, one after the other.
SHAPES = (
    *((1, n, n, d) for d in (64, 128) for n in (1024, 4096, 8192, 32768)),
    (16, 4096, 4096, 64), (16, 4096, 4096, 128),
    *((1, m, 32768, 128) for m in (1, 16, 64, 256)),
)  # fmt: skip
# 16,896 queries are a block of 128 for each of an H200's 132 multiprocessors; 1,024 are eight.
LADDER_SHAPES = ((16896, 8192, 128), (1024, 1024, 128))
# What Nsight Compute counts: every rung on a small shape, the plain and the shipped kernel on ragged ones, and the
# plain kernel on the shape of the published profile.
COUNTED_SHAPES = ((256, 256, 128), (200, 100, 80), (100, 77, 50), (1024, 1024, 128))
COUNTERS = (
    {
        "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
        "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    },
    {
        "shared_loads": "smsp__inst_executed_op_shared_ld.sum",
        "shared_stores": "smsp__inst_executed_op_shared_st.sum",
        "instructions": "smsp__inst_executed.sum",
        "fma_instructions": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    },
    {
        "shared_load_passes": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        "shared_store_passes": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    },
)


def random_arrays(M, N, d):
    """Q, K, V and output on the GPU, by the names of the kernels' parameters."""
    Q, K, V = (torch.randn(rows, d, device="cuda") for rows in (M, N, N))
    return {"Q": Q, "K": K, "V": V, "output": torch.empty(M, d, device="cuda")}


def planned(rung, M, N, d):
    """A rung's launches on this GPU."""
    found = torch.cuda.get_device_properties()
    limits = {"sms": found.multi_processor_count, "max_shared_bytes": found.shared_memory_per_block_optin}
    return rungs()[rung].launches(M, N, d, **limits)


def _solve(M, N, d, arrays):
    cuda.solve(*arrays.values(), M, N, d)


def _for_each(heads, call):
    for arrays in heads:
        call(arrays)


def cuda_rows():
    """Lesson 12's CUDA kernels in fp32, beside PyTorch's: speed, error, and each rung of their ladder"""
    for heads, M, N, d in SHAPES:
        arrays = [random_arrays(M, N, d) for _ in range(heads)]
        q, k, v = (torch.stack([of_head[name] for of_head in arrays])[None] for name in ("Q", "K", "V"))
        peers = timing.forward_calls(FP32_PEERS, q, k, v)
        del peers["ours"]

        calls = {
            "ours": partial(_for_each, arrays, partial(_solve, M, N, d)),
            "plain": partial(_for_each, arrays, partial(gpu.run, planned("plain", M, N, d))),
        }
        exact = exact_attention(q[:, :, :1024], k, v)[0]
        errors = {name: relative_error(call()[:, :, :1024], exact) for name, call in peers.items()}
        for name, call in calls.items():
            call()
            found = torch.stack([of_head["output"][:1024] for of_head in arrays])[None]
            errors[name] = relative_error(found, exact)
        times_ms = timing.median_ms(calls | peers, rounds=6 if M * N > 2**28 else 12)
        flops = 4 * heads * M * N * d
        yield {
            "heads": heads, "m": M, "n": N, "head_dim": d, "ms": times_ms,
            "tflops": {name: 1e-9 * flops / ms for name, ms in times_ms.items()}, "relative_error": errors,
        }  # fmt: skip
    yield from ladder_rows()


def ladder_rows():
    """Every rung of the ladder, all on the same inputs."""
    for M, N, d in LADDER_SHAPES:
        arrays = random_arrays(M, N, d)
        exact = exact_attention(arrays["Q"][None, None, :1024], *(arrays[name][None, None] for name in ("K", "V")))[0][
            0, 0
        ]
        calls = {name: partial(gpu.run, planned(name, M, N, d), arrays) for name in rungs()}
        errors = {}
        for name, call in calls.items():
            call()
            errors[name] = relative_error(arrays["output"][:1024], exact)
        for name, ms in timing.median_ms(calls, rounds=10).items():
            yield {
                "rung": name, "m": M, "n": N, "head_dim": d, "ms": ms, "speed_tflops": 4e-9 * M * N * d / ms,
                "relative_error": errors[name],
            }  # fmt: skip


def counted_cases():
    """[(rung, M, N, d)] in the order in which they run. No rung splits its keys here but the last kept one."""
    every, *ragged, published = COUNTED_SHAPES
    cases = [(name, *every) for name in rungs()]
    return cases + [(name, *shape) for shape in ragged for name in ("plain", "prefetch")] + [("plain", *published)]


def cuda_counter_rows():
    """Nsight Compute's counters of lesson 12's CUDA kernels; needs ncu on the path"""
    for (rung, M, N, d), sums in zip(counted_cases(), counted_by_ncu(__name__, COUNTERS), strict=True):
        yield {"rung": rung, "m": M, "n": N, "head_dim": d, **sums}


def cases():
    """The calls that ncu watches."""
    for rung, M, N, d in counted_cases():
        yield partial(gpu.run, planned(rung, M, N, d), random_arrays(M, N, d))


if __name__ == "__main__":
    run_profiled(cases())
