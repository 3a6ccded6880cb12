"""Lesson 11's explorer and pictures: the model's parts against its formula, gains against the records."""

import json
from itertools import product

import numpy as np
import pytest

from courseware.bench import ladder_model, records
from courseware.bench.triton_ladder import RUNGS
from courseware.explorers import worklog
from courseware.explorers.figures import png

EVERY = [(rung.name, n, causal) for rung, n, causal in product(RUNGS, (1024, 4096), (False, True))]


def test_a_verdict_compares_the_measured_gain_with_the_predicted_one():
    for predicted, gain, verdict in [
        (1.3, 1.3, "as predicted"),
        (1.3, 1.25, "as predicted"),
        (1.3, 1.2, "less than predicted"),
        (1.3, 1.4, "more than predicted"),
        (1.3, 1.01, "no change, predicted otherwise"),
        (1.3, 0.9, "the other way"),
        (0.9, 1.1, "the other way"),
        (0.5, 0.3, "less than predicted"),
        (1.0, 1.1, "more than predicted"),
        (1.0, 0.9, "less than predicted"),
        (1.0, 1.01, "as predicted"),
    ]:
        assert worklog.verdict(predicted, gain) == verdict, (predicted, gain)


@pytest.mark.parametrize("gpu", worklog.RECORDS)
def test_every_rung_was_measured_with_both_masks_at_both_lengths(gpu):
    """But for two that were built after the H100's record, to find the cause of one of its results."""
    later = {"vote alone", "each row for itself"} if gpu == "H100" else set()
    found = [(row["rung"], row["n"], row["causal"]) for row in records.rows(worklog.RECORDS[gpu])]
    assert sorted(found) == sorted(key for key in EVERY if key[0] not in later)


def test_the_parts_are_what_the_formula_adds_up():
    for name, n, causal in EVERY:
        model = worklog.evaluate(name, n, causal)
        pairs = ladder_model.ROWS * n / 64**2 / (2 if causal else 1)
        gpu = ladder_model.GPU
        clocks = ladder_model.predict_rung(model.counts, gpu) * gpu["clock_hz"] * gpu["sms"]
        assert sum(model.parts.values()) == pytest.approx(clocks / pairs), (name, n, causal)
        assert min(model.parts.values()) >= 0
        # 989 TFLOP/s is the most; products alone take 512 clocks of it for 64 x 64 scores.
        assert model.formula_tflops < 989


def test_gains_are_relative_to_the_rung_below():
    rows = {(row["rung"], row["n"], row["causal"]): row["tflops"] for row in records.rows("ladder-h100")}
    for rung in RUNGS[1:]:
        if (rung.name, 1024, True) in rows:
            model = worklog.evaluate(rung.name, 1024, True)
            assert model.measured == rows[rung.name, 1024, True] / rows[rung.builds_on, 1024, True]
            assert model.written == rung.predicted_gain["causal"]
            assert model.formula == model.formula_tflops / model.parent.formula_tflops
            assert model.verdict == worklog.verdict(model.written, model.measured)
    assert worklog.evaluate("plain").parent is None


def test_the_vote_is_what_lazy_rescale_pays_for():
    """What lesson 11 says of the two rungs that were built to find out."""
    for causal in (False, True):
        shipped, lazy, vote, each = (
            worklog.evaluate(name, causal=causal, gpu="H200").tflops
            for name in ("shipped tiles", "lazy rescale", "vote alone", "each row for itself")
        )
        assert lazy < 0.85 * shipped and vote < 0.85 * shipped and each > 0.97 * shipped


def test_the_picture_has_each_part_and_a_mark_where_the_clock_is():
    models = [worklog.evaluate(name, causal=True) for name in ("fused scale", "prefetch")]
    figure = worklog.draw(*models)
    (axes,) = figure.axes
    drawn = sorted(patch.get_width() for patch in axes.patches if patch.get_width())
    assert drawn == pytest.approx(sorted(part for m in models for part in m.parts.values() if part))
    marks = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata())]
    assert marks == [m.measured_clocks for m in models]
    caption = " ".join(text.get_text() for text in figure.texts)
    assert records.provenance("ladder-h100") in caption and "causal" in caption
    assert png(worklog.draw(worklog.evaluate("vote alone")))  # not measured on this GPU


def test_the_explorer_follows_every_control(shell_of):
    def shown(**settings):
        model = worklog.evaluate(**{"rung": "prefetch"} | settings)
        return worklog.describe(model), worklog.draw(*filter(None, (model.parent, model)))

    moves = [
        ("rung", "plain", {"rung": "plain"}),
        ("rung", "lazy rescale", {"rung": "lazy rescale"}),
        ("N", 1024, {"n": 1024}),
        ("causal", True, {"causal": True}),
        ("GPU", "H200", {"gpu": "H200"}),
    ]
    shell_of(worklog.explore()).assert_follows(shown, {}, moves)


def test_what_is_not_measured_is_said_so():
    assert "not measured here" in worklog.describe(worklog.evaluate("vote alone"))
    assert "measured 0.84" in worklog.describe(worklog.evaluate("vote alone", gpu="H200"))


# The sweep, on invented rows.


def sweep_rows():
    shape = {"n": 4096, "head_dim": 64, "heads": 16, "batch": 4, "causal": False}
    rates = {(32, 32): 100.0, (32, 64): 120.0, (64, 32): 200.0, (64, 64): None}
    rows = [shape | {"block_q": q, "block_k": k, "tflops": rate} for (q, k), rate in rates.items() if rate]
    rows += [shape | {"block_q": 32, "block_k": 32, "tflops": 90.0}]
    return [*rows, shape | {"block_q": 64, "block_k": 64, "error": "does not fit"}]


def test_sweep_takes_the_best_and_predicts_from_bytes():
    table = worklog.sweep_table(sweep_rows())
    assert [(q, k, rate) for q, k, _, rate in table] == [
        (32, 32, 100.0), (32, 64, 120.0), (64, 32, 200.0), (64, 64, None),
    ]  # fmt: skip
    # 2 N d + 2 N d N / 32 elements of 2 bytes for 4 N N d FLOPs, at 3,352 GB/s.
    assert table[0][2] == pytest.approx(4 * 4096 / (4 * (1 + 4096 / 32)) * 3.352)


def test_the_sweep_s_picture_names_where_its_figures_come_from(tmp_path, monkeypatch):
    origin = {"gpu": "made up", "torch": "1", "triton": "2", "date": "2026-01-01"}
    (tmp_path / "sweep-h100.json").write_text(json.dumps(origin | {"rows": sweep_rows()}))
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    figure = worklog.draw_sweep(records.rows("sweep-h100"))
    assert png(figure) and "made up, torch 1, triton 2, 2026-01-01" in " ".join(t.get_text() for t in figure.texts)


def test_rank_agreement_is_spearmans_correlation():
    assert worklog.rank_agreement([1, 2, 3], [10, 20, 1000]) == pytest.approx(1)
    assert worklog.rank_agreement([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # One pair of the three in the other order: 1 - 6 (0 + 1 + 1) / (3 * 8).
    assert worklog.rank_agreement([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    # Ties share the mean of their ranks: (0.5, 0.5, 2) against (0, 1, 2).
    assert worklog.rank_agreement([5, 5, 9], [1, 2, 3]) == pytest.approx(np.sqrt(3) / 2)
