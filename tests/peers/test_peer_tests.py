"""The runner of flash-attention's tests, on tests that are made up."""

import pytest
import torch

from course_lib import runtime
from tools import peer_tests

THEIRS = """
import time
import pytest
import torch
from flash_attn import flash_attn_func
from flash_attn.bert_padding import index_first_axis
from flash_attn.layers.rotary import apply_rotary_emb

is_sm80 = torch.cuda.get_device_capability("cuda") == (8, 0)


@pytest.mark.parametrize("dtype", [torch.float32])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(3, 40), (40, 40), (5, 5), (2**10, 2**11)])
def test_output(seqlen_q, seqlen_k, dropout_p, dtype):
    if seqlen_q == 5:
        pytest.skip()
    q, k = (torch.randn(1, n, 2, 16, device="cuda", dtype=dtype) for n in (seqlen_q, seqlen_k))
    print("noise")
    out, _, _ = flash_attn_func(q, k, k, dropout_p, return_attn_probs=True)
    expected = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 4, -1) @ k.transpose(1, 2)
    assert torch.allclose(out.transpose(1, 2), expected, atol=1e-4), "far from it"
    assert seqlen_q < 40, "forty are too many"


@pytest.mark.parametrize("calls", [apply_rotary_emb, index_first_axis])
def test_what_is_not_there(calls):
    calls()


def test_slow():
    try:
        time.sleep(20)
    except Exception as error:
        raise ValueError from error
"""


def test_every_case_has_its_outcome(tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_flash_attn.py").write_text(THEIRS)
    checkout = str(tmp_path)
    names = ["test_output", "test_what_is_not_there", "test_slow"]
    assert peer_tests.main([checkout, "--limit", "15", "--tests", "test_output"]) == 1
    first, counts = capsys.readouterr().out.splitlines()
    assert first.startswith("  AssertionError forty are too many: {'seqlen_q': 40, 'seqlen_k': 40, 'dropout_p': 0.0")
    large = f"; refused: return_attn_probs {2 if runtime.mode() == 'interpreter' else 3}; skipped 2"
    ran = "1 of 2" if runtime.mode() == "interpreter" else "1 of 3"
    assert counts.startswith(f"test_output: {ran} held in ") and counts.endswith(large)
    assert peer_tests.main([checkout, "--limit", "1", "--tests", *names[1:]]) == 1
    refused, slow = capsys.readouterr().out.splitlines()
    assert "0 of 0 held" in refused
    assert refused.endswith("refused: apply_rotary_emb 1; refused: index_first_axis 1")
    # It is no Exception, which the kernel could have raised.
    assert "0 of 1 held" in slow and slow.endswith("out of time 1")
    monkeypatch.setattr(peer_tests, "outcome", lambda test, case, limit_s: "held")
    assert peer_tests.main([checkout, "--sample", "3", "--tests", "test_output"]) == 0
    assert "3 of 3 held" in capsys.readouterr().out
    # CUDA was the CPU inside only.
    assert torch.cuda.is_available() or pytest.raises((RuntimeError, AssertionError), torch.zeros, 2, device="cuda")
