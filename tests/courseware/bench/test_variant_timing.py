"""The measurement of masks and variants, as far as it goes without a GPU: on tiny shapes, with every time made up."""

import itertools

import numpy as np
import pytest
import torch

from course_lib import masks
from courseware.bench import records, timing, variant_timing


@pytest.fixture
def tiny(monkeypatch, made_up):
    """Two heads of 16 columns and 150 tokens."""

    monkeypatch.setattr(timing, "HIDDEN_DIM", 32)
    monkeypatch.setattr(timing, "TOKENS", 150)
    monkeypatch.setattr(timing, "median_ms", made_up)
    monkeypatch.setattr(variant_timing, "CHECKED_LENGTH", 150)
    monkeypatch.setattr(timing, "compile_ahead", lambda *_: None)


def test_every_case_has_rows_that_say_what_was_visited(tiny):
    rows = list(variant_timing.variant_rows([16], [150], torch.float16, flex=False))
    assert [(row["case"], row["pass"]) for row in rows] == [
        (name, which) for name in variant_timing.CASES for which in ("forward", "backward")
    ]
    for row in rows:
        assert list(row["ms"]) == ["ours"] + ["plain"] * (row["case"] in ("full", "causal"))
        assert list(row["checked"]) == (["o"] if row["pass"] == "forward" else ["dq", "dk", "dv"])
        assert list(row["tiles"]) == (["forward"] if row["pass"] == "forward" else ["dkdv", "dq"])
        assert row["tflops"]["ours"] == pytest.approx(
            (1 if row["pass"] == "forward" else 2.5) * 4 * 16 * 2 * 150**2 * row["visible"] / 0.5e-3 * 1e-12
        )
    visible = {row["case"]: row["visible"] for row in rows}
    assert visible["full"] == 1 and visible["causal"] == visible["ALiBi"] == 151 / 300 == visible["window 1024"]
    assert visible["documents"] < visible["causal"] < visible["prefix-LM"]


@pytest.mark.parametrize("name", variant_timing.CASES)
def test_flex_attention_sees_the_same_pairs_and_scores(name):
    """Its functions are called here as it calls them, with integers."""
    n = 300
    case = variant_timing.case_of(name, n, 2, "cpu")
    queries, keys = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    if name != "full":
        seen = variant_timing.mask_mod_of(case.how["mask"], "cpu")(0, 0, queries, keys)
        assert np.array_equal(seen.expand(n, n).numpy(), case.how["mask"].dense(n, n))
    assert case.how["mask"].dense(n, n).diagonal().all()
    assert ("score_mod" in case.how) == (case.score_mod is not None)


def test_flex_attention_gets_the_list_of_blocks_that_it_would_make():
    from torch.nn.attention.flex_attention import create_block_mask

    for name in ("causal", "documents", "block-sparse 25 %"):
        mask = variant_timing.case_of(name, 1024, 2, "cpu").how["mask"]
        ours = variant_timing.block_mask_of(mask, 1024, "cpu")
        theirs = create_block_mask(variant_timing.mask_mod_of(mask, "cpu"), None, None, 1024, 1024, device="cpu")
        for which in ("kv", "full_kv", "q", "full_q"):
            counts, others = (getattr(x, f"{which}_num_blocks") for x in (ours, theirs))
            assert torch.equal(counts, others), (name, which)
            indices, others = (getattr(x, f"{which}_indices") for x in (ours, theirs))
            for row in range(8):
                n = counts[0, 0, row]
                assert torch.equal(indices[0, 0, row, :n], others[0, 0, row, :n]), (name, which)
        assert ours.shape[-2:] == theirs.shape[-2:] and ours.BLOCK_SIZE == theirs.BLOCK_SIZE


@pytest.mark.parametrize("name", ("documents", "ALiBi", "dropout"))
def test_wrong_answers_are_not_timed(tiny, monkeypatch, name):
    attend = variant_timing.flash_attention
    monkeypatch.setattr(variant_timing, "flash_attention", lambda *of, **how: 1.01 * attend(*of, **how))
    with pytest.raises(RuntimeError, match=f"wrong answers are not timed: {name}, head_dim 16: o"):
        variant_timing.check(name, 16, torch.float16)


def test_a_block_sparse_mask_shows_the_share_of_blocks_that_it_names():
    for share in (10, 25, 50):
        layout = variant_timing.case_of(f"block-sparse {share} %", 4096, 2, "cpu").how["mask"].layout
        assert layout.mean() == pytest.approx(share / 100, abs=1e-3)


SHAPES = list(itertools.product((4096, 16_384), (64, 128)))


def recorded(n, head_dim):
    passes = (records.rows("variants-h200", n=n, head_dim=head_dim, **{"pass": of}) for of in ("forward", "backward"))
    return [{row["case"]: row for row in rows} for rows in passes]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_mask_is_slower_than_flex_attention_on_record(shape):
    for rows in recorded(*shape):
        assert tuple(rows) == variant_timing.CASES
        for name, row in rows.items():
            if name not in ("full", "dropout"):
                assert row["ms"]["ours"] < row["ms"]["flex"], name
            assert name not in ("full", "causal") or row["ms"]["plain"] < row["ms"]["ours"]
        assert 0.98 < rows["full"]["ms"]["flex"] / rows["full"]["ms"]["ours"] < 1.35


def test_the_record_has_what_lesson_13_says_of_it():
    forward, backward = recorded(4096, 128)
    ours = {name: row["ms"]["ours"] for name, row in forward.items()}
    visited = {name: row["tiles"]["forward"]["visited"] for name, row in forward.items()}
    of_a_tile = (ours["full"] - ours["window 256"]) / (visited["full"] - visited["window 256"])
    fixed = ours["full"] - visited["full"] * of_a_tile
    for name in variant_timing.CASES[:9]:
        assert abs(fixed + visited[name] * of_a_tile - ours[name]) < 0.02
    bytes_per_s = max(row["gb_per_s"]["read"] for row in records.rows("decode-h200")) * 1e9
    assert 0.8 < 4 * 16_384 * 2048 * 2 / bytes_per_s / (fixed * 1e-3) <= 1.05
    row = forward["window 256"]
    tiles = row["tiles"]["forward"]
    assert tiles["tile"] == [64, 64] and 0.075 < tiles["visited"] / tiles["all"] < 0.085
    assert 0.13 < ours["window 256"] / ours["full"] < 0.15
    assert 1 < ours["ALiBi"] / ours["causal"] < 1.2 < ours["dropout"] / ours["causal"] < 2
    assert 1.2 < ours["soft cap"] / ours["causal"] < 2
    kinds = masks.sliding_window(256, 0).tiles(4096, 4096, 64, 64).kinds[30]
    assert (kinds > 0).sum() == 5 and (kinds == masks.PARTIAL).sum() == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_proportional_to_tiles_where_there_are_many(shape):
    """Within 15 %, from a quarter of the tiles of a short row on, and from a tenth of those of a long one."""
    n, _ = shape
    for rows in recorded(*shape):
        for name in variant_timing.CASES[:9]:
            tiles = next(iter(rows[name]["tiles"].values()))
            share = tiles["visited"] / tiles["all"]
            if share > (0.24 if n == 4096 else 0.095):
                assert abs(rows[name]["ms"]["ours"] / rows["full"]["ms"]["ours"] / share - 1) < 0.15, name
