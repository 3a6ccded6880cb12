"""Training a `TinyModel`: one step, and many of them on random windows of a text.

The caller decides how attention is computed, as everywhere in `model`: lesson 17 trains one model with its reader's
kernels, with `flash_attention` and with PyTorch's attention, and compares.
"""

import math

import torch
from torch.nn.functional import cross_entropy

from course_lib.serving.model import causal_attention


def windows(tokens, starts, length):
    """(tokens, the tokens after them), int64 [len(starts), length] each: the windows of a text that begin at starts."""
    index = starts[:, None] + torch.arange(length + 1, device=starts.device)
    found = tokens[index]
    return found[:, :-1], found[:, 1:]


def mean_loss(model, tokens, following, attend=causal_attention, positions=None):
    """Nats a character, of the tokens `following` those given. Both are int64 [batch, n].

    positions: int64 [n], of the tokens in their sequences, if those are not 0 to n - 1.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions
    return cross_entropy(model(tokens, positions.expand_as(tokens), attend).flatten(0, 1), following.flatten())


def train_step(model, optimizer, tokens, following, attend=causal_attention, dtype=None, max_norm=None, positions=None):
    """One step of the optimizer; returns the loss before it, as a tensor without gradient.

    dtype: of the matrix products and of attention, by autocast; None for that of the parameters. max_norm: of the
    gradient, which is shortened to it if it is longer. positions: `mean_loss`'s.
    """
    with torch.autocast(tokens.device.type, dtype, enabled=dtype is not None):
        loss = mean_loss(model, tokens, following, attend, positions)
    optimizer.zero_grad()
    loss.backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.detach()


def train(model, tokens, *, steps, batch, length, learning_rate, attend=causal_attention, dtype=None, max_norm=None):
    """Train on `batch` random windows of `tokens` a step, drawn on the CPU by its generator. Yields (step, its loss).

    The learning rate rises for 30 steps, and falls along a cosine to a fiftieth.
    """
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        warm = min(1.0, (step + 1) / 30)
        optimizer.param_groups[0]["lr"] = learning_rate * warm * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
        starts = torch.randint(len(tokens) - length, (batch,)).to(tokens.device)
        yield step, train_step(model, optimizer, *windows(tokens, starts, length), attend, dtype, max_norm).item()
