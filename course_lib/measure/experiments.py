"""Lesson 10's experiments on one GPU. `python -m course_lib bench` runs them and writes their records:

    --standard   standard attention against FlashAttention over the lengths: time, calls one after another, peak bytes
    --ladder     the rungs of the forward kernel's ladder, kept and rejected, taking turns
    --dram       bytes by the GPU's own counters, for both; needs Nsight Compute's `ncu` on the path
    --tf32       lesson 08's kernel on fp32, with the products' precision left to the compiler and with IEEE's
    --tune       every block size, number of warps and of stages, the shipped configuration among them; --tune backward
                 for the two kernels of the backward

Standard attention is PyTorch's three calls, the scale inside the first: scores, softmax, product with the values.
"""

import concurrent.futures
import csv
import itertools
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import reference, runtime, traffic
from course_lib.exercises import bug_hunt
from course_lib.measure import bench

HEADS, HEAD_DIM = 16, 64
# GPT-2 medium's attention as the first FlashAttention paper's Figure 2 has it.
FIGURE_2 = {"batch": 64, "heads": 16, "n": 1024, "head_dim": 64}


def standard_attention(q, k, v):
    """softmax(q k^T / sqrt(d)) v with the score matrix in memory, in three calls. [batch, heads, n, d], one dtype."""
    flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(q.new_empty(()), flat_q, flat_k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(torch.softmax(scores, dim=-1), flat_v).view_as(q)


def methods():
    """{name: attention(q, k, v)}, not causal. The caller chooses PyTorch's backend."""
    from course_lib.kernels import flash_attention

    return {
        "standard": standard_attention,
        "flash": flash_attention,
        "sdpa_flash": scaled_dot_product_attention,
    }


def run(attention, which, q, k, v, do):
    """A callable for one pass: "forward" gives [o], "both" the gradients of q, k and v."""

    def call():
        with torch.set_grad_enabled(which == "both"):
            o = attention(q, k, v)
            return torch.autograd.grad(o, (q, k, v), do) if which == "both" else [o]

    return call


def standard_rows():
    """Milliseconds of one call with a cold L2, of one call in a train of calls, and peak bytes over inputs and results.

    A train of calls takes as long as the host or the GPU, whichever is slower: where kernels are short, the host.
    """
    torch.manual_seed(0)
    shapes = [{"batch": 1, "heads": HEADS, "n": 2**i, "head_dim": HEAD_DIM} for i in range(6, 15)] + [FIGURE_2]
    rows = []
    # Around all of it: to choose the backend in every call costs the host time, and a train would show it.
    with sdpa_kernel(bench.PEERS["sdpa_flash"]):
        for shape, which in itertools.product(shapes, ("forward", "both")):
            inputs = bench.random_inputs(*shape.values(), torch.float16)
            calls = {name: run(attention, which, *inputs) for name, attention in methods().items()}
            bench.check_answers(
                {name: call() for name, call in calls.items()}, inputs[:3] if which == "forward" else inputs
            )
            times_ms = bench.median_ms(calls, rounds=20)
            trains_s = bench.least_mean_s(calls, calls=20, wait=True)
            for name, call in calls.items():
                rows.append({
                    "method": name, "pass": which, **shape, "causal": False, "dtype": "float16",
                    "ms": times_ms[name], "train_ms": 1e3 * trains_s[name],
                    "peak_bytes": bench.peak_bytes(call),
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def ladder_rows():
    """Every rung of `kernels.ladder` at 16 heads of head_dim 128, fp16, 16384 tokens in sequences of 4096 and of 1024.

    All take turns. Raises RuntimeError, before anything is timed, if one's answer is wrong.
    """
    from course_lib.measure.accuracy import exact_attention
    from course_lib.measure.ladder import RUNGS, run

    torch.manual_seed(0)
    rows = []
    for n, causal in itertools.product((4096, 1024), (False, True)):
        shape = {"batch": bench.TOKENS // n, "heads": 16, "n": n, "head_dim": 128}
        q, k, v, _ = (x.detach() for x in bench.random_inputs(*shape.values(), torch.float16))
        few = [x[:1, :2] for x in (q, k, v)]
        contestants = {
            rung.name: lambda rung=rung, qkv=(q, k, v), c=causal: run(rung, *qkv, causal=c) for rung in RUNGS
        }
        exact, _ = exact_attention(*few, causal=causal)
        errors = {}
        for name, call in contestants.items():
            o = call()
            bench.check_answers({name: [o]}, (q, k, v), causal)
            errors[name] = bench.relative_error(o[:1, :2], exact)
        flops = traffic.attention_flops(n, n, 128, heads=16, batch=shape["batch"]) / (2 if causal else 1)
        for name, ms in bench.median_ms(contestants).items():
            tflops = flops / ms * 1e-9
            rows.append({
                "rung": name, **shape, "causal": causal, "dtype": "float16", "ms": ms, "tflops": tflops,
                "relative_error": errors[name],
            })  # fmt: skip
            print(f"{name}, N = {n}, {'causal' if causal else 'full'}: {ms:.3f} ms, {tflops:.0f} TFLOP/s", flush=True)
    return rows


# What is read, and in which run: each run's counters fit into one pass, so that no kernel has to be run again.
COUNTERS = (
    {"dram_read_bytes": "dram__bytes_read.sum", "dram_write_bytes": "dram__bytes_write.sum"},
    {"l2_read_sectors": "lts__t_sectors_op_read.sum", "l2_write_sectors": "lts__t_sectors_op_write.sum"},
    {"sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum", "sm_write_bytes": "l1tex__m_l1tex2xbar_write_bytes.sum"},
)
SECTOR_BYTES = 32
SEPARATOR = "spin_kernel"  # what torch.cuda._sleep launches


def dram_cases():
    """[(method, pass, shape)] in the order in which they run."""
    lengths = [{"batch": 1, "heads": HEADS, "n": 2**i, "head_dim": d} for d in (64, 128) for i in range(9, 15)]
    one_head = {"batch": 1, "heads": 1, "n": 1024, "head_dim": 64}
    cases = [("forward", shape) for shape in (one_head, *lengths, FIGURE_2)] + [("both", FIGURE_2)]
    return [(method, which, shape) for which, shape in cases for method in ("standard", "flash")]


def dram_rows():
    """Bytes that DRAM and L2 moved in each case, summed over its kernels, which run in turn and find the caches as
    the one before left them; the first finds its inputs in DRAM. What is still dirty in L2 at the end is not counted.
    """
    from course_lib.kernels.configs import select
    from course_lib.kernels.launch import takes_descriptors, tensor_meta

    counted = [{} for _ in dram_cases()]
    for counters in COUNTERS:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "counters.csv"
            subprocess.run(
                ["ncu", "--metrics", ",".join(counters.values()), "--csv", "--print-units", "base", "--log-file", log,
                 "--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none",
                 sys.executable, "-m", "course_lib.measure.experiments"],
                check=True,
            )  # fmt: skip
            for case, sums in zip(counted, by_case(log.read_text(), counters), strict=True):
                case.update(sums)
    rows = []
    for (method, which, shape), sums in zip(dram_cases(), counted, strict=True):
        x = torch.empty(1, 1, shape["n"], shape["head_dim"], dtype=torch.float16, device="cuda")
        capability = runtime.capability(x.device)
        block_q, block_k, _, _ = select(
            "forward", dtype=x.dtype, head_dim=shape["head_dim"], causal=False, capability=capability, n_k=shape["n"],
            by_descriptor=takes_descriptors(capability, tensor_meta(x)),
            n_rows=shape["batch"] * shape["heads"] * shape["n"],
        )  # fmt: skip
        blocks = {"block_q": block_q, "block_k": block_k} if method == "flash" else {}
        rows.append({"method": method, "pass": which, **shape, "causal": False, "dtype": "float16", **blocks, **sums})
        print(rows[-1], flush=True)
    return rows


def by_case(text, counters):
    """The sums of each case's kernels from what ncu wrote: a row for each kernel and counter, in order of launch."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise RuntimeError("ncu counted nothing:\n" + "\n".join(lines[-10:]))
    name_of = {counter: name for name, counter in counters.items()}
    cases, case, kernels = [], dict.fromkeys(counters, 0), set()
    separators = set()
    for row in csv.DictReader(lines[start:]):
        if SEPARATOR in row["Kernel Name"]:
            if row["ID"] not in separators:
                separators.add(row["ID"])
                cases.append(_in_bytes(case) | {"kernels": len(kernels)})
                case, kernels = dict.fromkeys(counters, 0), set()
            continue
        kernels.add(row["ID"])
        case[name_of[row["Metric Name"]]] += int(float(row["Metric Value"].replace(",", "")))
    return cases


def _in_bytes(case):
    return {
        name.replace("sectors", "bytes"): value * (SECTOR_BYTES if name.endswith("sectors") else 1)
        for name, value in case.items()
    }


def run_cases():
    """Run each case once between the profiler's start and stop, each followed by the separator's kernel."""
    torch.manual_seed(0)
    clean = torch.zeros(bench.L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    driver = torch.cuda.cudart()
    for method, which, shape in dram_cases():
        q, k, v, do = bench.random_inputs(shape["batch"], shape["heads"], shape["n"], shape["head_dim"], torch.float16)
        call = run(methods()[method], which, q, k, v, do)
        call()
        clean.sum()  # read, not written: dirty lines would be written back during the case
        torch.cuda.synchronize()
        driver.cudaProfilerStart()
        call()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        driver.cudaProfilerStop()


def precision_errors():
    """Relative Frobenius errors of lesson 08's kernel on fp32 inputs of 3 heads, 128 rows and head_dim 64."""
    q, k, v = (x[0].detach().cpu().numpy() for x in bench.random_inputs(1, 3, 128, 64, torch.float32)[:3])
    heads = zip(*(x.astype(np.float64) for x in (q, k, v)), strict=True)
    exact = torch.from_numpy(np.stack([reference.attention(*head) for head in heads]))
    return {
        name: bench.relative_error(
            torch.from_numpy(bug_hunt.run("right", q, k, v, causal=False, block_q=64, block_k=64, precision=given)[0]),
            exact,
        )
        for name, given in (("ieee_relative_error", "ieee"), ("tf32_relative_error", None))
    }


TUNED = {"block_q": (16, 32, 64, 128, 256), "block_k": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)}
TUNED_LENGTH = 4096
KERNELS = {"forward": ("forward",), "backward": ("dkdv", "dq")}
MOST_PER_THREAD = 256  # fp32 numbers that a thread adds up: as many as it can have registers, some of them spilled


def candidates(kernel, head_dim):
    """Configurations worth trying: products that a tensor core can do, sums that threads can hold."""
    for block_q, block_k, num_warps, num_stages in itertools.product(*TUNED.values()):
        threads = 32 * num_warps
        if kernel == "forward":
            # A warp for every 16 query rows at most.
            fits = block_q >= 16 * num_warps and block_q * head_dim <= 2**15 or num_warps == 4 and block_q < 64
        else:
            sums = 2 * block_k * head_dim if kernel == "dkdv" else block_q * head_dim
            fits = 32 <= min(block_q, block_k) and sums + block_q * block_k <= MOST_PER_THREAD * threads
        if fits:
            yield block_q, block_k, num_warps, num_stages


def _tuned_inputs(head_dim):
    """A batch of the paper's setting at the tuned length: q, k, v and a gradient of the output."""
    heads, batch = bench.HIDDEN_DIM // head_dim, bench.TOKENS // TUNED_LENGTH
    return [x.detach() for x in bench.random_inputs(batch, heads, TUNED_LENGTH, head_dim, torch.float16)]


def _configured(kernel, inputs, causal):
    """A function from a configuration to a callable: [o] or (dq, dk, dv), None for what the kernel does not compute."""
    from course_lib.kernels.flash_backward import flash_backward
    from course_lib.kernels.flash_forward import flash_forward

    q, k, v, do = inputs
    how = {"causal": causal, "scale": q.shape[-1] ** -0.5}
    if kernel == "forward":
        return lambda config: lambda: [flash_forward(q, k, v, store_lse=False, config=config, **how)[0]]
    o, lse = flash_forward(q, k, v, store_lse=True, **how)
    which = {"need_dq": kernel == "dq", "need_dkdv": kernel == "dkdv"}
    return lambda config: (
        lambda: flash_backward(q, k, v, o, lse, do, config_dkdv=config, config_dq=config, **which, **how)
    )


def _shipped(kernel, inputs, causal):
    """The configuration that a launch takes by itself, and whether tiles come by descriptor."""
    from course_lib.kernels.configs import select
    from course_lib.kernels.launch import takes_descriptors, tensor_meta

    q, k, v, _ = inputs
    capability = runtime.capability(q.device)
    streamed = (k, v) if kernel == "forward" else inputs
    by_descriptor = takes_descriptors(capability, *map(tensor_meta, streamed))
    config = select(
        kernel, dtype=q.dtype, head_dim=q.shape[-1], causal=causal, capability=capability, n_k=k.shape[2],
        by_descriptor=by_descriptor,
    )  # fmt: skip
    return config, by_descriptor


def tune_rows(which, head_dims):
    """Time every candidate at one length, causal and not; rows that do not fit hold the compiler's reason instead.

    which: "forward" or "backward". A time of the backward's kernels includes that of delta, which is the same for all.
    """
    torch.manual_seed(0)
    cases = list(itertools.product(KERNELS[which], head_dims, (False, True)))
    _compile_ahead([(*case, config) for case in cases for config in candidates(*case[:2])])
    rows = []
    for kernel, head_dim, causal in cases:
        inputs = _tuned_inputs(head_dim)
        configured = _configured(kernel, inputs, causal)
        calls, errors = {}, {}
        for config in candidates(kernel, head_dim):
            call = configured(config)
            try:
                answer = call()
            except Exception as reason:  # noqa: BLE001 - what a compiler can raise is not ours to list
                errors[config] = f"{type(reason).__name__}: {reason}".splitlines()[0][:200]
                continue
            bench.check_answers({config: answer}, inputs[:3] if kernel == "forward" else inputs, causal)
            calls[config] = call
        times_ms = bench.median_ms(calls, rounds=7)
        shipped, tma = _shipped(kernel, inputs, causal)
        best = min(times_ms, key=times_ms.get)
        print(
            f"{kernel} d={head_dim} {'causal' if causal else 'full'}: fastest {best} {times_ms[best]:.3f} ms; shipped "
            f"{shipped} {times_ms.get(shipped, float('nan')):.3f} ms; {len(errors)} of {len(calls) + len(errors)} "
            "do not run",
            flush=True,
        )
        batch, heads = inputs[0].shape[:2]
        flops = traffic.attention_flops(TUNED_LENGTH, TUNED_LENGTH, head_dim, heads=heads, batch=batch)
        for config in candidates(kernel, head_dim):
            row = {
                **dict(zip(TUNED, config, strict=True)), "tma": tma, "head_dim": head_dim, "n": TUNED_LENGTH,
                "causal": causal, "dtype": "float16", "batch": batch, "heads": heads, "shipped": config == shipped,
            }  # fmt: skip
            if kernel != "forward":
                row["kernel"] = kernel
            if config in errors:
                rows.append(row | {"error": errors[config]})
                continue
            row["ms"] = times_ms[config]
            if kernel == "forward":
                row["tflops"] = flops / (2 if causal else 1) / row["ms"] * 1e-9
            rows.append(row)
    return rows


def _compile_ahead(jobs):
    """Fill Triton's cache from several processes: a kernel takes seconds to compile, a sweep has hundreds."""
    workers = max(1, multiprocessing.cpu_count() - 1)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done, _ in enumerate(pool.map(_compile_one, jobs), start=1):
            print(f"\rcompiled {done} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _compile_one(job):
    kernel, head_dim, causal, config = job
    try:
        _configured(kernel, _tuned_inputs(head_dim), causal)(config)()
    except Exception:  # noqa: BLE001 - reported where it is timed
        pass


if __name__ == "__main__":
    run_cases()
