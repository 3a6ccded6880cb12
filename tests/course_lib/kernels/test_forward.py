"""flash_attention's forward, in whichever mode this machine has: the same tests run compiled on a GPU."""

import itertools

import numpy as np
import pytest
import torch

from course_lib import runtime
from course_lib.kernels import flash_attention, forward, launch
from course_lib.kernels.configs import BLOCK_SIZES
from course_lib.kernels.launch import MAX_ROW_STRIDE
from course_lib.reference.attention import attention
from courseware.bench.accuracy import check_attention, exact_attention
from courseware.bench.flash1_forward import flash1_attention
from courseware.tracer import trace

DEVICE = runtime.device()
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def qkv(n_q, n_k, d, *, dtype=torch.float32, batch=1, heads=2, kv_heads=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, n_q, d), *2 * [(batch, kv_heads or heads, n_k, d)])
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]


def check(q, k, v, *, causal=False, scale=None, **blocks):
    answer = flash_attention(q, k, v, causal=causal, scale=scale, return_lse=True, **blocks)
    check_attention(answer, q, k, v, causal=causal, scale=scale)
    return answer


def test_the_oracle_is_the_numpy_reference():
    q, k, v = qkv(9, 14, 5, dtype=torch.float64)
    for causal, scale in itertools.product((False, True), (None, 0.3)):
        o, lse = exact_attention(q, k, v, causal=causal, scale=scale)
        for head in range(2):
            ours = attention(
                *(x[0, head].cpu().numpy() for x in (q, k, v)), causal=causal, scale=scale, return_lse=True
            )
            np.testing.assert_allclose(o[0, head].cpu().numpy(), ours[0], rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(lse[0, head].cpu().numpy(), ours[1], rtol=1e-13)


# Where three things vary, each pair of their values occurs, and not each combination: the interpreter is slow.
@pytest.mark.parametrize("block_q,block_k", list(itertools.product(BLOCK_SIZES, BLOCK_SIZES)))
def test_every_pair_of_block_sizes(block_q, block_k):
    for number, (n_q, n_k) in enumerate(((45, 70), (70, 45), (128, 128)), (block_q + block_k) // 16):
        check(*qkv(n_q, n_k, 16, heads=1), causal=number % 2 == 0, block_q=block_q, block_k=block_k)


@pytest.mark.parametrize("d", (1, 3, 16, 31, 40, 64, 80, 96, 128, 160, 192, 256))
def test_every_kind_of_head_dim(d):
    for dtype, causal in zip(DTYPES, itertools.cycle((d % 3 == 1, d % 3 != 1)), strict=False):
        check(*qkv(37, 51, d, dtype=dtype), causal=causal)


def test_padded_columns_of_tiles_that_end_with_the_tensor():
    check(*qkv(64, 96, 24), block_q=32, block_k=32)


@pytest.mark.parametrize("n_q,n_k", ((1, 1), (1, 300), (300, 1), (2, 129), (127, 129), (256, 256), (200, 77)))
def test_lengths(n_q, n_k):
    for dtype, causal in zip(DTYPES, itertools.cycle((n_q > n_k, n_q <= n_k)), strict=False):
        check(*qkv(n_q, n_k, 64, dtype=dtype), causal=causal)


@pytest.mark.parametrize("n_q,n_k", list(itertools.product((1, 15, 16, 17, 33), repeat=2)))
def test_lengths_around_a_tile(n_q, n_k):
    for causal in (False, True):
        check(*qkv(n_q, n_k, 8, heads=1), causal=causal, block_q=16, block_k=16)


@pytest.mark.parametrize("heads,kv_heads", ((4, 4), (4, 2), (6, 2), (8, 1)))
def test_grouped_queries(heads, kv_heads):
    q, k, v = qkv(33, 40, 16, batch=2, heads=heads, kv_heads=kv_heads)
    o = check(q, k, v, causal=True)[0]
    group = heads // kv_heads
    for head in range(heads):
        alone = flash_attention(
            q[:, head : head + 1], k[:, head // group, None], v[:, head // group, None], causal=True
        )
        assert torch.equal(alone, o[:, head : head + 1])


def strided(kind, x):
    """x's values in another layout."""
    if kind == "seq before heads":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "rows padded":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 5), float("nan"), dtype=x.dtype, device=x.device)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if kind == "last dimension not contiguous":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "every second row":
        doubled = torch.full((*x.shape[:2], 2 * x.shape[2], x.shape[3]), float("nan"), dtype=x.dtype, device=x.device)
        doubled[:, :, ::2] = x
        return doubled[:, :, ::2]
    if kind == "unaligned start":
        flat = torch.cat([x.new_zeros(1), x.flatten()])
        return flat[1:].view(x.shape)
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind", ("seq before heads", "rows padded", "last dimension not contiguous", "every second row", "unaligned start")
)
def test_strides(kind):
    q, k, v = qkv(40, 56, 32, dtype=torch.float16, batch=2)
    expected = flash_attention(q, k, v, causal=True)
    assert torch.equal(flash_attention(*(strided(kind, x) for x in (q, k, v)), causal=True), expected)


