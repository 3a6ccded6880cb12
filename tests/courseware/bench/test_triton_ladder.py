"""The ladder of lesson 11's worklog: every rung computes attention, and differs from another by one idea."""

import math
import os
import subprocess
import sys

import pytest
import torch

from course_lib import runtime
from course_lib.hardware import GPUS
from course_lib.kernels.forward import flash_forward
from courseware.bench import triton_ladder
from courseware.bench.accuracy import check_attention
from courseware.tracer import trace

DEVICE = runtime.device()
RUNGS = {rung.name: rung for rung in triton_ladder.RUNGS}


def qkv(n, d, dtype=torch.float16, batch=1, heads=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, heads, n, d, generator=generator).to(DEVICE, dtype) for _ in "qkv"]


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("rung", triton_ladder.RUNGS, ids=lambda rung: rung.name)
def test_every_rung_computes_attention(rung, causal):
    for n, d in ((2, 16), (150, 32)):
        q, k, v = qkv(n, d)
        check_attention(triton_ladder.run(rung, q, k, v, causal=causal), q, k, v, causal=causal)


@pytest.mark.parametrize("rung", triton_ladder.RUNGS, ids=lambda rung: rung.name)
def test_every_rung_takes_bf16_batches_and_round_lengths(rung):
    q, k, v = qkv(64, 32, torch.bfloat16, batch=2)
    check_attention(triton_ladder.run(rung, q, k, v, causal=True), q, k, v, causal=True)


def test_the_first_rung_stands_on_nothing_and_every_other_on_one_before_it():
    assert len(RUNGS) == len(triton_ladder.RUNGS)
    first, *others = triton_ladder.RUNGS
    assert first.builds_on is None and first.predicted_gain is None and first.kept
    names = [rung.name for rung in triton_ladder.RUNGS]
    for rung in others:
        assert rung.builds_on in names[: names.index(rung.name)]
        assert set(rung.predicted_gain) == {"full", "causal"}
        assert all(math.isfinite(gain) and gain > 0 for gain in rung.predicted_gain.values())


def test_kept_rungs_are_one_chain():
    kept = [rung for rung in triton_ladder.RUNGS if rung.kept]
    assert [rung.builds_on for rung in kept[1:]] == [rung.name for rung in kept[:-1]]
    assert all(RUNGS[rung.builds_on].kept for rung in triton_ladder.RUNGS[1:])


@pytest.mark.parametrize("rung", triton_ladder.RUNGS[1:], ids=lambda rung: rung.name)
def test_a_rung_is_one_change(rung):
    """One option, or another kernel with the same tiles."""
    parent = RUNGS[rung.builds_on]
    if rung.kernel == parent.kernel:
        names = rung.options.keys() | parent.options.keys()
        assert sum(rung.options.get(name) != parent.options.get(name) for name in names) == 1
    else:
        assert rung.options == {"config": parent.options["config"]}


COMPILE = """
import hashlib, torch
from types import SimpleNamespace
from course_lib.kernels import checks
from courseware.bench import triton_ladder
from tools import resources

checks.COMPILED = False  # which would refuse tensors that are on no GPU
torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
q = torch.empty(1, 2, 1024, 64, dtype=torch.float16, device="meta")
for rung in triton_ladder.RUNGS:
    with resources.compiling_for(90) as launches:
        rung.launch(q, q, q, causal=True)
    compiled = launches[-1][0]
    print(rung.name, compiled.metadata.shared, hashlib.sha256(compiled.asm["ptx"].encode()).hexdigest(), sep="|")
"""


def test_every_rung_compiles_to_code_of_its_own():
    """For an H100, as on a GPU. With head_dim 64 the shipped tiles are those of the rung before."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [line.split("|") for line in run.stdout.splitlines()]
    compiled = {name: (int(shared_bytes), code) for name, shared_bytes, code in lines}
    assert compiled.keys() == RUNGS.keys()
    assert all(shared_bytes <= GPUS["H100"].shared_bytes_per_block for shared_bytes, _ in compiled.values())
    assert len(set(compiled.values())) == len(compiled) - 1
    assert compiled["shipped tiles"] == compiled["tensor descriptors"]


@pytest.mark.parametrize("causal", (False, True))
def test_without_flags_the_ladder_s_kernel_is_the_plain_one(causal):
    q, k, v = qkv(150, 32)
    plain, ladders = (RUNGS[name].launch(q, k, v, causal=causal) for name in ("tiles of 64", "32-bit offsets"))
    assert torch.equal(plain, ladders) or (DEVICE == "cuda" and torch.allclose(plain, ladders, atol=1e-3))


def test_the_last_rung_that_was_kept_is_the_shipped_kernel():
    last = [rung for rung in triton_ladder.RUNGS if rung.kept][-1]
    q, k, v = qkv(600, 16)
    shipped, _ = flash_forward(q, k, v, causal=True, scale=0.25, store_lse=False)
    assert torch.equal(triton_ladder.run(last, q, k, v, causal=True), shipped)


@pytest.mark.parametrize("rung,visited", [("visit every tile", 9), ("tiles of 64", 6), ("mask the ends only", 6)])
def test_hidden_tiles_are_skipped_and_nothing_else_is_touched(rung, visited):
    """Three query tiles and three key tiles of 64, causal: 6 of the 9 pairs are visible in part."""
    q, k, v = qkv(192, 16, heads=1)
    with trace(q=q, k=k, v=v) as traced:
        triton_ladder.run(RUNGS[rung], q, k, v, causal=True)
    assert traced.by_tensor["k"][0] == traced.by_tensor["v"][0] == visited * 64 * 16 * 2
    assert traced.by_tensor["q"][0] == 192 * 16 * 2
    assert not traced.violations


@pytest.mark.parametrize("rung,n,heads", [("grouped heads", 150, 11), ("persistent", 600, 3)])
def test_in_another_order_every_tile_of_every_head_is_visited_once(rung, n, heads):
    """Eleven heads: eight together, and three that are left."""
    q, k, v = qkv(n, 16, heads=heads)
    with trace(q=q, k=k, v=v) as traced:
        o = triton_ladder.run(RUNGS[rung], q, k, v, causal=True)
    check_attention(o, q, k, v, causal=True)
    assert traced.by_tensor["q"][0] == q.numel() * 2


def test_lazy_rescale_rescales_where_the_maximum_grows():
    """Scores that grow along the keys, by less than the 8 powers of two that are tolerated and by far more."""
    q, k, v = qkv(150, 16)
    growing = torch.linspace(0, 1, 150, device=DEVICE)[:, None].half()
    for factor in (1, 60):
        k_growing = k + factor * growing * torch.sign(q[:, :, :1])
        answer = triton_ladder.run(RUNGS["lazy rescale"], q, k_growing, v, causal=False)
        check_attention(answer, q, k_growing, v, causal=False)


def test_other_inputs_are_refused():
    q, k, v = qkv(20, 16)
    for wrong, message in (
        ((q[:, :, :10], k, v), "one shape"),
        ([x.transpose(1, 2) for x in (q, k, v)], "contiguous"),
        (qkv(1, 16), "2 or more"),
        (qkv(20, 24), "head_dim 16"),
        (qkv(20, 16, torch.float32), "fp16 or bf16"),
    ):
        with pytest.raises(ValueError, match=message):
            triton_ladder.run(triton_ladder.RUNGS[0], *wrong, causal=False)
