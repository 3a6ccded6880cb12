"""The Hopper backward: interpreted on a CPU, and compiled on a GPU of compute capability 9.0."""

from pathlib import Path

import pytest
import torch

from course_lib import runtime
from course_lib.kernels import flash_attention
from course_lib.kernels.backward import flash_backward
from course_lib.kernels.hopper import backward
from course_lib.kernels.launch import tensor_meta
from courseware.bench.accuracy import check_gradients, exact_attention
from tests.course_lib.kernels.test_backward import DEVICE, copies, inputs, sliced
from tests.course_lib.kernels.test_hopper_forward import assert_found, stores

ON_CPU = runtime.mode() != "gpu"
RUNS_HERE = ON_CPU or runtime.capability(DEVICE)[0] == 9
pytestmark = pytest.mark.skipif(not RUNS_HERE, reason="a GPU of another generation, which does not run this kernel")
HALVES = (torch.float16, torch.bfloat16)


def gradients(backward, q, k, v, do, dlse=None, *, causal=False, scale=None):
    o, lse = exact_attention(q, k, v, causal=causal, scale=scale, dtype=torch.float64)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return backward(q, k, v, o.to(q.dtype), lse.float(), do, dlse, causal=causal, scale=scale)


def check(q, k, v, do, dlse=None, *, causal=False, scale=None):
    answer = gradients(backward.hopper_backward, q, k, v, do, dlse, causal=causal, scale=scale)
    check_gradients(answer, q, k, v, do, dlse, causal=causal, scale=scale)
    return answer


# Lengths that end with a tile, one before, one behind; shorter than a tile; more queries than keys, so that some see
# none under a causal mask; a second group whose rows are all beyond the tensor.
@pytest.mark.parametrize("n_q,n_k", [(256, 256), (255, 257), (5, 77), (300, 100), (129, 1), (200, 333), (1, 300)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(n_q, n_k, causal):
    for d, dtype in zip((64, 128), HALVES, strict=True):
        check(*inputs(n_q, n_k, d, dtype=dtype), causal=causal)


@pytest.mark.parametrize("d", [40, 72, 120])
def test_head_dims_that_are_padded(d):
    check(*inputs(150, 200, d, dtype=torch.float16), causal=True)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1.0])
def test_any_scale(scale):
    check(*inputs(130, 140, 64, dtype=torch.float16), causal=True, scale=scale)


@pytest.mark.parametrize("n_sms", [1, 3])
def test_heads_that_share_keys_with_a_gradient_of_lse(n_sms, monkeypatch):
    if ON_CPU:
        monkeypatch.setattr(runtime, "multiprocessors", lambda device: n_sms)
    q, k, v, do = inputs(190, 260, 64, dtype=torch.bfloat16, batch=2, heads=4, kv_heads=2)
    k, do = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, do))
    dlse = torch.randn(2, 4, 190, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for causal in (False, True):
        check(q, k, v, do, dlse, causal=causal)


def test_only_what_is_needed_is_computed():
    q, k, v, do = inputs(130, 140, 64, dtype=torch.float16)
    o, lse = (x.to(dtype) for x, dtype in zip(exact_attention(q, k, v), (q.dtype, torch.float32), strict=True))
    how = {"causal": False, "scale": 0.125}
    dq, dk, dv = backward.hopper_backward(q, k, v, o, lse, do, **how)
    only_dq = backward.hopper_backward(q, k, v, o, lse, do, **how, need_dkdv=False)
    assert torch.equal(only_dq[0], dq) and only_dq[1:] == (None, None)
    none, only_dk, only_dv = backward.hopper_backward(q, k, v, o, lse, do, **how, need_dq=False)
    assert none is None and torch.equal(only_dk, dk) and torch.equal(only_dv, dv)


@pytest.mark.skipif(not ON_CPU, reason="it counts the emulator's copies to global memory")
@pytest.mark.parametrize("n_sms", [1, 2, 4])
def test_every_tile_is_computed_once(n_sms, monkeypatch):
    stored = stores(backward, monkeypatch)
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: n_sms)
    for causal in (False, True):
        stored.clear()
        gradients(backward.hopper_backward, *inputs(640, 640, 64, dtype=torch.float16), causal=causal)
        assert sorted(stored) == [(0, 0, row, 0) for row in range(0, 640, 64) for _ in ("dq", "dk", "dv")]


