"""The sweep, as far as it goes without a GPU, and its record against the shipped configurations."""

import json

import pytest
import torch

from course_lib import runtime
from course_lib.kernels.configs import select
from courseware.bench import records, timing
from tools import sweep


def shipped_on_h100(kernel, head_dim, causal, n_k=sweep.LENGTH, by_descriptor=True):
    return select(
        kernel, dtype=torch.float16, head_dim=head_dim, causal=causal, capability=(9, 0), n_k=n_k,
        by_descriptor=by_descriptor,
    )  # fmt: skip


@pytest.mark.parametrize("head_dim", (32, 64, 128, 256))
def test_candidates_have_the_shipped_configurations_among_them(head_dim):
    for kernel in ("forward", "dkdv", "dq"):
        configs = list(sweep.candidates(kernel, head_dim))
        assert len(set(configs)) == len(configs) < 150
        for causal in (False, True):
            assert shipped_on_h100(kernel, head_dim, causal) in configs, kernel


@pytest.mark.parametrize("record", ("sweep-h100", "sweep-h200"))
@pytest.mark.parametrize("head_dim, causal", [(64, False), (64, True), (128, False), (128, True)])
def test_what_is_shipped_was_swept_and_is_within_3_percent_of_the_fastest(head_dim, causal, record):
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


def test_the_record_says_how_it_was_made(monkeypatch, tmp_path):
    row = {"which": "backward", "head_dims": [32, 64]}
    monkeypatch.setattr(sweep, "sweep_rows", lambda which, head_dims: [{"which": which, "head_dims": head_dims}])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G100")
    monkeypatch.chdir(tmp_path)
    words = ["backward", "--head-dim", "32", "64", "--json", "sweep-g100.json", "--commit", "abc"]
    monkeypatch.setattr("sys.argv", ["sweep.py", *words])
    sweep.main()
    record = json.loads((tmp_path / "sweep-g100.json").read_text())
    assert record["rows"] == [row] and (record["gpu"], record["commit"]) == ("G100", "abc")
    assert record["command"] == f"python -m tools.sweep {' '.join(words)}"
