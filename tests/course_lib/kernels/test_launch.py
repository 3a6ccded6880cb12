"""How kernels are launched: with what `select` takes from the table; and a binary is started again exactly where Triton
would have compiled the same one.
"""

import itertools

import pytest
import torch
from triton.runtime.errors import OutOfResources

from course_lib.kernels import (
    attention,
    backward,
    checks,
    configs,
    decode,
    flash_attention,
    forward,
    launch,
    partial_results,
)
from course_lib.kernels.configs import Config, dot_precision, find_row, select
from course_lib.kernels.launch import tensor_meta
from tests.course_lib.kernels.common import FLOAT, HALF, misaligned, seq_before_heads

GPUS = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), None)


class Jitted:
    """A stand-in for a jitted function, which compiles nothing and writes down what is asked of it."""

    def __init__(self, arg_names=("x", "n", "IS_CAUSAL", "BLOCK"), error=None):
        self.arg_names, self.error = list(arg_names), error
        self.compiled, self.launches = [], []

    def __getitem__(self, grid):
        def compile_and_run(*arguments, **named):
            self.compiled.append((grid, arguments, named))
            if self.error:
                raise self.error
            return Compiled(self, len(self.compiled))

        return compile_and_run

    @property
    def config(self):
        """Of the last launch."""
        return Config(*(self.compiled[-1][2][name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")))


class Compiled:
    def __init__(self, jitted, number):
        self.jitted, self.number = jitted, number

    def __getitem__(self, grid):
        return lambda *arguments: self.jitted.launches.append((self.number, grid, arguments))


@pytest.fixture
def nvidia(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def launches_of(jitted, times):
    """The tensors that one Launch was called with, so many times."""
    start = launch.Launch(jitted, (3, 1, 1), 5, num_warps=8, num_stages=2, BLOCK=16, IS_CAUSAL=False)
    tensors = [torch.full((64,), float(number)) for number in range(times)]
    for x in tensors:
        start(x)
    return tensors


def test_from_the_second_time_on_the_binary_is_started(nvidia):
    jitted = Jitted()
    x, other = launches_of(jitted, 2)
    assert jitted.compiled == [((3, 1, 1), (x, 5), {"BLOCK": 16, "IS_CAUSAL": False, "num_warps": 8, "num_stages": 2})]
    ((number, grid, (given, *rest)),) = jitted.launches
    assert (number, grid, rest) == (1, (3, 1, 1), [5, False, 16]) and given is other, "constants in the kernel's order"


def test_without_nvidia_triton_searches_every_time_and_what_does_not_compile_is_tried_again(monkeypatch, nvidia):
    refusing = Jitted(error=MemoryError())
    start = launch.Launch(refusing, (3, 1, 1), 5, BLOCK=16, IS_CAUSAL=False)
    for _ in range(2):
        with pytest.raises(MemoryError):
            start(torch.zeros(64))
    monkeypatch.setattr(torch.version, "cuda", None)
    launches_of(jitted := Jitted(), 2)
    assert len(jitted.compiled) == len(refusing.compiled) == 2 and jitted.launches == []


class OnDevice:
    """A tensor that says that it is on GPU number `index`."""

    def __init__(self, x, index):
        self.dtype, self.shape, self.stride, self.data_ptr = x.dtype, x.shape, x.stride, x.data_ptr
        self.get_device = lambda: index


def test_metadata_differ_where_triton_compiles_differently():
    x = torch.zeros(2, 3, 40, 16, dtype=HALF)
    assert tensor_meta(x) == tensor_meta(torch.ones_like(x))
    misplaced = torch.zeros(x.numel() + 1, dtype=HALF)[1:].view_as(x)
    others = [x.to(torch.bfloat16), x[:1], x.transpose(1, 2), x[..., :8], misplaced, OnDevice(x, 3)]
    assert len({tensor_meta(x), *map(tensor_meta, others)}) == 1 + len(others)
    assert tensor_meta(misplaced).misalignment_bytes == 2 and tensor_meta(OnDevice(x, 3)).device == 3


def test_descriptors_are_for_gpus_and_layouts_that_have_them():
    k = torch.empty(1, 2, 512, 64, dtype=HALF)

    def takes(capability, *tensors):
        return launch.takes_descriptors(capability, *map(tensor_meta, tensors))

    assert takes((9, 0), k) and takes((10, 0), k, k.transpose(1, 2).contiguous().transpose(1, 2))
    assert not takes((8, 9), k) and not takes(None, k)
    assert not takes((9, 0), k[:, :, :511]), "too few keys"
    assert not takes((9, 0), k, k[..., 1:]), "does not begin at 16 bytes"
    assert not takes((9, 0), torch.empty(1, 2, 512, 33, dtype=HALF)), "rows of 66 bytes"
    assert not takes((9, 0), k[:, :1].expand(1, 4, 512, 64)), "a stride of 0"


# The kernels, replaced by stand-ins.


@pytest.fixture
def kernels(monkeypatch, nvidia):
    """Stand-ins for the kernels by name, in modules that remember nothing. They run anywhere, on tensors of the CPU."""
    stand_ins = {}
    monkeypatch.setattr(forward.runtime, "capability", lambda device: None)
    monkeypatch.setattr(checks, "COMPILED", False)
    of_modules = {forward: ["flash_forward"], backward: ["delta", "dkdv", "dq"], decode: ["decode", "merge"]}
    for module, names in of_modules.items():
        for name in names:
            stand_ins[name] = Jitted(getattr(module, f"{name}_kernel").arg_names)
            monkeypatch.setattr(module, f"{name}_kernel", stand_ins[name])
    plans = forward.plan, backward.plan, backward.delta_plan, decode.plan
    for plan in plans:
        plan.cache_clear()
    yield stand_ins
    for plan in plans:
        plan.cache_clear()


def inputs(n_q=40, n_k=50, d=16, heads=4, kv_heads=2, dtype=HALF):
    """q, k, v and do, on the CPU."""
    q, k = (1, heads, n_q, d), (1, kv_heads, n_k, d)
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, k, q)]


def run_forward(q, k, v, do):
    forward.flash_forward(q, k, v, causal=True, scale=0.5, store_lse=True)


def run_backward(q, k, v, do, **how):
    how = {"causal": True, "scale": 0.5} | how
    backward.flash_backward(q, k, v, torch.zeros(q.shape), torch.zeros(q.shape[:3]), do, **how)


@pytest.mark.parametrize("change", (misaligned, seq_before_heads))
@pytest.mark.parametrize(
    "run, at, names",
    [(run_forward, at, ["flash_forward"]) for at in range(3)]
    + [(run_backward, at, ["dkdv", "dq"]) for at in range(3)]
    + [(run_backward, 3, ["delta", "dkdv", "dq"])],
)
def test_a_call_with_one_tensor_placed_otherwise_is_compiled_anew(kernels, run, at, names, change):
    """What else a launch depends on changes answers, in the interpreter as well."""
    first, second = inputs(), inputs()
    second[at] = change(second[at])
    for given in (first, first, second, second):
        run(*given)
    for name in names:
        assert len(kernels[name].compiled) == 2 and [number for number, *_ in kernels[name].launches] == [1, 2]


@pytest.mark.parametrize("change", ("lengths", "block_table", "sinks", "alignment of sinks", "weights", "strides of w"))
def test_another_call_of_decoding_is_compiled_anew(kernels, change):
    q, sinks, w = torch.zeros(2, 4, 1, 16, dtype=HALF), torch.zeros(4), torch.zeros(3, 2, 4)
    numbers, mods = torch.ones(2, 1, dtype=torch.int32), {"mods": (len,)}
    first, second = {
        "lengths": ({}, {"lengths": numbers[:, 0]}),
        "block_table": ({}, {"block_table": numbers}),
        "sinks": ({}, {"sinks": sinks}),
        "alignment of sinks": ({"sinks": sinks}, {"sinks": misaligned(sinks)}),
        "weights": ({}, {"weights": w[:1]} | mods),
        "strides of w": ({"weights": w[:1]} | mods, {"weights": w.transpose(0, 1)[:1]} | mods),
    }[change]
    for how in (first, first, second, second):
        decode.decode(q, q, q, **how, causal=True, scale=0.5, num_splits=2)
        numbers += 1  # values change nothing, so a CUDA graph can be replayed with others
    for name in ("decode", "merge"):
        assert len(kernels[name].compiled) == 2 and [number for number, *_ in kernels[name].launches] == [1, 2]


@pytest.mark.parametrize("name, other", (("dkdv", "dq"), ("dq", "dkdv")))
def test_each_kernel_of_the_backward_has_its_configuration_and_is_launched_where_it_is_needed(kernels, name, other):
    for how in ({}, {f"config_{name}": (32, 16, 8, 2)}, {f"need_{other}": False, "scale": 2.0}):
        run_backward(*inputs(), **how)
    assert [len(kernels[kernel].compiled) for kernel in ("delta", name, other)] == [1, 3, 2]
    (_, second, _), (other_first, other_second) = kernels[name].compiled, kernels[other].compiled
    assert (second[2]["BLOCK_M"], second[2]["BLOCK_N"], second[2]["num_warps"]) == (32, 16, 8)
    assert other_second[2]["BLOCK_M"] == other_first[2]["BLOCK_M"]


def test_the_cache_of_launches_is_bounded():
    plans = forward.plan, backward.plan, backward.delta_plan, decode.plan, partial_results.rows_plan
    assert {plan.cache_info().maxsize for plan in plans} == {launch.MAX_CACHED_LAUNCHES}


@pytest.mark.parametrize("capability", GPUS, ids=str)
@pytest.mark.parametrize("dtype", (HALF, FLOAT), ids=str)
def test_a_launch_takes_exactly_what_select_says(kernels, monkeypatch, capability, dtype):
    """As `flash_attention` is called, for shapes on both sides of every rule for lengths and head dimensions."""
    monkeypatch.setattr(forward.runtime, "capability", lambda device: capability)
    monkeypatch.setattr(attention, "PORTABLE", True)
    for n, d, causal in ((300, 64, True), (600, 128, False), (4096, 128, True), (4096, 64, True), (2000, 96, False)):
        q, k, v, do = (x.requires_grad_() for x in inputs(n, n, d, heads=2, kv_heads=1, dtype=dtype))
        by_descriptor = capability is not None and capability >= (9, 0) and n >= 512
        how = dict(dtype=dtype, head_dim=d, causal=causal, capability=capability, n_k=n, by_descriptor=by_descriptor)
        for blocks in ({"block_q": 32}, {"block_k": 16}, {"block_q": 16, "block_k": 128}, {}):
            o = flash_attention(q, k, v, causal=causal, **blocks)
            assert kernels["flash_forward"].config == select("forward", n_rows=2 * n, **blocks, **how), (n, d, blocks)
        o.backward(do)
        for name in ("dkdv", "dq"):
            config = select(name, **how)
            assert kernels[name].config == config, (n, d, name)
            rows = [x.block_shape[2] for x in kernels[name].compiled[-1][1] if hasattr(x, "block_shape")]
            assert rows == [config.block_m if name == "dkdv" else config.block_n] * 2 * by_descriptor


@pytest.mark.parametrize("capability", GPUS, ids=str)
def test_a_launch_of_decoding_takes_what_select_says(capability):
    q, k = torch.empty(2, 8, 1, 128, dtype=HALF), torch.empty(2, 2, 300, 128, dtype=HALF)
    options = dict(causal=True, scale=1.0, window_left=None, store_lse=False, num_splits=None, config=None)
    metas = [*map(tensor_meta, (q, k, k)), *[None] * 4, capability, 132]
    started, _, num_splits = decode.plan(*metas, **options)
    config = select(
        "decode", dtype=HALF, head_dim=128, causal=True, capability=capability, n_k=300, by_descriptor=False
    )
    assert (started.constants["BLOCK_M"], started.constants["BLOCK_N"]) == (16, config.block_n)
    assert tuple(started.options.values()) == (config.num_warps, config.num_stages)
    assert num_splits == decode.splits(4, -(-300 // config.block_n), 132 * decode.PROGRAMS_PER_MULTIPROCESSOR)
    many = tensor_meta(torch.empty(2, 8, 99, 128, dtype=HALF))
    assert decode.plan(many, *metas[1:], **options)[0].constants["BLOCK_M"] == min(config.block_m, 512)


@pytest.mark.parametrize("n, blocks", ((4096, {}), (300, {"block_q": 32})), ids=str)
def test_the_message_names_the_tiles_that_were_launched(kernels, monkeypatch, n, blocks):
    monkeypatch.setattr(forward.runtime, "capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "PORTABLE", True)
    kernels["flash_forward"].error = OutOfResources(300_000, 232_448, "shared memory")
    with pytest.raises(ValueError) as raised:
        flash_attention(*inputs(n, n, 128)[:3], **blocks)
    config = kernels["flash_forward"].config
    assert str(raised.value) == (
        f"block_q={config.block_m}, block_k={config.block_n} at head_dim=128, float16, needs 300000 bytes of shared "
        "memory; this GPU has 232448. Take smaller blocks."
    )
    assert n != 4096 or config.block_n == 128, "not what a short sequence gets"


# The table.


def test_every_shape_has_a_row_and_every_row_a_shape():
    shapes = itertools.product(
        ("forward", "dkdv", "dq", "decode"), (HALF, FLOAT), (1, 32, 64, 65, 128, 129, 256), (None, False, True),
        (None, (7, 5), (8, 0), (9, 0), (10, 0)), (1, 2049, 3074, 5000, 16385), (False, True), (1, 5000, None),
    )  # fmt: skip
    assert {id(find_row(*shape)) for shape in shapes} == set(map(id, configs.TABLE))
    for row in configs.TABLE:
        assert {row.config.block_m, row.config.block_n} <= set(configs.BLOCK_SIZES), row
        assert row.source in ("sweep-h100", "timed-h100", "timed-h200", "compiler report", "interpreter"), row
        assert row.arch == "sm_90" or not row.source.endswith("h100"), row


def test_offsets_inside_a_tile_fit_into_31_bits():
    """Of every kernel that the table launches, and of delta's, which it does not list."""
    gradients = [tensor_meta(torch.empty(1, 1, 300, d)) for d in (1, 16, 17, 64, 256)]
    deltas = {backward.delta_plan(do, do, None, gpu).constants["BLOCK_M"] for do in gradients for gpu in GPUS}
    assert (max(deltas | set(configs.BLOCK_SIZES)) - 1) * launch.MAX_ROW_STRIDE + 255 < 2**31


H100 = dict(dtype=HALF, head_dim=128, capability=(9, 0), by_descriptor=True)


def test_long_sequences_get_large_tiles_on_an_h100_and_few_query_rows_small_ones():
    """Those that sweep-h100.json shows to be the fastest; tests/courseware/bench/test_tools.py compares."""
    for causal, longest_short in ((False, 1536), (True, 3073)):
        assert select("forward", n_k=longest_short, causal=causal, **H100) == Config(64, 64, 4, 3)
        assert select("forward", n_k=longest_short + 1, causal=causal, **H100) == Config(128, 128, 8, 3)
    shape = H100 | dict(dtype=FLOAT, causal=False, n_k=8192)
    assert [select("forward", n_rows=n, **shape).block_m for n in (1024, 8192, 65_536, None)] == [16, 32, 128, 128]


def test_gpus_of_one_generation_share_rows_and_tensor_cores_multiply_fp32_where_they_know_bf16():
    shape = dict(dtype=HALF, head_dim=128, causal=True, n_k=4096, by_descriptor=False)
    for kernel in ("forward", "dkdv", "dq"):
        assert len({select(kernel, capability=c, **shape) for c in ((8, 0), (8, 6), (8, 9), (12, 0))}) == 1
    assert [dot_precision(FLOAT, c) for c in GPUS] == ["ieee", "bf16x6", "bf16x6", "bf16x6", "bf16x6", "ieee"]
    assert dot_precision(HALF, (9, 0)) == "ieee"


@pytest.mark.parametrize("block_q, num_warps", ((16, 4), (64, 4), (128, 8)))
def test_a_caller_s_blocks_are_launched_without_prefetching(block_q, num_warps):
    shape = dict(causal=False, n_k=4096, **H100)
    assert select("forward", block_q=block_q, block_k=32, **shape) == (block_q, 32, num_warps, 1)
    # The other block comes from the row that the launch would take, here 128 x 128.
    assert select("forward", block_q=block_q, **shape) == (block_q, 128, num_warps, 1)
    assert select("forward", block_k=16, **shape) == (128, 16, 8, 1)
