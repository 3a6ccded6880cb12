"""The public `flash_attention` and `flash_decode`: what they accept and refuse, and how they meet autograd."""

from itertools import repeat

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.forward_ad import unpack_dual

from course_lib import masks, runtime
from course_lib.kernels import checks
from course_lib.kernels.backward import flash_backward
from course_lib.kernels.checks import (
    DTYPES,
    MAX_GRID_AXIS,
    NO_FORWARD_MODE,
    check_block,
    check_caches,
    check_dropout,
    check_flag,
    check_int_range,
    check_key_range_values,
    check_key_ranges,
    check_mask,
    check_not_differentiated,
    check_scale,
    check_score_mods,
    check_sinks,
    check_tensors,
    check_values,
)
from course_lib.kernels.decode import MAX_SPLITS, decode
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.launch import addressable, tensor_meta
from course_lib.kernels.masked_attention import Variant, variant_backward, variant_forward
from course_lib.kernels.score_mods import FUNCTIONS

if runtime.mode() == "gpu" or "gluon" in runtime.emulators:
    from course_lib.kernels.hopper.backward import hopper_backward, prefers_hopper_backward
    from course_lib.kernels.hopper.forward import hopper_forward, prefers_hopper
else:

    def prefers_hopper(*_):
        """Without a GPU, nothing does; and nothing may be there that runs Gluon."""
        return False

    prefers_hopper_backward = prefers_hopper


# Up to so many query rows that share keys, and from so many keys on, `flash_attention` decodes. Where several heads
# share them and a tile has room, up to 64 rows are decoded in hardly more time than one (timed on an H200).
MAX_DECODED_ROWS, MAX_GROUPED_ROWS, MIN_DECODED_KEYS = 16, 64, 512
# True: on every GPU the kernels that run on all of them, as lessons 08 to 11 measure them.
PORTABLE = False