def test_an_empty_batch_has_empty_gradients():
    given = inputs(640, 640, 64, dtype=torch.float16, batch=0)
    answer = gradients(backward.hopper_backward, *given)
    assert [x.shape for x in answer] == [x.shape for x in given[:3]]


def test_slices_have_the_gradients_of_their_copies():
    how = {"causal": True, "scale": 0.125}
    for given in sliced(*inputs(300, 300, 64, dtype=torch.float16, heads=2)):
        expected = backward.hopper_backward(*copies(given), **how)
        assert all(map(torch.equal, backward.hopper_backward(*given, **how), expected))


@pytest.mark.skipif(not ON_CPU, reason="a GPU takes turns as it likes")
def test_who_is_first_changes_no_bit(monkeypatch):
    from courseware.simulators import gluon_emulator

    given = inputs(300, 400, 64, dtype=torch.float16)
    answers = []
    for seed in range(4):
        monkeypatch.setattr(gluon_emulator, "SEED", seed)
        answers.append(check(*given, causal=True))
    for answer in answers[1:]:
        assert all(map(torch.equal, answer, answers[0]))


@pytest.mark.parametrize(
    "batch,heads,kv_heads,n,d,causal,preferred",
    [(16, 16, 16, 1024, 128, True, True), (16, 16, 16, 1024, 64, True, False), (1, 8, 8, 4096, 128, False, True),
     (1, 8, 8, 4096, 128, True, False), (1, 2, 2, 8192, 128, False, False), (1, 32, 4, 4096, 96, True, False),
     (2, 32, 4, 4096, 96, True, True)],
)  # fmt: skip
def test_flash_attention_takes_it_where_it_is_faster_and_the_gpu_is_right(
    batch, heads, kv_heads, n, d, causal, preferred
):
    q, k = (tensor_meta(torch.empty(batch, h, n, d, dtype=torch.float16, device="cpu")) for h in (heads, kv_heads))
    assert backward.prefers_hopper_backward((9, 0), q, k, k, q, causal) == preferred
    for capability in (None, (8, 0), (10, 0), (12, 0)):
        assert not backward.prefers_hopper_backward(capability, q, k, k, q, causal)
    shared = q._replace(strides=(0, 0, 0, 1))  # a gradient that is one row for all
    assert not backward.prefers_hopper_backward((9, 0), q, k, k, shared, causal)


def test_flash_attention_passes_everything_on(monkeypatch):
    from course_lib.kernels import attention

    monkeypatch.setattr(attention, "prefers_hopper_backward", lambda *_: True)
    q, k, v, do = inputs(150, 170, 64, dtype=torch.float16)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, causal=True, scale=0.2, return_lse=True)
    dlse = torch.randn_like(lse)
    answer = torch.autograd.grad((o, lse), leaves, (do, dlse))
    check_gradients(answer, q, k, v, do, dlse, causal=True, scale=0.2)


def test_portable_leaves_the_hopper_kernels_out(monkeypatch):
    from course_lib.kernels import attention

    monkeypatch.setattr(attention, "PORTABLE", True)
    for name in ("prefers_hopper", "prefers_hopper_backward"):
        monkeypatch.setattr(attention, name, lambda *_: True)
    for name in ("hopper_forward", "hopper_backward"):
        monkeypatch.setattr(attention, name, None)  # which cannot be called
    q, k, v, do = inputs(150, 170, 64, dtype=torch.float16)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    answer = torch.autograd.grad(flash_attention(*leaves), leaves, do)
    check_gradients(answer, q, k, v, do)


@pytest.mark.skipif(ON_CPU, reason="it asks which kernels the GPU ran")
@pytest.mark.parametrize("d,backward", [(128, backward.hopper_backward), (64, flash_backward)])
def test_gradients_of_flash_attention_have_the_bits_of_the_kernels_that_it_prefers(d, backward):
    q, k, v, do = inputs(1024, 1024, d, dtype=torch.bfloat16, batch=16, heads=16, kv_heads=8)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, return_lse=True)
    answer = torch.autograd.grad(o, leaves, do)
    expected = backward(*(x.detach() for x in (q, k, v, o, lse, do)), causal=False, scale=d**-0.5)
    assert all(map(torch.equal, answer, expected))


