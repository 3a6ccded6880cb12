"""Figures show the numbers that they were given, those of the records, or those of a model; and all can be drawn."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.text import Text

from course_lib import masks
from course_lib.hardware import GPUS
from course_lib.kernels import decode
from course_lib.reference import example, online_softmax_update
from course_lib.reference.attention import causal_mask
from courseware.bench import records
from courseware.bench.hopper_ladder import rungs
from courseware.explorers import online_softmax
from courseware.figures import (
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_09,
    lesson_10,
    lesson_12,
    lesson_13,
    lesson_14,
    lesson_15,
    lesson_16,
    lesson_17,
)
from courseware.figures.base import draw_matrices, png
from courseware.simulators import sm_simulator

# Each gives a figure, rows of numbers that it draws (as lines, or as bars), and words that it or its alt text has.


def spreads():
    d, given, cosines = [2, 8], [1.5, 2.9], [0.7, 0.3]
    figure = lesson_01.draw_spreads(np.array(d), np.array(given), np.array(cosines))
    return figure, [np.sqrt(d), given, 1 / np.sqrt(d), cosines], []


def rooflines():
    gpu, intensity = GPUS["H100"], 2.0 ** np.arange(-3, 13.25, 0.25)
    figure = lesson_04.draw_roofline({name: GPUS[name] for name in ("H100", "T4")}, {"half": 0.5, "many": 1000.0})
    reach = np.minimum(intensity * gpu.hbm_bytes_per_s / 1e12, gpu.fp16_tensor_tflops)
    return figure, [reach], ["half: 0.5", "many: 1000", f"H100: ridge at {gpu.ridge_flops_per_byte:.0f}"]


def broken_rows():
    sizes = np.array([0.5, 1, 2])
    found = lesson_02.broken_rows(sizes, n=64)
    return lesson_02.draw_broken_rows(sizes, found, "title"), [nan for nan, _ in found.values()], ["float16: NaN"]


def shifts():
    x, by = np.array([1, 2, 3, 4], np.float16), np.array([-8, 4, 10])
    errors = lesson_03.shift_errors(x, by)
    return lesson_03.draw_shifts({"x": x}, by), [errors, [errors[1]]], []


def matrices():
    S = np.where(causal_mask(2, 2), [[0.5, 1.0], [0.25, -1.0]], -np.inf)
    figure = draw_matrices({"S": S, "P": np.eye(2), "O": np.ones((2, 1))}, ("a", "b"), ("c", "d"))
    shown = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert shown == [["0.50", "-inf", "0.25", "-1.00"], ["1", "0", "0", "1"], ["1", "1"]]
    return figure, [], ["S: a (0.50, -inf); b (0.25, -1.00). P: a (1, 0); b (0, 1). O: a (1); b (1)."]


def corrections():
    model = online_softmax.run(*online_softmax.streams()["12 random keys"][:2], block=2)
    kept = np.array([old.l * new.alpha for old, new in pairwise(model.steps)])
    return lesson_05.draw_corrections(model), [kept, [step.l for step in model.steps[1:]] - kept], []


def merge_trees():
    """Both end in the state of the stream."""
    scores, values, names = online_softmax.streams()["the sentence"]
    figure, empty = lesson_05.draw_merge_trees(scores, values, names), (np.float64(-np.inf), np.float64(0), np.zeros(2))
    m, l, acc = online_softmax_update(*empty, scores, values)
    root = f"m {m:.0f}   l {l:.3f}\nacc ({acc[0]:.2f}, {acc[1]:.2f})"
    assert [sum(root in text.get_text() for text in axes.texts) for axes in figure.axes] == [1, 1]
    pairs = [online_softmax_update(*empty, scores[pair], values[pair]) for pair in (slice(0, 2), slice(2, 4))]
    return figure, [], [*example.TOKENS, *(f"m {m:.0f}   l {l:.3f}" for m, l, _ in pairs)]


def standard_records(draw, key):
    rows = records.rows("standard-h100", **{"pass": "forward", "batch": 1, "heads": 16})
    values = [lesson_10.by_length(rows, method, key)[1] for method in ("standard", "sdpa_flash")]
    return draw(rows), values, [records.provenance("standard-h100")]


def dram():
    rows = records.rows("dram-h100", head_dim=64, heads=16, batch=1, **{"pass": "forward"})
    calls = [call for call in lesson_10.moved(rows) if call.method == "flash"]
    shown = np.transpose([(call.asked_bytes, call.sm_bytes, call.l2_bytes, call.dram_bytes) for call in calls])
    return lesson_10.draw_dram(rows), shown, [records.provenance("dram-h100")]


def cuda_ladder():
    figure = lesson_12.draw_ladder({"plain": (1.0, 1.8, 1.5), "padding": (26.0, 52.0, 35.0)}, 66.9, "a note")
    spans = [tuple(segment[:, 0]) for segment in figure.axes[0].collections[0].get_segments()]
    assert spans == [(1.0, 1.8), (26.0, 52.0)]
    return figure, [[1.5, 35.0]], ["padding: 26.0 to 52.0, measured 35.0"]


def splits():
    """The curves are the host's estimate."""
    figure, chosen = lesson_14.draw_programs({"few": (8, 64), "many": (128, 64)}, 132), decode.splits(8, 64, 132)
    curve = [decode.tiles_of_a_slot(8, 64, 132, parts) for parts in range(1, 41)]
    return figure, [curve, [chosen], [curve[chosen - 1]]], ["6 with 16"]


