"""Attention of one sequence over the ranks of a process group, each of which holds a shard of it.

    ring        keys and values travel from rank to rank while each rank attends to those it has (Liu, Zaharia and
                Abbeel, "Ring Attention with Blockwise Transformers", 2023)
    all-gather  every rank gathers all keys and values first
    Ulysses     ranks exchange rows for heads, so that each has a few heads of the whole sequence (Jacobs et al.,
                "DeepSpeed Ulysses", 2023)

The ring merges partial outputs as lesson 05 does (`reference.softmax.merge_states`). Its backward recomputes P from the
merged log-sum-exp, so that each pair of shards gives its part of the gradients by itself.

Shards are contiguous without a mask. With a causal one, contiguous shards would leave the first ranks idle: they are
"zigzag". Of 2P equal chunks, rank r of P holds the chunks r and 2P - 1 - r, one early and one late. Its queries then
see, besides their own keys: of a lower rank the first chunk; of a higher rank, by the second half of the queries alone,
both chunks. Either is half of the products, at every step, for every rank.

Tensors are [batch, heads, seq, head_dim], on the CPU with gloo or on GPUs with NCCL. Communication is enqueued ahead of
the computation that hides it. With NCCL no call waits for the GPU, except at the first call with new shapes.

Reading order: who takes part, shards, the ring, all-gather, Ulysses, decoding.
"""

import contextlib
import weakref
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from course_lib import runtime
from course_lib.kernels import attention, flash_attention, flash_decode
from course_lib.kernels.backward import row_delta
from course_lib.kernels.checks import check_caches, check_flag, check_scale, check_tensors, name_of, shape_of
from course_lib.kernels.launch import addressable
from course_lib.kernels.partial_results import merge, sum_rows

# Torch 2.13 warns of the names that these had before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
# A rank sends to the one that stands so many places after it. Any number without a common divisor with the ranks'
# number visits all of them.
STRIDE = 1


class Ring(NamedTuple):
    """A process group as one of its ranks sees it."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def global_rank(self, places):
        """The global rank of who stands so many places after this one."""
        return dist.get_global_rank(self.group, (self.rank + places) % self.size)


def ring_of(group):
    """group: a process group, a DeviceMesh of one dimension, or None for all processes. Refuses others."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is not initialised: call torch.distributed.init_process_group in each process first"
        )
    if isinstance(group, dist.DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"group is a DeviceMesh of {group.ndim} dimensions, {group.mesh_dim_names}; accepted: one of them, as "
                'in mesh["cp"]'
            )
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"this process, global rank {dist.get_rank()}, is not a member of group")
        raise TypeError(f"group is a {type(group).__name__}; accepted: a ProcessGroup, a DeviceMesh, or None")
    return Ring(group, dist.get_rank(group), dist.get_world_size(group))