def flash_attention(
    q, k, v, *, causal=False, scale=None, return_lse=False, block_q=None, block_k=None,
    mask=None, key_ranges=None, score_mod=None, sinks=None, dropout_p=0.0, seed=None,
):  # fmt: skip
    """softmax(q k^T * scale) v without the N x N matrix (FlashAttention-2, Dao 2023, Alg. 1).

    q: [batch, heads, n_q, head_dim]; k, v: [batch, kv_heads, n_k, head_dim]; all fp16, all bf16 or all fp32. The two
    lengths are independent, head_dim is 1 to 256, and kv_heads divides heads: consecutive query heads share one. Any
    strides are accepted. A tensor is copied first if its last dimension is not contiguous, or if its rows are 2^24
    elements or more apart.
    causal: query i sees the keys j <= i + n_k - n_q, so the last query sees every key. scale: None means
    1/sqrt(head_dim). block_q, block_k: rows of a tile, 16, 32, 64 or 128; None takes them from `configs`.

    mask: of `course_lib.masks`, combined with causal if both are given; `masks.packed` is for sequences one behind the
    other in one row, by cumulative lengths. key_ranges: instead of mask and causal, int32 [batch, 2, n_q] on q's
    device: query i of sequence b sees the keys from key_ranges[b, 0, i] to key_ranges[b, 1, i] - 1. From one query to
    the next, neither end moves left. The host does not read them, so the GPU may compute them, also in a compiled
    function. Wrong ones give wrong results, or a ValueError where the lengths of `flash_decode` are checked. score_mod:
    of `score_mods`, or several in a tuple, applied to the scaled scores one after the other. sinks: floating-point
    [heads], a score of each head that takes weight in every row and brings no value. dropout_p: the share of weights
    that is dropped; the others are multiplied by 1 / (1 - dropout_p). seed: decides which, with head, query and key,
    whatever the tiles; None draws one from torch's generator.

    Returns o, with q's dtype and shape. With return_lse=True, returns (o, lse): the natural logarithm of the sum of
    exp(scores), fp32 [batch, heads, n_q], a sink among the scores. Rows with no visible key give o = 0 and lse = -inf,
    or the sink. Nothing is modified. docs/from_other_libraries.md says the arguments of other libraries in these.

    Precision: statistics and accumulators are fp32 for every dtype. fp32 inputs are never rounded to TF32. From compute
    capability 8.0 on, each number is split into three bf16 parts that are multiplied on tensor cores, as accurately as
    in fp32 arithmetic; but inputs below about 1e-33 lose digits with their smallest part (relative errors of 2e-6 at
    1e-35 and 3e-4 at 1e-37), and a number above 3.396e38 counts as inf, to which bf16 rounds it. Sums of values are
    divided last, so values within a factor of n_k of the largest float may overflow. Scores of any finite size are
    right, as long as q k^T is finite before it is scaled. Gradients are recomputed from lse, which fp32 holds to a unit
    in its last place: their error grows with the scores, 1 % of dv near scores of 1e5, all of it near 1e7.

    NaN and inf: a row that sees one is NaN or inf wherever plain attention's is. Beyond that, a NaN or inf in k or v
    may make all rows of a query tile NaN that loads it, even if they do not see it, because 0 * NaN is NaN in a matrix
    product. Rows of other query tiles, heads and sequences keep their bits.

    On GPUs of compute capability 9.0, long sequences and many heads go to kernels of their own (hopper/).
    Where few query rows share 512 keys or more (16; 64 of grouped heads in fp16 or bf16), several programs read parts
    of the keys (decode.py), unless block_q or block_k is given.

    Differentiable once, with respect to q, k, v and sinks, through o and through lse (FlashAttention-2, Alg. 2), also
    by torch.func.grad and, without a mask and the like, under torch.vmap. The backward keeps q, k, v, o and lse, and
    nothing of size N x N. Gradients have the inputs' dtype. The same call gives the same bits, but for those of dq on
    GPUs of compute capability 9.0, unless torch.use_deterministic_algorithms(True) asks for them. Rows with no visible
    key give and receive zero gradients. block_q and block_k apply to the forward only. Under autocast, inputs are first
    cast to its dtype, as for PyTorch's own attention. Under torch.compile the kernels are opaque operators of the
    graph, and fullgraph=True works, with any mask. A mask that reads an array (`documents`, for instance) is made
    outside the compiled function.

    Raises TypeError or ValueError before any launch, naming the argument; ValueError with the bytes needed if the tiles
    do not fit the GPU's shared memory; NotImplementedError for second and forward-mode derivatives.
    """
    causal, return_lse = check_flag("causal", causal), check_flag("return_lse", return_lse)
    q, k, v = _cast_by_autocast(q, k, v)
    check_tensors(q, k, v)
    scale = check_scale(scale, q.shape[-1])
    block_q, block_k = check_block("block_q", block_q), check_block("block_k", block_k)
    mods, weights = (), None
    if any(x is not None for x in (mask, key_ranges, score_mod, sinks)) or dropout_p != 0:
        if block_q is not None or block_k is not None:
            raise ValueError(
                "block_q and block_k are not accepted with a mask, key_ranges, score_mod, sinks or dropout_p"
            )
        if key_ranges is not None:
            key_ranges = check_key_ranges(key_ranges, mask, causal, q)
            causal = True  # what ranges are most like, by which tiles are chosen
        mask = check_mask(mask, causal)
        mask = mask.code if _is_traced(q) else mask
        mods, weights = check_score_mods(score_mod, q)
        sinks = check_sinks(sinks, q)
        dropout_p, seed = check_dropout(dropout_p, seed, q)
    else:
        seed = None
    q, k, v = addressable(q), addressable(k), addressable(v)
    how = causal, scale, block_q, block_k, mask, mods, float(dropout_p)
    o, lse = _attend(q, k, v, sinks, weights, seed, key_ranges, *how, store_lse=return_lse)
    return (o, lse) if return_lse else o