def hopper_ladder():
    kept = [name for name, rung in rungs().items() if rung.kept]
    rows = [[records.rows(lesson_15.RECORD, rung=name, n=4096, head_dim=128, causal=causal)[0]["tflops"]
             for name in kept] for causal in (False, True)]  # fmt: skip
    known = [name for name in kept if name in sm_simulator.RUNGS]
    simulated = [sm_simulator.predict(name, 128, key_tiles=32).tflops for name in known]
    return lesson_15.draw_ladder(4096), [*rows, simulated, [kept.index(name) for name in known]], kept


def peers():
    figure, shape = lesson_15.draw_peers("bfloat16"), {"head_dim": 64, "causal": True, "n": 4096}
    place = [text.get_text() for text in figure.axes[0].get_yticklabels()].index("d=64 causal 4k")
    (row,) = records.rows(lesson_15.RECORD, dtype="bfloat16", **shape)
    shown = [line.get_xdata()[place] for line in figure.axes[0].lines]
    assert shown == [row["tflops"][peer] for peer in lesson_15.PEERS]
    return figure, [], []


def race():
    """With d = 4 and one head, a step of n rows takes 8 n^2 FLOPs, and K and V are 16 n bytes."""
    figure = lesson_16.draw_race(8e9, {"link": 16e6}, heads=1, head_dim=4, measured=[(1024, 2.5)])
    rows = 2.0 ** np.arange(9, 18.1, 0.25)
    return figure, [1e-6 * rows**2, 1e-3 * rows, [1000], [2.5]], ["link: as long as the arithmetic at 1,000 rows"]


def training_shares():
    """At 9,215 tokens, attention has half of the FLOPs: that of the pairs is proportional to n + 1."""
    ms = {(row["method"], row["n"]): row["ms"] for row in records.rows(lesson_17.RECORD, kind="step") if "ms" in row}
    lengths = sorted(n for method, n in ms if method == "ours")
    by_flops = [100 * (n + 1) / (n + 1 + 9216) for n in lengths]
    by_time = [100 * (1 - ms["values", n] / ms["ours", n]) for n in lengths]
    return lesson_17.draw_shares(), [by_flops, by_time], [f"1,024: 10 % of the FLOPs, {by_time[0]:.0f} % of the time"]


