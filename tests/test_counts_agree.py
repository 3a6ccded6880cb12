"""Three independent counts of the same bytes: the memory machine runs the NumPy reference, the tracer watches the
Triton kernel, the closed form runs nothing. They agree to the byte, tensor by tensor, read and written.

Here the tracer is compared with the closed form, and the machine for standard attention; for tiled attention and its
backward, tests/course_lib/reference compares the machine with the closed form.
"""

import itertools

import numpy as np
import pytest
import torch

from course_lib import runtime
from course_lib.kernels import decode, flash_attention
from course_lib.machine import Machine
from course_lib.reference.attention import standard_attention_on_machine
from course_lib.serving.paged_cache import PagePool
from course_lib.traffic import attention_flops
from course_lib.traffic import decode as decode_closed_form
from course_lib.traffic import flash_attention as closed_form
from course_lib.traffic import standard_attention as standard_closed_form
from courseware.bench.flash1_forward import flash1_attention
from courseware.tracer import trace

LENGTHS = ((64, 64), (48, 80), (80, 48), (1, 70), (70, 1), (33, 47), (47, 33), (16, 128))
BLOCKS = ((16, 16), (16, 64), (64, 16), (32, 32))
DTYPES = {np.float16: torch.float16, np.float32: torch.float32}
# On a GPU each traced launch happens in another process: a sample will do there.
SHAPES = list(itertools.product(LENGTHS, BLOCKS, (False, True)))[:: 1 if runtime.device() == "cpu" else 8]


def by_tracer(n_q, n_k, d, block_q, block_k, causal, dtype, order):
    q, k, v = (torch.randn(1, 1, n, d).to(runtime.device(), DTYPES[dtype]) for n in (n_q, n_k, n_k))
    with trace(q=q, k=k, v=v) as traced:
        if order == "q_outer":
            flash_attention(q, k, v, causal=causal, return_lse=True, block_q=block_q, block_k=block_k)
        else:
            flash1_attention(q, k, v, causal=causal, block_q=block_q, block_k=block_k)
    assert traced.violations == []
    capitals = {"q": "Q", "k": "K", "v": "V", "o": "O"}
    return {capitals.get(name, name): count for name, count in traced.by_tensor.items()}


@pytest.mark.parametrize("order", ("q_outer", "kv_outer"))
def test_tracer_and_closed_form_agree(order):
    for number, ((n_q, n_k), (block_q, block_k), causal) in enumerate(SHAPES):
        dtype = list(DTYPES)[number // 2 % 2]
        case = (n_q, n_k, 8, block_q, block_k, causal, dtype, order)
        traced = by_tracer(*case)
        formula = closed_form(
            n_q, n_k, 8, block_q=block_q, block_k=block_k, dtype_bytes=np.dtype(dtype).itemsize,
            causal=causal, order=order, return_lse=True,
        )  # fmt: skip
        stated = {name: tuple(count) for name, count in formula.by_tensor.items()}
        assert traced == stated, case
        assert tuple(map(sum, zip(*traced.values(), strict=True))) == (formula.read_bytes, formula.write_bytes), case


def test_heads_sharing_keys_read_them_once_each():
    q, k = torch.randn(2, 6, 40, 8, device=runtime.device()), torch.randn(2, 2, 50, 8, device=runtime.device())
    with trace(q=q, k=k) as traced:
        flash_attention(q, k, k.clone(), block_q=16, block_k=32)
    formula = closed_form(40, 50, 8, block_q=16, block_k=32, dtype_bytes=4, heads=6, batch=2)
    assert (traced.load_bytes, traced.store_bytes) == (formula.read_bytes, formula.write_bytes)


@pytest.mark.parametrize("splits", (1, 2, 5))
@pytest.mark.parametrize(
    "lengths, d, heads, kv_heads", (((37,), 8, 1, 1), ((50, 0, 1, 16), 40, 6, 2), ((33, 64), 80, 2, 2))
)
def test_tracer_and_closed_form_agree_on_decoding(lengths, d, heads, kv_heads, splits):
    """From pages: of the last one, only the rows that are filled are read."""
    pool = PagePool(n_pages=12, page_size=16)
    sequences = [pool.start() for _ in lengths]
    for sequence, n in zip(sequences, lengths, strict=True):
        pool.append(sequence, n)
    table, n_keys = (torch.from_numpy(x).to(runtime.device()) for x in pool.tables(sequences))
    q = torch.randn(len(lengths), heads, 1, d, dtype=torch.float16, device=runtime.device())
    k, v = torch.randn(2, 12, kv_heads, 16, d, dtype=torch.float16, device=runtime.device())
    with trace(q=q, k=k, v=v) as traced:
        decode.decode(q, k, v, n_keys, table, causal=True, scale=0.3, num_splits=splits, config=(16, 16, 4, 1))
    assert traced.violations == []
    formula = decode_closed_form(lengths, d, heads=heads, kv_heads=kv_heads, splits=splits)
    # The kernel stores its states where it would store o.
    names = {"Q": "q", "K": "k", "V": "v", "O": "o"}
    names |= {"acc": "o", "stats": "stats", "O": "o#2"} if splits > 1 else {}
    assert formula.by_tensor == {name: traced.by_tensor[seen] for name, seen in names.items()}
    others = sum(traced.by_tensor[name][0] for name in ("lengths", "table"))
    assert (traced.load_bytes - others, traced.store_bytes) == (formula.read_bytes, formula.write_bytes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_machine_and_closed_form_agree_on_standard_attention(dtype):
    rng = np.random.default_rng(0)
    for (n_q, n_k), block_q, causal in itertools.product(LENGTHS, (1, 16, 33, 128), (False, True)):
        machine = Machine(sram_bytes=2**20)
        shapes = {"Q": (n_q, 8), "K": (n_k, 8), "V": (n_k, 8), "S": (n_q, n_k), "P": (n_q, n_k), "O": (n_q, 8)}
        handles = [machine.hbm(rng.standard_normal(shape).astype(dtype), name) for name, shape in shapes.items()]
        standard_attention_on_machine(machine, *handles, block_q=block_q, causal=causal)
        report = machine.report()
        formula = standard_closed_form(n_q, n_k, 8, dtype_bytes=np.dtype(dtype).itemsize, causal=causal)
        assert report.by_tensor == formula.by_tensor, (n_q, n_k, block_q, causal)
        assert (report.read_bytes, report.write_bytes) == (formula.read_bytes, formula.write_bytes)
        assert report.matmul_flops == formula.flops == attention_flops(n_q, n_k, 8)
        assert formula.peak_bytes == sum(handle.nbytes for handle in handles[3:5]), "S and P"
