"""The three ladders: every rung computes attention and differs from another by one idea; and lesson 11's model of it.

tests/course_lib/kernels/test_hopper.py runs the rungs of lesson 15.
"""

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from course_lib import runtime
from course_lib.hardware import GPUS
from course_lib.kernels.cuda import launches
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.hopper import forward as hopper_forward
from courseware.bench import cuda_ladder, hopper_ladder, ladder_model, records, triton_ladder
from courseware.bench.accuracy import check_attention
from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.compiling import NoCompiler
from courseware.simulators.gluon_emulator import GluonError
from courseware.tracer import trace
from tests.thorough import ALL, some

DEVICE = runtime.device()
RUNGS = {rung.name: rung for rung in triton_ladder.RUNGS}
CUDA, HOPPER = cuda_ladder.rungs(), hopper_ladder.rungs()
LADDERS = {"triton": RUNGS, "cuda": CUDA, "hopper": HOPPER}


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_kept_rungs_are_one_chain_and_a_rejected_one_stands_behind_its_own(ladder):
    below = None
    for name, rung in ladder.items():
        assert rung.builds_on == below and rung.idea and "\n" not in rung.idea + rung.expected
        below = name if rung.kept else below


def test_the_last_kept_rungs_are_the_shipped_kernels():
    shipped = launches.source("attention.cu")
    assert CUDA["prefetch"].source == CUDA["keys split"].source == shipped
    assert CUDA["plain"].source == launches.source("plain_attention.cu")
    assert len({rung.source for rung in CUDA.values()}) == len(CUDA) - 1
    assert HOPPER["groups change places"].source == open(hopper_forward.__file__).read()
    assert len({rung.source for rung in HOPPER.values()}) == len(HOPPER)
    q, k, v = qkv(600, 16)
    last, _ = flash_forward(q, k, v, causal=True, scale=0.25, store_lse=False)
    assert torch.equal(triton_ladder.run([r for r in triton_ladder.RUNGS if r.kept][-1], q, k, v, causal=True), last)


# Triton.


def qkv(n, d, dtype=torch.float16, batch=1, heads=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, heads, n, d, generator=generator).to(DEVICE, dtype) for _ in "qkv"]


@pytest.mark.parametrize("rung", triton_ladder.RUNGS, ids=lambda rung: rung.name)
def test_every_rung_computes_attention(rung):
    for n, d, dtype, batch in ((2, 16, torch.float16, 1), (64, 32, torch.float16, 1), (150, 32, torch.bfloat16, 2)):
        q, k, v = qkv(n, d, dtype, batch)
        for causal in (True, False):
            check_attention(triton_ladder.run(rung, q, k, v, causal=causal), q, k, v, causal=causal)


COMPILE = """
import hashlib, json
from tools.compiler_records import compiled_rung
from courseware.bench.triton_ladder import RUNGS

for rung in RUNGS[BEGIN::STEP]:
    compiled, _ = compiled_rung(rung, (1, 2, 1024, 64), True)
    code = hashlib.sha256(compiled.asm["ptx"].encode()).hexdigest()
    print(json.dumps([rung.name, compiled.metadata.shared, code]))
"""


