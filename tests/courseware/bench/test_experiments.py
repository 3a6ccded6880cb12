"""The command that measures, and lesson 10's, 13's and 14's experiments, as far as they go without a GPU.

They run on tiny shapes, with every time made up.
"""

import functools
import json
import re

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend

from course_lib import runtime
from course_lib.kernels import flash_decode
from course_lib.kernels.cuda import gpu
from course_lib.serving import model
from course_lib.serving.server import Server
from courseware.bench import (
    counters,
    decode_timing,
    experiments,
    rates,
    records,
    serving_timing,
    suite,
    timing,
    variant_timing,
)
from courseware.bench.serving_timing import Workload
from courseware.worker.compile_for_gpu import instructions_of


def made_up(contestants, **_how):
    """A clock that measures nothing: every contestant is called once, and takes 0.5 ms (or s)."""
    for call in contestants.values():
        call()
    return dict.fromkeys(contestants, 0.5)


def set_all(monkeypatch, module, **values):
    for name, value in values.items():
        monkeypatch.setattr(module, name, value)


# The command, and lesson 10's.


def test_the_plain_kernel_is_run_with_ieee_products_and_without(monkeypatch):
    """The interpreter multiplies both alike, so both agree with float64 here."""
    launched, with_edits = [], experiments.with_edits
    monkeypatch.setattr(experiments, "with_edits", lambda *of: launched.append(of[1:]) or with_edits(*of))
    errors = experiments.precision_errors()
    assert launched == [({}, "ieee_relative_error"), (experiments.TF32_EDITS, "tf32_relative_error")]
    ieee, tf32 = (errors[f"{name}_relative_error"] for name in ("ieee", "tf32"))
    assert 0 < ieee < 1e-6 and (tf32 == ieee or runtime.mode() == "gpu")


@pytest.fixture
def tiny(monkeypatch):
    """Every input has one head of 32 rows, and every time is made up, so that experiments run without a GPU."""

    def random_inputs(batch, heads, length, head_dim, dtype, kv_heads=None, differentiable=False):
        q, k, v, do = (torch.randn(1, 1, 32, 16, device=runtime.device()).to(dtype) for _ in range(4))
        return *(x.requires_grad_(differentiable) for x in (q, k, v)), do

    for module in (timing, suite):
        peers = {"sdpa_flash": SDPBackend.MATH}
        set_all(monkeypatch, module, random_inputs=random_inputs, median_ms=made_up, PEERS=peers)
    set_all(monkeypatch, timing, back_to_back_s=made_up, peak_bytes=lambda call: len(call()))
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
    assert {frozenset(row) for row in found} == {frozenset(row) for row in committed}
    if record == "attention-h100":
        assert [row["pass"] for row in found] == ["forward", "backward"]
        # One head of 32 rows and 16 columns, causal, in half a millisecond.
        assert found[0]["tflops"]["ours"] == pytest.approx(4 * 32**2 * 16 / 2 / 0.5e-3 / 1e12)
        assert found[1]["tflops"]["ours"] == 2.5 * found[0]["tflops"]["ours"]
        assert all(0 < error < 1e-2 for row in found for error in row["relative_error"].values())
    else:
        assert len(found) == len(committed)


def test_memory_and_the_host_s_time_are_those_of_the_record(tiny):
    measured = suite.memory_and_host_time()
    assert measured.keys() < records.record("shapes-h100").keys()
    assert measured["forward_peak_bytes"] == 1 and measured["backward_peak_bytes"] == 3, "what each call returns"


def test_a_wrong_rung_is_not_timed(tiny, monkeypatch):
    from courseware.bench import triton_ladder

    monkeypatch.setitem(triton_ladder.LAUNCHES, "plain", lambda q, k, v, **how: q)
    with pytest.raises(RuntimeError, match="wrong answers are not timed: plain"):
        next(experiments.ladder_rows())


def test_help_lists_every_experiment_under_its_own_heading(capsys):
    with pytest.raises(SystemExit):
        suite.main(["--help"])
    _, _, listed = capsys.readouterr().out.partition("\nexperiments:\n")
    measured = {name for name, kind in records.KINDS.items() if "measure" in kind}
    assert set(re.findall(r"^  --([\w-]+)", listed, re.MULTILINE)) == measured - {"attention"}
    with pytest.raises(SystemExit):
        suite.main(["--tf32", "--ladder"])  # one experiment at a time


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(runtime, "mode", lambda: "interpreter")
    assert suite.main(["--tf32"]) == 1 and "needs a GPU" in capsys.readouterr().err