def flash_decode(
    q, k_cache, v_cache, lengths, *, block_table=None, causal=True, scale=None, window_left=None, num_splits=None,
    score_mod=None, sinks=None, return_lse=False,
):  # fmt: skip
    """Attention of each sequence's newest tokens to the keys and values in its cache: softmax(q k^T * scale) v.

    q: [batch, heads, n_new, head_dim], fp16, bf16 or fp32, head_dim 1 to 256. n_new is 1 in decoding, and more where
    several tokens of a sequence come at once. k_cache, v_cache: [batch, kv_heads, capacity, head_dim], q's dtype, any
    strides with the last dimension contiguous; the new tokens' keys and values are in them already. kv_heads divides
    heads: consecutive query heads share one.
    lengths: int32 or int64 [batch], how many keys each sequence has: n_new to capacity, the new tokens' counted, or 0
    for a place in the batch that is empty.
    block_table: int32 or int64 [batch, pages], for caches in pages, [n_pages, kv_heads, page_size, head_dim]. Key j of
    sequence b is row j % page_size of page block_table[b, j // page_size]. Entries beyond a sequence's keys are not
    read. The capacity is pages * page_size.
    causal: of n keys, new token i sees those j <= n - n_new + i. window_left: and those j >= n - n_new + i -
    window_left; None for no such limit. scale: None means 1/sqrt(head_dim).
    num_splits: 1 to 512, how many programs share the keys of a sequence; None for `decode.splits`.
    score_mod, sinks, return_lse: as `flash_attention`'s.

    Returns o, with q's dtype and shape, or (o, lse). Rows with no visible key are 0. Precision, NaN and inf as
    `flash_attention`.
    With the same num_splits, a sequence's bits depend neither on the others in the batch nor on which pages it has, as
    long as tiles have the same size, which on Hopper depends on the batch and the capacity.

    The host reads neither lengths nor block_table, so no call waits for the GPU, and a call in a CUDA graph can be
    replayed after they have changed. Wrong values make the kernel read another sequence's memory, or memory outside the
    cache. With `checks.DEBUG = True`, and always in the interpreter, they raise ValueError.
    Under autocast, q and the caches are first cast to its dtype, as by `flash_attention`; a cache in that dtype is not
    copied. Nothing is modified. Not differentiable.

    Raises TypeError or ValueError before any launch, naming the argument, and NotImplementedError inside torch.func's
    transforms.
    """
    causal, return_lse = check_flag("causal", causal), check_flag("return_lse", return_lse)
    q, k_cache, v_cache = _cast_by_autocast(q, k_cache, v_cache)
    check_caches(q, k_cache, v_cache, lengths, block_table)
    check_not_differentiated("flash_decode", q=q, k_cache=k_cache, v_cache=v_cache)
    scale = check_scale(scale, q.shape[-1])
    window_left = check_int_range("window_left", window_left, 0, 2**30)
    num_splits = check_int_range("num_splits", num_splits, 1, MAX_SPLITS)
    mods, weights = check_score_mods(score_mod, q)
    arguments = q, k_cache, v_cache, lengths, block_table, check_sinks(sinks, q), weights
    how = causal, scale, window_left, num_splits, mods
    o, lse = _decode_in_graph(*arguments, *how) if _is_traced(q) else _decode(*arguments, *how, store_lse=return_lse)
    return (o, lse) if return_lse else o


# The functions below take arguments in this order: tensors (q, k, v, sinks or None, weights of the score mods or None,
# seed of the dropout or None, key_ranges or None; for gradients o, lse, do, dlse or None), then what is called how:
# causal, scale, block_q, block_k, the mask (its code in a graph) or None, codes of the score mods, dropout_p.


