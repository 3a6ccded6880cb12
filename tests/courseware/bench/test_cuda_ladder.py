"""The CUDA ladder: every rung is right, and the CPU's counts of it are those of Nsight Compute on a GPU."""

import functools

import numpy as np
import pytest

from course_lib.kernels.cuda import launches
from course_lib.reference.softmax import merge_states
from courseware.bench import cuda_ladder, records
from courseware.bench.cuda_ladder import counted, profile, rungs
from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.compiling import NoCompiler

RECORD = "cuda-counters-h200"


@pytest.mark.parametrize("name", rungs())
def test_a_rung_computes_attention(name):
    M, N, d = 40, 70, 64
    (launch,) = rungs()[name].launches(M, N, d, sms=1, max_shared_bytes=227 << 10)
    rng = np.random.default_rng(1)
    arrays = {key: rng.standard_normal((rows, d), dtype=np.float32) for key, rows in (("Q", M), ("K", N), ("V", N))}
    output = np.full((M, d), np.nan, np.float32)
    report = runner.run(launch, arrays | {"output": output, "states": np.empty(1, np.float32)})
    assert report.findings == []
    weights = np.exp(arrays["Q"].astype(np.float64) @ arrays["K"].T * d**-0.5)
    assert output == pytest.approx(weights / weights.sum(axis=1, keepdims=True) @ arrays["V"], abs=1e-5)


def test_the_last_kept_rungs_are_the_shipped_kernel():
    shipped = launches.source("attention.cu")
    assert rungs()["prefetch"].source == rungs()["keys split"].source == shipped
    different = {rung.source for rung in rungs().values()}
    assert len(different) == len(rungs()) - 1


def cases():
    """The recorded launches of one kernel, less the published profile, which takes a CPU half a minute."""
    rows = [row for row in records.rows(RECORD) if row["kernels"] == 1 and row["m"] < 1024]
    assert {row["rung"] for row in rows} == {name for name, rung in rungs().items() if rung.kept} - {"keys split"} | {
        "vector loads"
    }
    return rows


@pytest.mark.parametrize("row", cases(), ids=lambda row: f"{row['rung']}-{row['m']}-{row['n']}-{row['head_dim']}")
def test_the_runner_counts_what_the_gpu_counted(row):
    seen = profile(counted(rungs()[row["rung"]], row["m"], row["n"], row["head_dim"]))
    apart = {name: row[name] - count for name, count in seen.items()}
    # The GPU's compiler stores the zeros of "vector loads" with an instruction of their own, which no lane executes.
    assert apart.pop("shared_stores") == 0 or row["rung"] == "vector loads"
    # A store may have to wait for others: the GPU counts a few passes, and conflicts, more than a store alone takes.
    for name in ("shared_store_passes", "shared_store_conflicts"):
        assert 0 <= apart.pop(name) <= 0.01 * seen["shared_store_passes"]
    assert set(apart.values()) == {0}


def test_the_published_profile_on_a_gpu():
    (row,) = records.rows(RECORD, rung="plain", m=1024, n=1024, head_dim=128)
    published = records.record("published-profile")
    names = ("load_sectors", "store_sectors", "shared_stores", "shared_loads", "shared_load_conflicts")
    assert [row[name] for name in names] == [published[name] for name in names]
    assert row["shared_store_conflicts"] == 0


def test_the_closed_forms_go_by_the_same_names():
    seen = profile(counted(rungs()["plain"], 20, 37, 50))
    form = cuda_ladder.profile_of_plain(20, 37, 50)
    assert form == {name: seen[name] for name in form} and len(form) == 6


def test_clocks_of_a_query_and_a_key():
    plain = cuda_ladder.clocks(rungs()["plain"])
    # For a row and 16 keys: 2 passes for each of 32 + 16 * 32 loads of four floats, and one for each of 16 * 4 values.
    assert plain.passes == pytest.approx((2 * (32 + 16 * 32) + 16 * 4) / 16, rel=0.01)
    assert plain.conflicts == plain.shuffles == 0
    assert plain.issue > 128 / 4  # each lane multiplies all of them
    assert plain.overlapping == plain.passes and plain.in_turn == plain.passes + plain.issue
    shared = cuda_ladder.clocks(rungs()["shared scores"])
    assert shared.shuffles == 5 and shared.overlapping == shared.passes + 5
    conflicts = [cuda_ladder.clocks(rungs()[name]).conflicts for name in ("register tiles", "padding")]
    assert conflicts[0] > 0 == conflicts[1]


def test_the_states_of_split_keys_merge_to_the_output():
    states, output = cuda_ladder.split_states(200, 64, sms=4)
    assert len(states) == 4
    m, l, acc = functools.reduce(merge_states, states)
    assert acc / l == pytest.approx(output, abs=1e-6)


@pytest.mark.parametrize("name", ("shared scores", "padding"))
def test_clocks_without_a_compiler_are_nearly_the_same(name, monkeypatch):
    here = cuda_ladder.clocks(rungs()[name])
    monkeypatch.setattr(cuda_ladder.runner, "launch", no_compiler)
    assert cuda_ladder.clocks(rungs()[name]) == pytest.approx(here, abs=0.1)


def no_compiler(*_, **__):
    raise NoCompiler


def test_speed_counts_the_multiprocessors_that_have_a_block():
    shipped, plain = rungs()["prefetch"], rungs()["plain"]
    full = cuda_ladder.tflops(shipped, 2.0, 132 * 128)
    assert full == pytest.approx(4 * 128 / 2.0 * 66.9 / 256)  # 66.9 TFLOP/s are 256 FLOPs a clock
    assert cuda_ladder.tflops(shipped, 2.0, 1024) == pytest.approx(full * 8 / 132)
    assert cuda_ladder.tflops(shipped, 2.0, 133 * 128) == pytest.approx(full * 133 / 264)
    assert cuda_ladder.tflops(plain, 2.0, 1024) == pytest.approx(full * 64 / 132)


def test_measured_speeds_lie_between_the_two_that_the_counts_give():
    """Where no multiprocessor is without a block."""
    rows = [row for row in records.rows("cuda-h200", m=16896, head_dim=128) if "rung" in row]
    for row in rows:
        rung = rungs()[row["rung"]]
        if rung.name != "keys split" and (rung.kept or rung.name == "vector loads"):
            clocks = cuda_ladder.clocks(rung)
            slow, fast = (cuda_ladder.tflops(rung, of, row["m"]) for of in (clocks.in_turn, clocks.overlapping))
            assert slow < row["speed_tflops"] < fast, rung.name


def test_what_limited_the_published_kernel():
    limits = dict(cuda_ladder.limits_of_published())
    published = records.record("published-profile")
    assert limits["Q, K, V and output, each once, over the time (GB/s)"] == str(published["gb_per_s"])
    assert limits["GFLOP/s, as part of the card's fp32 peak"] == "0.9%"  # 723 of 82,600
    assert limits["sectors loaded, over the time (GB/s)"] == "91"  # 67.6 MB in 0.742 ms
    # 75,497,472 passes on 64 multiprocessors at 2.52 GHz are 0.468 of 0.742 ms.
    assert limits["passes of shared memory on these, one in a clock, of the time"] == "63%"


@pytest.mark.parametrize("name", ("plain", "padding", "prefetch"))
def test_every_measured_speed_is_between_its_bounds(name):
    rung = rungs()[name]
    in_turn, overlapping, measured = cuda_ladder.bounds_and_speed(rung, cuda_ladder.clocks(rung), 16896)
    assert in_turn < measured < overlapping
