"""What the NumPy reference, the closed forms and the masks refuse: each error names what is wrong.

"T: " stands before what a TypeError says, "V: " before what a ValueError says.
"""

import functools

import numpy as np
import pytest

from course_lib import masks, reference, traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine
from tests.course_lib.kernels.common import check_refusal


def ones(*shape, dtype=np.float64):
    return np.ones(shape, dtype)


# What is said -> the arguments that are changed. Here (), "k", ...: of tensors of four rows of two.
OF_ATTENTION = {
    "V: k has head_dim 5; accepted: 2": {"k": ones(3, 5), "v": ones(3, 5)},
    "V: v has head_dim 3; accepted: 2": {"v": ones(4, 3)},
    "V: v has length 4; accepted: 5": {"k": ones(5, 2)},
    r"V: q has shape \(4,\)": {"q": ones(4)},
    r"V: k has shape \(4, 0\)": {"k": ones(4, 0), "v": ones(4, 0)},
    "T: k has dtype int64": {"k": ones(4, 2, dtype=np.int64)},
    "T: v has dtype float32 and q float64": {"v": ones(4, 2, dtype=np.float32)},
    "V: scale is nan": {"scale": np.nan},
    "T: scale is 'auto'": {"scale": "auto"},
}
OF_TILED = {
    "T: block_q is True": {"block_q": True},
    "V: block_k is -4": {"block_k": -4},
    "V: order is 'k_outer'": {"order": "k_outer"},
}
OF_BACKWARD = {
    "V: k has head_dim 3; accepted: 2": {"k": ones(4, 3)},
    r"V: o has shape \(5, 2\); accepted: \(4, 2\)": {"o": ones(5, 2)},
    "T: do has dtype float32 and q float64": {"do": ones(4, 2, dtype=np.float32)},
    r"V: lse has shape \(4, 1\); accepted: \(4,\)": {"lse": ones(4, 1)},
    "T: lse has dtype float32; accepted: float64": {"lse": ones(4, dtype=np.float32)},
}
QKV = {name: ones(4, 2) for name in "qkv"}
GRADIENTS = QKV | {"o": ones(4, 2), "do": ones(4, 2), "lse": ones(4)}
BLOCKS = {"block_q": 4, "block_k": 3}
CHANGED = {
    "attention": (QKV, OF_ATTENTION),
    "tiled_attention": (QKV | BLOCKS | {"order": "q_outer"}, OF_ATTENTION | OF_TILED),
    "tiled_attention, FA1": (QKV | BLOCKS | {"order": "kv_outer"}, OF_ATTENTION | OF_TILED),
    "attention_backward": (GRADIENTS, OF_BACKWARD),
    "tiled_backward": (GRADIENTS | BLOCKS, OF_BACKWARD),
}


def on_machine(order):
    handles = [Machine().hbm(ones(4, 2), name) for name in "QKVO"]
    tiled_attention_on_machine(Machine(), *handles, block_q=2, block_k=2, order=order, l=Machine().hbm(ones(4)))


