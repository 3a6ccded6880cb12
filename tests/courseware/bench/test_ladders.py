"""The three ladders: every rung computes attention and differs from another by one idea; and lesson 11's model of it.

tests/course_lib/kernels/test_hopper.py runs the rungs of lesson 15.
"""

import functools
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
from course_lib.reference.softmax import merge_states
from courseware.bench import cuda_ladder, hopper_ladder, ladder_model, records, triton_ladder
from courseware.bench.accuracy import check_attention
from courseware.figures import lesson_15 as hopper
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
    skips = triton_ladder.change_of("lazy rescale").splitlines()
    assert "+     if has_grown:" in skips and "+     growth = tl.max(m_new - m_i, axis=0)" in skips
    config = "BLOCK_M, BLOCK_N, num_warps, num_stages = (64, 64, 4, "
    assert {f"- {config}1)", f"+ {config}3)"} < set(triton_ladder.change_of("prefetch").splitlines())


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


def test_counts_by_hand():
    plain = ladder_model.counts_of("plain", 4096, False)
    # 2^18 rows by 32; 128 tiles of 32 keys; 4 * 32 * 32 * 128 FLOPs at 62 % of 80 % of 4096.
    assert (plain["programs"], plain["tiles"], plain["wait_clocks"], plain["warps"]) == (8192, 128, 1000, 4)
    assert plain["product_clocks"] == pytest.approx(524288 / (0.62 * 0.8 * 4096))
    causal = ladder_model.counts_of("mask the ends only", 4096, True)
    (row,) = records.rows("rungs", rung="mask the ends only", n=4096, causal=True)
    first, last = (loop["instructions"] for loop in row["loops"])
    assert causal["tiles"] == 32.5
    assert causal["instructions"] == pytest.approx((31.5 * first + last) / 32.5)
    assert ladder_model.counts_of("visit every tile", 4096, True)["tiles"] == 64
    assert ladder_model.counts_of("keys outermost", 4096, False)["tiles"] == 64 * 64
    assert ladder_model.counts_of("prefetch", 4096, False)["wait_clocks"] == 0
    # Four resident, but an SM has two programs, which share the wait of 1,000 clocks: 2 * 5 tiles of 600 + 400 + 500.
    few = dict(programs=3, resident=4, tiles=5, product_clocks=600, instructions=200, warps=8, wait_clocks=1000)
    gpu = {"sms": 2, "schedulers": 4, "exponentials_per_clock": 16, "clock_hz": 1e6}
    for exponentials, clocks in ((0, 15_000), (16 * 450, 15_500)):
        assert ladder_model.predict_rung(few | {"exponentials": exponentials}, gpu) == pytest.approx(clocks / 1e6)


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


def test_the_published_profile():
    """On a GPU, by the closed forms, and what limited that kernel."""
    assert {row["rung"] for row in COUNTED} == {*CUDA} - {"keys split", "two blocks on an SM"}
    (row,) = records.rows("cuda-counters-h200", rung="plain", m=1024, n=1024, head_dim=128)
    published, form = records.record("published-profile"), cuda_ladder.profile_of_plain(1024, 1024, 128)
    names = ("load_sectors", "store_sectors", "shared_stores", "shared_loads", "shared_load_conflicts")
    assert [row[name] for name in names] == [published[name] for name in names]
    assert row["shared_store_conflicts"] == 0
    assert form == {name: row[name] for name in form} and len(form) == 6
    limits = dict(cuda_ladder.limits_of_published())
    # 723 of 82,600 GFLOP/s; 67.6 MB in 0.742 ms; and 75,497,472 passes on 64 multiprocessors at 2.52 GHz, 0.468 ms.
    said = ("part of the card's fp32", "0.9%"), ("sectors loaded", "91"), ("passes of shared", "63%")
    assert all(limit == next(limits[what] for what in limits if words in what) for words, limit in said)


def test_clocks_of_a_query_and_a_key(monkeypatch):
    names = [name for name, rung in CUDA.items() if rung.kept and name != "keys split"] + ["vector loads"]
    clocks = {name: cuda_ladder.clocks(CUDA[name]) for name in names}
    plain, shared = clocks["plain"], clocks["shared scores"]
    # For a row and 16 keys: 2 passes for each of 32 + 16 * 32 loads of four floats, and one for each of 16 * 4 values.
    assert plain.passes == pytest.approx((2 * (32 + 16 * 32) + 16 * 4) / 16, rel=0.01)
    assert plain.conflicts == plain.shuffles == 0
    assert plain.issue > 128 / 4  # each lane multiplies all of them
    assert plain.overlapping == plain.passes and plain.in_turn == plain.passes + plain.issue
    assert shared.shuffles == 5 and shared.overlapping == shared.passes + 5
    assert clocks["register tiles"].conflicts > 0 == clocks["padding"].conflicts
    for name, of in clocks.items():  # where no multiprocessor is without a block
        slow, fast, measured = cuda_ladder.bounds_and_speed(CUDA[name], of, 16896)
        assert slow < measured < fast, name
    monkeypatch.setattr(cuda_ladder.runner, "launch", Mock(side_effect=NoCompiler))
    for name in ("shared scores", "padding"):
        assert cuda_ladder.clocks(CUDA[name]) == pytest.approx(clocks[name], abs=0.1)


def test_speed_counts_the_multiprocessors_that_have_a_block():
    full = cuda_ladder.tflops(CUDA["prefetch"], 2.0, 132 * 128)
    assert full == pytest.approx(4 * 128 / 2.0 * 66.9 / 256)  # 66.9 TFLOP/s are 256 FLOPs a clock
    for name, m, share in (("prefetch", 1024, 8 / 132), ("prefetch", 133 * 128, 133 / 264), ("plain", 1024, 64 / 132)):
        assert cuda_ladder.tflops(CUDA[name], 2.0, m) == pytest.approx(full * share)


def test_the_states_of_split_keys_merge_to_the_output():
    states, output = cuda_ladder.split_states(200, 64, sms=4)
    assert len(states) == 4
    m, l, acc = functools.reduce(merge_states, states)
    assert acc / l == pytest.approx(output, abs=1e-6)


# Gluon: what the GPU's counters and the compiler say of its rungs, and kernels that the interpreter refuses.


def test_a_rung_s_share_of_the_tensor_cores_and_its_programs():
    assert 0.75 < hopper.tensor_share("groups change places", 128) < 0.85
    assert [hopper.programs(*of) for of in (("one group", 64), ("one group", 128), ("programs stay", 64))] == [3, 1, 1]


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
