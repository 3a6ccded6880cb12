"""The sweep and the record of correctness, as far as they go without a GPU."""

import itertools
import json
import subprocess
import sys

import pytest
import torch

from course_lib import runtime
from course_lib.kernels.configs import select
from courseware.bench import records, timing
from tools import correctness, sweep


def shipped_on_h100(kernel, head_dim, causal, n_k=sweep.LENGTH, by_descriptor=True):
    return select(
        kernel, dtype=torch.float16, head_dim=head_dim, causal=causal, capability=(9, 0), n_k=n_k,
        by_descriptor=by_descriptor,
    )  # fmt: skip


def test_candidates_have_the_shipped_configurations_among_them():
    for head_dim in (32, 64, 128, 256):
        for kernel in ("forward", "dkdv", "dq"):
            configs = list(sweep.candidates(kernel, head_dim))
            assert len(set(configs)) == len(configs) < 150
            assert {shipped_on_h100(kernel, head_dim, causal) for causal in (False, True)} <= {*configs}, kernel


@pytest.mark.parametrize("record", ("sweep-h100", "sweep-h200"))
def test_what_is_shipped_was_swept_and_is_within_3_percent_of_the_fastest(record):
    for head_dim, causal in itertools.product((64, 128), (False, True)):
        rows = [row for row in records.rows(record, head_dim=head_dim, causal=causal) if "ms" in row]
        (shipped,) = [row for row in rows if row["shipped"]]
        config = shipped_on_h100("forward", head_dim, causal, shipped["n"], shipped["tma"])
        assert config == tuple(shipped[name] for name in sweep.CHOICES)
        assert shipped["ms"] <= 1.03 * min(row["ms"] for row in rows)


@pytest.mark.parametrize("which, kernels", sweep.KERNELS.items())
def test_a_sweep_has_a_row_for_every_candidate(monkeypatch, which, kernels):
    """In the interpreter, with times that are made up."""
    sizes = {"block_q": (32,), "block_k": (32,), "num_warps": (2,), "num_stages": (1, 2)}
    monkeypatch.setattr(sweep, "CHOICES", sizes)
    monkeypatch.setattr(sweep, "LENGTH", 40)
    monkeypatch.setattr(sweep, "compile_ahead", lambda *_: None)
    device = runtime.device()
    monkeypatch.setattr(timing, "random_inputs", lambda b, h, n, d, dtype: torch.randn(4, 1, 2, n, d).to(device, dtype))
    monkeypatch.setattr(timing, "median_ms", lambda calls, rounds: {config: config[3] for config in calls})
    rows = sweep.sweep_rows(which, [16])
    assert [(row.get("kernel", "forward"), row["causal"], row["num_stages"], row["ms"]) for row in rows] == [
        (kernel, causal, stages, stages)
        for kernel in kernels for causal in ((None,) if which == "variants" else (False, True)) for stages in (1, 2)
    ]  # fmt: skip
    right = sweep._launcher

    def doubled(*case):
        return lambda config: lambda: [x if x is None else 2 * x for x in right(*case)(config)()]

    monkeypatch.setattr(sweep, "_launcher", doubled)
    with pytest.raises(RuntimeError, match="wrong answers are not timed"):
        sweep.sweep_rows(which, [16])


REPORT = '<testsuites><testsuite tests="12" failures="1" errors="2" skipped="3" time="90"/></testsuites>'
SANITIZER = """#!/bin/sh
echo "4 calls agree with float64"
echo "========= $2 SUMMARY: 0 errors"
echo "$@" >> "$(dirname "$0")/calls"
"""


def test_the_record_of_correctness_says_how_it_was_made(tmp_path, monkeypatch):
    """With a suite and a sanitizer that are made up."""
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text(SANITIZER)
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def suite(command, check):
        (report,) = [word for word in command if word.startswith("--junitxml=")]
        with open(report.removeprefix("--junitxml="), "w") as file:
            file.write(REPORT)

    monkeypatch.setattr(subprocess, "run", suite)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G100")
    monkeypatch.setattr(records, "_output_of", lambda *command: None)
    file = tmp_path / "g100.json"
    monkeypatch.setattr(sys, "argv", ["correctness", "--json", str(file), "--commit", "abc"])
    correctness.main()
    record = json.loads(file.read_text())
    found = record["correctness"]
    assert [found[key] for key in ("passed", "failed", "skipped", "minutes")] == [6, 3, 3, 1.5]
    assert found["memcheck"] == "4 calls agree with float64; memcheck SUMMARY: 0 errors"
    calls = sorted((tmp_path / "calls").read_text().splitlines())
    for line, tool in zip(calls, ("memcheck", "racecheck"), strict=True):
        assert line == f"--tool {tool} {sys.executable} -m tools.correctness --calls"
    assert record["command"] == "python -m tools.correctness --json g100.json --commit abc"
