"""Attention over a process group: any number of ranks gives the answer of one, and sends what the closed form says.

A test starts its processes once, and they go through many cases. They interpret kernels and talk by gloo, also on a
machine with GPUs; with two of these, the laws hold with NCCL, too.
"""

import contextlib
import functools
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import courseware  # noqa: F401  its emulators
from course_lib import distributed, runtime, traffic
from courseware.bench.accuracy import check_attention, check_gradients
from tests import forked
from tests.course_lib.kernels.common import FLOAT, HALF, columns_apart, inputs

METHODS = {
    "ring": distributed.ring_attention,
    "all_gather": distributed.all_gather_attention,
    "ulysses": distributed.ulysses_attention,
}


@pytest.fixture(autouse=True, scope="module")
def server():
    late = ["torch.fx.experimental.symbolic_shapes", "triton.experimental.gluon.nvidia.hopper"]
    with forked.another_server([__name__, *late]):  # the late ones are for the first backward, and the first kernel
        yield


def run(size, check, folder, *, backend="gloo", timeout_s=120):
    """check(rank, size) in as many processes, each a rank of one process group. What one raises is raised here."""
    # "fork" would copy the locks of this process's threads; "spawn" imports torch every time.
    start = "forkserver" if backend == "gloo" else "spawn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", str(int(backend == "gloo")))
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setenv("OMP_NUM_THREADS", "1")
        arguments = size, check, str(folder / f"store-{check.__name__}-{size}"), backend, timeout_s
        torch.multiprocessing.start_processes(_rank, arguments, size, start_method=start)


def _rank(rank, size, check, store, backend, timeout_s):
    torch.set_num_threads(1)
    if runtime.mode() == "interpreter":
        runtime.emulator("triton").install()
    else:
        torch.cuda.set_device(rank)
    how = {"init_method": f"file://{store}", "timeout": timedelta(seconds=timeout_s)}
    dist.init_process_group(backend, rank=rank, world_size=size, **how)
    check(rank, size)
    dist.barrier()
    dist.destroy_process_group()


@contextlib.contextmanager
def sent_bytes():
    """A list that receives the bytes of each call that sends something to another rank."""
    sent = []

    def counting(function, of_call):
        @functools.wraps(function)
        def counted(*arguments, **options):
            sent.append(sum(x.numel() * x.element_size() * share for x, share in of_call(*arguments)))
            return function(*arguments, **options)

        return counted

    others = dist.get_world_size() - 1
    of_calls = {
        (dist, "batch_isend_irecv"): lambda ops: [(op.tensor, 1) for op in ops if op.op is dist.isend],
        (dist, "all_to_all_single"): lambda received, x: [(x, others / (others + 1))],
        (distributed, "all_gather_single"): lambda gathered, x: [(x, others)],
        (distributed, "reduce_scatter_single"): lambda total, x: [(x, others / (others + 1))],
    }
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), of_call in of_calls.items():
            patch.setattr(module, name, counting(getattr(module, name), of_call))
        yield sent


def check_method(method, n_q, n_k, d, *, causal, dtype=FLOAT, heads=2, kv_heads=1, batch=1, group=None):
    """Output, gradients and bytes of one method for so many rows on each rank."""
    ring = distributed.ring_of(group)
    whole = inputs(n_q * ring.size, n_k * ring.size, d, dtype=dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    *leaves, do = (distributed.shard(x, group=group, causal=causal) for x in whole)
    leaves = [x.requires_grad_() for x in leaves]
    how = {"causal": causal, "group": group, "scale": 0.4}
    with sent_bytes() as in_forward:
        o = METHODS[method](*leaves, **how)
    with sent_bytes() as in_backward:
        gradients = torch.autograd.grad(o, leaves, do)
    form = traffic.between_ranks(
        n_k * ring.size, d, ring.size, method=method, heads=heads, kv_heads=kv_heads, batch=batch,
        dtype_bytes=dtype.itemsize,
    )  # fmt: skip
    assert (sum(in_forward), sum(in_backward)) == form, (method, causal, in_forward, in_backward)
    assert ring.size > 1 or not in_forward + in_backward
    o, *gradients = (distributed.unshard(x, group=group, causal=causal) for x in (o, *gradients))
    if ring.rank == 0:
        check_attention(o, *whole[:3], causal=causal, scale=0.4)
        check_gradients(gradients, *whole, causal=causal, scale=0.4)


def laws(rank, size):
    """Full and causal, GQA, ragged lengths, head dims of no power of two, every method, and rings of another order.

    Of four and more, where interpreting takes long: what depends on their number.
    """
    last, heads = {3: -1, 4: 3, 8: 3}.get(size, 1), 2 if size < 4 else 1
    for causal, dtype, stride in ((True, FLOAT, 1), (False, HALF, last)) if size < 4 else ((True, HALF, last),):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "STRIDE", stride)
            check_method("ring", 6 if causal else 3, 6 if causal else 5, 5, causal=causal, dtype=dtype, heads=heads)
        # In half precision, what ranks round before it is summed leaves the budget when there are eight.
        of_gathered = FLOAT if causal else HALF
        check_method("all_gather", 2, 2 if causal else 3, 5, causal=causal, dtype=of_gathered, heads=heads)
        check_method("ulysses", 2, 2, 8, causal=causal, heads=2 * size, kv_heads=size, dtype=dtype)
    decode_law(rank, size)


