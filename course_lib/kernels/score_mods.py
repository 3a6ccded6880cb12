"""Changes that users of attention make to a score before the softmax: ALiBi, soft caps, or one of your own.

A change is a function of a score and of where its query and key stand. The backward needs its derivative as well.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, eq=False)
class ScoreMod:
    """What to make of each score, in Triton.

    apply: a jitted function of (score, query, key, parameter) that returns a changed score. score: fp32 tile, scaled;
    query, key: the positions, aligned bottom-right like masks, integers that broadcast to the tile's shape. derivative:
    of the same arguments, what a change of the score is multiplied by. parameter: a number, or a tensor [heads] or
    [batch, heads]: one number for each head. No gradient flows to it.
    """

    apply: Any
    derivative: Any
    parameter: float | torch.Tensor


def alibi(slopes):
    """score - slope * |query - key|: attention with linear biases (Press et al. 2022), nearer keys preferred.

    slopes: [heads] or [batch, heads], a slope for each head.
    """
    return ScoreMod(_alibi, _one, slopes)


def soft_cap(cap):
    """cap * tanh(score / cap): scores stay between -cap and cap (Gemma 2, Gemma Team 2024, section 2).

    cap: positive number.
    """
    if not cap > 0:
        raise ValueError(f"cap is {cap!r}; accepted: positive numbers")
    return ScoreMod(_soft_cap, _soft_cap_derivative, float(cap))


@triton.jit
def _alibi(score, query, key, slope):
    return score - slope * tl.abs(query - key).to(tl.float32)


@triton.jit
def _one(score, query, key, slope):
    return tl.full(score.shape, 1.0, tl.float32)


@triton.jit
def tanh(x):
    # From exp of a negative number, which cannot overflow. Near 0 the difference would lose digits to 1 - 1.
    small = tl.abs(x) < 0.05
    e = tl.exp(-2.0 * tl.abs(x))
    squared = x * x
    series = x * (1.0 - squared * (1.0 / 3.0 - squared * (2.0 / 15.0 - squared * (17.0 / 315.0))))
    return tl.where(small, series, tl.where(x < 0, -1.0, 1.0) * (1.0 - e) / (1.0 + e))


@triton.jit
def _soft_cap(score, query, key, cap):
    return cap * tanh(score / cap)


@triton.jit
def _soft_cap_derivative(score, query, key, cap):
    t = tanh(score / cap)
    return 1.0 - t * t