def _attend(*arguments, store_lse):
    """(o, lse), by way of autograd where it has something to do with the call."""
    differentiable = arguments[:4]
    q, k, v, *others = arguments
    for axis in (0, 1):
        if q.shape[axis] > MAX_GRID_AXIS:
            return _in_parts(axis, arguments, store_lse)
    if torch.compiler.is_compiling():
        # Dynamo refuses to take one tensor twice, as in flash_attention(x, x, x).
        return _Attention.apply(q, k.view_as(k), v.view_as(v), *others)
    if torch._C._are_functorch_transforms_active():
        return _TransformedAttention.apply(*arguments)
    if any(unpack_dual(x).tangent is not None for x in differentiable if x is not None):
        raise NotImplementedError(NO_FORWARD_MODE)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in differentiable):
        return _Attention.apply(*arguments)
    return _forward(*arguments, store_lse=store_lse)


def _in_parts(axis, arguments, store_lse):
    """`_attend` for as many sequences, or heads, at a time as a grid has room for."""
    q, k, v, sinks, weights, seed, key_ranges, *how = arguments
    name, mask = ("batch", "heads")[axis], how[4]
    if seed is not None or mask is not None and _mask_of(mask).shape[axis] > 1:
        raise ValueError(
            f"q has {name} {q.shape[axis]}; at most {MAX_GRID_AXIS} are accepted with dropout, or a mask for each; "
            "call flash_attention for some at a time"
        )
    group = q.shape[1] // k.shape[1] if axis else 1
    n_keys = MAX_GRID_AXIS // group
    n = n_keys * group
    split = zip(
        q.split(n, axis), k.split(n_keys, axis), v.split(n_keys, axis),
        repeat(None) if sinks is None else sinks.split(n) if axis else repeat(sinks),
        repeat(None) if weights is None else [x.contiguous() for x in weights.split(n, axis + 1)],
        repeat(None),
        repeat(key_ranges) if key_ranges is None or axis else key_ranges.split(n),
        strict=False,
    )  # fmt: skip
    o, lse = zip(*(_attend(*part, *how, store_lse=store_lse) for part in split), strict=True)
    return torch.cat(o, axis), torch.cat(lse, axis) if store_lse else None


def _keep(ctx, arguments, results):
    ctx.save_for_backward(*arguments[:7], *results)
    ctx.how = arguments[7:]
    ctx.set_materialize_grads(False)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        results = _forward(*arguments, store_lse=True)
        _keep(ctx, arguments, results)
        return results

    @staticmethod
    def backward(ctx, do, dlse):
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[:4]  # read once, or checkpointing refuses
        arguments = *saved, torch.zeros_like(saved[7]) if do is None else do, dlse, *ctx.how
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            gradients = _Gradients.apply(*arguments)
        else:
            gradients = _backward(*arguments, need_dq=needs[0], need_dkdv=needs[1] or needs[2])
        wanted = [x if needed else None for x, needed in zip(gradients, needs, strict=True)]
        return *wanted, None, None, None, *[None for _ in ctx.how]


class _TransformedAttention(_Attention):
    """Inside torch.func.grad and the like, which ask for a context of its own. Elsewhere it would cost 50 us a call."""

    @staticmethod
    def forward(*arguments):
        return _forward(*arguments, store_lse=True)

    setup_context = staticmethod(_keep)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return _vmap(_TransformedAttention, info, in_dims, arguments)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(NO_FORWARD_MODE)


class _Gradients(torch.autograd.Function):
    """Gradients that are part of a graph. Where somebody asks for theirs, it says that there are none."""

    @staticmethod
    def forward(*arguments):
        return _backward(*arguments, need_dq=True, need_dkdv=True)

    @staticmethod
    def setup_context(ctx, arguments, results):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("flash_attention has first derivatives only, and a second one was asked for")

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return _vmap(_Gradients, info, in_dims, arguments)

    jvp = _TransformedAttention.jvp


