"""Cached launches: a binary is started again exactly where Triton would have compiled the same one."""

import pytest
import torch
from triton.runtime.errors import OutOfResources

from course_lib.kernels import attention, backward, checks, flash_attention, forward, launch
from course_lib.kernels.configs import Config, select


class Jitted:
    """A stand-in for a jitted function, which compiles nothing and writes down what is asked of it."""

    def __init__(self, arg_names):
        self.arg_names = arg_names
        self.compiled = []
        self.launches = []

    def __getitem__(self, grid):
        def compile_and_run(*arguments, **named):
            self.compiled.append((grid, arguments, named))
            return Compiled(self, len(self.compiled))

        return compile_and_run


class Compiled:
    def __init__(self, jitted, number):
        self.jitted, self.number = jitted, number

    def __getitem__(self, grid):
        return lambda *arguments: self.jitted.launches.append((self.number, grid, arguments))


@pytest.fixture
def nvidia(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")


X = torch.zeros(64, dtype=torch.float16)


def launched(jitted):
    return launch.Launch(jitted, (3, 1, 1), 5, num_warps=8, num_stages=2, BLOCK=16, IS_CAUSAL=False)


def test_from_the_second_time_on_the_binary_is_started(nvidia):
    jitted = Jitted(["x", "n", "IS_CAUSAL", "BLOCK"])
    start = launched(jitted)
    start(X)
    assert jitted.compiled == [((3, 1, 1), (X, 5), {"BLOCK": 16, "IS_CAUSAL": False, "num_warps": 8, "num_stages": 2})]
    other = torch.ones(64, dtype=torch.float16)
    start(other)
    assert len(jitted.compiled) == 1
    ((number, grid, (x, *rest)),) = jitted.launches
    assert (number, grid, rest) == (1, (3, 1, 1), [5, False, 16]) and x is other, "constants in the kernel's order"


def test_without_nvidia_triton_searches_every_time(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    jitted = Jitted(["x", "n", "IS_CAUSAL", "BLOCK"])
    start = launched(jitted)
    for _ in range(2):
        start(X)
    assert len(jitted.compiled) == 2 and jitted.launches == []


def test_what_does_not_compile_is_tried_again(nvidia):
    class Refusing(Jitted):
        def __getitem__(self, grid):
            raise MemoryError(grid)

    start = launched(Refusing(["x", "n", "IS_CAUSAL", "BLOCK"]))
    for _ in range(2):
        with pytest.raises(MemoryError):
            start(X)


def test_metadata_differ_where_triton_compiles_differently():
    x = torch.zeros(2, 3, 40, 16, dtype=torch.float16)
    assert launch.tensor_meta(x) == launch.tensor_meta(torch.ones_like(x))
    others = [x.to(torch.bfloat16), x[:1], x.transpose(1, 2), x[..., :8], misaligned(x)]
    assert len({launch.tensor_meta(x), *map(launch.tensor_meta, others)}) == 1 + len(others)
    assert launch.tensor_meta(misaligned(x)).misalignment_bytes == 2
    assert launch.tensor_meta(OnDevice(x, 3)).device == 3


class OnDevice:
    """A tensor that says that it is on GPU number `index`."""

    def __init__(self, x, index):
        self.dtype, self.shape, self.stride, self.data_ptr = x.dtype, x.shape, x.stride, x.data_ptr
        self.get_device = lambda: index


@pytest.fixture
def kernels(monkeypatch, nvidia):
    """Stand-ins for the kernels by name, in modules that remember nothing."""
    stand_ins = {}
    # They run anywhere, on tensors of the CPU.
    monkeypatch.setattr(forward.runtime, "capability", lambda device: None)
    monkeypatch.setattr(checks, "COMPILED", False)
    for module, names in (
        (forward, ["flash_forward_kernel"]),
        (backward, ["delta_kernel", "dkdv_kernel", "dq_kernel"]),
    ):
        for name in names:
            stand_ins[name] = Jitted(getattr(module, name).arg_names)
            monkeypatch.setattr(module, name, stand_ins[name])
        module.plan.cache_clear()
    yield stand_ins
    for module in (forward, backward):
        module.plan.cache_clear()


def inputs(n_q=40, n_k=50, d=16, heads=4, kv_heads=2, dtype=torch.float16):
    q, do = (torch.zeros(1, heads, n_q, d, dtype=dtype) for _ in range(2))
    k, v = (torch.zeros(1, kv_heads, n_k, d, dtype=dtype) for _ in range(2))
    return q, k, v, do


def misaligned(x):
    """x with its elements 2 bytes after a multiple of 16."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view_as(x)


def seq_outside_heads(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


FORWARD = {"causal": True, "scale": 0.5, "store_lse": True}
CHANGES = {
    "dtype": (inputs(dtype=torch.bfloat16), {}),
    "n_q": (inputs(n_q=41), {}),
    "n_k": (inputs(n_k=64), {}),
    "head_dim": (inputs(d=8), {}),
    "heads": (inputs(kv_heads=4), {}),
    "alignment of q": ((misaligned(inputs()[0]), *inputs()[1:]), {}),
    "alignment of v": ((*inputs()[:2], misaligned(inputs()[2]), inputs()[3]), {}),
    "strides of k": ((inputs()[0], seq_outside_heads(inputs()[1]), *inputs()[2:]), {}),
    "causal": (inputs(), {"causal": False}),
    "scale": (inputs(), {"scale": 0.25}),
    "by_descriptor": (inputs(), {"by_descriptor": True}),
}


FORWARD_CHANGES = CHANGES | {
    "store_lse": (inputs(), {"store_lse": False}),
    "block_q": (inputs(), {"block_q": 32}),
    "block_k": (inputs(), {"block_k": 32}),
    "tiles": (inputs(), {"config": (32, 16, 4, 1)}),
    "num_warps": (inputs(), {"config": (32, 16, 8, 1)}),
    "num_stages": (inputs(), {"config": (32, 16, 4, 2)}),
}
BACKWARD_CHANGES = CHANGES | {
    "strides of do": ((*inputs()[:3], seq_outside_heads(inputs()[3])), {}),
    "alignment of do": ((*inputs()[:3], misaligned(inputs()[3])), {}),
    "dlse": (inputs(), {"dlse": torch.zeros(1, 4, 40)}),
}


@pytest.mark.parametrize("tensors, changed", FORWARD_CHANGES.values(), ids=FORWARD_CHANGES)
def test_another_forward_is_compiled_anew(kernels, tensors, changed):
    kernel = kernels["flash_forward_kernel"]
    for _ in range(3):
        forward.flash_forward(*inputs()[:3], **FORWARD)
    assert len(kernel.compiled) == 1 and [number for number, *_ in kernel.launches] == [1, 1]
    for _ in range(2):
        forward.flash_forward(*tensors[:3], **FORWARD | changed)
    assert len(kernel.compiled) == 2 and [number for number, *_ in kernel.launches] == [1, 1, 2]


@pytest.mark.parametrize("tensors, changed", BACKWARD_CHANGES.values(), ids=BACKWARD_CHANGES)
def test_another_backward_is_compiled_anew(kernels, tensors, changed):
    def run(q, k, v, do, **how):
        return backward.flash_backward(q, k, v, torch.zeros_like(do), torch.zeros(do.shape[:3]), do, **how)

    for _ in range(2):
        run(*inputs(), causal=True, scale=0.5)
    for _ in range(2):
        run(*tensors, **{"causal": True, "scale": 0.5} | changed)
    for name in ("delta_kernel", "dkdv_kernel", "dq_kernel"):
        assert len(kernels[name].compiled) == 2 and [number for number, *_ in kernels[name].launches] == [1, 2]


@pytest.mark.parametrize("kernel, which", [("dkdv_kernel", "config_dkdv"), ("dq_kernel", "config_dq")])
def test_each_kernel_of_the_backward_has_its_configuration(kernels, kernel, which):
    q, k, v, do = inputs()
    given = (32, 16, 8, 2)
    for how in ({}, {which: given}, {which: given}):
        backward.flash_backward(q, k, v, do, torch.zeros(do.shape[:3]), do, causal=True, scale=0.5, **how)
    ours, other = kernels[kernel], kernels[({"dkdv_kernel", "dq_kernel"} - {kernel}).pop()]
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    assert tuple(ours.compiled[1][2][name] for name in names) == given
    assert tuple(other.compiled[0][2][name] for name in names) == tuple(other.compiled[1][2][name] for name in names)


def test_what_is_not_needed_is_not_launched(kernels):
    q, k, v, do = inputs()
    for needed, launched_kernels in (({"need_dq": False}, {"dkdv_kernel"}), ({"need_dkdv": False}, {"dq_kernel"})):
        for kernel in kernels.values():
            kernel.compiled.clear()
        backward.plan.cache_clear()
        backward.flash_backward(q, k, v, do, torch.zeros(do.shape[:3]), do, causal=True, scale=0.5, **needed)
        assert {name for name, kernel in kernels.items() if kernel.compiled} == {"delta_kernel", *launched_kernels}


def test_the_cache_is_bounded(kernels):
    for module in (forward, backward):
        assert module.plan.cache_info().maxsize == launch.MAX_CACHED_LAUNCHES


def test_blocks_of_the_caller_s_own_can_be_compiled_into_a_graph(kernels):
    q, k, v, _ = inputs()
    o = torch.compile(lambda q, k, v: flash_attention(q, k, v, block_q=32, block_k=16), backend="eager")(q, k, v)
    (_, _, named), *_ = kernels["flash_forward_kernel"].compiled
    assert o.shape == q.shape and (named["BLOCK_M"], named["BLOCK_N"]) == (32, 16)


def launched_config(kernel):
    named = kernel.compiled[-1][2]
    return Config(named["BLOCK_M"], named["BLOCK_N"], named["num_warps"], named["num_stages"])


GPUS = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), None)


@pytest.mark.parametrize("capability", GPUS, ids=str)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
def test_a_launch_takes_exactly_what_select_says(kernels, monkeypatch, capability, dtype):
    """As `flash_attention` is called, for shapes on both sides of every rule for lengths and head dimensions."""
    monkeypatch.setattr(forward.runtime, "capability", lambda device: capability)
    monkeypatch.setattr(attention, "PORTABLE", True)
    for n, d, causal in ((300, 64, True), (600, 128, False), (4096, 128, True), (4096, 64, True), (2000, 96, False)):
        q, k, v, do = (x.requires_grad_() for x in inputs(n, n, d, heads=2, kv_heads=1, dtype=dtype))
        by_descriptor = capability is not None and capability >= (9, 0) and n >= 512
        how = dict(dtype=dtype, head_dim=d, causal=causal, capability=capability, n_k=n, by_descriptor=by_descriptor)
        chosen = select("forward", n_rows=2 * n, **how)
        for blocks in ({}, {"block_q": 32}, {"block_k": 16}, {"block_q": 16, "block_k": 128}):
            o = flash_attention(q, k, v, causal=causal, **blocks)
            expected = select("forward", n_rows=2 * n, **blocks, **how)
            assert launched_config(kernels["flash_forward_kernel"]) == expected, (n, d, causal, blocks)
            assert expected.block_m == blocks.get("block_q", chosen.block_m)
            assert expected.block_n == blocks.get("block_k", chosen.block_n)
        o.backward(do)
        for name in ("dkdv", "dq"):
            assert launched_config(kernels[f"{name}_kernel"]) == select(name, **how), (n, d, causal, name)


@pytest.mark.parametrize("n,blocks", ((4096, {}), (4096, {"block_q": 32}), (300, {})), ids=str)
def test_the_message_names_the_tiles_that_were_launched(kernels, monkeypatch, n, blocks):
    monkeypatch.setattr(forward.runtime, "capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "PORTABLE", True)
    kernel = kernels["flash_forward_kernel"]

    class Full(Jitted):
        def __getitem__(self, grid):
            def compile_and_fail(*arguments, **named):
                self.compiled.append((grid, arguments, named))
                raise OutOfResources(300_000, 232_448, "shared memory")

            return compile_and_fail

    full = Full(kernel.arg_names)
    monkeypatch.setattr(forward, "flash_forward_kernel", full)
    with pytest.raises(ValueError) as raised:
        flash_attention(*inputs(n, n, 128)[:3], **blocks)
    config = launched_config(full)
    assert str(raised.value) == (
        f"block_q={config.block_m}, block_k={config.block_n} at head_dim=128, float16, needs 300000 bytes of shared "
        "memory; this GPU has 232448. Take smaller blocks."
    )
    if n == 4096:
        assert config.block_n == 128, "not what a short sequence gets"
