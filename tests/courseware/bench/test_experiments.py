"""Lesson 10's experiments, and the command that runs them, as far as they go without a GPU."""

import json
import re

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_lib import runtime
from courseware.bench import experiments, records, suite, timing
from courseware.bench.accuracy import check_attention


def test_standard_attention_is_attention():
    q, k, v = (torch.randn(2, 3, 40, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    check_attention((experiments.standard_attention(q, k, v), None), q, k, v, causal=False)


def test_the_plain_kernel_is_run_with_ieee_products_and_without(monkeypatch):
    """The interpreter multiplies both alike, so both agree with float64 here."""
    launched = []
    with_edits = experiments.with_edits

    def watched(function, edits, name):
        launched.append((name, edits))
        return with_edits(function, edits, name)

    monkeypatch.setattr(experiments, "with_edits", watched)
    inputs = torch.randn(4, 1, 3, 128, 64, device=runtime.device())
    monkeypatch.setattr(timing, "random_inputs", lambda *shape: inputs)
    errors = experiments.precision_errors()
    assert launched == [("ieee_relative_error", {}), ("tf32_relative_error", experiments.TF32_EDITS)]
    assert list(errors) == ["ieee_relative_error", "tf32_relative_error"]
    assert 0 < errors["ieee_relative_error"] < 1e-6
    assert errors["tf32_relative_error"] == errors["ieee_relative_error"] or runtime.mode() == "gpu"


@pytest.fixture
def tiny(monkeypatch, made_up):
    """Every input has one head of 32 rows, and every time is made up, so that experiments run without a GPU."""

    def random_inputs(batch, heads, length, head_dim, dtype, kv_heads=None, differentiable=False):
        q, k, v, do = (torch.randn(1, 1, 32, 16, device=runtime.device()).to(dtype) for _ in range(4))
        return *(x.requires_grad_(differentiable) for x in (q, k, v)), do

    for module in (timing, suite):
        monkeypatch.setattr(module, "random_inputs", random_inputs)
        monkeypatch.setattr(module, "median_ms", made_up)
        monkeypatch.setattr(module, "PEERS", {"sdpa_flash": SDPBackend.MATH})
    monkeypatch.setattr(timing, "back_to_back_s", made_up)
    monkeypatch.setattr(timing, "peak_bytes", lambda call: len(call()))
    monkeypatch.setattr(experiments, "FP32_PEERS", {"sdpa_unfused": SDPBackend.MATH})


@pytest.mark.parametrize(
    "record, rows",
    [
        ("attention-h100", lambda: suite.compared_rows(64, 1024, True, torch.float16)),
        ("shapes-h100", suite.shape_rows),
        ("standard-h100", experiments.standard_rows),
        ("ladder-h100", experiments.ladder_rows),
        ("fp32-h100", experiments.fp32_rows),
    ],
)
def test_an_experiment_runs_and_its_rows_are_those_of_the_record(tiny, record, rows):
    found, committed = list(rows()), records.rows(record)
    if record == "ladder-h100":  # two rungs came later, and were measured on another GPU
        later = {"vote alone", "each row for itself"}
        assert later <= {row["rung"] for row in records.rows("ladder-h200")}
        found = [row for row in found if row["rung"] not in later]
    assert {tuple(row) for row in found} == {tuple(row) for row in committed}
    if record == "attention-h100":
        assert [row["pass"] for row in found] == ["forward", "backward"]
        assert found[1]["tflops"]["ours"] == 2.5 * found[0]["tflops"]["ours"]
        assert all(error < 1e-2 for row in found for error in row["relative_error"].values())
    else:
        assert len(found) == len(committed)


def test_memory_and_the_host_s_time_are_those_of_the_record(tiny):
    measured = suite.memory_and_host_time()
    assert list(records.record("shapes-h100"))[-len(measured) :] == list(measured)
    assert measured["forward_peak_bytes"] == 1 and measured["backward_peak_bytes"] == 3, "what each call returns"


def test_wrong_answers_are_not_timed(tiny, monkeypatch):
    from courseware.bench import triton_ladder

    monkeypatch.setattr(triton_ladder, "run", lambda rung, q, k, v, causal: q)
    with pytest.raises(RuntimeError, match="wrong answers are not timed: plain"):
        next(experiments.ladder_rows())


def test_help_lists_every_experiment_under_its_own_heading(capsys):
    with pytest.raises(SystemExit):
        suite.main(["--help"])
    _, _, listed = capsys.readouterr().out.partition("\nexperiments:\n")
    assert set(re.findall(r"^  --([\w-]+)", listed, re.MULTILINE)) == {*suite.EXPERIMENTS, "variants"}


def test_one_experiment_at_a_time():
    with pytest.raises(SystemExit):
        suite.main(["--tf32", "--ladder"])


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(runtime, "mode", lambda: "interpreter")
    assert suite.main(["--tf32"]) == 1
    assert "needs a GPU" in capsys.readouterr().err


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G100")


def test_an_experiment_s_record_says_how_it_was_made(on_a_gpu, monkeypatch, tmp_path, capsys):
    def errors():
        """Made up."""
        return {"ieee_relative_error": 1e-7}

    monkeypatch.setitem(suite.EXPERIMENTS, "tf32", errors)
    file = tmp_path / "tf32-g100.json"
    assert suite.main(["--commit", "abc", "--tf32", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["gpu"] == "G100" and record["torch"] == torch.__version__ and record["commit"] == "abc"
    assert record["command"] == "python -m courseware bench --commit abc --tf32 --json tf32-g100.json"
    assert list(record)[-1] == "ieee_relative_error" and "1e-07" in capsys.readouterr().out


def test_without_an_experiment_the_requested_shapes_are_compared(on_a_gpu, monkeypatch, tmp_path, capsys):
    def compared_rows(head_dim, length, causal, dtype, with_flex):
        assert (dtype, with_flex) == (torch.bfloat16, False)
        return [{"pass": "forward", "shape": [head_dim, length, causal], "tflops": {"ours": 3.0, "sdpa_flash": 2.0}}]

    monkeypatch.setattr(suite, "compared_rows", compared_rows)
    file = tmp_path / "attention.json"
    options = ["--head-dim", "64", "--length", "1024", "2048", "--dtype", "bfloat16", "--json", str(file)]
    assert suite.main(options) == 0
    shapes = [row["shape"] for row in json.loads(file.read_text())["rows"]]
    assert shapes == [[64, n, causal] for causal in (False, True) for n in (1024, 2048)]
    assert "tflops ours 3, sdpa_flash 2; ours / sdpa_flash 1.5" in capsys.readouterr().out.splitlines()[-1]
