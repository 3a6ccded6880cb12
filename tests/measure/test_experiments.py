"""Lesson 10's experiments, as far as they go without a GPU."""

import itertools
import time

import pytest
import torch

from course_lib import runtime
from course_lib.kernels.configs import select
from course_lib.measure import accuracy, bench, experiments, records
from course_lib.measure.accuracy import check_attention

COUNTERS = experiments.COUNTERS[0] | experiments.COUNTERS[1]
H100 = {"dtype": torch.float16, "capability": (9, 0), "by_descriptor": True}
HEADER = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'


def test_standard_attention_is_attention():
    q, k, v = (torch.randn(2, 3, 40, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    check_attention((experiments.standard_attention(q, k, v), None), q, k, v, causal=False)


@pytest.mark.parametrize("causal", (False, True))
def test_answers_that_are_wrong_are_not_timed(causal):
    q, k, v, do = (torch.randn(2, 2, 40, 16, generator=torch.Generator().manual_seed(i)).half() for i in range(4))
    o = accuracy.exact_attention(q, k, v, causal=causal)[0].half()
    gradients = [x.half() for x in accuracy.exact_gradients(q, k, v, do, causal=causal)]
    bench.check_answers({"right": [o]}, (q, k, v), causal)
    bench.check_answers({"right": gradients, "some": [None, *gradients[1:]]}, (q, k, v, do), causal)
    last_wrong, one_wrong = o.clone(), o.clone()
    last_wrong[-1, -1] = 0
    one_wrong[0, 0, 39, 3] += 0.01
    for wrong in (1.004 * o, o.roll(1, 2), o * torch.nan, last_wrong, one_wrong):
        with pytest.raises(RuntimeError, match=r"wrong answers are not timed: wrong, \[2, 2, 40, 16\]: o: "):
            bench.check_answers({"right": [o], "wrong": [wrong]}, (q, k, v), causal)
    with pytest.raises(RuntimeError, match="not timed: wrong, .*dk: "):
        bench.check_answers({"wrong": [gradients[0], gradients[2], gradients[1]]}, (q, k, v, do), causal)


def written(*kernels):
    """What ncu writes: kernels are (name, {counter: value})."""
    lines = ["==PROF== Connected to process 7", "a line of the program", HEADER]
    for number, (name, values) in enumerate(kernels):
        lines += [f'"{number}","7","{name}","{counter}","byte","{value:,}"' for counter, value in values.items()]
    return "\n".join(lines)


def values(read, write):
    return {"dram__bytes_read.sum": read, "dram__bytes_write.sum": write}


def test_kernels_are_summed_by_case():
    text = written(
        ("gemm", values(1_000, 2)), ("softmax", values(30, 40)), ("spin_kernel(long)", values(512, 0)),
        ("flash", values(7, 8)), ("spin_kernel(long)", values(0, 0)),
    )  # fmt: skip
    assert experiments.by_case(text, experiments.COUNTERS[0]) == [
        {"dram_read_bytes": 1_030, "dram_write_bytes": 42, "kernels": 2},
        {"dram_read_bytes": 7, "dram_write_bytes": 8, "kernels": 1},
    ]


def test_sectors_are_32_bytes():
    sectors = {counter: 3 for counter in experiments.COUNTERS[1].values()}
    text = written(("flash", sectors), ("spin_kernel", sectors))
    (case,) = experiments.by_case(text, experiments.COUNTERS[1])
    assert case == {"l2_read_bytes": 96, "l2_write_bytes": 96, "kernels": 1}


def test_no_counters_is_an_error():
    with pytest.raises(RuntimeError, match="ERR_NVGPUCTRPERM"):
        experiments.by_case("==ERROR== ERR_NVGPUCTRPERM: no permission", COUNTERS)


@pytest.mark.parametrize("head_dim", (32, 64, 128, 256))
def test_candidates_have_the_shipped_configurations_among_them(head_dim):
    for causal, kernel in itertools.product((False, True), ("forward", "dkdv", "dq")):
        configs = list(experiments.candidates(kernel, head_dim))
        assert len(set(configs)) == len(configs) < 150
        assert select(kernel, head_dim=head_dim, causal=causal, n_k=4096, **H100) in configs, kernel


@pytest.mark.parametrize("head_dim, causal", list(itertools.product((64, 128), (False, True))))
def test_what_is_shipped_was_swept_and_is_within_3_percent_of_the_fastest(head_dim, causal):
    rows = [row for row in records.rows("sweep-h100", head_dim=head_dim, causal=causal) if "ms" in row]
    (shipped,) = [row for row in rows if row["shipped"]]
    assert shipped["tma"]
    config = select("forward", head_dim=head_dim, causal=causal, n_k=shipped["n"], **H100)
    assert config == tuple(shipped[name] for name in experiments.TUNED)
    assert shipped["ms"] <= 1.03 * min(row["ms"] for row in rows)


@pytest.mark.parametrize("which, kernels", experiments.KERNELS.items())
def test_a_sweep_has_a_row_for_every_candidate(monkeypatch, which, kernels):
    """On the CPU, with times that are made up."""
    sizes = {"block_q": (32,), "block_k": (32,), "num_warps": (2,), "num_stages": (1, 2)}
    monkeypatch.setattr(experiments, "TUNED", sizes)
    monkeypatch.setattr(experiments, "TUNED_LENGTH", 40)
    monkeypatch.setattr(experiments, "_compile_ahead", lambda jobs: None)
    device = runtime.device()
    monkeypatch.setattr(bench, "random_inputs", lambda b, h, n, d, dtype: torch.randn(4, 1, 2, n, d).to(device, dtype))
    monkeypatch.setattr(bench, "median_ms", lambda calls, rounds: {config: config[3] for config in calls})
    rows = experiments.tune_rows(which, [16])
    assert [(row.get("kernel", "forward"), row["causal"], row["num_stages"], row["ms"]) for row in rows] == [
        (kernel, causal, stages, stages) for kernel in kernels for causal in (False, True) for stages in (1, 2)
    ]
    wrong = experiments._configured

    def doubled(*case):
        return lambda config: lambda: [x if x is None else 2 * x for x in wrong(*case)(config)()]

    monkeypatch.setattr(experiments, "_configured", doubled)
    with pytest.raises(RuntimeError, match="wrong answers are not timed"):
        experiments.tune_rows(which, [16])


@pytest.mark.parametrize("wait, expected_s", [(False, 0.0), (True, 0.005)])
def test_a_train_is_timed_with_the_gpu_s_end_or_without(monkeypatch, wait, expected_s):
    queued = []

    def synchronize():
        time.sleep(0.005 * len(queued))
        queued.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    seconds = bench.least_mean_s({"a": lambda: queued.append(1)}, calls=4, wait=wait, least_rounds=3, least_s=0)["a"]
    assert expected_s <= seconds < expected_s + 0.004


def test_trains_take_turns_until_rounds_and_time_suffice_and_the_quickest_counts(monkeypatch):
    now_s, order = [0.0], []
    spent_s = {"a": iter([3.0, 1.0, 2.0] + 99 * [4.0]), "b": iter(102 * [2.0])}

    def call(name):
        order.append(name)
        now_s[0] += next(spent_s[name])

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    contestants = {name: lambda name=name: call(name) for name in "ab"}
    quickest_s = bench.least_mean_s(contestants, calls=1, wait=False, least_rounds=3, least_s=0)
    assert quickest_s == {"a": 1.0, "b": 2.0} and order == ["a", "b"] * 3
    bench.least_mean_s(contestants, calls=1, wait=False, least_rounds=1, least_s=20)
    assert len(order) == 6 + 2 * 4, "four rounds of 4 + 2 seconds, until 20 have passed"