def decode_law(rank, size):
    """Keys of two sequences dealt out unequally; the last rank has none of the second's."""
    q, k, v, _ = inputs(1, 6 * size, 8, batch=2, heads=2, kv_heads=1)
    lengths = torch.tensor([6 if rank else 1, 0 if rank == size - 1 > 0 else 3], device=q.device)
    caches = [x.chunk(size, 2)[rank] for x in (k, v)]
    o = distributed.sharded_decode(q, *caches, lengths, scale=0.4)
    seen = [[1, *[6] * (size - 1)], [3] * (size - 1) + [0 if size > 1 else 3]]
    for b, counts in enumerate(seen):
        rows = torch.cat([torch.arange(count) + 6 * r for r, count in enumerate(counts)]).to(q.device)
        check_attention(o[b : b + 1], q[b : b + 1], k[b : b + 1, :, rows], v[b : b + 1, :, rows], scale=0.4)
    with pytest.raises(ValueError, match="q has 2 new tokens of each sequence; accepted: 1"):
        distributed.sharded_decode(q.repeat(1, 1, 2, 1), *caches, lengths)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_any_number_of_ranks_gives_one_answer(size, tmp_path):
    run(size, laws, tmp_path)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_any_number_of_gpus_gives_one_answer(tmp_path):
    run(min(4, torch.cuda.device_count()), laws, tmp_path, backend="nccl")


