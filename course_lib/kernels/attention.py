"""The public `flash_attention` and `flash_decode`: what they accept and refuse, and how they meet autograd."""

import torch
from torch.autograd.function import once_differentiable

from course_lib import runtime
from course_lib.kernels import checks
from course_lib.kernels.backward import flash_backward
from course_lib.kernels.checks import (
    DTYPES,
    check_caches,
    check_flag,
    check_int_range,
    check_scale,
    check_tensors,
    check_values,
)
from course_lib.kernels.configs import BLOCK_SIZES
from course_lib.kernels.decode import MAX_SPLITS, decode
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.hopper.backward import hopper_backward, prefers_hopper_backward
from course_lib.kernels.hopper.forward import hopper_forward, prefers_hopper
from course_lib.kernels.launch import addressable, tensor_meta
from course_lib.kernels.masked_attention import variant_attention

# Up to so many query rows that share keys, and from so many keys on, `flash_attention` decodes. Where several heads
# share them and a tile has room, up to 64 rows are decoded in hardly more time than one (timed on an H200).
MAX_DECODED_ROWS, MAX_GROUPED_ROWS, MIN_DECODED_KEYS = 16, 64, 512
# True: on every GPU the kernels that run on all of them, as lessons 08 to 11 measure them.
PORTABLE = False


def flash_attention(
    q, k, v, *, causal=False, scale=None, return_lse=False, block_q=None, block_k=None,
    mask=None, score_mod=None, sinks=None, dropout_p=0.0, seed=None,
):  # fmt: skip
    """softmax(q k^T * scale) v without the N x N matrix (FlashAttention-2, Dao 2023, Alg. 1).

    q: [batch, heads, n_q, head_dim]; k, v: [batch, kv_heads, n_k, head_dim]; all fp16, all bf16 or all fp32. The two
    lengths are independent and at least 1, head_dim is 1 to 256, heads at most 65,535, and kv_heads divides heads:
    consecutive query heads share one. Any strides are accepted. A tensor is copied first if its last dimension is not
    contiguous, or if its rows are 2^24 elements or more apart.
    causal: query i sees the keys j <= i + n_k - n_q, so the last query sees every key. scale: None means
    1/sqrt(head_dim). block_q, block_k: rows of a tile, 16, 32, 64 or 128; None takes them from `configs`.

    mask: of `course_lib.masks`, combined with causal if both are given; `masks.packed` is for sequences one behind the
    other in one row, by cumulative lengths. score_mod: of `score_mods`, or several in a
    tuple, applied to the scaled scores one after the other. sinks: floating-point [heads], a score of each head that
    takes weight in every row and brings no value. dropout_p: the share of weights that is dropped; the others are
    multiplied by 1 / (1 - dropout_p). seed: decides which, with head, query and key, whatever the tiles; None draws one
    from torch's generator.

    Returns o, with q's dtype and shape. With return_lse=True, returns (o, lse): the natural logarithm of the sum of
    exp(scores), fp32 [batch, heads, n_q], a sink among the scores. Rows with no visible key give o = 0 and lse = -inf,
    or the sink. Nothing is modified.

    Precision: statistics and accumulators are fp32 for every dtype. fp32 inputs are never rounded to TF32. From compute
    capability 8.0 on, each number is split into three bf16 parts that are multiplied on tensor cores, as accurately as
    in fp32 arithmetic; but inputs below about 1e-33 lose digits with their smallest part (relative errors of 2e-6 at
    1e-35 and 3e-4 at 1e-37), and a number above 3.396e38 counts as inf, to which bf16 rounds it. Sums of values are
    divided last, so values within a factor of n_k of the largest float may overflow.

    NaN and inf: a row that sees one is NaN or inf wherever plain attention's is. Beyond that, a NaN or inf in k or v
    may make all rows of a query tile NaN that loads it, even if they do not see it, because 0 * NaN is NaN in a matrix
    product. Rows of other query tiles, heads and sequences keep their bits.

    On GPUs of compute capability 9.0, long sequences and many heads go to kernels of their own (hopper/).
    Where few query rows share 512 keys or more (16; 64 of grouped heads in fp16 or bf16), several programs read parts
    of the keys (decode.py), unless block_q or block_k is given.

    Differentiable once, with respect to q, k, v and sinks, through o and through lse (FlashAttention-2, Alg. 2). The
    backward keeps q, k, v, o and lse, and nothing of size N x N. Gradients have the inputs' dtype, and the same call
    gives the same bits. Rows with no visible key give and receive zero gradients. block_q and block_k apply to the
    forward only. Under autocast, inputs are first cast to its dtype, as for PyTorch's own attention. Under
    torch.compile the kernels are opaque operators of the graph; fullgraph=True works, but a mask, score_mod, sinks or
    dropout_p break the graph.

    Raises TypeError or ValueError before any launch, naming the argument, and ValueError with the bytes needed if the
    tiles do not fit the GPU's shared memory.
    """
    causal, return_lse = check_flag("causal", causal), check_flag("return_lse", return_lse)
    q, k, v = _cast_by_autocast(q, k, v)
    check_tensors(q, k, v)
    scale = check_scale(scale, q.shape[-1])
    _check_blocks(block_q=block_q, block_k=block_k)
    q, k, v = addressable(q), addressable(k), addressable(v)
    if mask is not None or score_mod is not None or sinks is not None or dropout_p != 0:
        if block_q is not None or block_k is not None:
            raise ValueError("block_q and block_k are not accepted with a mask, score_mod, sinks or dropout_p")
        o, lse = variant_attention(q, k, v, causal, scale, mask, score_mod, sinks, dropout_p, seed)
        return (o, lse) if return_lse else o
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        o, lse = _FlashAttention.apply(q, k, v, causal, scale, return_lse, block_q, block_k)
    else:
        o, lse = _forward(q, k, v, causal, scale, return_lse, block_q, block_k)
    return (o, lse) if return_lse else o


