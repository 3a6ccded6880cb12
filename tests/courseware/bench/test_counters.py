"""What ncu writes, summed over the kernels of each case."""

import pytest

from courseware.bench import counters

HEADER = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'


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
    assert counters.sums_by_case(text, counters.COUNTERS[0]) == [
        {"dram_read_bytes": 1_030, "dram_write_bytes": 42, "kernels": 2},
        {"dram_read_bytes": 7, "dram_write_bytes": 8, "kernels": 1},
    ]


def test_sectors_are_32_bytes():
    sectors = {counter: 3 for counter in counters.COUNTERS[1].values()}
    text = written(("flash", sectors), ("spin_kernel", sectors))
    (case,) = counters.sums_by_case(text, counters.COUNTERS[1])
    assert counters.in_bytes(case) == {"l2_read_bytes": 96, "l2_write_bytes": 96, "kernels": 1}


def test_no_counters_is_an_error():
    with pytest.raises(RuntimeError, match="ERR_NVGPUCTRPERM"):
        counters.sums_by_case("==ERROR== ERR_NVGPUCTRPERM: no permission", counters.COUNTERS[0])


def test_each_set_of_counters_is_a_run_of_its_own(monkeypatch):
    """ncu takes one log file a run; a case has the counters of all runs."""
    ran = []

    def run(command, check):
        metrics = command[command.index("--metrics") + 1].split(",")
        ran.append((command[-1], metrics))
        found = {metric: 10 * len(ran) for metric in metrics}
        command[command.index("--log-file") + 1].write_text(written(("flash", found), ("spin_kernel", found)))

    monkeypatch.setattr(counters.subprocess, "run", run)
    (case,) = counters.counted_by_ncu("courseware.bench.counters", counters.COUNTERS)
    assert ran == [("courseware.bench.counters", list(names.values())) for names in counters.COUNTERS]
    assert case == {name: 10 * i for i, names in enumerate(counters.COUNTERS, 1) for name in names} | {"kernels": 1}