@contextlib.contextmanager
def exchange(ring):
    """Around communication: an error says who sees it and what it means. Gloo names a socket, at best."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {ring.rank} of {ring.size}: communication failed, because another rank has ended, is in another "
            f"call, or took longer than the group's timeout ({error})"
        ) from error


_agreed = weakref.WeakKeyDictionary()  # process group -> descriptions of calls on which its ranks have agreed


def agree(ring, name, q, k, v, causal, scale, checks):
    """(q, k, v) cast by autocast, and scale as a float, if no rank refuses its arguments and all have the same.

    Otherwise each rank raises: its own refusal, or a ValueError that names a rank which refused or differs. On the CPU
    the ranks compare at every call. On GPUs, where that makes the host wait, they do once for each description, and
    after that a rank that refuses its arguments raises alone.
    """
    refusal = None
    try:
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError(f"{name} does not work inside torch.func transforms; use torch.autograd")
        check_flag("causal", causal)
        for check in checks:
            check(ring, q, k, v, causal)
        check_backend(ring, q)
        q, k, v = attention._cast_by_autocast(q, k, v)
        scale = check_scale(scale, q.shape[-1])
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        text = (
            f"{name} of {name_of(q.dtype)}, q {shape_of(q)}, k and v {shape_of(k)}, causal {causal}, "
            f"scale {scale:.9g}, gradients {'' if wanted else 'not '}wanted"
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        refusal, text = error, str(error)
    agreed = _agreed.setdefault(ring.group, set())
    is_known = runtime.mode() == "gpu" and (text in agreed or (refusal and agreed))
    if ring.size > 1 and not is_known:
        found = [None] * ring.size
        with exchange(ring):
            dist.all_gather_object(found, (refusal is None, text), group=ring.group)
        for rank, (accepted, theirs) in enumerate(found):
            if not (accepted or refusal):
                raise ValueError(f"rank {rank} refused its arguments: {theirs}")
        for rank, (_, theirs) in enumerate(found):
            if not refusal and theirs != found[0][1]:
                raise ValueError(f"the ranks' calls differ; rank 0: {found[0][1]}; rank {rank}: {theirs}")
    if refusal:
        raise refusal
    agreed.add(text)
    return q, k, v, scale


def check_qkv(ring, q, k, v, causal):
    check_tensors(q, k, v)


def check_backend(ring, q):
    """Refuse tensors that the group cannot send."""
    try:
        backend = ring.group._get_backend(q.device).name()
    except RuntimeError:
        backend = None
    if backend is None or (backend == "gloo" and q.is_cuda):
        raise ValueError(
            f"q, k and v are on {q.device}, which the group's backend, {dist.get_backend(ring.group)}, does not send; "
            f"{'nccl' if q.is_cuda else 'gloo'} does"
        )


def check_lengths(ring, q, k, v, causal):
    n_q, n_k = q.shape[2], k.shape[2]
    if causal and n_q != n_k:
        raise ValueError(f"q has {n_q} rows on each rank and k has {n_k}; with causal=True they must be equal")
    if causal and ring.size > 1 and n_q % 2:
        raise ValueError(
            f"q has {n_q} rows on each rank; with causal=True a shard is two chunks of equal length. Pad the sequence "
            f"at its end to a multiple of {2 * ring.size}: no token sees what follows it"
        )


def check_exchange(ring, q, k, v, causal):
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"q has {q.shape[2]} rows on each rank and k has {k.shape[2]}; they must be equal")
    for names, heads in (("q has", q.shape[1]), ("k and v have", k.shape[1])):
        if heads % ring.size:
            raise ValueError(f"{names} {heads} heads, which {ring.size} ranks cannot share equally")


# Shards


def shard(x, *, group=None, dim=2, causal=False):
    """This rank's part of x along dim: a contiguous one, or the two chunks of a zigzag shard if causal.

    x: the whole tensor, on every rank the same; torch.arange(n) with dim=0 gives the positions of a shard. Raises
    ValueError for a length that the ranks, or causal twice the ranks, do not divide.
    """
    ring, n = ring_of(group), x.shape[dim]
    chunks = 2 * ring.size if causal and ring.size > 1 else ring.size
    if n % chunks:
        raise ValueError(
            f"x has length {n}, which is not a multiple of {chunks}. Pad it to {-(-n // chunks) * chunks}, at the end, "
            "where causal=True hides it; without a mask, padded keys would be seen"
        )
    return in_shard_order(x, ring.size, causal, dim).chunk(ring.size, dim)[ring.rank].contiguous()


def unshard(x, *, group=None, dim=2, causal=False):
    """The whole tensor on every rank, from the shards of all. Not differentiable."""
    ring = ring_of(group)
    rows = x.detach().movedim(dim, 0).contiguous()
    return in_position_order(all_gather(rows, ring), ring.size, causal).movedim(0, dim).contiguous()


def in_shard_order(x, size, causal, dim=0):
    """x with its rows as the ranks hold them, rank after rank."""
    if not causal or size == 1:
        return x
    chunks = x.chunk(2 * size, dim)
    pairs = zip(chunks[:size], chunks[: size - 1 : -1], strict=True)
    return torch.cat([chunk for pair in pairs for chunk in pair], dim)


def in_position_order(x, size, causal):
    """The inverse, for rows along the first dimension."""
    if not causal or size == 1:
        return x
    chunks = x.chunk(2 * size)
    return torch.cat(chunks[::2] + chunks[::-2])


# The ring


def rotate(tensors, ring):
    """Send tensors to the next rank, and receive as many like them from the one before: (received, works)."""
    received = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]
    target, source = ring.global_rank(STRIDE), ring.global_rank(-STRIDE)
    sends = [dist.P2POp(dist.isend, x, target, ring.group) for x in tensors]
    receives = [dist.P2POp(dist.irecv, x, source, ring.group) for x in received]
    with exchange(ring):
        return received, dist.batch_isend_irecv(sends + receives)


def finish(works, ring):
    """Wait for transfers: on the CPU the host does, on a GPU the stream."""
    with exchange(ring):
        for work in works:
            work.wait()


def visible_at(step, ring, n_q, n_k, causal):
    """(first query, number of keys): which rows of both take part when keys have travelled `step` times, at least 1."""
    if not causal:
        return 0, n_k
    owner = (ring.rank - step * STRIDE) % ring.size
    return (0, n_k // 2) if owner < ring.rank else (n_q // 2, n_k)


def ring_forward(q, k, v, ring, causal, scale):
    """(o, lse) of a rank's queries over the keys of all. k and v are contiguous, and q `addressable`."""
    kv = k, v
    for step in range(ring.size):
        is_last = step == ring.size - 1
        if not is_last:
            arriving, works = rotate(kv, ring)
        if step == 0:
            # Chunks of a shard stand in order, so the mask of its rows among themselves is the causal one.
            state = flash_attention(q, *kv, causal=causal, scale=scale, return_lse=True)
        else:
            first, n_keys = visible_at(step, ring, q.shape[2], k.shape[2], causal)
            seen = (x[:, :, :n_keys] for x in kv)
            part = flash_attention(q[:, :, first:], *seen, scale=scale, return_lse=True)
            state = merge(state, part, q.dtype if is_last else torch.float32)
        if not is_last:
            finish(works, ring)
            kv = arriving
    return state


