"""The public `flash_attention`: what it accepts, what it refuses, and how it meets autograd."""

import math
import numbers

import torch
from torch.autograd.function import once_differentiable
from triton.runtime.errors import OutOfResources

from course_lib import runtime
from course_lib.kernels.flash_backward import flash_backward
from course_lib.kernels.flash_forward import default_config, flash_forward

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
# Offsets inside a tile are 32-bit: 128 rows of at most 2^24 elements.
MAX_ROW_STRIDE = 2**24 - 1
BLOCK_SIZES = (16, 32, 64, 128)
COMPILED = runtime.mode() == "gpu"


def flash_attention(q, k, v, *, causal=False, scale=None, return_lse=False, block_q=None, block_k=None):
    """softmax(q k^T * scale) v without the N x N matrix (FlashAttention-2, Dao 2023, Alg. 1).

    q: [batch, heads, n_q, head_dim]; k, v: [batch, kv_heads, n_k, head_dim], fp16, bf16 or fp32, all alike.
    Lengths from 1 up and unequal as they come, head_dim 1 to 256, kv_heads a divisor of heads (query heads
    share them in consecutive groups). Any strides; a tensor whose last dimension is not contiguous is copied, as is
    one with 2^24 elements or more from row to row.
    causal: query i sees keys j <= i + n_k - n_q (the last query sees every key). scale: None means
    1/sqrt(head_dim). block_q, block_k: tile rows, 16, 32, 64 or 128; None takes the shipped configuration.

    Returns o in q's dtype and shape; with return_lse also lse, natural log-sum-exp of the scaled scores,
    fp32 [batch, heads, n_q]. Rows with no visible key give o = 0 and lse = -inf. Nothing is modified.

    fp32 inputs are multiplied in IEEE fp32, never TF32; statistics and accumulator are fp32 for all dtypes.

    Differentiable, once, with respect to q, k and v, from o and from lse (FlashAttention-2, Alg. 2). For that it
    keeps q, k, v, o and lse, and nothing of size N x N. Gradients come in the inputs' dtype, the same bits from the
    same call; rows with no visible key give and get gradient 0. block_q and block_k concern the forward alone.
    Under autocast fp16, bf16 and fp32 inputs are cast to its dtype first, as for PyTorch's own attention. Under
    torch.compile the kernels are operators of the graph, opaque to it: fullgraph=True works.

    Raises TypeError or ValueError before any launch, naming the argument; ValueError with the bytes needed
    when the tiles do not fit the GPU's shared memory.
    """
    causal, return_lse = _flag("causal", causal), _flag("return_lse", return_lse)
    q, k, v = _as_autocast_has_them(q, k, v)
    check_tensors(q, k, v)
    scale = _check_scale(scale, q.shape[-1])
    config = _config(q, causal, block_q, block_k)
    q, k, v = _addressable(q), _addressable(k), _addressable(v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        o, lse = _FlashAttention.apply(q, k, v, causal, scale, return_lse, config)
    else:
        forward = _forward_in_graph if torch.compiler.is_compiling() else _forward
        o, lse = forward(q, k, v, causal, scale, return_lse, config)
    return (o, lse) if return_lse else o


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale, return_lse, config):
        forward = _forward_in_graph if torch.compiler.is_compiling() else _forward
        o, lse = forward(q, k, v, causal, scale, True, config)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.set_materialize_grads(False)
        return o, lse if return_lse else None

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        need_dq, need_dk, need_dv = ctx.needs_input_grad[:3]
        backward = _backward_in_graph if torch.compiler.is_compiling() else _backward
        do = torch.zeros_like(o) if do is None else do
        dq, dk, dv = backward(q, k, v, o, lse, do, dlse, ctx.causal, ctx.scale, need_dq, need_dk or need_dv)
        return dq, dk if need_dk else None, dv if need_dv else None, None, None, None, None


def _forward(q, k, v, causal, scale, store_lse, config):
    try:
        return flash_forward(q, k, v, causal=causal, scale=scale, store_lse=store_lse, config=config)
    except OutOfResources as error:
        block_q, block_k = (config or default_config(q.dtype, q.shape[-1], causal, runtime.capability(q.device)))[:2]
        raise ValueError(
            f"block_q={block_q}, block_k={block_k} at head_dim={q.shape[-1]}, {_name(q.dtype)}, needs "
            f"{error.required} bytes of {error.name}; this GPU has {error.limit}. Take smaller blocks."
        ) from error


def _backward(q, k, v, o, lse, do, dlse, causal, scale, need_dq, need_dkdv):
    return flash_backward(
        q, k, v, o, lse, _addressable(do), None if dlse is None else dlse.contiguous(),
        causal=causal, scale=scale, need_dq=need_dq, need_dkdv=need_dkdv,
    )  # fmt: skip


