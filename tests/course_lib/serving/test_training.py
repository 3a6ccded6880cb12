"""Training: a step's parts, and the same losses whatever computes attention."""

import pytest
import torch

from course_lib import runtime
from course_lib.serving.model import TinyModel, causal_attention, encode
from course_lib.serving.training import mean_loss, train, train_step, windows
from courseware.bench import training_timing

SMALL = {"n_layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_dim": 16}


def small():
    torch.manual_seed(0)
    return TinyModel(**SMALL).to(runtime.device())


def batch(length=20):
    tokens = torch.tensor(encode("each row of weights sums to 1, whatever the scores are")).to(runtime.device())
    return windows(tokens, torch.tensor([3, 0], device=tokens.device), length)


def test_a_step_goes_down_the_gradient_which_max_norm_limits():
    moved = {}
    for max_norm in (None, 0.01):
        model = small()
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        loss = mean_loss(model, *batch())
        found = train_step(model, torch.optim.SGD(model.parameters(), 0.5), *batch(), max_norm=max_norm)
        assert found == loss.detach() and not found.requires_grad
        moved[max_norm] = before - torch.cat([p.detach().flatten() for p in model.parameters()])
        assert mean_loss(model, *batch()) < loss
    assert moved[0.01].norm().item() == pytest.approx(0.005, rel=1e-3)
    torch.testing.assert_close(moved[0.01] / moved[0.01].norm(), moved[None] / moved[None].norm(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ("ours", "plain", "eager"))
def test_training_has_the_losses_of_pytorch_s_attention(name):
    tokens, losses = torch.tensor(encode("a tile is a block of rows; " * 4)).to(runtime.device()), []
    for attend in (training_timing.contestants()[name], causal_attention):
        model = small()
        torch.manual_seed(1)
        how = {"steps": 3, "batch": 1, "length": 20, "learning_rate": 4e-3, "attend": attend}
        losses.append([loss for _, loss in train(model, tokens, **how)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0][0] != losses[0][2]