def ring_backward(q, k, v, o, lse, do, ring, causal, scale):
    """(dq, dk, dv) of a rank's rows, from the gradient of its o. Sums are fp32, also those that travel.

    dK and dV of a shard start at the rank after its owner and travel with the shard, to reach the owner after the last
    step. What hides the first transfer of keys, and the last of gradients, is the rank's own keys: the first half of
    the queries before, the second half after all others.
    """
    n_q, n_k = q.shape[2], k.shape[2]
    half = n_q // 2
    kv = k, v
    arriving, works = rotate(kv, ring)
    do = addressable(do)
    all_delta = row_delta(o, do)

    def gradients(first, end, keys, is_causal):
        """(dq, dk, dv) of the queries from first to end - 1 and these keys and values."""
        rows, rows_lse, rows_do, delta = (x[:, :, first:end] for x in (q, lse, do, all_delta))
        return attention.gradients(rows, *keys, None, rows_lse, rows_do, causal=is_causal, scale=scale, delta=delta)

    n_early = half if causal else n_k  # keys that the first half of the queries sees
    dq, *early = gradients(0, half, [x[:, :, :n_early] for x in kv], causal)
    dq_parts, sums, sum_works = [(dq, 0)], None, ()
    for step in range(1, ring.size):
        finish(works, ring)
        kv = arriving
        if step < ring.size - 1:
            arriving, works = rotate(kv, ring)
        first, n_keys = visible_at(step, ring, n_q, n_k, causal)
        dq, *parts = gradients(first, n_q, [x[:, :, :n_keys] for x in kv], False)
        dq_parts.append((dq, first))
        if len(dq_parts) == 3:
            dq_parts = [(sum_rows(dq_parts, n_q, torch.float32), 0)]
        finish(sum_works, ring)
        # What the first rank adds has the inputs' dtype anyway, and is sent as it is.
        dtype = q.dtype if sums is None else torch.float32
        so_far = [[]] * 2 if sums is None else [[(x, 0)] for x in sums]
        sums = [sum_rows([*before, (x, 0)], n_k, dtype) for before, x in zip(so_far, parts, strict=True)]
        sums, sum_works = rotate(sums, ring)
    dq, *parts = gradients(half, n_q, (k, v), causal)
    dq_parts.append((dq, half))
    finish(sum_works, ring)
    dkdv = (sum_rows([(x, 0) for x in three], n_k, q.dtype) for three in zip(sums, parts, early, strict=True))
    return sum_rows(dq_parts, n_q, q.dtype), *dkdv


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, *how):
        o, lse = ring_forward(q, k, v, *how)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.how = how
        return o

    @staticmethod
    def backward(ctx, do):
        if torch.is_grad_enabled():
            raise NotImplementedError("ring_attention has first derivatives only, and create_graph=True asks for more")
        return *ring_backward(*ctx.saved_tensors, do, *ctx.how), None, None, None


