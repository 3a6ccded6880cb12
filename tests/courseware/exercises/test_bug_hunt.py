"""The bug hunt's kernels: alike on ordinary inputs, each wrong on inputs of its own kind, and only there."""

import itertools

import numpy as np
import pytest

from courseware import bug_hunt
from courseware.exercises.lesson_08.find_failing_input import find_failing_input, outside_contract

EVERY_KERNEL = (*bug_hunt.NAMES, "right")


def random_input(n_q, n_k, d, heads=1, dtype=np.float32, causal=False, block_q=16, block_k=16):
    rng = np.random.default_rng(0)
    lengths = {"q": n_q, "k": n_k, "v": n_k}
    arrays = {name: rng.standard_normal((heads, n, d)).astype(dtype) for name, n in lengths.items()}
    return arrays | {"causal": causal, "block_q": block_q, "block_k": block_k}


@pytest.mark.parametrize("name", EVERY_KERNEL)
def test_an_ordinary_test_sees_nothing(name):
    for dtype, causal in itertools.product((np.float32, np.float16), (False, True)):
        assert bug_hunt.error_beyond_budget(name, **random_input(64, 64, 32, 2, dtype, causal)) is None


@pytest.mark.parametrize("name", bug_hunt.NAMES)
def test_each_input_of_the_answer_is_for_one_kernel(name):
    given = find_failing_input(name)
    assert outside_contract(given) is None
    wrong = {other for other in EVERY_KERNEL if bug_hunt.error_beyond_budget(other, **given)}
    assert wrong == {name}


def test_the_copied_loop_gives_1024_nans_of_2048():
    o, _ = bug_hunt.run("A", **random_input(64, 64, 32, causal=True, block_q=32))
    assert (int(np.isnan(o).sum()), o.size) == (1024, 2048)


def test_a_source_is_a_kernel_without_its_docstring():
    for name in EVERY_KERNEL:
        source = bug_hunt.source(name)
        assert source.startswith("@triton.jit\ndef kernel") and '"""' not in source
    with pytest.raises(ValueError, match="no kernel 'G'"):
        bug_hunt.source("G")


GOOD = random_input(16, 16, 16)


@pytest.mark.parametrize(
    "changed, kind",
    [({"q": GOOD["q"].astype(np.float64)}, "format"),
     ({"v": np.full((1, 16, 16), np.inf, np.float32)}, "finite"),
     ({name: np.full((1, 16, 16), 1000, np.float16) for name in "qkv"}, "finite"),
     ({"v": GOOD["v"][:, :8]}, "shape"),
     ({name: np.zeros((1, 16, 65), np.float32) for name in "qkv"}, "size"),
     ({"block_q": 128}, "size"),
     ({"causal": "yes"}, "type"),
     ({"scale": 1.0}, "type")],
)  # fmt: skip
def test_inputs_outside_the_contract_are_refused(changed, kind):
    assert outside_contract(GOOD) is None
    assert outside_contract(GOOD | changed)[0] == kind