def test_expanded_heads():
    q, k, v = qkv(20, 30, 16, heads=1)
    o = flash_attention(q.expand(-1, 3, -1, -1), k.expand(-1, 3, -1, -1), v.expand(-1, 3, -1, -1))
    assert torch.equal(o, flash_attention(q, k, v).expand(-1, 3, -1, -1))


@pytest.mark.parametrize("axis", (0, 1, 2))
def test_offsets_beyond_31_bits(axis):
    """Sequences, heads or rows are far apart in a tensor of 4 or 5 GB, nearly all of which nobody touches."""
    shape = [(3, 1, 20, 16), (1, 3, 20, 16), (1, 1, 150, 16)][axis]
    strides = [320, 320, 16, 1]
    strides[axis] = 2**30 if axis < 2 else MAX_ROW_STRIDE // 16 * 16  # a larger one would be copied
    storage = torch.empty(strides[axis] * (shape[axis] - 1) + 320, dtype=torch.float16, device=DEVICE)
    far = storage.as_strided(shape, strides)
    far.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    near = far.contiguous()
    for block in (16, 128):
        o = flash_attention(far, far, far, causal=True, block_q=block, block_k=block)
        assert torch.equal(o, flash_attention(near, near, near, causal=True, block_q=block, block_k=block))


@pytest.mark.parametrize("scale", (1.0, 0.02, -0.7, 0.0, 3))
def test_scale(scale):
    check(*qkv(40, 50, 16), causal=True, scale=scale)


def test_adversarial_scores():
    q, k, v = qkv(64, 80, 16)
    ascending = torch.linspace(-3, 3, 80, device=DEVICE)[:, None].expand(1, 2, 80, 16)
    cases = {
        "of size 1e3": (30 * q, 30 * k),
        "all equal": (torch.ones_like(q), torch.ones_like(k)),
        "strongly negative": (30 * torch.ones_like(q), -30 * torch.ones_like(k)),
        "ascending": (q.abs(), ascending),
        "descending": (q.abs(), -ascending),
        "one key takes all": (q.abs(), 50 * torch.eye(80, 16, device=DEVICE).expand(1, 2, 80, 16)),
    }
    for causal, (queries, keys) in itertools.product((False, True), cases.values()):
        check(queries, keys, v, causal=causal, block_q=32, block_k=16)


def test_rows_without_a_visible_key():
    q, k, v = qkv(50, 13, 16)
    for block_q, block_k in ((16, 16), (64, 16), (16, 64)):
        o, lse = check(q, k, v, causal=True, block_q=block_q, block_k=block_k)
        assert (o[:, :, :37] == 0).all() and (lse[:, :, :37] == float("-inf")).all()
        assert torch.isfinite(lse[:, :, 37:]).all()


def test_a_fully_masked_tile_is_no_nan():
    # The widely copied loop gives 1024 NaNs of 2048 here.
    q, k, v = qkv(64, 64, 32, heads=1)
    assert torch.isfinite(check(q, k, v, causal=True, block_q=32, block_k=16)[0]).all()