def ring_attention(q, k, v, *, group=None, causal=False, scale=None):
    """Attention of a sequence in shards, as `flash_attention` of the whole: this rank's rows of the output.

    q: [batch, heads, n_q, head_dim], k, v: [batch, kv_heads, n_k, head_dim], this rank's shard, as `shard` makes it:
    zigzag where causal, contiguous elsewhere. Shapes, dtype and arguments are the same on all ranks, and causal=True
    takes n_q = n_k, an even number. Dtypes, head_dim, GQA and scale as for `flash_attention`. group: a process group, a
    DeviceMesh of one dimension, or None for all processes; a group of one sends nothing. gloo takes tensors on the CPU,
    NCCL those on GPUs.

    Returns o with q's shape and dtype. Differentiable once. Each rank calls it, and the backward, in the same order. In
    a function that torch.compile takes, call torch.compiler.disable(ring_attention).
    Precision: each step's output has the inputs' dtype; they are merged, and gradients summed, in fp32. What travels:
    `traffic.between_ranks`. Beside q, k, v, o and lse, nothing is kept for the backward. The forward holds two more
    shards of k and v (with two ranks, one) and two partial outputs. The backward also holds, in fp32, dq and two shards
    of dk and dv, one sent and one received, and the gradients that one call adds.

    Raises RuntimeError if torch.distributed is not initialised, ValueError in a process that is not of the group, and
    TypeError or ValueError on every rank if one rank's arguments are refused or differ from another's. On GPUs ranks
    compare only arguments that are new to them. If a rank ends, or does not call, the others raise RuntimeError, at the
    latest after the group's timeout; with NCCL, its watchdog ends their processes. NotImplementedError for second and
    forward-mode derivatives, and inside torch.func's transforms.
    """
    ring = ring_of(group)
    checks = check_qkv, check_lengths
    q, k, v, scale = agree(ring, "ring_attention", q, k, v, causal, scale, checks)
    if ring.size == 1 or q.numel() == 0 or k.numel() == 0:
        return flash_attention(q, k, v, causal=causal, scale=scale)
    return _RingAttention.apply(addressable(q), k.contiguous(), v.contiguous(), ring, causal, scale)


# All-gather


