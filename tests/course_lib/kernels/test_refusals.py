"""What the public functions refuse: one table for each, of what is changed in a good call and what is said of it.

Every error names the argument and comes before any launch. "T: " stands before what a TypeError says, "V: " before
what a ValueError says.
"""

import numpy as np
import pytest
import torch

from course_lib import masks, runtime
from course_lib.kernels import attention, checks, flash_attention, flash_decode
from course_lib.kernels.cuda import solve
from course_lib.kernels.hopper.forward import hopper_flash_attention
from course_lib.kernels.score_mods import alibi, soft_cap
from tests.course_lib.kernels.common import DEVICE, check_refusal

T = torch.zeros
HALF = {"dtype": torch.float16}
META = {"device": "meta"}


def kv(*shape, names=("k", "v"), **options):
    return {name: T(shape, **options) for name in names}


def integers(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


OF_FLASH_ATTENTION = {
    "q is no tensor": (dict(q=np.zeros((1, 1, 4, 8))), "T: q must be a torch.Tensor, got ndarray"),
    "rank": (dict(k=T(4, 8)), r"V: k must have 4 dimensions \[batch, heads, seq, head_dim\], got \[4, 8\]"),
    "float64": (dict(q=T(1, 1, 4, 8, dtype=torch.float64)), "T: q has dtype float64; accepted"),
    "mixed dtypes": (dict(k=T(1, 1, 4, 8, **HALF)), "T: k has dtype float16 but q has float32"),
    "head_dim": (kv(1, 1, 4, 9), "V: k has head_dim 9 but q has 8"),
    "head_dim 257": (kv(1, 1, 4, 257, names="qkv"), "V: head_dim must be 1 to 256, got 257"),
    "head_dim 0": (kv(1, 1, 4, 0, names="qkv"), "V: head_dim must be 1 to 256, got 0"),
    "k and v": (dict(v=T(1, 1, 5, 8)), r"V: v must have k's shape \[1, 1, 4, 8\], got \[1, 1, 5, 8\]"),
    "batch": (kv(2, 1, 4, 8), "V: k has batch 2 but q has 1"),
    "heads": (dict(q=T(1, 3, 4, 8)) | kv(1, 2, 4, 8), "V: k and v have 2 heads, which do not divide q's 3"),
    "too many heads for dropout": (
        kv(1, 65_536, 4, 8, names="qkv") | dict(dropout_p=0.1), "V: q has heads 65536; at most 65535 are"
    ),
    "no heads": (kv(1, 0, 4, 8), "V: k has 0 heads"),
    "nested": (
        dict(q=torch.nested.nested_tensor([T(1, 4, 8)], layout=torch.jagged)), "T: q has layout torch.jagged; accepted"
    ),
    "devices": (kv(1, 1, 4, 8, **META), "V: k is on meta but q is on"),
    **{f"scale {x}": (dict(scale=x), "V: scale must be finite") for x in (float("nan"), float("inf"))},
    "scale no number": (dict(scale="1"), "T: scale must be a real number or None, got '1'"),
    **{f"{x} no flag": ({x: 1}, f"T: {x} must be True or False, got 1") for x in ("causal", "return_lse")},
    "block_q": (dict(block_q=48), "V: block_q must be one of 16, 32, 64, 128 or None, got 48"),
    "block_k": (dict(block_k=256), "V: block_k must be one of 16, 32, 64, 128 or None, got 256"),
    # With masks and the like.
    "mask of torch": (dict(mask=torch.ones(2, 2)), r"T: mask is a Tensor; accepted: .* from_dense\(mask\) for bool"),
    "mask of NumPy": (dict(mask=np.ones((4, 4), bool)), "T: mask is a ndarray"),
    "ids too short": (dict(mask=masks.documents([0, 1])), "V: ids has length 2; accepted: 4"),
    "packed and causal": (dict(mask=masks.packed([0, 4]), causal=True), r"V: causal is True and mask is packed\(...\)"),
    "mask and block_q": (dict(mask=masks.full(), block_q=16), "V: block_q and block_k are not accepted with a mask"),
    "a mask for each of two": (
        dict(mask=masks.key_lengths([1, 2])), "V: mask is one for batch 2; accepted: 1, which q has, or 1 for all"
    ),
    "masks for each head": (
        dict(mask=masks.from_function(lambda *_: True, heads=3)), "V: mask is one for heads 3; accepted: 1"
    ),
    "more keys than there are": (dict(mask=masks.key_lengths([5])), "V: lengths has 5; accepted: 0 to 4"),
    "a function of numbers": (
        dict(mask=masks.from_function(lambda b, h, i, j: i - j)), "T: function of a mask returned int64; accepted: bool"
    ),
    **{
        f"ranges and {name}": (dict(key_ranges=integers(1, 2, 4)) | other, "V: key_ranges is given with causal or mask")
        for name, other in {"mask": dict(mask=masks.full()), "causal": dict(causal=True)}.items()
    },
    "ranges and block_k": (dict(key_ranges=integers(1, 2, 4), block_k=16), "V: not accepted with a mask, key_ranges"),
    "ranges int64": (dict(key_ranges=integers(1, 2, 4, dtype=torch.int64)), "T: key_ranges has dtype int64; accepted"),
    "ranges' batch": (dict(key_ranges=integers(2, 2, 4)), r"V: key_ranges must have .* batch 1, got \[2, 2, 4\]"),
    "ranges' queries": (dict(key_ranges=integers(1, 2, 5)), r"V: key_ranges must have .* n_q 4, got \[1, 2, 5\]"),
    "score_mod": (dict(score_mod=abs), "T: score_mod is <built-in function abs>; accepted: a ScoreMod"),
    "one of two score_mods": (dict(score_mod=(alibi(1.0), None)), "T: score_mod is None; accepted: a ScoreMod, sev"),
    "slopes": (dict(score_mod=alibi([1.0, 2.0])), r"V: parameter of a score_mod has shape \[2\]; accepted: a numbe"),
    "slopes with a gradient": (
        dict(score_mod=alibi(T(1, requires_grad=True))), "V: parameter of a score_mod requires a gradient"
    ),
    "sinks' shape": (dict(sinks=T(3)), r"V: sinks is torch.float32 \[3\]; accepted: floating-point \[1\]"),
    "sinks no tensor": (dict(sinks=1.0), "V: sinks is 1.0"),
    "sinks of integers": (dict(sinks=integers(1)), r"V: sinks is torch.int32 \[1\]"),
    "sinks' device": (dict(sinks=T(1, **META)), "V: sinks is on meta but q is on"),
    **{f"dropout_p {p}": (dict(dropout_p=p), f"V: dropout_p is {p}") for p in (1.5, -0.1, True, float("nan"))},
    **{f"seed {x}": (dict(dropout_p=0.5, seed=x), f"V: seed is {x}; accepted: whole numbers") for x in (-1, 1.0)},
}  # fmt: skip
CACHES = ("k_cache", "v_cache")
PAGED = kv(5, 1, 16, 8, names=CACHES) | dict(block_table=integers(2, 3))
OF_FLASH_DECODE = {
    "q is no tensor": (dict(q=np.zeros((2, 1, 1, 8))), "T: q must be a torch.Tensor, got ndarray"),
    "rank": (dict(k_cache=T(2, 32, 8)), r"V: k_cache must have 4 dimensions \[batch, kv_heads, capacity, head_dim\]"),
    "rank of pages": (
        PAGED | dict(v_cache=T(16, 8)), r"V: v_cache must have 4 dimensions \[n_pages, kv_heads, page_size, head_dim\]"
    ),
    "mixed dtypes": (dict(v_cache=T(2, 1, 32, 8, **HALF)), "T: v_cache has dtype float16 but q"),
    "head_dim 257": (
        dict(q=T(2, 1, 1, 257)) | kv(2, 1, 32, 257, names=CACHES), "V: head_dim must be 1 to 256, got 257"
    ),
    "k and v": (dict(v_cache=T(2, 1, 31, 8)), r"V: v_cache must have k_cache's shape \[2, 1, 32, 8\]"),
    "batch": (kv(3, 1, 32, 8, names=CACHES), "V: k_cache has batch 3 but q has 2"),
    "heads": (
        dict(q=T(2, 3, 1, 8)) | kv(2, 2, 32, 8, names=CACHES),
        "V: k_cache and v_cache have 2 heads, which do not divide q's 3",
    ),
    "no new token": (dict(q=T(2, 1, 0, 8)), "V: q has n_new 0; it must be at least 1"),
    "no heads": (kv(2, 0, 32, 8, names=CACHES), "V: k_cache has kv_heads 0"),
    "no capacity": (kv(2, 1, 0, 8, names=CACHES), "V: k_cache has capacity 0"),
    "columns apart": (dict(k_cache=T(2, 1, 8, 32).mT), "V: k_cache must be contiguous in its last dim"),
    "lengths no tensor": (dict(lengths=[3, 4]), "T: lengths must be a torch.Tensor, got list"),
    "lengths float": (dict(lengths=T(2)), "T: lengths has dtype float32; accepted: int32, int64"),
    "lengths rank": (dict(lengths=integers(2, 1)), r"V: lengths must have shape \[batch\] .* got \[2, 1\]"),
    "lengths batch": (dict(lengths=integers(3)), r"V: lengths must have shape \[batch\] with batch 2, got \[3\]"),
    "lengths' device": (dict(lengths=integers(2).to("meta")), "V: lengths is on meta but q is on"),
    "table int16": (
        PAGED | dict(block_table=integers(2, 3, dtype=torch.int16)), "T: block_table has dtype int16; accepted: int32"
    ),
    "sinks": (dict(sinks=T(2)), r"V: sinks is torch.float32 \[2\]; accepted: floating-point \[1\]"),
    "score_mod": (dict(score_mod=1), "T: score_mod is 1; accepted: a ScoreMod"),
    "table rank": (PAGED | dict(block_table=integers(6)), r"V: block_table must have shape \[batch, pages\] with"),
    "table empty": (PAGED | dict(block_table=integers(2, 0)), "V: block_table has pages 0"),
    "page_size 0": (PAGED | kv(5, 1, 0, 8, names=CACHES), "V: k_cache has page_size 0; it must be at least 1"),
    "too many heads": (
        dict(q=T(2, 65_536, 1, 8)) | kv(2, 65_536, 1, 8, names=CACHES), "V: k_cache has 65536 kv_heads; at most"
    ),
    "scale": (dict(scale=float("inf")), "V: scale must be finite"),
    "causal": (dict(causal=1), "T: causal must be True or False, got 1"),
    "window_left": (dict(window_left=-1), "V: window_left must be 0 to .* or None, got -1"),
    **{f"num_splits {n}": (dict(num_splits=n), f"V: num_splits must be 1 to 512 or None, got {n}") for n in (0, 513)},
    "num_splits 1.5": (dict(num_splits=1.5), "T: num_splits must be a whole number or None, got 1.5"),
    "gradient": (dict(q=T(2, 1, 1, 8, requires_grad=True)), "V: q requires a gradient, which flash"),
    "gradient of values": (dict(v_cache=T(2, 1, 32, 8, requires_grad=True)), "V: v_cache requires a gradient"),
}  # fmt: skip
OF_HOPPER = {
    "float32": (kv(1, 1, 512, 64, names="qkv"), "V: takes fp16 or bf16"),
    **{f"head_dim {d}": (kv(1, 1, 512, d, names="qkv", **HALF), "V: head_dim 33 to 128") for d in (32, 136)},
    "head_dim 44": (kv(1, 1, 512, 44, names="qkv", **HALF), "V: multiples of 16 bytes"),
    "short": (dict(q=T(1, 1, 511, 64, **HALF)), "V: at least 512 rows"),
    "causal": (dict(causal=None), "T: causal must be True or False"),
    "gradient": (dict(k=T(1, 1, 512, 64, requires_grad=True, **HALF)), "V: k requires a gradient, which hopper_flash"),
}
OF_SOLVE = {
    "Q is no tensor": ({"Q": [[1.0]]}, "T: Q must be a torch.Tensor, got list"),
    "float64": ({"K": T(6, 4, dtype=torch.float64)}, "T: K has dtype float64; accepted: float32"),
    "rows of Q": ({"Q": T(4, 4)}, r"V: Q must have shape \[5, 4\], got \[4, 4\]"),
    "columns of K": ({"K": T(6, 3)}, r"V: K must have shape \[6, 4\], got \[6, 3\]"),
    "rows of output": ({"output": T(6, 4)}, r"V: output must have shape \[5, 4\]"),
    "columns apart": ({"K": T(4, 6).T}, "V: K must be contiguous"),
    "devices": ({"V": T(6, 4, **META)}, "V: V is on meta but Q is on"),
    "no queries": ({"M": 0, "Q": T(0, 4), "output": T(0, 4)}, "V: M must be at least 1, got 0"),
    "no keys": ({"N": 0}, "V: N must be at least 1, got 0"),
    "d 129": ({"d": 129}, "V: d must be 1 to 128, got 129"),
    "d no integer": ({"d": 4.0}, "T: d must be an integer, got 4.0"),
    "M a flag": ({"M": True}, "T: M must be an integer, got True"),
}
GOOD = {
    flash_attention: kv(1, 1, 4, 8, names="qkv"),
    flash_decode: dict(q=T(2, 1, 1, 8), lengths=integers(2) + 3) | kv(2, 1, 32, 8, names=CACHES),
    hopper_flash_attention: kv(1, 1, 512, 64, names="qkv", **HALF),
    solve: dict(Q=T(5, 4), K=T(6, 4), V=T(6, 4), output=T(5, 4), M=5, N=6, d=4),
}
TABLES = dict(zip(GOOD, (OF_FLASH_ATTENTION, OF_FLASH_DECODE, OF_HOPPER, OF_SOLVE), strict=True))


@pytest.mark.parametrize(
    "function, case",
    [(function, case) for function, table in TABLES.items() for case in table],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_bad_input_is_named_before_any_launch(function, case, monkeypatch):
    for launches in ("flash_forward", "decode"):
        monkeypatch.setattr(attention, launches, lambda *_, **__: pytest.fail("launched"))
    if function is hopper_flash_attention and DEVICE != "cpu" and runtime.capability(DEVICE)[0] != 9:
        pytest.skip("another GPU")
    check_refusal(function, GOOD[function], *TABLES[function][case])


def test_other_gpus_and_other_caps_are_refused(monkeypatch):
    for cap in (0, float("inf"), "30"):
        with pytest.raises(ValueError, match=f"cap is {cap!r}; accepted: positive numbers"):
            soft_cap(cap)
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(runtime, "capability", lambda device: (8, 0))
    with pytest.raises(RuntimeError, match=r"compute capability 9\.0, and this one has 8\.0"):
        hopper_flash_attention(**{name: x.to(DEVICE) for name, x in GOOD[hopper_flash_attention].items()})


def call_with_values(lengths, table=None, window_left=None):
    cached = kv(2, 1, 32, 8, names=CACHES) if table is None else PAGED | {"block_table": torch.tensor(table).int()}
    given = dict(q=T(2, 1, 2, 8), lengths=torch.tensor(lengths).int()) | cached
    return flash_decode(**{name: x.to(DEVICE) for name, x in given.items()}, window_left=window_left)


@pytest.mark.parametrize(
    "lengths, changed, message",
    (
        ((33, 3), {}, r"lengths\[0\] is 33; accepted: 2 \(the new tokens\) to 32, or 0"),
        ((32, 1), {}, r"lengths\[1\] is 1; accepted: 2"),
        ((49, 3), {"table": [[0, 1, 2], [0, 0, 0]]}, r"lengths\[0\] is 49; .* to 48, or 0"),
        ((48, 3), {"table": [[0, 1, 5], [0, 0, 0]]}, r"block_table\[0, 2\] is 5; accepted: 0 to 4"),
        (
            (48, 3), {"table": [[-1, 3, 1], [0, 9, 9]], "window_left": 31},
            r"block_table\[0, 0\] is -1; accepted: 0 to 4",
        ),
    ),
)  # fmt: skip
def test_values_of_flash_decode_are_checked_in_debug_mode_and_in_the_interpreter(
    lengths, changed, message, monkeypatch
):
    monkeypatch.setattr(checks, "DEBUG", DEVICE != "cpu")
    with pytest.raises(ValueError, match=message):
        call_with_values(lengths, **changed)


@pytest.mark.parametrize(
    "first, stop, message",
    (
        ((0, 0, -1, 0), (1, 2, 3, 4), "key_ranges has entries from -1 to 4; accepted: 0 to 4, the number of keys"),
        ((0, 0, 0, 0), (1, 2, 3, 5), "key_ranges has entries from 0 to 5"),
        ((0, 2, 1, 1), (1, 2, 3, 4), r"key_ranges\[0, 0\] goes down from 2 to 1 at query 2"),
        ((0, 0, 0, 0), (1, 2, 3, 2), r"key_ranges\[0, 1\] goes down from 3 to 2 at query 3"),
    ),
)
def test_values_of_key_ranges_are_checked_in_debug_mode_and_in_the_interpreter(first, stop, message, monkeypatch):
    monkeypatch.setattr(checks, "DEBUG", DEVICE != "cpu")
    good = {name: x.to(DEVICE) for name, x in GOOD[flash_attention].items()}
    with pytest.raises(ValueError, match=message):
        flash_attention(**good, key_ranges=torch.tensor([[first, stop]], dtype=torch.int32, device=DEVICE))


def test_values_that_are_not_used_are_not_checked(monkeypatch):
    monkeypatch.setattr(checks, "DEBUG", True)
    call_with_values((32, 0), table=[[0, 4, 99], [-1, 99, 99]])
    call_with_values((48, 2), table=[[-1, 3, 1], [0, 9, 9]], window_left=30)


@pytest.mark.parametrize("debug", (False, True))
def test_otherwise_the_host_does_not_look_at_values(monkeypatch, debug):
    looked_at = []
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(checks, "DEBUG", debug)
    monkeypatch.setattr(attention, "check_values", lambda *_: looked_at.append(1))
    monkeypatch.setattr(attention, "decode", lambda q, *_, **__: (q, None))
    call_with_values((32, 3))
    assert bool(looked_at) == debug
