"""The Hopper kernel: interpreted on a CPU, and compiled on a GPU of compute capability 9.0."""

import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from course_lib import runtime
from course_lib.kernels import attention, flash_attention
from course_lib.kernels.hopper import forward
from course_lib.kernels.hopper.forward import HOPPER, hopper_flash_attention, prefers_hopper
from course_lib.kernels.launch import tensor_meta
from courseware.bench.accuracy import check_attention
from courseware.bench.hopper_ladder import rungs
from courseware.editing import run_source
from tests.course_lib.kernels.test_forward import DEVICE, qkv

ON_CPU = runtime.mode() != "gpu"
RUNS_HERE = ON_CPU or runtime.capability(DEVICE)[0] == 9
pytestmark = pytest.mark.skipif(not RUNS_HERE, reason="a GPU of another generation, which does not run this kernel")
HALVES = (torch.float16, torch.bfloat16)


def check(forward, q, k, v, *, causal=False, scale=None):
    scale_or_default = q.shape[-1] ** -0.5 if scale is None else scale
    answer = forward(q, k, v, causal=causal, scale=scale_or_default, store_lse=True)
    check_attention(answer, q, k, v, causal=causal, scale=scale)
    return answer


# Lengths that end with a tile, one before, one behind; shorter than a tile; more queries than keys, so that some see
# none under a causal mask; masked tiles in two of 128 keys; a second group whose rows are all beyond the tensor.
@pytest.mark.parametrize("n_q,n_k", [(256, 256), (255, 257), (5, 77), (300, 100), (129, 1), (200, 333), (1, 640)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(n_q, n_k, causal):
    for d, dtype in zip((64, 128), HALVES, strict=True):
        check(forward.hopper_forward, *qkv(n_q, n_k, d, dtype=dtype), causal=causal)


@pytest.mark.parametrize("d", [40, 48, 80, 96, 120])
def test_head_dims_that_are_padded(d):
    check(forward.hopper_forward, *qkv(150, 200, d, dtype=torch.float16), causal=True)


@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
def test_any_scale(scale):
    check(forward.hopper_forward, *qkv(130, 140, 64, dtype=torch.float16), causal=True, scale=scale)


def test_heads_that_share_keys_in_several_sequences_and_any_layout():
    q, k, v = qkv(190, 260, 64, dtype=torch.bfloat16, batch=2, heads=6, kv_heads=2)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    check(forward.hopper_forward, q, k, v, causal=True)


@pytest.mark.skipif(not ON_CPU, reason="a GPU has as many multiprocessors as it has")
@pytest.mark.parametrize("n_sms", [1, 2, 3, 5])
def test_every_query_tile_is_computed_whatever_the_number_of_programs(n_sms, monkeypatch):
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: n_sms)
    for heads, causal in itertools.product((1, 3), (False, True)):
        check(forward.hopper_forward, *qkv(600, 300, 64, dtype=torch.float16, heads=heads), causal=causal)


@pytest.mark.skipif(not ON_CPU, reason="it counts the emulator's copies to global memory")
@pytest.mark.parametrize("n,heads,n_sms", [(640, 1, 1), (640, 1, 2), (640, 1, 4), (384, 3, 4), (640, 2, 3)])
def test_every_query_tile_is_computed_once(n, heads, n_sms, monkeypatch):
    stored = stores(forward, monkeypatch)
    monkeypatch.setattr(runtime, "multiprocessors", lambda device: n_sms)
    for causal in (False, True):
        stored.clear()
        check(forward.hopper_forward, *qkv(n, n, 64, dtype=torch.float16, heads=heads), causal=causal)
        assert sorted(stored) == [(0, head, row, 0) for head in range(heads) for row in range(0, n, 64)]


def stores(module, monkeypatch):
    """A list to which the emulator adds where the kernels of a module store a tile."""
    found, store = [], module.tma.async_copy_shared_to_global

    def noted(desc, coordinates, smem):
        found.append(tuple(coordinates))
        store(desc, coordinates, smem)

    monkeypatch.setattr(module.tma, "async_copy_shared_to_global", noted)
    return found


def test_an_empty_batch_has_an_empty_result(monkeypatch):
    if ON_CPU:
        monkeypatch.setattr(runtime, "capability", lambda device: HOPPER)
    q, k, v = qkv(2048, 2048, 64, dtype=torch.float16, batch=0)
    for attend in (flash_attention, hopper_flash_attention):
        o, lse = attend(q, k, v, return_lse=True)
        assert o.shape == q.shape and o.dtype == q.dtype and lse.shape == q.shape[:3]


@pytest.mark.skipif(not ON_CPU, reason="a GPU takes turns as it likes")
def test_who_is_first_changes_no_bit(monkeypatch):
    from courseware.simulators import gluon_emulator

    q, k, v = qkv(300, 400, 64, dtype=torch.float16)
    answers = []
    for seed in range(5):
        monkeypatch.setattr(gluon_emulator, "SEED", seed)
        answers.append(check(forward.hopper_forward, q, k, v, causal=True))
    for o, lse in answers[1:]:
        assert torch.equal(o, answers[0][0]) and torch.equal(lse, answers[0][1])


def test_the_public_function():
    q, k, v = qkv(512, 700, 64, dtype=torch.float16)
    o, lse = hopper_flash_attention(q, k, v, causal=True, return_lse=True)
    check_attention((o, lse), q, k, v, causal=True)
    assert torch.equal(hopper_flash_attention(q, k, v, causal=True), o)
    every_other = torch.stack([q, q], -1).flatten(-2)[..., ::2]
    assert torch.equal(hopper_flash_attention(every_other, k, v, causal=True), o)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"dtype": torch.float32}, "takes fp16 or bf16"),
        ({"d": 32}, "head_dim 33 to 128"),
        ({"d": 136}, "head_dim 33 to 128"),
        ({"d": 44}, "multiples of 16 bytes"),
        ({"n_q": 511}, "at least 512 rows"),
    ],
)
def test_what_it_does_not_take_is_refused(change, message):
    shape = {"n_q": 512, "n_k": 512, "d": 64, "dtype": torch.float16} | change
    with pytest.raises(ValueError, match=message):
        hopper_flash_attention(*qkv(**shape))