def all_gather(x, ring):
    """The tensors x of all ranks, one after the other along the first dimension."""
    gathered = x.new_empty((ring.size * x.shape[0], *x.shape[1:]))
    with exchange(ring):
        all_gather_single(gathered, x, group=ring.group)
    return gathered


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ring):
        ctx.ring = ring
        return all_gather(x, ring)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        ring, parts = ctx.ring, gradient.float().contiguous()
        total = parts.new_empty((len(parts) // ring.size, *parts.shape[1:]))
        with exchange(ring):
            reduce_scatter_single(total, parts, group=ring.group)
        return total.to(gradient.dtype), None


def all_gather_attention(q, k, v, *, group=None, causal=False, scale=None):
    """As `ring_attention`, but every rank gathers all keys and values first, and holds them.

    In the backward, the ranks' gradients of all keys and values are summed and scattered, in fp32.
    """
    ring = ring_of(group)
    checks = check_qkv, check_lengths
    q, k, v, scale = agree(ring, "all_gather_attention", q, k, v, causal, scale, checks)
    if ring.size == 1:
        return flash_attention(q, k, v, causal=causal, scale=scale)
    rows = torch.stack([k.movedim(2, 0), v.movedim(2, 0)], 1)  # [n_k, 2, batch, kv_heads, head_dim]
    k, v = in_position_order(_AllGather.apply(rows, ring), ring.size, causal).movedim(0, 3).unbind()
    if not causal:
        return flash_attention(q, k, v, scale=scale)
    ends = (part * q.shape[2] // 2 for part in (ring.rank + 1, 2 * ring.size - ring.rank))
    seen = ((chunk, k[:, :, :end], v[:, :, :end]) for chunk, end in zip(q.chunk(2, 2), ends, strict=True))
    return torch.cat([flash_attention(*tensors, causal=True, scale=scale) for tensors in seen], 2)


# Ulysses


class _AllToAll(torch.autograd.Function):
    """Part p of x goes to rank p. Gradients go back the same way."""

    @staticmethod
    def forward(ctx, x, ring):
        ctx.ring, received = ring, torch.empty_like(x)
        with exchange(ring):
            dist.all_to_all_single(received, x, group=ring.group)
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return _AllToAll.apply(gradient.contiguous(), ctx.ring), None


def ulysses_attention(q, k, v, *, group=None, causal=False, scale=None):
    """As `ring_attention`, but ranks exchange rows for heads, before and after attention of whole sequences.

    The ranks' number divides the heads of q and of k and v, or ValueError says which it does not. n_q = n_k.
    """
    ring = ring_of(group)
    checks = check_qkv, check_lengths, check_exchange
    q, k, v, scale = agree(ring, "ulysses_attention", q, k, v, causal, scale, checks)
    if ring.size == 1:
        return flash_attention(q, k, v, causal=causal, scale=scale)
    counts = [x.shape[1] // ring.size for x in (q, k, v)]
    # [size, n, batch, heads / size, head_dim] each
    parts = [x.unflatten(1, (ring.size, -1)).permute(1, 3, 0, 2, 4) for x in (q, k, v)]
    rows = _AllToAll.apply(torch.cat(parts, 3).contiguous(), ring).flatten(0, 1)
    rows = in_position_order(rows, ring.size, causal).movedim(0, 2)
    o = flash_attention(*rows.split(counts, 1), causal=causal, scale=scale)
    parts = in_shard_order(o.movedim(2, 0), ring.size, causal).unflatten(0, (ring.size, -1)).contiguous()
    return _AllToAll.apply(parts, ring).permute(2, 0, 3, 1, 4).flatten(1, 2)


# Decoding


def check_newest(ring, q, k, v, causal):
    if q.shape[2] != 1:
        raise ValueError(f"q has {q.shape[2]} new tokens of each sequence; accepted: 1")


def sharded_decode(q, k_cache, v_cache, lengths, *, group=None, scale=None):
    """Attention of each sequence's newest token to keys that the ranks share: lesson 14's splits, over GPUs.

    q: [batch, heads, 1, head_dim], the same on every rank. k_cache, v_cache, lengths: the keys that this rank has, as
    `flash_decode` takes them, lengths 0 where it has none. Caches have the same capacity on all ranks. Returns o with
    q's shape, the same on every rank. Each rank sends the others its o and lse in fp32. Not differentiable. Errors as
    `ring_attention`'s.
    """
    ring = ring_of(group)
    checks = (lambda ring, q, k, v, causal: check_caches(q, k, v, lengths, None), check_newest)
    q, k_cache, v_cache, scale = agree(ring, "sharded_decode", q, k_cache, v_cache, False, scale, checks)
    o, lse = flash_decode(q, k_cache, v_cache, lengths, causal=False, scale=scale, return_lse=True)
    if ring.size == 1:
        return o
    states = all_gather(torch.cat([o.float(), lse[..., None]], -1)[None], ring)
    o_parts, lse_parts = states[..., :-1], states[..., -1:]
    merged = torch.logsumexp(lse_parts, 0)
    weights = torch.exp(lse_parts - merged.masked_fill(merged == -torch.inf, 0.0))
    return (weights * o_parts).sum(0).to(q.dtype)