# For torch.compile: operators that it neither looks into nor runs while it traces, with the shapes they return.
@torch.library.custom_op("course_lib::flash_forward", mutates_args=())
def _forward_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, store_lse: bool,
    config: list[int] | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    # An operator returns tensors only: lse is computed whether asked for or not.
    return _forward(q, k, v, causal, scale, True, config and tuple(config))


@_forward_in_graph.register_fake
def _(q, k, v, causal, scale, store_lse, config):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("course_lib::flash_backward", mutates_args=())
def _backward_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor,
    dlse: torch.Tensor | None, causal: bool, scale: float, need_dq: bool, need_dkdv: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return _backward(q, k, v, o, lse, do, dlse, causal, scale, True, True)


@_backward_in_graph.register_fake
def _(q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _as_autocast_has_them(*tensors):
    """The tensors in the dtype that autocast, where it is on, gives to matrix products."""
    if not torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu"):
        return tensors
    return [
        x.to(torch.get_autocast_dtype(x.device.type))
        if isinstance(x, torch.Tensor) and x.dtype in DTYPES and x.device.type in ("cuda", "cpu")
        and torch.is_autocast_enabled(x.device.type)
        else x
        for x in tensors
    ]  # fmt: skip


def _addressable(x):
    """x, or a copy that the kernels' offsets can address."""
    _, _, row_stride, stride = x.stride()
    return x if stride == 1 and row_stride <= MAX_ROW_STRIDE else x.contiguous()


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _flag(name, value):
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_tensors(q, k, v):
    """Raise TypeError or ValueError, naming the argument, unless q, k and v are as `flash_attention` takes them."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions [batch, heads, seq, head_dim], got {_shape(x)}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} has dtype {_name(x.dtype)}; accepted: {', '.join(map(_name, DTYPES))}")
    batch, n_heads, n_q, head_dim = q.shape
    _, n_kv_heads, n_k, _ = k.shape
    dtype, device = q.dtype, q.device
    for name, x in (("k", k), ("v", v)):
        if x.dtype != dtype:
            raise TypeError(f"{name} has dtype {_name(x.dtype)} but q has {_name(dtype)}; they must be equal")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device} but q is on {device}; they must be on one device")
        x_batch, _, _, x_head_dim = x.shape
        if x_batch != batch:
            raise ValueError(f"{name} has batch {x_batch} but q has {batch}; they must be equal")
        if x_head_dim != head_dim:
            raise ValueError(f"{name} has head_dim {x_head_dim} but q has {head_dim}; they must be equal")
    if COMPILED and not q.is_cuda:
        raise ValueError(f"q, k and v are on {device}; kernels run compiled here and take CUDA tensors")
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {_shape(k)}, got {_shape(v)}")
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be 1 to {MAX_HEAD_DIM}, got {head_dim}")
    for name, heads, length in (("q", n_heads, n_q), ("k", n_kv_heads, n_k)):
        if length < 1:
            raise ValueError(f"{name} has sequence length 0; it must be at least 1")
        if heads < 1:
            raise ValueError(f"{name} has 0 heads; it must have at least 1")
    if n_heads % n_kv_heads:
        raise ValueError(f"k and v have {n_kv_heads} heads, which do not divide q's {n_heads}")


def _shape(x):
    return str(list(x.shape))


def _check_scale(scale, head_dim):
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(f"scale must be a real number or None, got {scale!r}")
    if not abs(float(scale)) <= 1e38:
        raise ValueError(f"scale must be finite in fp32 (at most 1e38 in size), got {scale!r}")
    return float(scale)


def _config(q, causal, block_q, block_k):
    """None for the shipped configuration, else (BLOCK_M, BLOCK_N, num_warps, num_stages) for the caller's blocks."""
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if block is not None and block not in BLOCK_SIZES:
            raise ValueError(f"{name} must be one of {', '.join(map(str, BLOCK_SIZES))} or None, got {block!r}")
    if block_q is None and block_k is None:
        return None
    if block_q is None or block_k is None:
        shipped_q, shipped_k, _, _ = default_config(q.dtype, q.shape[-1], causal, runtime.capability(q.device))
        block_q, block_k = block_q or shipped_q, block_k or shipped_k
    return chosen_config(block_q, block_k)


def chosen_config(block_q, block_k):
    """(BLOCK_M, BLOCK_N, num_warps, num_stages) that a caller's own block sizes are launched with."""
    # One warp for 16 query rows, four at least; no prefetching, which costs shared memory.
    return block_q, block_k, max(4, block_q // 16), 1