def flash_decode(
    q, k_cache, v_cache, lengths, *, block_table=None, causal=True, scale=None, window_left=None, num_splits=None
):  # fmt: skip
    """Attention of each sequence's newest tokens to the keys and values in its cache: softmax(q k^T * scale) v.

    q: [batch, heads, n_new, head_dim], fp16, bf16 or fp32, head_dim 1 to 256. n_new is 1 in decoding, and more where
    several tokens of a sequence come at once. k_cache, v_cache: [batch, kv_heads, capacity, head_dim], q's dtype, any
    strides with the last dimension contiguous; the new tokens' keys and values are in them already. kv_heads divides
    heads: consecutive query heads share one.
    lengths: int32 or int64 [batch], how many keys each sequence has: n_new to capacity, the new tokens' counted, or 0
    for a place in the batch that is empty.
    block_table: int32 [batch, pages], for caches in pages, [n_pages, kv_heads, page_size, head_dim] with page_size a
    power of two from 16 up. Key j of sequence b is row j % page_size of page block_table[b, j // page_size]. Entries
    beyond a sequence's keys are not read. The capacity is pages * page_size.
    causal: of n keys, new token i sees those j <= n - n_new + i. window_left: and those j >= n - n_new + i -
    window_left; None for no such limit. scale: None means 1/sqrt(head_dim).
    num_splits: 1 to 512, how many programs share the keys of a sequence; None for `decode.splits`.

    Returns o, with q's dtype and shape. Rows with no visible key are 0. Precision, NaN and inf as `flash_attention`.
    With the same num_splits, a sequence's bits depend neither on the others in the batch nor on which pages it has.

    The host reads neither lengths nor block_table, so no call waits for the GPU, and a call in a CUDA graph can be
    replayed after they have changed. Wrong values make the kernel read another sequence's memory, or memory outside the
    cache. With `checks.DEBUG = True`, and always in the interpreter, they raise ValueError.
    Not differentiable. Nothing is modified.

    Raises TypeError or ValueError before any launch, naming the argument.
    """
    causal = check_flag("causal", causal)
    check_caches(q, k_cache, v_cache, lengths, block_table)
    scale = check_scale(scale, q.shape[-1])
    check_int_range("window_left", window_left, 0, 2**30)
    check_int_range("num_splits", num_splits, 1, MAX_SPLITS)
    if torch.is_grad_enabled():
        for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
            if x.requires_grad:
                raise ValueError(f"{name} requires a gradient, which flash_decode has not; call it under no_grad")
    run = _decode_in_graph if torch.compiler.is_compiling() else _decode
    return run(q, k_cache, v_cache, lengths, block_table, causal, scale, window_left, num_splits)


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
        do = torch.zeros_like(o) if do is None else addressable(do)
        if torch.compiler.is_compiling():
            dq, dk, dv = _backward_in_graph(q, k, v, o, lse, do, dlse, ctx.causal, ctx.scale)
        else:
            dq, dk, dv = _launch_backward(
                q, k, v, o, lse, do, dlse, causal=ctx.causal, scale=ctx.scale,
                need_dq=need_dq, need_dkdv=need_dk or need_dv,
            )  # fmt: skip
        return dq if need_dq else None, dk if need_dk else None, dv if need_dv else None, None, None, None, None, None