def test_every_rung_compiles_to_code_of_its_own():
    """For an H100, as on a GPU: three of them. With head_dim 64 the shipped tiles are those of the rung before."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    begin, step = (0, 1) if ALL else (5, 10)
    code = COMPILE.replace("BEGIN", str(begin)).replace("STEP", str(step))
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    compiled = {name: (shared_bytes, code) for name, shared_bytes, code in map(json.loads, run.stdout.splitlines())}
    assert [*compiled] == [*RUNGS][begin::step]
    assert all(shared_bytes <= GPUS["H100"].shared_bytes_per_block for shared_bytes, _ in compiled.values())
    assert len(set(compiled.values())) == len(compiled) - ALL
    assert not ALL or compiled["shipped tiles"] == compiled["tensor descriptors"]


@pytest.mark.parametrize(
    "rung, n, heads, loaded",
    [
        # Three query tiles and three key tiles of 64: under the mask, 6 of the 9 pairs are visible in part.
        ("visit every tile", 192, 1, 9), ("tiles of 64", 192, 1, 6), ("mask the ends only", 192, 1, 6),
        # In another order: eleven heads are eight together, and three that are left.
        ("grouped heads", 150, 11, None), ("persistent", 600, 3, None),
    ],
)  # fmt: skip
def test_every_query_tile_is_loaded_once_and_hidden_key_tiles_never(rung, n, heads, loaded):
    q, k, v = qkv(n, 16, heads=heads)
    with trace(q=q, k=k, v=v) as traced:
        o = triton_ladder.run(RUNGS[rung], q, k, v, causal=True)
    check_attention(o, q, k, v, causal=True)
    found = traced.by_tensor
    assert found["q"][0] == q.numel() * 2 and not traced.violations
    assert loaded is None or found["k"][0] == found["v"][0] == loaded * 64 * 16 * 2


def test_a_change_is_what_the_flags_leave_of_the_kernel():
    for rung in triton_ladder.RUNGS[1:]:
        changed = [line for line in triton_ladder.change_of(rung.name).splitlines() if line[0] in "+-"]
        assert changed and not any(flag in line for line in changed for flag in rung.options if flag.isupper())


def test_lazy_rescale_rescales_where_the_maximum_grows():
    """Scores that grow along the keys, by less than the 8 powers of two that are tolerated and by far more."""
    q, k, v = qkv(150, 16)
    growing = torch.linspace(0, 1, 150, device=DEVICE)[:, None].half()
    for factor in (1, 60):
        k_growing = k + factor * growing * torch.sign(q[:, :, :1])
        answer = triton_ladder.run(RUNGS["lazy rescale"], q, k_growing, v, causal=False)
        check_attention(answer, q, k_growing, v, causal=False)


def test_other_inputs_are_refused():
    q, k, v = qkv(20, 16)
    for wrong, message in (
        ((q[:, :, :10], k, v), "one shape"),
        ([x.transpose(1, 2) for x in (q, k, v)], "contiguous"),
        (qkv(1, 16), "2 or more"),
        (qkv(20, 24), "head_dim 16"),
        (qkv(20, 16, torch.float32), "fp16 or bf16"),
    ):
        with pytest.raises(ValueError, match=message):
            triton_ladder.run(triton_ladder.RUNGS[0], *wrong, causal=False)


# The model of lesson 11.


def test_the_suspects_bytes_are_the_tracer_s_and_the_verdicts_those_of_the_lesson():
    q, k, v = qkv(ladder_model.SUSPECTS_N, ladder_model.HEAD_DIM, heads=1)
    suspects = ladder_model.suspects()
    for letter, kernel in suspects.items():
        with trace() as traced:
            triton_ladder.run(RUNGS[ladder_model.SUSPECTS[letter]], q, k, v, causal=True)
        for name in "qkv":
            assert traced.by_tensor[name][0] == kernel[f"{name}_bytes"], (letter, name)
    found = {letter: ladder_model.find_the_waste(kernel) for letter, kernel in suspects.items()}
    assert [verdict for verdict, _ in found.values()] == ["waits", "computes", "reads", "nothing", "reads"]
    assert 3.5 < found["E"][1] < 4, "nearly three times its tiles' bytes are spilled"


# CUDA: the CPU's counts are those of Nsight Compute on a GPU.


@pytest.mark.parametrize("name", CUDA)
def test_a_cuda_rung_computes_attention(name):
    M, N, d = 40, 70, 64
    (launch,) = cuda_ladder.planned(CUDA[name], M, N, d, sms=1, max_shared_bytes=227 << 10)
    arrays = cuda_ladder.random_arrays(M, N, d)
    arrays["output"][:] = np.nan
    report = runner.run(launch, arrays | {"states": np.empty(1, np.float32)})
    assert report.findings == []
    weights = np.exp(arrays["Q"].astype(np.float64) @ arrays["K"].T * d**-0.5)
    assert arrays["output"] == pytest.approx(weights / weights.sum(axis=1, keepdims=True) @ arrays["V"], abs=1e-5)


# The recorded launches of one kernel, less the published profile, which takes a CPU half a minute.
COUNTED = [row for row in records.rows("cuda-counters-h200") if row["kernels"] == 1 and row["m"] < 1024]


def quick(row):
    """Whether a CPU takes less than a second: rungs that load by fours and those of two shapes count in the others."""
    return row["m"] < 256 or row["rung"] not in ("plain", "vector loads", "prefetch")


@pytest.mark.parametrize(
    "row", some(COUNTED, [*filter(quick, COUNTED)]), ids=lambda row: f"{row['rung']}-{row['m']}-{row['n']}"
)
def test_the_runner_counts_what_the_gpu_counted(row):
    seen = cuda_ladder.profile(cuda_ladder.counted(CUDA[row["rung"]], row["m"], row["n"], row["head_dim"]))
    apart = {name: row[name] - count for name, count in seen.items()}
    # The GPU's compiler stores the zeros of "vector loads" with an instruction of their own, which no lane executes.
    assert apart.pop("shared_stores") == 0 or row["rung"] == "vector loads"
    # A store may have to wait for others: the GPU counts a few passes, and conflicts, more than a store alone takes.
    for name in ("shared_store_passes", "shared_store_conflicts"):
        assert 0 <= apart.pop(name) <= 0.01 * seen["shared_store_passes"]
    assert set(apart.values()) == {0} and len(seen) == 10


def test_every_rung_of_one_kernel_has_been_counted_on_a_gpu():
    assert {row["rung"] for row in COUNTED} == {*CUDA} - {"keys split", "two blocks on an SM"}


def test_clocks_without_a_compiler_are_those_with_one(monkeypatch):
    clocks = {name: cuda_ladder.clocks(CUDA[name]) for name in ("shared scores", "padding")}
    monkeypatch.setattr(cuda_ladder.runner, "launch", Mock(side_effect=NoCompiler))
    for name, of in clocks.items():
        assert cuda_ladder.clocks(CUDA[name]) == pytest.approx(of, abs=0.1)


def test_speed_counts_the_multiprocessors_that_have_a_block():
    full = cuda_ladder.tflops(CUDA["prefetch"], 2.0, 132 * 128)
    assert full == pytest.approx(4 * 128 / 2.0 * 66.9 / 256)  # 66.9 TFLOP/s are 256 FLOPs a clock
    for name, m, share in (("prefetch", 1024, 8 / 132), ("prefetch", 133 * 128, 133 / 264), ("plain", 1024, 64 / 132)):
        assert cuda_ladder.tflops(CUDA[name], 2.0, m) == pytest.approx(full * share)


# Gluon: kernels that the interpreter refuses.


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("        fence_async_shared()\n        tma", "        tma", "without fence_async_shared"),
        ("barriers(STAGES, GROUPS)", "barriers(STAGES, GROUPS + 1)", "deadlock"),
    ],
)
def test_an_edit_is_interpreted_on_any_machine(old, new, said):
    q = torch.randn(1, 1, 512, 64, generator=torch.Generator().manual_seed(0)).half()
    o, _ = hopper_ladder.interpreted({})(q, q, q, causal=False, scale=0.125, store_lse=False)
    assert torch.isfinite(o).all()
    with pytest.raises(GluonError, match=said):
        hopper_ladder.interpreted({old: new})(q, q, q, causal=False, scale=0.125, store_lse=False)
    with pytest.raises(ValueError, match="occurs 0 times"):
        hopper_ladder.interpreted({"no such line": ""})