def test_other_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(runtime, "capability", lambda device: (8, 0))
    with pytest.raises(RuntimeError, match=r"compute capability 9\.0, and this one has 8\.0"):
        hopper_flash_attention(*qkv(512, 512, 64, dtype=torch.float16))


@pytest.mark.parametrize(
    "n,heads,causal,preferred",
    [(512, 63, False, False), (512, 64, False, True), (2048, 1, False, True), (1024, 31, True, False),
     (1024, 32, True, True), (512, 200, True, False), (2048, 1, True, False), (4096, 1, True, True)],
)  # fmt: skip
def test_flash_attention_takes_it_where_it_is_faster_and_the_gpu_is_right(n, heads, causal, preferred):
    meta = tensor_meta(torch.empty(1, heads, n, 64, dtype=torch.float16))
    assert prefers_hopper((9, 0), meta, meta, meta, causal) == preferred
    for capability in (None, (8, 0), (10, 0), (12, 0)):
        assert not prefers_hopper(capability, meta, meta, meta, causal)
    meta = tensor_meta(torch.empty(1, heads, n, 64))
    assert not prefers_hopper((9, 0), meta, meta, meta, causal)


@pytest.mark.skipif(not ON_CPU, reason="a GPU is what it is")
def test_flash_attention_calls_it_and_no_other_kernel_if_blocks_are_not_given(monkeypatch):
    calls = []

    def called(q, k, v, *, causal, scale, store_lse):
        calls.append((causal, scale, store_lse))
        return torch.ones_like(q), torch.ones(q.shape[:3])

    monkeypatch.setattr(runtime, "capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "hopper_forward", called)
    q, k, v = qkv(2048, 2048, 64, dtype=torch.float16, heads=1, kv_heads=1)
    assert flash_attention(q, k, v, scale=0.5).eq(1).all() and calls == [(False, 0.5, False)]
    flash_attention(q[:, :, -600:].contiguous(), k, v, block_q=128, block_k=128)
    flash_attention(q[:, :, -600:], k, v, causal=True)
    assert len(calls) == 1


@pytest.mark.parametrize("name", list(rungs()))
def test_every_rung_gives_attention(name):
    forward = rungs()[name].forward
    if ON_CPU and name in NEED_A_GPU:
        return  # its source was built above; it uses what the interpreter has not
    for (n_q, n_k), causal in (((256, 512), False), ((200, 333), True), ((200, 333), False)):
        q, k, v = qkv(n_q, n_k, 64, dtype=torch.float16)
        o, _ = forward(q, k, v, causal=causal, scale=0.125, store_lse=False)
        check_attention(o, q, k, v, causal=causal)


LOAD = "        q = q_smem.index(GROUP).reshape([ROWS, BLOCK_D]).load(gl.DotOperandLayout(0, S_LAYOUT, 2))\n"
HAND_BACK = "        mbarrier.arrive(q_empty.index(GROUP), count=1)\n"
SOURCE = Path(forward.__file__).read_text(encoding="utf-8")
FIRST_PRODUCT = SOURCE.partition(LOAD)[2].partition(HAND_BACK)[0]
# What somebody could get wrong with a barrier, a fence or a wait, as an edit of the kernel; and what is said of it.
MISTAKES = {
    "a stage of V is handed back while its product is under way": (
        """    acc, p = warpgroup_mma_wait(0, deps=[acc_to_come, p])
    mbarrier.arrive(v_empty.index(stage), count=1)
""",
        """    mbarrier.arrive(v_empty.index(stage), count=1)
    acc, p = warpgroup_mma_wait(0, deps=[acc_to_come, p])
""",
        r"starts a copy to v_smem\[\d\], which a product of consumer \d still reads",
    ),
    "no wait for V": (
        """    mbarrier.wait(v_ready.index(stage), used // STAGES & 1)
    v =""",
        "    v =",
        r"reads v_smem\[\d\] without having waited",
    ),
    "no wait for K": (
        "    mbarrier.wait(k_ready.index(next_stage), (used + 1) // STAGES & 1)\n",
        "",
        r"reads k_smem\[\d\] without having waited",
    ),
    "the phase of the tile before": (
        "mbarrier.wait(k_ready.index(next_stage), (used + 1) // STAGES & 1)",
        "mbarrier.wait(k_ready.index(next_stage), used // STAGES & 1)",
        "deadlock|still reads",
    ),
    "the fetching warp waits for the first phase": (
        "mbarrier.wait(k_empty.index(stage), phase ^ 1)",
        "mbarrier.wait(k_empty.index(stage), phase)",
        r"deadlock.*producer \d for phase 0 of k_empty\[0\]",
    ),
    "the fetching warp does not wait": (
        "            mbarrier.wait(v_empty.index(stage), phase ^ 1)\n",
        "",
        "whose last tile nobody has waited for|still reads|deadlock",
    ),
    # It made single rows wrong on an H200: docs/tested.md.
    "queries handed back while they are loaded": (
        LOAD + FIRST_PRODUCT + HAND_BACK,
        LOAD + HAND_BACK + FIRST_PRODUCT,
        r"starts a copy to q_smem\[\d\], which consumer \d is still loading from",
    ),
    "queries handed back before they are read": (
        LOAD + FIRST_PRODUCT + HAND_BACK,
        HAND_BACK + LOAD + FIRST_PRODUCT,
        r"reads q_smem\[\d\] without having waited|consumer \d is still loading",
    ),
    "queries never handed back": (
        "        mbarrier.arrive(q_empty.index(GROUP), count=1)\n",
        "",
        r"deadlock.*of q_empty\[\d\], which lacks 1 of 1 arrivals",
    ),
    "one arrival is enough": (
        "barriers(STAGES, 2), barriers(STAGES, 2))",
        "barriers(STAGES, 2), barriers(STAGES, 1))",
        "once more than|still reads|deadlock|without having waited",
    ),
    "three arrivals": (
        "barriers(STAGES, 2), barriers(STAGES, 2))",
        "barriers(STAGES, 3), barriers(STAGES, 2))",
        r"deadlock.*of k_empty\[\d\], which lacks 1 of 3 arrivals",
    ),
    "a product's result is used too early": (
        "warpgroup_mma_wait(0, deps=[acc_to_come, p])",
        "warpgroup_mma_wait(1, deps=[acc_to_come, p])",
        "uses the result of a product that it has not waited for",
    ),
    "scores are used too early": (
        "warpgroup_mma_wait(1, deps=[scores_to_come])",
        "warpgroup_mma_wait(2, deps=[scores_to_come])",
        "uses the result of a product that it has not waited for",
    ),
    "a tile is not counted": (
        "        used += 1\n\n        # FA2",
        "\n        # FA2",
        "deadlock|without having waited",
    ),
    "half of the bytes are announced": (
        "mbarrier.expect(v_ready.index(stage), v_desc.block_type.nbytes)",
        "mbarrier.expect(v_ready.index(stage), v_desc.block_type.nbytes // 2)",
        r"deadlock.*v_ready\[0\], which lacks 0 of 1 arrivals and -8192 bytes",
    ),
    "V is announced at K's barrier": (
        "mbarrier.expect(v_ready.index(stage), v_desc",
        "mbarrier.expect(k_ready.index(stage), v_desc",
        r"producer \d arrives at k_ready\[0\] once more than the 1|deadlock.*v_ready",
    ),
    "both groups begin": (
        "(turns & 1) ^ (1 - GROUP)",
        "(turns & 1) ^ 1",
        r"deadlock.*turn\[0\]|once more than the 1",
    ),
    "a group keeps its turn": (
        "    mbarrier.arrive(turn.index(1 - GROUP), count=1)\n",
        "",
        r"deadlock.*consumer 1 for phase 0 of turn\[1\], which lacks 1 of 1 arrivals",
    ),
    "no fence": (
        "        fence_async_shared()\n        tma",
        "        tma",
        r"reads o_smem\[\d\] that was stored without",
    ),
    "no wait for the last output": (
        "        tma.store_wait(0)  # until the copy engine has read the last output\n",
        "",
        r"stores to o_smem\[\d\], which the copy engine may still read",
    ),
    "the program ends before its output has been read": (
        "    tma.store_wait(0)\n\n\n@gluon.jit\ndef barriers",
        "\n\n@gluon.jit\ndef barriers",
        "ends before a product or copy of its own has",
    ),
}


def assert_found(source, mistake, calls, monkeypatch):
    """The interpreter says what is wrong with the edited source of a kernel, in one of eight orders of events.

    mistake: (right text, wrong text, pattern of the message); calls: makes them with the edited module.
    """
    from courseware.simulators import gluon_emulator

    right, wrong, message = mistake
    assert source.count(right) == 1
    module = ModuleType("mistaken")
    run_source(source.replace(right, wrong), f"<{wrong}>", module.__dict__)
    for seed in range(8):
        monkeypatch.setattr(gluon_emulator, "SEED", seed)
        try:
            calls(module)
        except gluon_emulator.GluonError as error:
            assert re.search(message, str(error)), error
            return
    raise AssertionError("nothing was found")


@pytest.mark.skipif(not ON_CPU, reason="on a GPU, most of these hang")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_interpreter_finds_what_is_wrong_with_barriers(mistake, monkeypatch):
    few_keys, more = (qkv(400, n_k, 64, dtype=torch.float16) for n_k in (100, 500))

    def calls(module):
        for inputs in (more, few_keys):
            module.hopper_forward(*inputs, causal=False, scale=0.125, store_lse=True)

    assert_found(SOURCE, MISTAKES[mistake], calls, monkeypatch)


@pytest.mark.skipif(not ON_CPU, reason="a GPU knows no names")
def test_the_interpreter_looks_for_names_only_when_something_is_wrong(monkeypatch):
    from courseware.simulators import gluon_emulator

    def fail(*_):
        raise AssertionError("searched the frames of a kernel for a name")

    monkeypatch.setattr(gluon_emulator.Named, "name_seen_from", fail)
    check(forward.hopper_forward, *qkv(200, 333, 64, dtype=torch.float16), causal=True)


NEED_A_GPU = {"maximum as a tree", "exponentials by polynomial"}
