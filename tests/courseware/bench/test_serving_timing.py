"""The measurement of serving, as far as it goes without a GPU: tiny workloads, and real times of no meaning."""

import pytest
import torch

from course_lib import runtime
from course_lib.kernels import flash_decode
from course_lib.serving import model
from course_lib.serving.server import Server
from courseware.bench import serving_timing
from courseware.bench.serving_timing import Workload

WORKLOADS = (Workload("tiny", torch.float32, (5, 17), 6), Workload("wide", torch.float16, (40, 3, 12), 6))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(serving_timing, "WORKLOADS", WORKLOADS)
    shape = dict(n_layers=1, width=32, heads=4, kv_heads=2, head_dim=8)
    monkeypatch.setitem(serving_timing.MODELS, "wide", lambda: model.TinyModel(**shape))
    for name, value in {"PAGE_SIZE": 16, "WARM_UP_STEPS": 1, "CHECKED_STEPS": 2}.items():
        monkeypatch.setattr(serving_timing, name, value)
    torch.manual_seed(0)


def test_the_rows(tiny):
    rows = list(serving_timing.served_rows())
    assert [(row["model"], row["dtype"], row["requests"]) for row in rows] == [
        ("tiny", "float32", 2),
        ("wide", "float16", 3),
    ]
    for row in rows:
        for name, ms in row["step_ms"].items():
            assert row["tokens_per_s"][name] == pytest.approx(row["requests"] * 1e3 / ms)
    # Pages of 16 for 46, 9 and 18 tokens, and three rows of 128: K and V of 2 heads of 8 numbers, 2 bytes each.
    assert rows[1]["cache_bytes"] == {"pages": (3 + 1 + 2) * 16 * 64, "padded": 3 * 128 * 64}


@pytest.mark.parametrize("heads, kv_heads", ((6, 2), (4, 4)))
@pytest.mark.parametrize("batch, n_new", ((3, 1), (1, 40)))
def test_padded_attention_is_flash_decode_with_a_page_for_each_sequence(batch, n_new, heads, kv_heads):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, heads, n_new, 16, generator=generator).to(runtime.device())
    k, v = torch.randn(2, 3, kv_heads, 64, 16, generator=generator).to(runtime.device())
    first = 2 if batch == 1 else 0
    table = torch.arange(first, first + batch, device=runtime.device(), dtype=torch.int32)[:, None]
    lengths = torch.tensor([40, 64, 1][:batch], device=runtime.device(), dtype=torch.int32)
    o = serving_timing.padded_attention(q, k, v, lengths, block_table=table)
    assert torch.allclose(o, flash_decode(q, k, v, lengths, block_table=table), atol=1e-5)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.model)
def test_wrong_texts_and_inexact_logits_are_not_timed(tiny, monkeypatch, workload):
    monkeypatch.setattr(serving_timing, "WORKLOADS", (workload,))
    error = {"of": None, "factor": 1.0}

    class Wrong(Server):
        """Attention whose error the test chooses."""

        def __init__(self, model, **options):
            super().__init__(model, **options)
            name, dtype = "padded" if "attention" in options else "pages", model.embedding.weight.dtype
            if error["of"] == (name, dtype):
                right = self.attention
                self.attention = lambda *given, **how: right(*given, **how) * error["factor"]

    monkeypatch.setattr(serving_timing, "Server", Wrong)
    for name in ("pages", "padded"):
        error.update(of=(name, torch.float32), factor=-9.0)
        with pytest.raises(RuntimeError, match=f"wrong answers are not timed: {name}, {workload.model}"):
            list(serving_timing.served_rows())
    error.update(of=("pages", workload.dtype), factor=1.1 if workload.dtype == torch.float16 else 1 + 1e-5)
    with pytest.raises(RuntimeError, match=f"wrong answers are not timed: {workload.model}: logits: Frob"):
        list(serving_timing.served_rows())