CALLS = [
    (lambda: reference.dot(ones(2), ones(3)), r"V: a has shape \(2,\), b \(3,\)"),
    (lambda: reference.dot(ones(2), ones(2, dtype=np.float32)), "T: a is float64 and b is float32"),
    (lambda: reference.dot([1, 2], [1.0, 2.0]), "T: a has dtype int64"),
    (lambda: reference.scores(ones(2, 3), ones(2, 4)), r"V: Q has shape \(2, 3\), K \(2, 4\)"),
    (lambda: reference.scores(ones(3), ones(2, 3)), r"V: Q has shape \(3,\)"),
    (lambda: reference.scores(ones(2, 3), ones(2, 3), np.inf), "V: scale is inf"),
    (lambda: reference.scores(ones(2, 3), ones(2, 3), "1"), "T: scale is '1'"),
    *(
        (functools.partial(function, np.arange(3)), "T: has dtype int64; accepted: float16, float32, float64")
        for function in (reference.naive_softmax, reference.stable_softmax, reference.logsumexp, reference.entropy)
    ),
    (lambda: on_machine("q_outer"), "V: takes no l"),
    (lambda: on_machine("kv_outer"), "V: takes l and m"),
    (lambda: traffic.standard_attention(4, 4.0, 4), "T: n_k is 4.0"),
    (lambda: traffic.flash_attention(4, 4, 4, block_q=-1, block_k=4), "V: block_q is -1"),
    (lambda: traffic.flash_attention(4, 4, 4, block_q=4, block_k=64, order="FA2"), "V: order is 'FA2'"),
    (lambda: traffic.decode([4, -1], 4), "V: lengths holds -1"),
    (lambda: traffic.decode([], 4), "V: sequences is 0"),
    (lambda: traffic.decode([4], 4, heads=6, kv_heads=4), "V: kv_heads is 4; accepted: a divisor of"),
    (lambda: traffic.between_ranks(9, 10, 4), "V: n is 9; accepted: multiples of ranks, 4"),
    (lambda: traffic.between_ranks(8, 10, 4, method="ulysses", heads=6), "V: heads is 6; accepted: multiples of ranks"),
    (lambda: traffic.between_ranks(8, 10, 4, method="tree"), "V: method is 'tree'; accepted"),
    (lambda: traffic.lower_bound_elems(4096, 64, 63), "V: sram_elems is 63; accepted: from d = 64 to n d = 262144"),
    (lambda: traffic.lower_bound_elems(4096, 64, 4096 * 64 + 1), "V: sram_elems is 262145"),
    (lambda: masks.sliding_window(-1, 0), "V: left is -1; .* at least 0, or None for no limit"),
    (lambda: masks.prefix_lm(-1), "V: n is -1"),
    (lambda: masks.documents([0.0, 1.0]), "T: ids has shape .* dtype float64"),
    (lambda: masks.documents([0, 1]).dense(3, 2), "V: ids has length 2; accepted: 3"),
    (lambda: masks.packed([0, 2.5]), "T: cu_seqlens_q has shape .* dtype float64"),
    (lambda: masks.packed([0, 2], [1, 2]), "V: cu_seqlens_k starts at 1; accepted: 0"),
    (lambda: masks.packed([0, 3, 2]), "V: cu_seqlens_q goes down from 3 to 2 at sequence 1"),
    (lambda: masks.packed([0, 2], [0, 1, 2]), "V: cu_seqlens_q has 2 entries and cu_seqlens_k 3"),
    (lambda: masks.packed([0, 2], within=masks.documents([0, 0])), "T: within is Documents.*: full"),
    (lambda: masks.packed([0, 2]).dense(3, 2), "V: cu_seqlens_q ends at 2; accepted: 3, .* of queries"),
    (lambda: masks.block_sparse([[1.0]], 2), "T: layout has shape .* dtype float64"),
    (lambda: masks.block_sparse([[True]], 0), "V: block is 0"),
    (lambda: masks.block_sparse([[True]], 2).dense(2, 3), r"V: layout .* \(1, 1\); accepted: \(1, 2\)"),
    (lambda: (masks.causal() & masks.documents([0])).visible(0, 0, 1, 2), "V: ids has length 1"),
    (lambda: masks.causal().dense(0, 3), "V: n_q is 0"),
    (lambda: masks.causal().visible(3, 0, 3, 2), "V: i has entries from 3 to 3; accepted: 0 to 2"),
    (lambda: masks.causal().visible(0.5, 0, 3, 2), "T: i has dtype float64"),
    (lambda: masks.causal().tiles(3, 2, 0, 1.5), "V: block_q is 0"),
    (lambda: masks.documents([0, 1, 0]).key_range(0, 3, 3), "T: not a band"),
    (lambda: masks.causal() & True, "T: unsupported operand"),
    (lambda: masks.key_lengths([1.0]), "T: lengths is .*; accepted: .batch. of whole numbers from 0 up"),
    (lambda: masks.key_lengths([2, -1]), "T: lengths is array"),
    (lambda: masks.key_lengths([1, 2]).dense(2, 2), r"T: one for each of \(2, 1\) .* at\(batch, head\)"),
    (lambda: masks.from_dense(np.ones((2, 2))), "T: visible has shape .* dtype float64; accepted"),
    (lambda: masks.from_dense(np.ones((1, 2, 2), bool)), "T: visible has shape"),
    (lambda: masks.from_function(3), "T: function is 3; accepted: a function of"),
    (lambda: masks.from_function(abs, heads=0), "V: heads is 0; .* or None if all share one mask"),
    (lambda: masks.key_lengths([1, 2]) & masks.key_lengths([1, 2, 3]), "V: masks for batch 2 and 3 are"),
]


@pytest.mark.parametrize("name", CHANGED)
def test_a_bad_argument_is_refused_by_name(name):
    good, changed = CHANGED[name]
    for said, arguments in changed.items():
        check_refusal(getattr(reference, name.partition(",")[0]), good, arguments, said)


@pytest.mark.parametrize("call, said", CALLS, ids=[said for _, said in CALLS])
def test_a_bad_call_is_refused_by_name(call, said):
    check_refusal(call, {}, {}, said)
