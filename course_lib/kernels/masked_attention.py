"""What `flash_attention` does with a mask, score mods, sinks or dropout: checks, and how the kernels meet autograd."""

import functools
import numbers

import torch
from torch.autograd.function import once_differentiable

from course_lib import masks
from course_lib.kernels.checks import shape_of
from course_lib.kernels.forward import MAX_GRID_AXIS
from course_lib.kernels.masked_backward import variant_backward
from course_lib.kernels.masked_forward import Variant, variant_forward
from course_lib.kernels.score_mods import ScoreMod


@torch.compiler.disable  # masks are Python objects, into which torch.compile does not look
def variant_attention(q, k, v, causal, scale, mask, score_mod, sinks, dropout_p, seed):
    """(o, lse) of checked q, k, v and scale. Raises TypeError or ValueError, naming the argument, for the others."""
    variant = _variant(q, k, causal, mask, score_mod, sinks, dropout_p, seed)
    return _VariantAttention.apply(q, k, v, sinks, variant, scale)


def _variant(q, k, causal, mask, score_mod, sinks, dropout_p, seed):
    if q.shape[0] > MAX_GRID_AXIS:
        raise ValueError(f"q has batch {q.shape[0]}; at most {MAX_GRID_AXIS} are accepted with a mask and the like")
    mask = _with_causal(causal, mask)
    mask.check_lengths(q.shape[2], k.shape[2])
    mods = tuple(score_mod) if isinstance(score_mod, tuple | list) else () if score_mod is None else (score_mod,)
    for mod in mods:
        if not isinstance(mod, ScoreMod):
            raise TypeError(f"score_mod is {mod!r}; accepted: a ScoreMod, several in a tuple, or None")
    parameters = torch.stack([_parameter(mod, q) for mod in mods]) if mods else None
    if sinks is not None:
        if not isinstance(sinks, torch.Tensor) or sinks.shape != (q.shape[1],) or not sinks.is_floating_point():
            raise ValueError(f"sinks is {_described(sinks)}; accepted: floating-point [{q.shape[1]}], one a head")
        _check_device("sinks", sinks, q)
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, numbers.Real) or not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is {dropout_p!r}; accepted: numbers from 0 to 1")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise ValueError(f"seed is {seed!r}; accepted: whole numbers from 0 to 2^63 - 1, or None for a random one")
    if dropout_p:
        seed = int(torch.randint(2**63 - 1, ())) if seed is None else seed
    seed = torch.full((1,), seed, dtype=torch.int64, device=q.device) if dropout_p else None
    as_fp32 = None if sinks is None else sinks.detach().float().contiguous()
    return Variant(mask, mods, parameters, as_fp32, float(dropout_p), seed)


def _with_causal(causal, mask):
    """One mask of both."""
    if mask is None:
        return masks.causal() if causal else masks.full()
    if not isinstance(mask, masks.Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; accepted: None or what functions of course_lib.masks return")
    if causal and isinstance(mask, masks.Packed):
        raise ValueError("causal is True and mask is packed(...); write packed(..., within=causal()), which is aligned")
    return _and_causal(mask) if causal else mask


@functools.lru_cache(256)
def _and_causal(mask):
    """Cached, because what kernels read of a mask is kept by the object."""
    return mask & masks.causal()


def _parameter(mod, q):
    """The parameter of a ScoreMod for every head: fp32 [batch, heads]."""
    batch, n_heads = q.shape[:2]
    if torch.is_grad_enabled() and getattr(mod.parameter, "requires_grad", False):
        raise ValueError("the parameter of a score_mod requires a gradient, which it does not get; detach it")
    of_fp32 = dict(dtype=torch.float32, device=q.device)
    # A number is filled in: copied to the GPU, it would make the host wait for the GPU.
    is_number = isinstance(mod.parameter, numbers.Real)
    parameter = torch.full((), mod.parameter, **of_fp32) if is_number else torch.as_tensor(mod.parameter, **of_fp32)
    parameter = parameter.detach()
    if parameter.shape not in ((), (n_heads,), (batch, n_heads)):
        raise ValueError(
            f"the parameter of a score_mod has shape {shape_of(parameter)}; accepted: a number, [{n_heads}] or "
            f"[{batch}, {n_heads}]"
        )
    return parameter.expand(batch, n_heads)


def _described(x):
    return f"{x.dtype} {shape_of(x)}" if isinstance(x, torch.Tensor) else repr(x)


def _check_device(name, x, q):
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device} but q is on {q.device}; they must be on one device")


class _VariantAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, variant, scale):
        o, lse = variant_forward(q, k, v, variant, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.variant, ctx.scale, ctx.sinks_dtype = variant, scale, None if sinks is None else sinks.dtype
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do
        need_dq, need_dk, need_dv = ctx.needs_input_grad[:3]
        dq, dk, dv, dsinks = variant_backward(
            q, k, v, o, lse, do, dlse, ctx.variant, ctx.scale, need_dq=need_dq, need_dkdv=need_dk or need_dv
        )
        return dq, dk, dv, None if dsinks is None else dsinks.to(ctx.sinks_dtype), None, None
