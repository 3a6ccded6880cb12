"""The H100's records are of kernels that have since become simpler. Taken again on an H200, which has the same
multiprocessors, nothing has become slower, moves more bytes, or takes more memory."""

import pytest

from courseware.bench import records


def pairs(name, *keys):
    """[(row of the H100, row of the H200)] of the record taken on both."""
    later = {tuple(row[key] for key in keys): row for row in records.rows(f"{name}-h200")}
    before = {tuple(row[key] for key in keys): row for row in records.rows(f"{name}-h100")}
    assert before.keys() == later.keys() and before
    return [(before[key], later[key]) for key in before]


def test_no_row_has_lost_two_percent():
    for before, later in pairs("attention", "pass", "head_dim", "causal", "n"):
        assert later["tflops"]["ours"] >= 0.98 * before["tflops"]["ours"], later
    for before, later in pairs("shapes", "name", "causal"):
        for which, ms in later["ms"].items():
            assert ms <= 1.02 * before["ms"][which], later


def test_multiprocessors_read_and_write_the_same_bytes():
    found = [pair for pair in pairs("dram", "method", "pass", "batch", "heads", "n", "head_dim")]
    flash = [(before, later) for before, later in found if before["method"] == "flash"]
    assert len(flash) == len(found) / 2
    for before, later in flash:
        for key in ("sm_read_bytes", "sm_write_bytes"):
            assert later[key] == pytest.approx(before[key], rel=1e-3), later


def test_peak_memory_is_the_same():
    for before, later in pairs("standard", "method", "pass", "batch", "n", "head_dim"):
        assert later["peak_bytes"] == before["peak_bytes"], later


def test_errors_in_float32_are_below_those_of_pytorch():
    for name in ("fp32-h100", "fp32-h200"):
        for row in records.rows(name):
            error = row["relative_error"]
            assert error["ours"] <= error["sdpa_efficient"], (name, row)
    for name in ("tf32-h100", "tf32-h200"):
        found = records.record(name)
        assert found["ieee_relative_error"] < 1e-6 < 1e-3 < found["tf32_relative_error"]