def test_a_record_says_how_it_was_made(monkeypatch, tmp_path, capsys):
    """Of an experiment, and of the comparison that runs without one."""

    def errors():
        """Made up."""
        return {"ieee_relative_error": 1e-7}

    def compared_rows(head_dim, length, causal, dtype, with_flex):
        assert (dtype, with_flex, suite.attention.PORTABLE) == (torch.bfloat16, False, True)
        return [{"pass": "forward", "shape": [head_dim, length, causal], "tflops": {"ours": 3.0, "sdpa_flash": 2.0}}]

    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G100")
    monkeypatch.setattr(experiments, "precision_errors", errors)
    monkeypatch.setattr(suite, "compared_rows", compared_rows)
    monkeypatch.setattr(suite.attention, "PORTABLE", False)
    file = tmp_path / "tf32-g100.json"
    assert suite.main(["--commit", "abc", "--tf32", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["gpu"] == "G100" and record["torch"] == torch.__version__ and record["commit"] == "abc"
    assert record["command"] == "python -m courseware bench --commit abc --tf32 --json tf32-g100.json"
    assert list(record)[-1] == "ieee_relative_error" and "1e-07" in capsys.readouterr().out
    options = ["--head-dim", "64", "--length", "1024", "2048", "--dtype", "bfloat16", "--portable", "--json", str(file)]
    assert suite.main(options) == 0
    shapes = [row["shape"] for row in json.loads(file.read_text())["rows"]]
    assert shapes == [[64, n, causal] for causal in (False, True) for n in (1024, 2048)]
    assert "tflops ours 3, sdpa_flash 2; ours / sdpa_flash 1.5" in capsys.readouterr().out.splitlines()[-1]


# The GPU's counters, as ncu writes them.

HEADER = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'


def written(*kernels):
    """What ncu writes: kernels are (name, {counter: value})."""
    lines = ["==PROF== Connected to process 7", "a line of the program", HEADER]
    for number, (name, values) in enumerate(kernels):
        lines += [f'"{number}","7","{name}","{counter}","byte","{value:,}"' for counter, value in values.items()]
    return "\n".join(lines)


def test_counters_are_summed_by_case_and_each_set_is_a_run_of_its_own(monkeypatch):
    """ncu takes one log file a run; a case has the counters of all runs. Sectors are 32 bytes."""
    ran = []

    def run(command, check):
        metrics = command[command.index("--metrics") + 1].split(",")
        ran.append((command[-2:], metrics))
        found = {metric: 10 * len(ran) for metric in metrics}
        names = ("gemm", "softmax", "spin_kernel(long)", "flash", "spin_kernel(long)")
        command[command.index("--log-file") + 1].write_text(written(*((name, found) for name in names)))

    monkeypatch.setattr(counters.subprocess, "run", run)
    monkeypatch.setitem(counters.CASES, "dram", lambda: [({"method": name}, None) for name in ("standard", "flash")])
    standard, flash = counters.dram_rows()
    assert ran == [
        (["courseware.bench.counters", "dram"], list(names.values())) for names in counters.COUNTERS["bytes"]
    ]
    expected = {"dram_read_bytes": 10, "dram_write_bytes": 10, "l2_read_bytes": 640, "l2_write_bytes": 640}
    expected |= {"sm_read_bytes": 30, "sm_write_bytes": 30, "kernels": 1}
    assert flash == {"method": "flash", **expected}
    assert standard == {"method": "standard"} | {name: 2 * count for name, count in expected.items()}
    with pytest.raises(RuntimeError, match="ERR_NVGPUCTRPERM"):
        counters.sums_by_case("==ERROR== ERR_NVGPUCTRPERM: no permission", counters.COUNTERS["bytes"][0])


# Lesson 14's.

SHAPE = (2, 4, 2, 256)


@pytest.fixture
def tiny_decode(monkeypatch):
    """Short caches of 16 columns; "sdpa_flash" is PyTorch's plain attention, and "sdpa_cudnn" is not there."""
    set_all(
        monkeypatch, decode_timing, HEAD_DIM=16, SHAPES=((1, *SHAPE[1:]), SHAPE), SPECULATIVE_SHAPE=SHAPE,
        random_case=functools.partial(decode_timing.random_case, device=runtime.device()),
        PEERS={"sdpa_flash": SDPBackend.MATH, "sdpa_cudnn": SDPBackend.OVERRIDEABLE},
    )  # fmt: skip
    set_all(monkeypatch, timing, median_ms=made_up, back_to_back_s=made_up)
    if runtime.mode() == "interpreter":
        monkeypatch.setattr(decode_timing, "replayed", lambda call: call)


def test_rows_of_decoding_have_every_contestant_that_is_there(tiny_decode, monkeypatch):
    alone, several, speculative = decode_timing.decode_rows()
    names = {"ours", "flash_attention", "unsplit", "standard", "paged_16", "paged_64", "paged_256", "sdpa_flash"}
    assert several["relative_error"].keys() == names == several["ms"].keys() - {"read"}
    assert several["missing"] == ["sdpa_cudnn"] and "back_to_back_us" not in several
    assert alone["back_to_back_us"].keys() == alone["relative_error"].keys() == names | {"graph"}
    assert [several[key] for key in ("batch", "heads", "kv_heads", "n")] == [*SHAPE]
    assert (several["n_new"], speculative["n_new"]) == (1, 4) and "standard" not in speculative["ms"]
    for row in (alone, several, speculative):
        assert all(0 < error < 1e-2 for error in row["relative_error"].values()), row
        assert row["kv_bytes"] == 2 * row["batch"] * 2 * 256 * 16 * 2
        assert row["gb_per_s"]["ours"] == pytest.approx(row["kv_bytes"] / 0.5e-3 / 1e9)
    monkeypatch.setattr(decode_timing, "flash_decode", lambda *of, **how: 1.05 * flash_decode(*of, **how))
    with pytest.raises(RuntimeError, match="wrong answers are not timed: ours"):
        decode_timing.compared(*SHAPE)


def test_counted_cases_of_decoding_stand_beside_the_closed_form(tiny_decode):
    rows, calls = zip(*decode_timing.counted_cases(), strict=True)
    methods = ["ours", "paged_16", "paged_64", "paged_256", "read"]
    assert [(row["method"], row["batch"]) for row in rows] == [(m, batch) for batch in (1, 2) for m in methods]
    for row, call in zip(rows, calls, strict=True):
        assert (call().dim() == 0) == (row["method"] == "read")
        if row["splits"] == 1:
            kv_bytes, q_bytes = 2 * row["batch"] * 2 * 256 * 16 * 2, row["batch"] * 4 * 16 * 2
            assert (row["requested_read_bytes"], row["requested_write_bytes"]) == (kv_bytes + q_bytes, q_bytes)


WORKLOADS = (Workload("tiny", torch.float32, (5, 17), 6), Workload("wide", torch.float16, (40, 3, 12), 6))


@pytest.fixture
def tiny_server(monkeypatch):
    wide = functools.partial(model.TinyModel, n_layers=1, width=32, heads=4, kv_heads=2, head_dim=8)
    monkeypatch.setitem(serving_timing.MODELS, "wide", wide)
    set_all(monkeypatch, serving_timing, WORKLOADS=WORKLOADS, PAGE_SIZE=16, WARM_UP_STEPS=1, CHECKED_STEPS=2)


def test_rows_of_serving(tiny_server):
    tiny, wide = serving_timing.served_rows()
    assert [tiny[key] for key in ("model", "dtype", "requests")] == ["tiny", "float32", 2]
    for row in (tiny, wide):
        for name, ms in row["step_ms"].items():
            assert row["tokens_per_s"][name] == pytest.approx(row["requests"] * 1e3 / ms)
    # Pages of 16 for 46, 9 and 18 tokens, and three rows of 128: K and V of 2 heads of 8 numbers, 2 bytes each.
    assert wide["cache_bytes"] == {"pages": (3 + 1 + 2) * 16 * 64, "padded": 3 * 128 * 64}


@pytest.mark.parametrize("batch, n_new, heads, kv_heads", ((3, 1, 6, 2), (1, 40, 6, 2)))
def test_padded_attention_is_flash_decode_with_a_page_for_each_sequence(batch, n_new, heads, kv_heads):
    tensor = functools.partial(torch.tensor, device=runtime.device(), dtype=torch.int32)
    q = torch.randn(batch, heads, n_new, 16).to(runtime.device())
    k, v = torch.randn(2, 3, kv_heads, 64, 16).to(runtime.device())
    table, lengths = tensor([[2]] if batch == 1 else [[0], [1], [2]]), tensor([40, 64, 1][:batch])
    o = serving_timing.padded_attention(q, k, v, lengths, block_table=table)
    assert torch.allclose(o, flash_decode(q, k, v, lengths, block_table=table), atol=1e-5)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.model)
def test_wrong_texts_and_inexact_logits_are_not_timed(tiny_server, monkeypatch, workload):
    monkeypatch.setattr(serving_timing, "WORKLOADS", (workload,))

    def server_that_errs(name, dtype, factor, model, **options):
        server = Server(model, **options)
        attention, kind = server.attention, "padded" if "attention" in options else "pages"
        of = kind, model.embedding.weight.dtype
        server.attention = lambda *given, **how: attention(*given, **how) * (factor if of == (name, dtype) else 1)
        return server

    little = 1.1 if workload.dtype == torch.float16 else 1 + 1e-5
    for error, said in (
        (("pages", torch.float32, -9.0), f"pages, {workload.model}"),
        (("padded", torch.float32, -9.0), f"padded, {workload.model}"),
        (("pages", workload.dtype, little), f"{workload.model}: logits: Frob"),
    ):
        monkeypatch.setattr(serving_timing, "Server", functools.partial(server_that_errs, *error))
        with pytest.raises(RuntimeError, match=f"wrong answers are not timed: {said}"):
            list(serving_timing.served_rows())


# Lesson 13's.


@pytest.fixture
def tiny_variants(monkeypatch):
    """Two heads of 16 columns and 70 tokens, one case of each kind."""
    cases = ("full", "causal", "window 256", "documents", "prefix-LM", "block-sparse 10 %", "ALiBi", "dropout")
    set_all(monkeypatch, variant_timing, CASES=cases, CHECKED_LENGTH=70)
    set_all(monkeypatch, timing, HIDDEN_DIM=32, TOKENS=70, median_ms=made_up, compile_ahead=lambda *_: None)


def test_every_case_has_rows_that_say_what_was_visited(tiny_variants):
    options = suite._parser().parse_args(["--variants", "--head-dim", "16", "--length", "70"])
    rows = list(options.measure(options))
    for name, forward, backward in zip(variant_timing.CASES, rows[::2], rows[1::2], strict=True):
        for row, which, factor, checked, tiles in (
            (forward, "forward", 1, ["o"], ["forward"]),
            (backward, "backward", 2.5, ["dq", "dk", "dv"], ["dkdv", "dq"]),
        ):
            assert (row["case"], row["pass"], list(row["checked"]), list(row["tiles"])) == (name, which, checked, tiles)
            assert list(row["ms"]) == ["ours"] + ["plain"] * (name in ("full", "causal"))
            flops = factor * 4 * 16 * 2 * 70**2 * row["visible"]
            assert row["tflops"]["ours"] == pytest.approx(flops / 0.5e-3 * 1e-12)
    visible = {row["case"]: row["visible"] for row in rows}
    assert visible["full"] == 1 and visible["causal"] == visible["ALiBi"] == 71 / 140 == visible["window 256"]
    assert visible["documents"] < visible["causal"] < visible["prefix-LM"]


def test_cases_and_what_flex_attention_sees_of_them():
    """Its functions are called here as it calls them, with integers. A query sees itself in every case."""
    n = 300
    for name in variant_timing.CASES:
        case = variant_timing.case_of(name, n, 2, "cpu")
        queries, keys = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
        if name != "full":
            seen = variant_timing.mask_mod_of(case.how["mask"], "cpu")(0, 0, queries, keys)
            assert np.array_equal(seen.expand(n, n).numpy(), case.how["mask"].dense(n, n)), name
        assert case.how["mask"].dense(n, n).diagonal().all(), name
        assert ("score_mod" in case.how) == (case.score_mod is not None), name
    for share in (10, 25, 50):
        layout = variant_timing.case_of(f"block-sparse {share} %", 4096, 2, "cpu").how["mask"].layout
        assert layout.mean() == pytest.approx(share / 100, abs=1e-3)


@pytest.mark.parametrize("name", ("documents", "dropout"))
def test_wrong_answers_of_variants_are_not_timed(tiny_variants, monkeypatch, name):
    attend = variant_timing.flash_attention
    monkeypatch.setattr(variant_timing, "flash_attention", lambda *of, **how: 1.01 * attend(*of, **how))
    with pytest.raises(RuntimeError, match=f"wrong answers are not timed: {name}, head_dim 16: o"):
        variant_timing.check(name, 16, torch.float16)


OPCODES = {
    "fma": "FFMA", "add": "FADD", "mul": "FMUL", "max": "FMNMX", "exp2": "MUFU.EX2", "shuffle": "SHFL.DOWN",
    "convert": "F2FP.F16.F32",
}  # fmt: skip


def test_rates_count_what_the_machine_executes():
    """The compiler has left no instruction out, and loads wait for loads."""
    assert OPCODES.keys() == set(rates.INSTRUCTIONS)
    names = [f"{what}_{name}" for name in OPCODES for what in ("rate", "latency")]
    cubin = gpu.compiled(rates.SOURCE, "chase_l2", "sm_90").code  # and all others of the source
    listings = dict(re.findall(r"Function : (\w+)\n(.*?)(?=Function :|\Z)", instructions_of(cubin), re.DOTALL))
    for name in names:
        found = re.findall(rf" {OPCODES[name.split('_')[1]]}\b", listings[name])
        assert 256 <= len(found) < 280, name  # and a few that make the first values and add up the last
    loads = re.findall(r"LDG\.E\.64\S* (R\d+), desc\[\w+\]\[(R\d+)", listings["chase_l2"])
    assert len(loads) > 16 and loads[-1][1] == loads[-2][0]