@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN):RuntimeWarning")
@pytest.mark.parametrize(
    "n_q,n_k,block_q,block_k,value",
    [(*shape, torch.nan) for shape in ((64, 64, 32, 16), (40, 64, 16, 64), (70, 33, 64, 32))]
    + [(40, 64, 16, 64, torch.inf), (70, 33, 64, 32, -torch.inf)],
)
def test_nonfinite_inputs_reach_the_rows_that_see_them_and_no_other_tile(n_q, n_k, block_q, block_k, value):
    """0 * NaN is NaN in a matrix product, so what a query tile loads may reach all of its rows, but no other tile's."""
    q, k, v = qkv(n_q, n_k, 16, batch=2, heads=1)
    blocks = dict(block_q=block_q, block_k=block_k)
    queries = torch.arange(n_q)
    tile_ends = (queries // block_q * block_q + block_q).clamp(max=n_q)
    for causal, row in itertools.product((False, True), (5, 31)):
        clean = flash_attention(q, k, v, causal=causal, **blocks)
        sees = queries + n_k - n_q >= row if causal else queries >= 0
        loads = tile_ends + n_k - n_q > row // block_k * block_k if causal else sees
        for name in "qkv":
            inputs = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
            inputs[name][1, 0, row, 3] = value
            o = flash_attention(**inputs, causal=causal, **blocks)
            may_change = torch.zeros_like(o, dtype=torch.bool)
            if name == "q":
                may_change[1, 0, row] = True
                seen_by = (queries == row) & (not causal or row + n_k - n_q >= 0)
            else:
                may_change[1, 0] = loads.to(DEVICE)[:, None]
                seen_by = sees
            assert torch.equal(o[~may_change], clean[~may_change]), (name, causal, row)
            reached = o[1, 0][seen_by.to(DEVICE)]
            if name == "v":
                assert not torch.isfinite(reached[:, 3]).any(), (causal, row)
            elif value != value:
                assert torch.isnan(reached).all(), (name, causal, row)


def test_more_sequences_than_a_grid_has_room_for(monkeypatch):
    """A CUDA grid takes 65,535 programs along its third axis; here it takes 3."""
    q, k, v = qkv(20, 33, 16, batch=7, kv_heads=1)
    at_once = flash_attention(q, k, v, causal=True, scale=-0.3, return_lse=True, block_q=16)
    grids = []
    real = launch.Launch.__call__

    def noted(self, *tensors):
        grids.append(self.grid)
        return real(self, *tensors)

    monkeypatch.setattr(launch.Launch, "__call__", noted)
    monkeypatch.setattr(forward, "MAX_GRID_AXIS", 3)
    in_parts = flash_attention(q, k, v, causal=True, scale=-0.3, return_lse=True, block_q=16)
    assert grids == [(2, 2, 3), (2, 2, 3), (2, 2, 1)]
    assert all(map(torch.equal, in_parts, at_once))
    assert torch.equal(flash_attention(q, k, v, causal=True, scale=-0.3, block_q=16), at_once[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", (24, 64, 96, 128, 160, 256) if DEVICE == "cuda" else (24, 256))
def test_streams_long_enough_for_descriptors(d, dtype):
    """From 512 keys on, a GPU of 9.0 or newer fetches tiles by descriptor."""
    for causal, n_q, n_k in ((False, 100, 512), (True, 130, 600)):
        q, k, v = qkv(n_q, n_k, d, dtype=dtype, heads=2, kv_heads=1)
        check(q, k, v, causal=causal)


@pytest.mark.parametrize("n_q,n_k,d,causal", ((64, 64, 16, False), (70, 33, 40, True), (33, 70, 64, True)))
def test_tiles_by_descriptor_are_the_same_tiles(n_q, n_k, d, causal):
    q, k, v = qkv(n_q, n_k, d, heads=4, kv_heads=2, dtype=torch.float16)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))  # [batch, seq, heads, d] in memory
    options = dict(causal=causal, scale=0.3, store_lse=True, config=(32, 32, 4, 1))
    answers = [forward.flash_forward(q, k, v, by_descriptor=choice, **options) for choice in (False, True)]
    assert all(map(torch.equal, *answers))


def test_descriptors_are_for_gpus_and_layouts_that_have_them():
    k = torch.empty(1, 2, 512, 64, dtype=torch.float16)

    def takes(capability, *tensors):
        return launch.takes_descriptors(capability, *map(launch.tensor_meta, tensors))

    assert takes((9, 0), k) and takes((10, 0), k, k.transpose(1, 2).contiguous().transpose(1, 2))
    assert not takes((8, 9), k) and not takes(None, k)
    assert not takes((9, 0), k[:, :, :511]), "too few keys"
    assert not takes((9, 0), k, k[..., 1:]), "does not begin at 16 bytes"
    assert not takes((9, 0), torch.empty(1, 2, 512, 33, dtype=torch.float16)), "rows of 66 bytes"
    assert not takes((9, 0), k[:, :1].expand(1, 4, 512, 64)), "a stride of 0"


def test_the_same_call_gives_the_same_bits_and_changes_nothing():
    q, k, v = qkv(130, 150, 32, dtype=torch.float16)
    before = [x.clone() for x in (q, k, v)]
    first, second = (flash_attention(q, k, v, causal=True, return_lse=True) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert all(map(torch.equal, (q, k, v), before))


def test_every_output_element_is_written(monkeypatch):
    monkeypatch.setattr(forward.torch, "empty_like", lambda x, **_: torch.full(x.shape, torch.nan).to(x))
    monkeypatch.setattr(forward.torch, "empty", lambda s, **options: torch.full(s, torch.nan, **options))
    for n_q, n_k in ((70, 33), (33, 70)):
        o, lse = flash_attention(*qkv(n_q, n_k, 24), causal=True, return_lse=True)
        assert not torch.isnan(o).any() and not torch.isnan(lse).any()


def test_no_access_out_of_bounds():
    for n_q, n_k, d in ((33, 70, 24), (70, 33, 16), (1, 1, 1), (128, 128, 64)):
        for causal in (False, True):
            q, k, v = qkv(n_q, n_k, d)
            with trace(q=q, k=k, v=v) as traced:
                flash_attention(q, k, v, causal=causal, return_lse=True, block_q=32, block_k=16)
            assert traced.violations == []
            assert not traced.unwritten("o").any() and not traced.unwritten("lse").any()


def test_an_empty_batch_gives_an_empty_result():
    q, k, v = (x[:0] for x in qkv(5, 7, 4))
    o, lse = flash_attention(q, k, v, return_lse=True)
    assert o.shape == (0, 2, 5, 4) and lse.shape == (0, 2, 5)


def test_o_alone_is_the_same_o():
    q, k, v = qkv(33, 40, 16)
    assert torch.equal(flash_attention(q, k, v), flash_attention(q, k, v, return_lse=True)[0])


T = torch.zeros
BAD_INPUTS = {
    "q is no tensor": (dict(q=np.zeros((1, 1, 4, 8))), TypeError, "q must be a torch.Tensor, got ndarray"),
    "rank": (dict(k=T(4, 8)), ValueError, r"k must have 4 dimensions .*got \[4, 8\]"),
    "integers": (dict(v=T(1, 1, 4, 8, dtype=torch.int32)), TypeError, "v has dtype int32; accepted: float16"),
    "float64": (dict(q=T(1, 1, 4, 8, dtype=torch.float64)), TypeError, "q has dtype float64; accepted"),
    "mixed dtypes": (dict(k=T(1, 1, 4, 8, dtype=torch.float16)), TypeError, "k has dtype float16 but q has float32"),
    "head_dim": (dict(k=T(1, 1, 4, 9), v=T(1, 1, 4, 9)), ValueError, "k has head_dim 9 but q has 8"),
    "head_dim 257": ({x: T(1, 1, 4, 257) for x in "qkv"}, ValueError, "head_dim must be 1 to 256, got 257"),
    "head_dim 0": ({x: T(1, 1, 4, 0) for x in "qkv"}, ValueError, "head_dim must be 1 to 256, got 0"),
    "k and v": (dict(v=T(1, 1, 5, 8)), ValueError, r"v must have k's shape \[1, 1, 4, 8\], got \[1, 1, 5, 8\]"),
    "batch": (dict(k=T(2, 1, 4, 8), v=T(2, 1, 4, 8)), ValueError, "k has batch 2 but q has 1"),
    "heads": (
        dict(q=T(1, 3, 4, 8), k=T(1, 2, 4, 8), v=T(1, 2, 4, 8)),
        ValueError,
        "2 heads, which do not divide q's 3",
    ),
    "heads beyond the grid": (
        dict(q=T(1, 65_536, 4, 8), k=T(1, 65_536, 4, 8), v=T(1, 65_536, 4, 8)),
        ValueError,
        "q has 65536 heads; at most 65535",
    ),
    "no heads": (dict(k=T(1, 0, 4, 8), v=T(1, 0, 4, 8)), ValueError, "k has 0 heads"),
    "no queries": (dict(q=T(1, 1, 0, 8)), ValueError, "q has sequence length 0"),
    "no keys": (dict(k=T(1, 1, 0, 8), v=T(1, 1, 0, 8)), ValueError, "k has sequence length 0"),
    "scale nan": (dict(scale=float("nan")), ValueError, "scale must be finite"),
    "scale inf": (dict(scale=float("inf")), ValueError, "scale must be finite"),
    "scale no number": (dict(scale="1"), TypeError, "scale must be a real number or None, got '1'"),
    "causal no flag": (dict(causal=1), TypeError, "causal must be True or False, got 1"),
    "block_q": (dict(block_q=48), ValueError, "block_q must be one of 16, 32, 64, 128 or None, got 48"),
    "block_k": (dict(block_k=256), ValueError, "block_k must be one of 16, 32, 64, 128 or None, got 256"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_named_before_any_launch(case, monkeypatch):
    arguments, error, message = BAD_INPUTS[case]
    monkeypatch.setattr("course_lib.kernels.attention.flash_forward", lambda *_, **__: pytest.fail("launched"))
    good = {x: T(1, 1, 4, 8) for x in "qkv"}
    merged = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in {**good, **arguments}.items()}
    with pytest.raises(error, match=message):
        flash_attention(**merged)


def test_devices_must_agree():
    with pytest.raises(ValueError, match="k is on meta but q is on"):
        flash_attention(T(1, 1, 4, 8, device=DEVICE), T(1, 1, 4, 8, device="meta"), T(1, 1, 4, 8, device="meta"))


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no shared memory to exceed")
def test_tiles_that_do_not_fit_say_what_they_need():
    q, k, v = qkv(256, 256, 256)
    with pytest.raises(ValueError, match=r"block_q=128, block_k=128 at head_dim=256, float32, needs \d+ bytes"):
        flash_attention(q, k, v, block_q=128, block_k=128)


@pytest.mark.skipif(
    DEVICE == "cpu" or runtime.capability(0) < (8, 0), reason="the interpreter multiplies in plain fp32"
)
def test_fp32_on_tensor_cores_near_the_limits_of_the_format():
    """What the docstring of `flash_attention` says; plain fp32 products would pass only the first of these."""
    q, k, v = qkv(128, 128, 64, heads=1)
    exact, _ = exact_attention(q, k, v)

    def relative_error(o, size):
        return float((o.double() / size - exact).norm() / exact.norm())

    for size in (1e-33, 1e-20, 1e20, 1e37):
        assert relative_error(flash_attention(q, k, size * v), size) < 1e-6
    # The smallest of the three bf16 parts of a number falls below what a bf16 can hold.
    assert 1e-6 < relative_error(flash_attention(q, k, 1e-36 * v), 1e-36) < 1e-4
    v[0, 0, 5, 3] = 3.4e38  # a bf16 holds 3.39e38 at most
    assert not torch.isfinite(flash_attention(q, k, v)[0, 0, :, 3]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
def test_flash1_is_the_same_function(causal, dtype):
    for n_q, n_k, block_q, block_k in ((40, 40, 16, 32), (33, 70, 32, 16), (70, 33, 16, 16)):
        q, k, v = qkv(n_q, n_k, 24, dtype=torch.float32)
        check_attention(
            flash1_attention(q, k, v, causal=causal, block_q=block_q, block_k=block_k), q, k, v, causal=causal
        )
    # Its output is rounded to its dtype at each of the visits, so the budget of one rounding does not hold.
    q, k, v = qkv(40, 40, 24, dtype=dtype)
    o, _ = flash1_attention(q, k, v, causal=causal, block_q=16, block_k=16)
    exact, _ = exact_attention(q, k, v, causal=causal)
    visits = 3
    assert (o - exact).norm() <= visits * torch.finfo(dtype).eps * exact.norm()
