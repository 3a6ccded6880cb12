"""Lesson 10's tables against sums by hand, on invented rows, and every picture on invented records."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from course_lib import traffic
from courseware.bench import records
from courseware.explorers import measured
from courseware.explorers.figures import png

LENGTHS = (64, 128, 1024, 4096)


def standard_rows():
    """Times of at least three microseconds a launch, and more for the longest sequences."""
    rows = []
    for n in LENGTHS:
        for method, launches in (("standard", 3), ("flash", 1), ("sdpa_flash", 1)):
            ms = max(0.003 * launches, n * n * 1e-8 * launches)
            peak_bytes = {"standard": 64 * n * n, "flash": 0, "sdpa_flash": 64 * n}[method]
            shape = {"n": n, "head_dim": 64, "heads": 16, "batch": 1, "causal": False, "pass": "forward"}
            rows.append(shape | {"method": method, "ms": ms, "train_ms": 2 * ms, "peak_bytes": peak_bytes})
    return rows


def dram_rows():
    shape = {"n": 1024, "head_dim": 64, "heads": 16, "batch": 1, "causal": False}
    shape |= {"sm_read_bytes": 400.0, "sm_write_bytes": 40.0, "l2_read_bytes": 300.0, "l2_write_bytes": 30.0}
    blocks = {"block_q": 64, "block_k": 128}
    return [
        shape | {"method": "standard", "dram_read_bytes": 90.0, "dram_write_bytes": 10.0},
        shape | blocks | {"method": "flash", "dram_read_bytes": 15.0, "dram_write_bytes": 5.0},
    ]


def test_growth_is_the_exponent_of_a_power_law():
    n = np.array([64, 128, 256])
    assert measured.growth(n, 3.0 * n**2) == pytest.approx(2)
    assert measured.growth([1, *n], [0, *(5 * n)]) == pytest.approx(1)
    assert measured.growth(n, [0, 0, 0]) == 0


def test_rows_by_length_are_in_order():
    rows = standard_rows()[::-1]
    n, ms = measured.by_length(rows, "standard", "ms")
    assert n == list(LENGTHS) and ms == sorted(ms) and ms[0] == pytest.approx(0.009)
    assert measured.by_length(rows, "no such method", "ms") == ([], [])


def test_faster_from_is_where_it_stays_faster():
    rows = [
        {"method": method, "n": n, "ms": ms}
        for method, times in (("standard", (1.0, 3.0, 1.0, 8.0)), ("flash", (2.0, 1.0, 2.0, 2.0)))
        for n, ms in zip(LENGTHS, times, strict=True)
    ]
    assert measured.faster_from(rows) == ([(64, 0.5), (128, 3.0), (1024, 0.5), (4096, 4.0)], 4096)
    assert measured.faster_from(rows[:3] + rows[4:7])[1] is None
    trains = [row | {"train_ms": 1.0 if row["method"] == "flash" else 2.0} for row in rows]
    assert measured.faster_from(trains, "train_ms") == ([(n, 2.0) for n in LENGTHS], 64)
    assert measured.faster_from([]) == ([], None)


def test_requested_bytes_are_computed_for_the_shape_of_the_row():
    standard = traffic.standard_attention(1024, 1024, 64, heads=16).total_bytes
    flash = traffic.flash_attention(1024, 1024, 64, block_q=64, block_k=128, heads=16).total_bytes
    assert measured.moved(dram_rows()) == [
        measured.Moved("flash", 1024, flash, 440.0, 330.0, 20.0),
        measured.Moved("standard", 1024, standard, 440.0, 330.0, 100.0),
    ]


def test_the_ratios_are_of_standard_over_flash():
    both = [{"method": "standard", "ms": 9.0}, {"method": "flash", "ms": 3.0}, {"method": "sdpa_flash", "ms": 1.0}]
    ratios = measured.standard_over_flash(both, dram_rows())
    assert ratios["GFLOPs"] == pytest.approx((66.6 / 75.2, 6 / 9))
    assert ratios["HBM, GB"] == pytest.approx((40.3 / 4.4, 5.0))
    assert ratios["time, ms"] == pytest.approx((41.7 / 7.3, 3.0))


def pictures():
    standard = records.rows("standard-h100")
    return {
        "memory": measured.draw_memory(standard),
        "times": measured.draw_times(standard, standard),
        "dram": measured.draw_dram(records.rows("dram-h100")),
        "ratios": measured.draw_ratios(records.rows("attention-h100")),
    }


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Replaces the committed records by the invented ones of this file."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    every = {"standard": standard_rows(), "dram": dram_rows(), "attention": [attention_row()]}
    origin = {"gpu": "made up", "torch": "1", "triton": "2", "date": "2026-01-01"}
    for name, rows in every.items():
        (tmp_path / f"{name}-h100.json").write_text(json.dumps(origin | {"rows": rows}))


def attention_row():
    tflops = {"ours": 3.0, "sdpa_flash": 2.0, "sdpa_cudnn": 4.0}
    return {"pass": "forward", "head_dim": 64, "causal": False, "n": 1024, "tflops": tflops}


def test_pictures_name_where_their_figures_come_from(made_up):
    for name, figure in pictures().items():
        assert png(figure)
        caption = " ".join(text.get_text() for text in figure.texts)
        assert "made up, torch 1, triton 2, 2026-01-01" in caption, name


def test_ratio_picture_has_ours_over_each_peer(made_up):
    forward, backward = pictures()["ratios"].axes
    assert sorted(x for line in forward.lines for x in line.get_xdata()[:1]) == [0.75, 1, 1.5]


def test_a_legend_names_each_thing_once(made_up):
    axes = pictures()["dram"].axes[0]
    named = [text.get_text() for text in axes.get_legend().texts]
    assert len(named) == len(set(named)) == 8
    colours = {line.get_label(): line.get_color() for line in pictures()["memory"].axes[0].lines}
    assert colours["lse: 4 N bytes a head"] == measured.METHODS["sdpa_flash"][0]  # who keeps it in a forward


def test_a_still_picture_takes_fewer_bytes(made_up):
    figure = pictures()["times"]
    still, full = (
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int) for data in (png(figure, colours=64), png(figure))
    )
    assert still.shape == full.shape and np.abs(still - full).mean() < 0.5
    assert len(png(figure, colours=64)) < 0.6 * len(png(figure))


def test_ratios_and_timings_are_drawn():
    ratios = {"GFLOPs": (0.9, 0.7), "HBM, GB": (9.0, 14.0), "time, ms": (5.7, 4.0)}
    assert png(measured.draw_standard_over_flash(ratios))
    figure = measured.draw_timings([1.0, 1.0, 10.0])
    assert [text.get_text() for text in figure.axes[0].get_legend().texts] == ["mean 4.00 ms", "median 1.00 ms"]