def _forward(q, k, v, causal, scale, store_lse, block_q, block_k):
    if torch.compiler.is_compiling():
        return _forward_in_graph(q, k, v, causal, scale, block_q, block_k)
    return _launch_forward(q, k, v, causal, scale, store_lse, block_q, block_k)


def _launch_forward(q, k, v, causal, scale, store_lse, block_q, block_k):
    """(o, lse) by the kernel that suits the shapes. Both compute one function, so the backward is the same."""
    group_size, n_q, n_k = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    most_rows = MAX_GROUPED_ROWS if group_size > 1 and q.dtype != torch.float32 else MAX_DECODED_ROWS
    if block_q is None and block_k is None:
        if group_size * n_q <= most_rows and n_k >= MIN_DECODED_KEYS:
            return decode(q, k, v, causal=causal, scale=scale, store_lse=store_lse)
        metas = map(tensor_meta, (q, k, v))
        if not PORTABLE and prefers_hopper(runtime.capability(q.device), *metas, causal):
            return hopper_forward(q, k, v, causal=causal, scale=scale, store_lse=store_lse)
    return flash_forward(q, k, v, causal=causal, scale=scale, store_lse=store_lse, block_q=block_q, block_k=block_k)


def _launch_backward(q, k, v, o, lse, do, dlse, *, causal, **how):
    """(dq, dk, dv) by the kernels that suit the shapes."""
    metas = map(tensor_meta, (q, k, v, do))
    suits = not PORTABLE and prefers_hopper_backward(runtime.capability(q.device), *metas, causal)
    return (hopper_backward if suits else flash_backward)(q, k, v, o, lse, do, dlse, causal=causal, **how)


# Operators for torch.compile, which does not look into them and learns the shapes of their results from the functions
# registered as fake. An operator always returns tensors, so it computes lse and every gradient whether needed or not.
@torch.library.custom_op("course_lib::flash_forward", mutates_args=())
def _forward_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float,
    block_q: int | None, block_k: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return _launch_forward(q, k, v, causal, scale, True, block_q, block_k)


@_forward_in_graph.register_fake
def _(q, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("course_lib::flash_backward", mutates_args=())
def _backward_in_graph(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor,
    dlse: torch.Tensor | None, causal: bool, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return _launch_backward(q, k, v, o, lse, do, dlse, causal=causal, scale=scale)


@_backward_in_graph.register_fake
def _(q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _decode(q, k_cache, v_cache, lengths, block_table, causal, scale, window_left, num_splits):
    if checks.DEBUG or runtime.mode() == "interpreter":
        check_values(lengths, block_table, k_cache, q.shape[2], window_left)
    q = q if q.stride(-1) == 1 else q.contiguous()
    if block_table is not None and block_table.stride(-1) != 1:
        block_table = block_table.contiguous()
    return decode(
        q, k_cache, v_cache, lengths.contiguous(), block_table, causal=causal, scale=scale, window_left=window_left,
        num_splits=num_splits,
    )[0]  # fmt: skip


@torch.library.custom_op("course_lib::flash_decode", mutates_args=())
def _decode_in_graph(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, lengths: torch.Tensor,
    block_table: torch.Tensor | None, causal: bool, scale: float, window_left: int | None, num_splits: int | None,
) -> torch.Tensor:  # fmt: skip
    return _decode(q, k_cache, v_cache, lengths, block_table, causal, scale, window_left, num_splits)


@_decode_in_graph.register_fake
def _(q, *_):
    return q.new_empty(q.shape)


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


def _check_blocks(**blocks):
    for name, block in blocks.items():
        if block is not None and block not in BLOCK_SIZES:
            raise ValueError(f"{name} must be one of {', '.join(map(str, BLOCK_SIZES))} or None, got {block!r}")