def _vmap(function, info, in_dims, arguments):
    """function.apply, and the dimensions of its results that are mapped: the mapped dimension joins the batch."""
    if any(x is not None for x in (*arguments[3:7], arguments[-3])):
        raise NotImplementedError(
            "vmap of flash_attention takes no mask, key_ranges, score_mod, sinks or dropout_p; make the mapped "
            "dimension part of the batch, and call flash_attention once"
        )

    def joined(x, dim):
        if not isinstance(x, torch.Tensor):
            return x
        return (x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)

    results = function.apply(*map(joined, arguments, in_dims))
    results = [x if x is None else x.unflatten(0, (info.batch_size, -1)) for x in results]
    return tuple(results), tuple(x if x is None else 0 for x in results)


def _is_traced(q):
    """Whether nothing is computed now: torch.compile makes a graph, or somebody asks for shapes alone."""
    return torch.compiler.is_compiling() or q.is_meta or isinstance(q, FakeTensor)


def _forward(q, *others, store_lse):
    if _is_traced(q):
        return _forward_in_graph(q, *others)
    return _launch_forward(q, *others, store_lse=store_lse)


def _backward(q, *others, need_dq, need_dkdv):
    """(dq, dk, dv, dsinks), None for what is not needed or not there."""
    if _is_traced(q):
        *gradients, dsinks = _backward_in_graph(q, *others)
        return *gradients, dsinks if dsinks.numel() else None
    return _launch_backward(q, *others, need_dq=need_dq, need_dkdv=need_dkdv)


def _mask_of(mask):
    """The mask itself, given by itself or by its code."""
    return mask if isinstance(mask, masks.Mask) else masks.of_code(tuple(mask))


def _variant(q, k, sinks, weights, seed, key_ranges, mask, mods, dropout_p):
    mask = _mask_of(mask)
    mask.check_lengths(q.shape[2], k.shape[2])
    for name, of_mask, of_q in zip(("batch", "heads"), mask.shape, q.shape[:2], strict=True):
        if of_mask not in (1, of_q):
            raise ValueError(f"mask is one for {name} {of_mask}; accepted: {of_q}, which q has, or 1 for all")
    return Variant(mask, tuple(FUNCTIONS[mod] for mod in mods), weights, sinks, dropout_p, seed, key_ranges)


def _launch_forward(
    q, k, v, sinks, weights, seed, key_ranges, causal, scale, block_q, block_k, mask, mods, dropout_p, *, store_lse
):  # fmt: skip
    """(o, lse) by the kernel that suits the call."""
    group_size, n_q, n_k = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    if n_q == 0 or n_k == 0:
        lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
        return torch.zeros_like(q), lse if sinks is None else lse.copy_(sinks[:, None])
    if key_ranges is not None and (checks.DEBUG or runtime.mode() == "interpreter"):
        check_key_range_values(key_ranges, n_k)
    if mask is not None:
        variant = _variant(q, k, sinks, weights, seed, key_ranges, mask, mods, dropout_p)
        return variant_forward(q, k, v, variant, scale)
    most_rows = MAX_GROUPED_ROWS if group_size > 1 and q.dtype != torch.float32 else MAX_DECODED_ROWS
    if block_q is None and block_k is None:
        if group_size * n_q <= most_rows and n_k >= MIN_DECODED_KEYS:
            return decode(q, k, v, causal=causal, scale=scale, store_lse=store_lse)
        metas = map(tensor_meta, (q, k, v))
        if not PORTABLE and prefers_hopper(runtime.capability(q.device), *metas, causal):
            return hopper_forward(q, k, v, causal=causal, scale=scale, store_lse=store_lse)
    return flash_forward(q, k, v, causal=causal, scale=scale, store_lse=store_lse, block_q=block_q, block_k=block_k)


