"""What the kernels for compute capability 9.0 have to themselves: who computes which tile, which call they are taken
for, and that the emulator, which runs them on a CPU, notices what somebody could get wrong with a barrier.

Their answers and gradients are compared with float64 in test_attention.py.
"""

import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from course_lib import runtime
from course_lib.kernels import attention, flash_attention
from course_lib.kernels.hopper import backward, forward
from course_lib.kernels.hopper.backward import hopper_backward, prefers_hopper_backward
from course_lib.kernels.hopper.forward import HOPPER, hopper_flash_attention, hopper_forward, prefers_hopper
from course_lib.kernels.launch import tensor_meta
from courseware.bench import records
from courseware.bench.accuracy import check_attention, check_gradients
from courseware.bench.hopper_ladder import forward_of, rungs
from courseware.editing import run_source
from courseware.simulators import gluon_emulator
from tests.course_lib.kernels.common import DEVICE, HALF, ON_CPU, inputs, leaves
from tests.course_lib.kernels.test_attention import HAS_HOPPER, all_equal, by_autograd

pytestmark = pytest.mark.skipif(not HAS_HOPPER, reason="a GPU of another generation, which does not run these kernels")
emulated = pytest.mark.skipif(not ON_CPU, reason="of the emulator")
OTHER_GPUS = (None, (8, 0), (10, 0), (12, 0))
HOW = {"causal": True, "scale": 0.125}


def halves(n_q, n_k, d=64, **shape):
    return inputs(n_q, n_k, d, dtype=HALF, **shape)


@emulated
@pytest.mark.parametrize("tiles_q, tiles_k, heads, n_programs, most", [
    (64, 128, 16, 132, 1.09), (33, 66, 16, 132, 1.01), (22, 44, 16, 132, 1.25),  # 1.29, 1.32, 1.48 in plain order
    (64, 64, 16, 132, 1.04), (3, 7, 9, 5, 1.3), (5, 5, 5, 4, 1.2), (1, 4, 3, 5, 2),
])  # fmt: skip
def test_causal_key_tiles_are_dealt_out_evenly_also_with_fewer_queries(tiles_q, tiles_k, heads, n_programs, most):
    found, shares, n_tiles = [], [], tiles_k * heads
    for pid in range(n_programs):
        gluon_emulator.Program.current = gluon_emulator.Program((pid, 0, 0), (n_programs, 1, 1))
        shift = backward.shift_of_pairs(tiles_k, n_programs)
        shape = n_tiles, heads, 1, 128 * tiles_q, 128 * tiles_k, shift
        own = range(forward.tiles_of_program(n_tiles, True))
        mine = [backward.tile_schedule(i, shape, 128, True, True, True) for i in own]
        found += [(int(head), int(start)) for head, start, *_ in mine]
        shares.append(int(sum(n_visits for _, _, n_visits, _ in mine)))
    assert sorted(found) == [(head, 128 * tile) for head in range(heads) for tile in range(tiles_k)]
    assert max(shares) <= most * sum(shares) / n_programs


@emulated
@pytest.mark.parametrize("n, heads, n_sms", [(640, 1, 1), (640, 1, 2), (640, 1, 4), (384, 3, 4), (640, 2, 3)])
def test_every_tile_is_computed_once_whatever_the_number_of_programs(n, heads, n_sms, monkeypatch):
    stored, store = [], forward.tma.async_copy_shared_to_global

    def noted(desc, coordinates, smem):
        stored.append(tuple(coordinates))
        store(desc, coordinates, smem)

    monkeypatch.setattr(forward.tma, "async_copy_shared_to_global", noted)
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: n_sms)
    q, k, v, do = halves(n, n, heads=heads)
    tiles = [(0, head, row, 0) for head in range(heads) for row in range(0, n, 64)]
    for causal in (False, True):
        stored.clear()
        o, lse = hopper_forward(q, k, v, causal=causal, scale=0.125, store_lse=True)
        assert sorted(place for place in stored if place[2] < n) == tiles  # a tile's last groups may have no rows
        check_attention((o, lse), q, k, v, causal=causal)
        stored.clear()
        if heads == 1:
            dq, dk, dv = hopper_backward(q, k, v, o, lse, do, causal=causal, scale=0.125)
            assert sorted(stored) == sorted(3 * tiles)
            check_gradients((dq, dk, dv), q, k, v, do, causal=causal)
            stored.clear()
            hopper_backward(q, k, v, o, lse, do, causal=causal, scale=0.125, fused=True)
            assert sorted(stored) == sorted(2 * tiles)


