"""Changes that users of attention make to a score before the softmax: ALiBi, soft caps, padding, or one of your own.

A change is a function of a score and of where its query and key stand. The backward needs its derivative as well.
"""

import importlib
import math
import numbers
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from course_lib.kernels.device import rounded

FUNCTIONS = []  # (apply, derivative) of every ScoreMod so far; code is an index


@dataclass(frozen=True, eq=False)
class ScoreMod:
    """What to make of each score, in Triton.

    apply: a jitted function of (score, query, key, parameter) that returns a changed score. score: fp32 tile, scaled;
    query, key: the positions, aligned bottom-right like masks, integers that broadcast to the tile's shape. derivative:
    of the same arguments, the derivative of apply with respect to score; None where that is 1. parameter: a number, or
    a tensor [heads] or [batch, heads]: one number for each head. No gradient flows to it. code: a number for the two
    functions, since graphs of torch.compile take no objects; found out unless given.
    """

    apply: Any
    derivative: Any
    parameter: float | torch.Tensor
    code: int | None = None

    def __post_init__(self):
        if self.code is None:
            object.__setattr__(self, "code", code_of(self.apply, self.derivative))

    def __reduce__(self):
        # By the names of the functions, which cannot be pickled themselves; torch.compile relies on that.
        names = [f and (f.fn.__module__, f.fn.__name__) for f in (self.apply, self.derivative)]
        return _imported, (*names, self.parameter)


def _imported(apply, derivative, parameter):
    functions = (name and getattr(importlib.import_module(name[0]), name[1]) for name in (apply, derivative))
    return ScoreMod(*functions, parameter)


def code_of(*functions):
    if functions not in FUNCTIONS:
        FUNCTIONS.append(functions)
    return FUNCTIONS.index(functions)


def alibi(slopes):
    """score - slope * |query - key|: attention with linear biases (Press et al. 2022), nearer keys preferred.

    slopes: [heads] or [batch, heads], a slope for each head.
    """
    return ScoreMod(_alibi, None, slopes, ALIBI)


def soft_cap(cap):
    """cap * tanh(score / cap): scores stay between -cap and cap, but for rounding (Gemma Team 2024, section 2).

    cap: finite positive number.
    """
    if not isinstance(cap, numbers.Real) or not 0 < cap < math.inf:
        raise ValueError(f"cap is {cap!r}; accepted: positive numbers")
    return ScoreMod(_soft_cap, _soft_cap_derivative, float(cap), SOFT_CAP)


def hide_before(first):
    """-inf for the keys before first, as padding in front of a sequence: `cache_leftpad` of flash-attention.

    first: a whole number up to 2^24, or [batch, heads] of them. Kernels still compute the scores that it hides. It
    comes last in a tuple of score mods, because a soft cap makes -inf finite again.
    """
    return ScoreMod(_hide_before, None, first, HIDE_BEFORE)


@triton.jit
def _alibi(score, query, key, slope):
    # Converted before they are subtracted, not once for each pair: exact up to 2^24 tokens.
    return score - slope * tl.abs(query.to(tl.float32) - key.to(tl.float32))


@triton.jit
def tanh(x):
    """The hyperbolic tangent, within 5 units in the last place: one reciprocal, and no exponential.

    tanh y = y / (1 + y^2 / (3 + y^2 / (5 + ...))), Lambert's continued fraction, is exact enough up to its 9 where y is
    small. From tanh y = a / b follows tanh 2y = 2ab / (a^2 + b^2). Beyond 9.1, fp32 has nothing between tanh x and 1.
    """
    y = 0.25 * tl.clamp(x, -9.1, 9.1, propagate_nan=tl.PropagateNan.ALL)
    squared = y * y
    a = y * (945.0 + squared * (105.0 + squared))
    b = 945.0 + squared * (420.0 + squared * 15.0)
    for _ in tl.static_range(2):
        a, b = (a + a) * b, a * a + b * b
    # Its square is 1 / b. A division takes twice as many instructions, because it provides for numbers near the largest
    # float.
    root = tl.rsqrt(b)
    return a * root * root


@triton.jit
def _soft_cap(score, query, key, cap):
    return cap * tanh(score * (1.0 / cap))


@triton.jit
def _soft_cap_derivative(score, query, key, cap):
    t = tanh(score * (1.0 / cap))
    return 1.0 - t * t


@triton.jit
def _hide_before(score, query, key, first):
    return tl.where(key >= first, score, float("-inf"))


ALIBI, SOFT_CAP = code_of(_alibi, None), code_of(_soft_cap, _soft_cap_derivative)
HIDE_BEFORE = code_of(_hide_before, None)


@triton.jit
def apply_score_mods(scores, queries, keys, head, w_ptr, stride_w, MODS: tl.constexpr):
    """The scores after all score mods. queries, keys: positions. head: the flattened index batch * n_heads + head."""
    for i in tl.static_range(len(MODS)):
        scores = MODS[i](scores, queries, keys, tl.load(w_ptr + i * stride_w + head))
    return rounded(scores)


@triton.jit
def score_mods_backward(
    ds, scores, queries, keys, head, w_ptr, stride_w, MODS: tl.constexpr, DERIVATIVES: tl.constexpr
):
    """ds * d apply_score_mods(scores) / d scores, by the chain rule."""
    for i in tl.static_range(len(MODS)):
        parameter = tl.load(w_ptr + i * stride_w + head)
        if DERIVATIVES[i] is not None:
            # Where a weight is 0, the derivative of a huge score may be anything.
            ds = tl.where(ds == 0.0, 0.0, ds * DERIVATIVES[i](scores, queries, keys, parameter))
        scores = MODS[i](scores, queries, keys, parameter)
    return ds
