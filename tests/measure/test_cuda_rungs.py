"""The CUDA ladder: every rung is right, and the CPU's counts of it are those of Nsight Compute on a GPU."""

import numpy as np
import pytest

from course_lib.kernels.cuda import launches, runner
from course_lib.measure import records
from course_lib.measure.cuda_rungs import counted, rungs

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
    report = counted(rungs()[row["rung"]], row["m"], row["n"], row["head_dim"])
    tensors, shared = report.tensors.values(), report.shared
    assert sum(tensor.loads.requests for tensor in tensors) == row["load_requests"]
    assert sum(tensor.loads.sectors for tensor in tensors) == row["load_sectors"]
    assert sum(tensor.stores.requests for tensor in tensors) == row["store_requests"]
    assert sum(tensor.stores.sectors for tensor in tensors) == row["store_sectors"]
    assert shared.loads.requests == row["shared_loads"]
    # The GPU's compiler stores the zeros of "vector loads" with an instruction of their own, which no lane executes.
    assert shared.stores.requests == row["shared_stores"] or row["rung"] == "vector loads"
    assert (shared.loads.passes, shared.loads.conflicts) == (row["shared_load_passes"], row["shared_load_conflicts"])
    # A store may have to wait for others: the GPU counts a few passes, and conflicts, more than a store alone takes.
    assert 0 <= row["shared_store_passes"] - shared.stores.passes <= 0.01 * shared.stores.passes
    assert 0 <= row["shared_store_conflicts"] - shared.stores.conflicts <= 0.01 * shared.stores.passes


def test_the_published_profile_on_a_gpu():
    (row,) = records.rows(RECORD, rung="plain", m=1024, n=1024, head_dim=128)
    found = [row[name] for name in ("load_sectors", "store_sectors", "shared_stores", "shared_loads")]
    assert found == [2_113_536, 16_384, 528_384, 39_845_888]
    assert row["shared_load_conflicts"] == row["shared_store_conflicts"] == 0