@emulated
def test_who_is_first_changes_no_bit(monkeypatch):
    q, k, v, do = halves(300, 400)
    answers = []
    for seed in range(4):
        monkeypatch.setattr(gluon_emulator, "SEED", seed)
        o, lse = hopper_forward(q, k, v, store_lse=True, **HOW)
        answers.append((o, lse, *hopper_backward(q, k, v, o, lse, do, **HOW)))
        answers[-1] += hopper_backward(q, k, v, o, lse, do, **HOW, fused=True)[1:]
    assert all(all_equal(answer, answers[0]) for answer in answers[1:])


@pytest.mark.parametrize("deterministic, fused", [(False, True), (True, False)])
def test_gradients_are_fused_unless_torch_is_to_be_deterministic(deterministic, fused, monkeypatch):
    given = []
    monkeypatch.setattr(attention, "prefers_hopper_backward", lambda *call: given.append(call[-1]) or True)
    monkeypatch.setattr(attention, "hopper_backward", lambda *_, **how: given.append(how["fused"]) or 3 * (None,))
    q, k, v, do = halves(130, 140)
    o = flash_attention(*leaves(q, k, v))
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(deterministic)
        o.backward(do)
    finally:
        torch.use_deterministic_algorithms(before)
    assert given == [fused, fused]


def test_only_what_is_needed_is_computed():
    q, k, v, do = halves(130, 140)
    given = q, k, v, *hopper_forward(q, k, v, store_lse=True, **HOW), do
    dq, dk, dv = hopper_backward(*given, **HOW)
    only_dq = hopper_backward(*given, **HOW, need_dkdv=False)
    assert torch.equal(only_dq[0], dq) and only_dq[1:] == (None, None)
    none, *only_dkdv = hopper_backward(*given, **HOW, need_dq=False)
    assert none is None and all_equal(only_dkdv, (dk, dv))


def test_an_empty_batch_has_empty_results(monkeypatch):
    if ON_CPU:
        monkeypatch.setattr(runtime, "capability", lambda device: HOPPER)
    q, k, v, do = halves(2048, 2048, batch=0)
    for attend in (flash_attention, hopper_flash_attention):
        o, lse = attend(q, k, v, return_lse=True)
        assert o.shape == q.shape and o.dtype == q.dtype and lse.shape == q.shape[:3]
    assert [x.shape for x in hopper_backward(q, k, v, o, lse, do, **HOW)] == [x.shape for x in (q, k, v)]


def test_the_public_function():
    q, k, v, _ = halves(512, 700)
    o, lse = hopper_flash_attention(q, k, v, causal=True, return_lse=True)
    check_attention((o, lse), q, k, v, causal=True)
    assert torch.equal(hopper_flash_attention(q, k, v, causal=True), o)
    every_other = torch.stack([q, q], -1).flatten(-2)[..., ::2]
    assert torch.equal(hopper_flash_attention(every_other, k, v, causal=True), o)


# Which calls of `flash_attention` they are taken for.


def meta(batch, heads, n, d, dtype=HALF):
    return tensor_meta(torch.empty(batch, heads, n, d, dtype=dtype, device="cpu"))


def test_what_is_dispatched_was_the_fastest_in_every_measurement():
    """Five rows of 232, backward, of 1,024 tokens at most, are 2 to 4 % slower than seven products."""
    slower = []
    for row in records.rows("dispatch-h200"):
        q, ms, causal = meta(1, row["heads"], row["n"], row["head_dim"]), row["ms"], row["causal"]
        if row["pass"] == "forward":
            chosen = "hopper" if prefers_hopper(HOPPER, q, q, q, causal) else "portable"
        else:
            five, seven = (prefers_hopper_backward(HOPPER, q, q, q, q, causal, fused) for fused in (True, False))
            chosen = "five products" if five else "portable"
            deterministic = ms["seven products" if seven else "portable"]
            assert deterministic <= 1.03 * min(ms["seven products"], ms["portable"]), row
        slower += [row for _ in range(ms[chosen] > 1.02 * min(ms.values()))]
        assert ms[chosen] <= 1.05 * min(ms.values()), row
    assert len(slower) <= 5, slower


