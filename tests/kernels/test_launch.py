"""What a launch remembers: the binary is reused exactly where Triton would compile alike."""

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels import launch


class Jitted:
    """A stand-in for a jitted function, which compiles nothing and writes down what is asked of it."""

    arg_names = ["x", "n", "IS_CAUSAL", "BLOCK"]

    def __init__(self):
        self.compiled = []
        self.launches = []

    def fn(self):
        """Only its identity counts."""

    def __getitem__(self, grid):
        def compile_and_run(*arguments, num_warps, num_stages, **constants):
            self.compiled.append((grid, arguments, constants, num_warps, num_stages))
            return Compiled(self, len(self.compiled))

        return compile_and_run


class Compiled:
    def __init__(self, jitted, number):
        self.jitted, self.number = jitted, number

    def __getitem__(self, grid):
        return lambda *arguments: self.jitted.launches.append((self.number, grid, arguments))


@pytest.fixture
def jitted(monkeypatch):
    monkeypatch.setattr(launch, "_compiled", {})
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return Jitted()


X = torch.zeros(64, dtype=torch.float16)
CONSTANTS = {"BLOCK": 16, "IS_CAUSAL": False}


def test_a_call_like_one_before_starts_its_binary(jitted):
    launch.launch(jitted, (3, 1, 1), X, 5, **CONSTANTS, num_warps=8, num_stages=2)
    assert jitted.compiled == [((3, 1, 1), (X, 5), CONSTANTS, 8, 2)]
    other = torch.ones(32, dtype=torch.float16)  # another tensor of the same kind
    launch.launch(jitted, (4, 1, 1), other, 5, **CONSTANTS, num_warps=8, num_stages=2)
    assert len(jitted.compiled) == 1
    ((number, grid, (x, *numbers)),) = jitted.launches
    assert (number, grid, numbers) == (1, (4, 1, 1), [5, False, 16]) and x is other, "constants in the kernel's order"


@pytest.mark.parametrize(
    "arguments, changed",
    [
        ((X.to(torch.bfloat16), 5), {}),
        ((X[1:], 5), {}),  # begins 2 bytes after a multiple of 16
        ((None, 5), {}),
        ((TensorDescriptor(X, [64], [1], [16]), 5), {}),
        ((X, 16), {}),
        ((X, 2**40), {}),
        ((X, 5), {"BLOCK": 32}),
        ((X, 5), {"IS_CAUSAL": True}),
        ((X, 5), {"num_warps": 4}),
        ((X, 5), {"num_stages": 3}),
    ],
)
def test_another_kind_of_call_is_compiled_anew(jitted, arguments, changed):
    constants = CONSTANTS | {"num_warps": 8, "num_stages": 2}
    launch.launch(jitted, (3, 1, 1), X, 5, **constants)
    launch.launch(jitted, (3, 1, 1), *arguments, **constants | changed)
    assert len(jitted.compiled) == 2 and jitted.launches == []
    launch.launch(jitted, (3, 1, 1), X, 5, **constants)
    launch.launch(jitted, (3, 1, 1), *arguments, **constants | changed)
    assert [number for number, *_ in jitted.launches] == [1, 2]


def test_descriptors_of_other_tiles_and_other_kernels_are_told_apart(jitted):
    for block in (16, 32):
        launch.launch(jitted, (1, 1, 1), TensorDescriptor(X, [64], [1], [block]), 5, **CONSTANTS)
    another = Jitted()
    another.fn = lambda: None
    launch.launch(another, (1, 1, 1), TensorDescriptor(X, [64], [1], [16]), 5, **CONSTANTS)
    assert len(jitted.compiled) == 2 and len(another.compiled) == 1


def test_what_is_remembered_is_bounded(jitted, monkeypatch):
    monkeypatch.setattr(launch, "MOST_REMEMBERED", 3)
    for n in range(10):
        launch.launch(jitted, (1, 1, 1), X, n, **CONSTANTS)
        assert len(launch._compiled) <= 3


def test_without_nvidia_triton_searches_every_time(jitted, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    for _ in range(2):
        launch.launch(jitted, (1, 1, 1), X, 5, **CONSTANTS)
    assert len(jitted.compiled) == 2