ROW = {"pass": "forward", "head_dim": 64, "causal": False, "n": 1024}
ROW |= {"tflops": {"ours": 3.0, "sdpa_flash": 2.0, "sdpa_cudnn": 4.0}}
SHOWN = {
    show.__name__: show
    for show in (spreads, rooflines, broken_rows, shifts, matrices, corrections, merge_trees, dram, cuda_ladder,
                 splits, hopper_ladder, peers, race, training_shares)
} | {
    "elements": lambda: (
        lesson_06.draw_elements(([2, 4], [(1, 5, 9), (4, 6, 8)]), ([2, 4], [(4, 3, 2), (2, 1, 7)])),
        [[1, 4], [5, 6], [9, 8], [4, 2], [3, 1], [2, 7]], []),
    "times": lambda: standard_records(lambda rows: lesson_10.draw_times(rows, rows), "ms"),
    "ratios": lambda: (lesson_10.draw_ratios([ROW]), [[1.5], [0.75]], [records.provenance("attention-h100")]),
    "losses": lambda: (
        lesson_17.draw_losses({"ours": [3.0, 2.0], "eager": [3.0, 2.5]}), [[3, 2], [3, 2.5]],
        ["flash_attention: 3 to 2; matrices of scores: 3 to 2.5"]),
    "shares": lambda: (
        lesson_15.draw_shares({"in turns": [3, 9, 5], "in pairs": [6, 5, 6]}),
        [[9, 5, 3], [6, 6, 5], [17 / 3] * 2], ["in turns: most 9, on average 6"]),
}  # fmt: skip


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_a_figure_shows_its_numbers(show):
    figure, rows, words = show()
    drawn = [of for axes in figure.axes for line in axes.lines for of in line.get_data()]
    drawn += [[bar.get_height() for bar in bars] for axes in figure.axes for bars in axes.containers]
    for row in rows:
        assert any(len(row) == len(one) and np.allclose(row, one, equal_nan=True) for one in drawn), row
    written = "\n".join([figure.alt, *(text.get_text() for text in figure.findobj(Text))])
    assert all(word in written for word in words)
    assert figure.alt and png(figure)


def test_spans_begin_with_the_first_of_their_pass():
    """Its picture's words are of how long they are only."""
    rows = records.rows(lesson_16.RECORD, kind="span", n=8192, **{"pass": "forward"})
    begins_ms = sorted(begin for lane in lesson_16.spans_of("forward", 8192).values() for begin, _ in lane)
    starts_us = np.array(sorted(row["start_us"] for row in rows)[-len(begins_ms) :])
    assert begins_ms == pytest.approx((starts_us - starts_us[0]) / 1e3)


@pytest.mark.parametrize(
    "page, words, classes",
    [
        (
            lesson_06.draw_bytes({"flash": {"Q": (3_000_000, 0), "O": (0, 2_000_000)}, "more": {"K": (6_500_000, 0)}}),
            "flash: 5.00, more: 6.50", ["Q", "O pale", "K"],
        ),
        (
            lesson_06.draw_budget([("Q", 8), ("new", 16), ("new", 5)], block_q=2, block_k=4, d=2),
            "against a budget of 56. the four tiles: 56; the machine: 29", [*"QKVSQ", "grey", "grey"],
        ),
        (lesson_06.draw_orders(4, 4, 2, 2), "q_outer, causal: [[1, 0], [2, 3]]", []),
        (
            lesson_13.draw_masks({"causal": masks.causal(), "window": masks.sliding_window(1, 0)}, 8, 10, 4, 5),
            "causal: 0 hidden, 3 partial, 1 full. window: 1 hidden, 3 partial", ["skipped", "now pale", "now", "Q"],
        ),
        (
            lesson_09.draw_products({"forward": ("S", "O"), "backward": ("S again", "dP", "dV")}),
            "forward: 2, S, O; backward: 3, S again, dP, dV", ["S", "O", "S pale", "dP", "dV"],
        ),
    ],
)  # fmt: skip
def test_a_page_of_bars_says_its_numbers(page, words, classes):
    assert words in page.alt
    assert [part.split('"')[0] for part in page.html().split('class="bar ')[1:]] == classes
