"""Lesson 17's measurement, in miniature and without a GPU's clock: its rows, and that wrong gradients are not timed."""

import pytest
import torch

from courseware.bench import training_timing
from courseware.bench.training_timing import contestants, entries, known, prose


@pytest.fixture
def miniature(monkeypatch):
    values = {
        "MODEL": {"n_layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_dim": 16},
        "TOKENS": 16, "LENGTHS": (16,), "CURVE": {"steps": 1, "batch": 1, "length": 16, "learning_rate": 1e-3},
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setattr(training_timing, name, value)
    monkeypatch.setattr(training_timing, "step_row", lambda batch, attend, dtype: {"ms": float(batch[0].numel())})
    monkeypatch.setattr(training_timing, "served", lambda model: {"server": {}, "alone": {}})


def test_every_attention_has_its_rows(miniature):
    rows = list(training_timing.training_rows())
    of = {kind: [row["method"] for row in rows if row["kind"] == kind] for kind in ("check", "curve", "step")}
    trained = [name for name in contestants() if name not in ("values", "sdpa")]
    assert of == {"check": trained, "curve": [*trained, "control"], "step": [*trained, "values"]}
    assert rows[0]["kind"] == "model" and not any("error" in row for row in rows)
    assert len({row["losses"][0] for row in rows if row["kind"] == "curve"}) == 1
    assert [row["ms"] for row in rows if row["kind"] == "step"] == [16.0] * len(of["step"])


def test_wrong_gradients_are_not_timed(miniature, monkeypatch):
    wrong = contestants() | {"ours": lambda layer, q, k, v: 1.01 * contestants()["eager"](layer, q, k, v)}
    monkeypatch.setattr(training_timing, "contestants", lambda: wrong)
    with pytest.raises(RuntimeError, match="wrong gradients are not timed"):
        list(training_timing.training_rows())


def test_a_failure_is_a_row(miniature, monkeypatch):
    def fails(batch, attend, dtype):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(training_timing, "step_row", fails)
    errors = {row.get("error") for row in training_timing.training_rows() if row["kind"] == "step"}
    assert errors == {"OutOfMemoryError: CUDA out of memory. Tried to allocate"}


def test_without_attention_each_token_gets_its_value():
    q, k, v = (torch.randn(1, heads, 5, 8, requires_grad=True) for heads in (4, 2, 2))
    o = contestants()["values"](0, q, k, v)
    assert torch.equal(o, v[:, [0, 0, 1, 1]])
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), q.detach())
    assert torch.equal(dq, q) and torch.equal(dv, q[:, ::2] + q[:, 1::2]) and torch.equal(dk, dv)


def test_the_text_is_prose_in_the_model_s_characters(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(
        "# Title\n\nA paragraph of *prose*, with a [link](https://x.y/z), and it is long enough.\n\n```\ncode\n```\n"
    )
    assert prose([path]) == ["a paragraph of prose, with a link, and it is long enough."]
    assert known("$\\alpha$ \\ ~ !") is None and any(entry.startswith("tile: ") for entry in entries())