def groups_and_tensors(rank, size):
    """Groups: of some processes, a DeviceMesh. Tensors: several tiles, strides, a gradient that is one number."""
    group = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises(ValueError, match="this process, global rank 1, is not a member of group"):
            distributed.ring_attention(*inputs(4, 4, 8)[:3], group=group)
    else:
        check_method("ring", 2, 2, 8, causal=True, group=group, batch=2)
        check_method("ring", 150, 150, 3, causal=False, group=group)
        check_method("ring", 1, 1, 8, causal=False, group=group)
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("cp",))
    *whole, _ = inputs(2 * size, 2 * size, 6)
    leaves = [columns_apart(distributed.shard(x, causal=True)).requires_grad_() for x in whole]
    o = distributed.ring_attention(*leaves, causal=True, group=mesh["cp"])
    gradients = [distributed.unshard(x, causal=True) for x in torch.autograd.grad(o.sum(), leaves)]
    check_gradients(gradients, *whole, torch.ones_like(whole[0]), causal=True)
    o = distributed.ring_attention(*leaves, causal=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(o.sum(), leaves, create_graph=True)
    with pytest.raises(NotImplementedError, match="ring_attention does not work inside torch.func"):
        torch.func.vmap(distributed.ring_attention)(*(x.detach()[None] for x in leaves))


def test_groups_and_tensors(tmp_path):
    run(3, groups_and_tensors, tmp_path)


# What is said on the rank, and what on the others, -> the method, the rank (None: all), its changes of the arguments.
# "T: " and "V: " as in tests/course_lib/kernels.
GOOD = {"heads": 3, "kv_heads": 3, "n": 4, "n_k": 4, "d": 8, "dtype": FLOAT, "causal": True, "grad": False}
REFUSED = [
    ("V: the ranks' calls differ; rank 0: .* rank 1: .*6, 8", None, "ring", 1, {"n": 6, "n_k": 6}),
    ("V: the ranks' calls differ; rank 0: .*float32.* rank 2: .*float16", None, "ring", 2, {"dtype": HALF}),
    ("V: the ranks' calls differ; .*gradients wanted", None, "all_gather", 1, {"grad": True}),
    ("T: k has dtype float16", "V: rank 1 refused its arguments: k has dtype float16", "ring", 1, {"k_dtype": HALF}),
    ("V: q has 3 rows .*to a multiple of 6", None, "ring", None, {"n": 3, "n_k": 3}),
    ("V: q has 4 rows on each rank and k has 6", None, "ring", None, {"n_k": 6}),
    ("V: q has 4 rows on each rank and k has 6", None, "ulysses", None, {"n_k": 6, "causal": False}),
    ("V: q has 4 heads, which 3 ranks", None, "ulysses", None, {"heads": 4, "kv_heads": 4}),
    ("V: k and v have 1 heads, which 3 ranks", None, "ulysses", None, {"kv_heads": 1}),
    ("V: q, k and v are on meta, which the group's backend, gloo, does", None, "ring", None, {"device": "meta"}),
    ("T: causal must be True or False", "V: rank 0 refused its arguments: causal", "ring", 0, {"causal": 1}),
]


def refusals(rank, size):
    """A rank that differs is an error on every rank, and the next call works."""
    for here, elsewhere, method, which, changed in REFUSED:
        is_here = which in (None, rank)
        of = GOOD | (changed if is_here else {})
        device, k_dtype = of.get("device", "cpu"), of.get("k_dtype", of["dtype"])
        q = torch.zeros(1, of["heads"], of["n"], of["d"], dtype=of["dtype"], device=device, requires_grad=of["grad"])
        k = torch.zeros(1, of["kv_heads"], of["n_k"], of["d"], dtype=k_dtype, device=device)
        message = here if is_here else elsewhere or here
        error = {"T": TypeError, "V": ValueError}[message[0]]
        with pytest.raises(error, match=message[3:]):
            METHODS[method](q, k, k.to(of["dtype"]), causal=of["causal"])
    mesh = dist.init_device_mesh("cpu", (size, 1), mesh_dim_names=("cp", "tp"))
    for group, error, message in (
        (mesh, ValueError, r"DeviceMesh of 2 dimensions, \('cp', 'tp'\)"), ("cp", TypeError, "group is a str"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            distributed.shard(torch.zeros(1, 1, 6, 8), group=group)
    for causal, message in ((True, "x has length 9, .* multiple of 6. Pad it to 12"), (False, "length 8, .* to 9")):
        with pytest.raises(ValueError, match=message):
            distributed.shard(torch.zeros(9 if causal else 8), dim=0, causal=causal)
    check_method("ulysses", 2, 2, 8, causal=True, heads=3, kv_heads=3)


def test_refusals_on_every_rank(tmp_path):
    with pytest.raises(RuntimeError, match="torch.distributed is not initialised"):
        distributed.ring_attention(*inputs(4, 4, 8)[:3])
    run(3, refusals, tmp_path)


def losses(rank, size):
    """A rank that does not call, and then one that ends in the middle of the ring: an error for all others, in time."""
    q, k, v, _ = inputs(2, 2, 8)
    timeouts_s = 1, 2
    groups = [dist.new_group(timeout=timedelta(seconds=timeout_s)) for timeout_s in timeouts_s]
    for lost, timeout_s, group in zip((3, 1), timeouts_s, groups, strict=True):
        begin_s = time.perf_counter()
        with pytest.MonkeyPatch.context() as patch:
            if rank == lost == 3:
                time.sleep(timeout_s)
                continue
            if rank == lost:
                patch.setattr(distributed, "finish", lambda *_: os._exit(0))
            with pytest.raises(RuntimeError, match=f"rank {rank} of 4: communication failed, because another rank has"):
                distributed.ring_attention(q, k, v, group=group)
        assert time.perf_counter() - begin_s < timeout_s + 10
    if rank != 3:
        time.sleep(timeout_s)  # rank 3, which is no neighbour of 1, is not to hear of it by the end of another
    os._exit(0)  # the default group has lost a rank


def test_a_lost_rank_is_an_error_for_all(tmp_path):
    run(4, losses, tmp_path)
