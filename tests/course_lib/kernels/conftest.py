"""What a test asks for by name."""

import pytest
import torch


@pytest.fixture
def poisoned_memory(monkeypatch):
    """What a kernel leaves unwritten is NaN."""
    monkeypatch.setattr(torch, "empty_like", lambda x, **_: torch.full(x.shape, torch.nan).to(x))
    monkeypatch.setattr(torch, "empty", lambda shape, **options: torch.full(shape, torch.nan, **options))