SOURCE = Path(backward.__file__).read_text(encoding="utf-8")
# What somebody could get wrong with a barrier, a fence or a wait, as an edit of the kernel; and what is said of it.
MISTAKES = {
    "queries are handed back while their products are under way": (
        """    dk, dv, ds, p_operand = warpgroup_mma_wait(0, deps=[dk_to_come, dv_to_come, ds, p_operand])
    mbarrier.arrive(empty.index(stage), count=1)
""",
        """    mbarrier.arrive(empty.index(stage), count=1)
    dk, dv, ds, p_operand = warpgroup_mma_wait(0, deps=[dk_to_come, dv_to_come, ds, p_operand])
""",
        r"starts a copy to \w+\[\d\], which a product of dkdv_consumer \d still reads",
    ),
    "keys are handed back before their last product": (
        "    dq = warpgroup_mma(ds, k, dq)\n    mbarrier.arrive(empty.index(stage), count=1)\n",
        "    mbarrier.arrive(empty.index(stage), count=1)\n    dq = warpgroup_mma(ds, k, dq)\n",
        r"without having waited",
    ),
    "no wait for queries": (
        "    mbarrier.wait(ready.index(stage), used // STAGES & 1)\n    q =",
        "    q =",
        "without having waited",
    ),
    "scores are used too early": (
        "s_to_come])\n    log2_p = s * scale_log2 - lse_log2[None, :]",
        "s_to_come, dp_to_come])[0]\n    log2_p = s * scale_log2 - lse_log2[None, :]",
        "uses the result of a product that it has not waited for",
    ),
    "dP is used too early": (
        "warpgroup_mma_wait(0, deps=[dp_to_come])",
        "warpgroup_mma_wait(1, deps=[dp_to_come])",
        "uses the result of a product that it has not waited for",
    ),
    "the fetching warp does not wait": (
        "                mbarrier.wait(stage_empty.index(stage), (fetched // STAGES & 1) ^ 1)\n",
        "",
        "nobody has waited for|still|deadlock",
    ),
    "statistics are announced before they are stored": (
        """                    lse_stages.index(stage).store(lse * LOG2_E)
                    delta_stages.index(stage).store(delta)
                    mbarrier.arrive(bar, count=1)
""",
        """                    mbarrier.arrive(bar, count=1)
                    lse_stages.index(stage).store(lse * LOG2_E)
                    delta_stages.index(stage).store(delta)
""",
        r"reads (lse|delta)_stages\[\d\] without having waited|stores to",
    ),
    "statistics are not announced": (
        "                    mbarrier.arrive(bar, count=1)\n",
        "",
        "deadlock.*lacks 1 of 2 arrivals",
    ),
    "what stays is never handed back": (
        "        mbarrier.arrive(tile_empty.index(GROUP), count=1)\n        store_rows(dq_desc",
        "        store_rows(dq_desc",
        r"deadlock.*of tile_empty\[\d\], which lacks 1 of 1 arrivals",
    ),
    "half of the bytes are announced": (
        "2 * streaming_a.block_type.nbytes",
        "streaming_a.block_type.nbytes",
        "deadlock.*bytes",
    ),
    "no fence": (
        "    fence_async_shared()\n    tma",
        "    tma",
        r"that was stored without",
    ),
    "no wait for the last output": (
        "    tma.store_wait(0)  # until the copy engine has read what was there\n",
        "",
        "which the copy engine may still read",
    ),
}  # fmt: skip


@pytest.mark.skipif(not ON_CPU, reason="on a GPU, most of these hang")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_interpreter_finds_what_is_wrong_with_barriers(mistake, monkeypatch):
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: 1)
    given = inputs(300, 500, 64, dtype=torch.float16)
    assert_found(SOURCE, MISTAKES[mistake], lambda module: gradients(module.hopper_backward, *given), monkeypatch)
