"""The measurement of decoding, as far as it goes without a GPU: on tiny shapes, with every time made up."""

import functools

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_lib import runtime
from courseware.bench import counters, decode_timing, records, timing

SHAPE = (2, 4, 2, 512)


@pytest.fixture
def tiny(monkeypatch, made_up):
    """Short caches of 16 columns; "sdpa_flash" is PyTorch's plain attention, and "sdpa_cudnn" is not there."""

    monkeypatch.setattr(decode_timing, "HEAD_DIM", 16)
    monkeypatch.setattr(decode_timing, "SHAPES", ((1, 4, 2, 512), SHAPE))
    monkeypatch.setattr(decode_timing, "SPECULATIVE_SHAPE", SHAPE)
    here = functools.partial(decode_timing.random_case, device=runtime.device())
    monkeypatch.setattr(decode_timing, "random_case", here)
    monkeypatch.setattr(decode_timing, "PEERS", {"sdpa_flash": SDPBackend.MATH, "sdpa_cudnn": SDPBackend.OVERRIDEABLE})
    monkeypatch.setattr(timing, "median_ms", made_up)
    monkeypatch.setattr(timing, "back_to_back_s", made_up)
    if runtime.mode() == "interpreter":
        monkeypatch.setattr(decode_timing, "replayed", lambda call: call)


def test_rows_have_every_contestant_that_is_there(tiny):
    alone, several, speculative = decode_timing.decode_rows()
    names = ["ours", "flash_attention", "unsplit", "standard", "paged_16", "paged_64", "paged_256", "sdpa_flash"]
    assert sorted(several["relative_error"]) == sorted(names)
    assert sorted(several["ms"]) == sorted([*names, "read"]) and several["missing"] == ["sdpa_cudnn"]
    assert sorted(alone["back_to_back_us"]) == sorted(alone["relative_error"]) == sorted([*names, "graph"])
    assert "back_to_back_us" not in several
    assert (several["batch"], several["heads"], several["kv_heads"], several["n"]) == SHAPE
    assert (several["n_new"], speculative["n_new"]) == (1, 4) and "standard" not in speculative["ms"]
    for row in (alone, several, speculative):
        assert all(0 < error < 1e-2 for error in row["relative_error"].values()), row
        assert row["kv_bytes"] == 2 * row["batch"] * 2 * 512 * 16 * 2
        assert row["gb_per_s"]["ours"] == pytest.approx(row["kv_bytes"] / 0.5e-3 / 1e9)


@pytest.mark.parametrize("name", ("ours", "paged_64"))
def test_wrong_answers_are_not_timed(tiny, name):
    """Even where only the last sequence is wrong."""
    q, kv, lengths = decode_timing.random_case(*SHAPE)
    right = decode_timing.calls_of(q, kv, lengths)["ours"]()
    wrong = right.clone()
    wrong[-1] *= 1.05
    assert decode_timing.errors_of({"ours": right, "sdpa_flash": wrong}, q, kv)["sdpa_flash"] > 0.04
    with pytest.raises(RuntimeError, match=f"wrong answers are not timed: {name}"):
        decode_timing.errors_of({"ours": right} | {name: wrong}, q, kv)


def test_pages_hold_the_same_keys_in_another_order(tiny):
    _, kv, _ = decode_timing.random_case(*SHAPE)
    for page_size in (16, 256):
        k_pages, v_pages, table = decode_timing.in_pages(kv, page_size)
        in_order = list(range(2 * 512 // page_size))
        assert table.dtype == torch.int32 and sorted(table.flatten().tolist()) == in_order
        assert page_size == 256 or table.flatten().tolist() != in_order, "four pages may be in order by chance"
        for pages, cache in zip((k_pages, v_pages), kv, strict=True):
            assert torch.equal(pages[table.long()].transpose(1, 2).flatten(2, 3), cache)


def test_counters_stand_beside_the_closed_form(tiny, monkeypatch):
    """Of as many cases as the program under ncu runs, in its order."""
    ran = [call() for call in decode_timing.cases()]

    def counted_by_ncu(module, counter_sets):
        assert module == "courseware.bench.decode_timing"
        return [{name: number for names in counter_sets for name in names} for number in range(len(ran))]

    monkeypatch.setattr(counters, "counted_by_ncu", counted_by_ncu)
    rows = list(decode_timing.counter_rows())
    assert [row["dram_read_bytes"] for row in rows] == list(range(len(ran))) and len(rows) == 10
    assert [row["method"] for row in rows[:5]] == ["ours", "paged_16", "paged_64", "paged_256", "read"]
    assert [row["batch"] for row in rows] == [1] * 5 + [2] * 5
    for row, o in zip(rows, ran, strict=True):
        assert (o.dim() == 0) == (row["method"] == "read")
        kv_bytes, q_bytes = 2 * row["batch"] * 2 * 512 * 16 * 2, row["batch"] * 4 * 16 * 2
        assert row["splits"] > 1 or row["requested_read_bytes"] == kv_bytes + q_bytes
        assert row["splits"] > 1 or row["requested_write_bytes"] == q_bytes


def test_the_record_has_what_lesson_14_says_of_it():
    measured = records.rows("decode-h200", n_new=1)
    assert [(row["batch"], row["heads"], row["kv_heads"], row["n"]) for row in measured] == list(decode_timing.SHAPES)
    behind_standard = 0
    for row in measured:
        speed = row["gb_per_s"]
        peers = [speed["sdpa_flash"], speed["sdpa_cudnn"]]
        assert min(speed["ours"], speed["flash_attention"]) >= 0.95 * max(peers), row
        assert speed["ours"] >= 0.97 * speed["read"], row
        behind_standard += speed["sdpa_flash"] < speed["standard"]
    assert behind_standard == 2
    (longest,) = records.rows("decode-h200", n=65_536)
    assert longest["splits"] == 16 and 8 < longest["gb_per_s"]["ours"] / longest["gb_per_s"]["unsplit"] < 10
    counted = records.rows("decode-counters-h200", method="ours")
    assert len(counted) == len(measured)
    for row in counted:
        assert row["dram_read_bytes"] == pytest.approx(row["requested_read_bytes"], rel=0.02), row
