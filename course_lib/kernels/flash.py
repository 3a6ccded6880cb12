"""The public `flash_attention`: what it accepts, what it refuses, and how it meets autograd."""

import math
import numbers

import torch
from torch.autograd.function import once_differentiable

from course_lib import runtime
from course_lib.kernels.configs import BLOCK_SIZES
from course_lib.kernels.flash_backward import flash_backward
from course_lib.kernels.flash_forward import flash_forward

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
MAX_HEADS = 65_535  # what the second axis of a CUDA grid holds
# Offsets inside a tile are 32-bit: 128 rows of at most 2^24 elements.
MAX_ROW_STRIDE = 2**24 - 1
COMPILED = runtime.mode() == "gpu"


def flash_attention(q, k, v, *, causal=False, scale=None, return_lse=False, block_q=None, block_k=None):
    """softmax(q k^T * scale) v without the N x N matrix (FlashAttention-2, Dao 2023, Alg. 1).

    q: [batch, heads, n_q, head_dim]; k, v: [batch, kv_heads, n_k, head_dim]; all fp16, all bf16 or all fp32. The two
    lengths are independent and at least 1, head_dim is 1 to 256, heads at most 65,535, and kv_heads divides heads:
    consecutive query heads share one. Any strides are accepted. A tensor is copied first if its last dimension is not
    contiguous, or if its rows are 2^24 elements or more apart.
    causal: query i sees the keys j <= i + n_k - n_q, so the last query sees every key. scale: None means
    1/sqrt(head_dim). block_q, block_k: rows of a tile, 16, 32, 64 or 128; None takes them from `configs`.

    Returns o, with q's dtype and shape. With return_lse=True, returns (o, lse): the natural logarithm of the sum of
    exp(scores), fp32 [batch, heads, n_q]. Rows with no visible key give o = 0 and lse = -inf. Nothing is modified.

    Precision: statistics and accumulators are fp32 for every dtype. fp32 inputs are never rounded to TF32. From compute
    capability 8.0 on, each number is split into three bf16 parts that are multiplied on tensor cores, as accurately as
    in fp32 arithmetic; but inputs below about 1e-33 lose digits with their smallest part (relative errors of 2e-6 at
    1e-35 and 3e-4 at 1e-37), and a number above 3.396e38 counts as inf, to which bf16 rounds it. Sums of values are
    divided last, so values within a factor of n_k of the largest float may overflow.

    NaN and inf: a row that sees one is NaN or inf wherever plain attention's is. Beyond that, a NaN or inf in k or v
    may make all rows of a query tile NaN that loads it, even if they do not see it, because 0 * NaN is NaN in a matrix
    product. Rows of other query tiles, heads and sequences keep their bits.

    Differentiable once, with respect to q, k and v, through o and through lse (FlashAttention-2, Alg. 2). The backward
    keeps q, k, v, o and lse, and nothing of size N x N. Gradients have the inputs' dtype, and the same call gives the
    same bits. Rows with no visible key give and receive zero gradients. block_q and block_k apply to the forward only.
    Under autocast, inputs are first cast to its dtype, as for PyTorch's own attention. Under torch.compile the kernels
    are opaque operators of the graph; fullgraph=True works.

    Raises TypeError or ValueError before any launch, naming the argument, and ValueError with the bytes needed if the
    tiles do not fit the GPU's shared memory.
    """
    causal, return_lse = _flag("causal", causal), _flag("return_lse", return_lse)
    q, k, v = _cast_by_autocast(q, k, v)
    check_tensors(q, k, v)
    scale = _check_scale(scale, q.shape[-1])
    _check_blocks(block_q=block_q, block_k=block_k)
    q, k, v = _addressable(q), _addressable(k), _addressable(v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        o, lse = _FlashAttention.apply(q, k, v, causal, scale, return_lse, block_q, block_k)
    else:
        o, lse = _forward(q, k, v, causal, scale, return_lse, block_q, block_k)
    return (o, lse) if return_lse else o


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale, return_lse, block_q, block_k):
        o, lse = _forward(q, k, v, causal, scale, True, block_q, block_k)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.set_materialize_grads(False)
        return o, lse if return_lse else None

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        need_dq, need_dk, need_dv = ctx.needs_input_grad[:3]
        do = torch.zeros_like(o) if do is None else _addressable(do)
        dlse = None if dlse is None else dlse.contiguous()
        if torch.compiler.is_compiling():
            dq, dk, dv = _backward_in_graph(q, k, v, o, lse, do, dlse, ctx.causal, ctx.scale)
        else:
            dq, dk, dv = flash_backward(
                q, k, v, o, lse, do, dlse, causal=ctx.causal, scale=ctx.scale,
                need_dq=need_dq, need_dkdv=need_dk or need_dv,
            )  # fmt: skip
        return dq if need_dq else None, dk if need_dk else None, dv if need_dv else None, None, None, None, None, None


def _forward(q, k, v, causal, scale, store_lse, block_q, block_k):
    if torch.compiler.is_compiling():
        return _forward_in_graph(q, k, v, causal, scale, block_q, block_k)
    return flash_forward(q, k, v, causal=causal, scale=scale, store_lse=store_lse, block_q=block_q, block_k=block_k)


# Operators for torch.compile, which does not look into them and learns the shapes of their results from the functions
# registered as fake. An operator always returns tensors, so it computes lse and every gradient whether needed or not.
@torch.library.custom_op("course_lib::flash_forward", mutates_args=())
def _forward_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float,
    block_q: int | None, block_k: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return flash_forward(q, k, v, causal=causal, scale=scale, store_lse=True, block_q=block_q, block_k=block_k)


@_forward_in_graph.register_fake
def _(q, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("course_lib::flash_backward", mutates_args=())
def _backward_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor,
    dlse: torch.Tensor | None, causal: bool, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return flash_backward(q, k, v, o, lse, do, dlse, causal=causal, scale=scale)


@_backward_in_graph.register_fake
def _(q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _cast_by_autocast(*tensors):
    """The tensors, in the dtype that autocast uses for matrix products if it is on."""
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
    if n_heads > MAX_HEADS:
        raise ValueError(f"q has {n_heads} heads; at most {MAX_HEADS} are accepted (the batch may be larger)")
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


def _check_blocks(**blocks):
    for name, block in blocks.items():
        if block is not None and block not in BLOCK_SIZES:
            raise ValueError(f"{name} must be one of {', '.join(map(str, BLOCK_SIZES))} or None, got {block!r}")