def _launch_backward(
    q, k, v, sinks, weights, seed, key_ranges, o, lse, do, dlse, causal, scale, block_q, block_k, mask, mods, dropout_p,
    **needs,
):  # fmt: skip
    """(dq, dk, dv, dsinks) by the kernels that suit the call, which are the same for every forward."""
    do = addressable(do)
    if mask is not None and o.numel() and k.numel():
        variant = _variant(q, k, sinks, weights, seed, key_ranges, mask, mods, dropout_p)
        return variant_backward(q, k, v, o, lse, do, dlse, variant, scale, **needs)
    dsinks = None if sinks is None else torch.zeros_like(sinks) if dlse is None else dlse.sum((0, 2))  # without keys
    return *gradients(q, k, v, o, lse, do, dlse, causal=causal, scale=scale, **needs), dsinks


def gradients(q, k, v, o, lse, do, dlse=None, *, causal, scale, delta=None, need_dq=True, need_dkdv=True):
    """(dq, dk, dv) without variants, by the kernels that suit the call; as `backward.flash_backward`."""
    if q.numel() == 0 or k.numel() == 0:
        return [torch.zeros_like(x) for x in (q, k, v)]
    metas = map(tensor_meta, (q, k, v, do))
    how = {"causal": causal, "scale": scale, "delta": delta, "need_dq": need_dq, "need_dkdv": need_dkdv}
    fused = need_dq and need_dkdv and not torch.are_deterministic_algorithms_enabled()
    if not PORTABLE and prefers_hopper_backward(runtime.capability(q.device), *metas, causal, fused):
        return hopper_backward(q, k, v, o, lse, do, dlse, fused=fused, **how)
    return flash_backward(q, k, v, o, lse, do, dlse, **how)


def _decode(
    q, k_cache, v_cache, lengths, block_table, sinks, weights, causal, scale, window_left, num_splits, mods, *,
    store_lse,
):  # fmt: skip
    if checks.DEBUG or runtime.mode() == "interpreter":
        check_values(lengths, block_table, k_cache, q.shape[2], window_left)
    q = q if q.stride(-1) == 1 else q.contiguous()
    if block_table is not None and block_table.stride(-1) != 1:
        block_table = block_table.contiguous()
    return decode(
        q, k_cache, v_cache, lengths.contiguous(), block_table, sinks, weights, causal=causal, scale=scale,
        window_left=window_left, num_splits=num_splits, mods=tuple(FUNCTIONS[mod][0] for mod in mods),
        store_lse=store_lse,
    )  # fmt: skip


# Operators for torch.compile, which does not look into them and learns the shapes of their results from the functions
# registered as fake. An operator always returns tensors, so it computes lse and every gradient whether needed or not.
TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? weights, Tensor? seed, Tensor? key_ranges"
HOW = "bool causal, float scale, SymInt? block_q, SymInt? block_k, SymInt[]? mask, SymInt[] mods, float dropout_p"


def _operator(name, schema):
    return torch.library.custom_op(f"course_lib::{name}", mutates_args=(), schema=schema)


@_operator("flash_forward", f"({TENSORS}, {HOW}) -> (Tensor, Tensor)")
def _forward_in_graph(*arguments):
    return _launch_forward(*arguments, store_lse=True)


@_operator(
    "flash_backward",
    f"({TENSORS}, Tensor o, Tensor lse, Tensor do, Tensor? dlse, {HOW}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward_in_graph(q, *others):
    *gradients, dsinks = _launch_backward(q, *others, need_dq=True, need_dkdv=True)
    return *gradients, q.new_empty(0) if dsinks is None else dsinks


@_operator(
    "flash_decode",
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor lengths, Tensor? block_table, Tensor? sinks, Tensor? weights, "
    "bool causal, float scale, SymInt? window_left, SymInt? num_splits, SymInt[] mods) -> (Tensor, Tensor)",
)
def _decode_in_graph(*arguments):
    return _decode(*arguments, store_lse=True)


@_forward_in_graph.register_fake
@_decode_in_graph.register_fake
def _(q, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@_backward_in_graph.register_fake
def _(q, k, v, sinks, *_):
    return *(x.new_empty(x.shape) for x in (q, k, v)), q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)


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