def test_other_gpus_dtypes_and_gradients_that_are_one_row_for_all_get_the_portable_kernels():
    q = meta(16, 16, 4096, 128)
    of_one_row, single = q._replace(strides=(0, 0, 0, 1)), meta(16, 16, 4096, 128, torch.float32)
    for causal, fused in itertools.product((False, True), repeat=2):
        assert prefers_hopper(HOPPER, q, q, q, causal) and prefers_hopper_backward(HOPPER, q, q, q, q, causal, fused)
        for capability in OTHER_GPUS:
            assert not prefers_hopper(capability, q, q, q, causal)
            assert not prefers_hopper_backward(capability, q, q, q, q, causal, fused)
        assert not prefers_hopper(HOPPER, single, single, single, causal)
        assert not prefers_hopper_backward(HOPPER, q, q, q, of_one_row, causal, fused)
        grouped, few = meta(16, 2, 4096, 128), meta(1, 1, 4096, 128)
        assert prefers_hopper_backward(HOPPER, q, grouped, grouped, q, causal, fused)
        assert not prefers_hopper_backward(HOPPER, q._replace(shape=(1, 16, 4096, 128)), few, few, q, causal, fused)


@emulated
def test_flash_attention_calls_it_and_no_other_kernel_if_blocks_are_not_given(monkeypatch):
    calls = []

    def called(q, k, v, *, causal, scale, store_lse):
        calls.append((causal, scale, store_lse))
        return torch.ones_like(q), torch.ones(q.shape[:3])

    monkeypatch.setattr(runtime, "capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "hopper_forward", called)
    q, k, v, _ = halves(2048, 2048, 128)
    assert flash_attention(q, k, v, scale=0.5).eq(1).all() and calls == [(False, 0.5, False)]
    flash_attention(q[:, :, -600:].contiguous(), k, v, block_q=128, block_k=128)
    flash_attention(q[:, :, -600:], k, v, causal=True)
    assert len(calls) == 1


@pytest.mark.parametrize("portable", (False, True))
def test_flash_attention_passes_everything_on_unless_portable(portable, monkeypatch):
    monkeypatch.setattr(attention, "PORTABLE", portable)
    monkeypatch.setattr(attention, "prefers_hopper_backward", lambda *_: True)
    if portable:
        monkeypatch.setattr(attention, "prefers_hopper", lambda *_: True)
        for name in ("hopper_forward", "hopper_backward"):
            monkeypatch.setattr(attention, name, None)  # which cannot be called
    else:
        monkeypatch.setattr(attention, "flash_backward", None)
    q, k, v, do = halves(150, 170)
    dlse, how = torch.randn(q.shape[:3]).to(DEVICE), {"causal": True, "scale": 0.2}
    check_gradients(by_autograd(q, k, v, do, dlse, **how)[2:], q, k, v, do, dlse, **how)


NEED_A_GPU = {"maximum as a tree", "exponentials by polynomial"}


@pytest.mark.parametrize("name", list(rungs()))
def test_every_rung_gives_attention(name):
    attend = forward_of(rungs()[name])
    if ON_CPU and name in NEED_A_GPU:
        return  # its source was built above; it uses what the emulator has not
    for n_q, n_k, causal in ((256, 512, False), (200, 333, True), (200, 333, False)):
        q, k, v, _ = halves(n_q, n_k)
        o, _ = attend(q, k, v, causal=causal, scale=0.125, store_lse=False)
        check_attention(o, q, k, v, causal=causal)


# What somebody could get wrong with a barrier, a copy or a wait: (right text, wrong text, what is said of it). The
# emulator's own tests have deadlocks and missing fences.

FORWARD, BACKWARD = (Path(module.__file__).read_text(encoding="utf-8") for module in (forward, backward))
V_PRODUCT = "    acc, p = warpgroup_mma_wait(0, deps=[acc_to_come, p])\n"
STAGE_READ = "    mbarrier.arrive(kv_empty.index(stage), count=1)\n"
STATISTICS = """                    lse_stages.index(stage).store(lse * LOG2_E)
                    delta_stages.index(stage).store(delta)
"""
ANNOUNCED = "                    mbarrier.arrive(bar, count=1)\n"
FORWARD_MISTAKES = {
    "a stage is handed back while its product is under way": (
        V_PRODUCT + STAGE_READ, STAGE_READ + V_PRODUCT,
        r"starts a copy to [kv]_smem\[\d\], which a product of consumer \d still reads",
    ),
    "no wait for a step": (
        "    mbarrier.wait(kv_ready.index(stage), step // STAGES & 1)\n    k =", "    k =",
        r"reads [kv]_smem\[\d\] without having waited",
    ),
    "values are added too early": (
        V_PRODUCT, V_PRODUCT.replace("wait(0", "wait(1"), "uses the result of a product that it has not waited for"
    ),
    "half of the bytes are announced": (
        "(ready, desc.block_type.nbytes)", "(ready, desc.block_type.nbytes // 2)",
        r"copies brought 8,192 bytes more than q_ready\[0\] was told to expect",
    ),
    "the next queries come over an output that leaves": (
        "        tma.store_wait(0)  # until the copy engine has read the last output: the next queries may come in its "
        "place\n", "",
        r"starts a copy to q_smem\[\d\], which the copy engine may still read",
    ),
    "the program ends before its output has been read": (
        "    tma.store_wait(0)\n\n\n@gluon.jit\ndef barriers", "\n\n@gluon.jit\ndef barriers",
        "ends before a product or copy of its own has",
    ),
}  # fmt: skip
BACKWARD_MISTAKES = {
    "statistics are announced before they are stored": (
        STATISTICS + ANNOUNCED, ANNOUNCED + STATISTICS,
        r"reads (lse|delta)_stages\[\d\] without having waited|stores to",
    ),
    "a piece of dQ is stored over the last one": (
        "        tma.store_wait(0)  # until the copy engine has read the last piece\n", "",
        r"stores to dq_smem\[\d\], which the copy engine may still read",
    ),
}  # fmt: skip


@emulated
@pytest.mark.parametrize("mistake", (*FORWARD_MISTAKES, *BACKWARD_MISTAKES))
def test_the_emulator_finds_what_is_wrong_with_barriers(mistake, monkeypatch):
    """In one of eight orders of events."""
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: 1)
    of_forward = mistake in FORWARD_MISTAKES
    source = FORWARD if of_forward else BACKWARD
    right, wrong, message = (FORWARD_MISTAKES | BACKWARD_MISTAKES)[mistake]
    assert source.count(right) == 1
    module = ModuleType("mistaken")
    run_source(source.replace(right, wrong), f"<{mistake}>", module.__dict__)
    few, more = (halves(400, n_k, 128 if of_forward else 64) for n_k in (100, 450))
    for seed in range(8):
        monkeypatch.setattr(gluon_emulator, "SEED", seed)
        try:
            for (q, k, v, do), causal in ((more, False), (few, False), (more, True)):
                if of_forward:
                    module.hopper_forward(q, k, v, causal=causal, scale=0.125, store_lse=True)
                else:
                    lse = torch.zeros(q.shape[:3])
                    module.hopper_backward(q, k, v, q, lse, do, causal=False, scale=0.125, fused=True)
        except gluon_emulator.GluonError as error:
            assert re.search(message, str(error)), error
            return
    raise AssertionError("nothing was found")


@emulated
def test_the_emulator_looks_for_names_only_when_something_is_wrong(monkeypatch):
    def fail(*_):
        raise AssertionError("searched the frames of a kernel for a name")

    monkeypatch.setattr(gluon_emulator.Named, "name_seen_from", fail)
    q, k, v, _ = halves(200, 333)
    hopper_forward(q, k, v, store_lse=True, **HOW)
