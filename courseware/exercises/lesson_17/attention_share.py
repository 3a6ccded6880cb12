"""How much of a training step is attention's, and what a faster kernel brings: Amdahl's law."""

from hypothesis import strategies as st

from course_lib import traffic
from courseware.checks import Checks, Exercise, agrees, expected
from courseware.exercises.common.explanations import explain


def attention_share(n, width, heads, kv_heads, head_dim, hidden, times_as_fast):
    """Attention's part of a training step, by FLOPs, and what a faster attention brings: (share, speedup), floats.

    A layer of a decoder, trained on causal sequences of n tokens. Its matrices: for the queries [width, heads *
        head_dim], for the keys and for the values [width, kv_heads * head_dim] each, for attention's output [heads *
        head_dim, width], and two of the MLP, [width, hidden] and [hidden, width].
    A token multiplies each number of these matrices once in the forward: 2 FLOPs. The backward takes twice as many, for
        the gradients of the inputs and of the matrices.
    In each of the heads, a visible pair of a query and a key takes two products of vectors of head_dim in the forward,
        one for its score and one for its part of the output, and five in the backward. A product takes 2 * head_dim
        FLOPs. Token i, counted from 0, sees i + 1 keys.
    Nothing else counts: no embedding, norm or softmax. share: FLOPs of attention over those of the layer.
    speedup: how many times as fast the step becomes if attention takes 1 / times_as_fast of its time and the rest all
        of it, where all FLOPs took equally long before.

    >>> attention_share(n=3, width=4, heads=2, kv_heads=1, head_dim=2, hidden=8, times_as_fast=2)
    (0.14285714285714285, 1.0769230769230769)
    """
    matrices = 2 * width * (heads + kv_heads) * head_dim + 2 * width * hidden
    rest = 6 * matrices * n
    pairs = n * (n + 1) / 2
    attention = 7 * 2 * head_dim * heads * pairs
    share = attention / (attention + rest)
    return share, 1 / (1 - share + share / times_as_fast)


def shares(n, width, heads, kv_heads, head_dim, hidden, times_as_fast):
    sizes = {"width": width, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "hidden": hidden}
    rest, attention = (n * of_a_token for of_a_token in traffic.training_flops(n, **sizes))
    before, after = attention + rest, attention / times_as_fast + rest
    return attention, rest, attention / before, before / after


def due(**layer):
    return expected(("share", "speedup"), lambda: shares(**layer)[2:], terms=(None, None))


def flops(returned, **layer):
    attention, rest, *_ = shares(**layer)
    return f"attention takes {attention:,.0f} FLOPs, and the matrices {rest:,.0f}"


def layer(n, width=8, heads=4, kv_heads=4, head_dim=2, hidden=24, times_as_fast=3.0):
    return locals()


@st.composite
def layers(draw):
    kv_heads = draw(st.integers(1, 3))
    sizes = draw(st.integers(1, 40)), draw(st.integers(1, 30)), kv_heads * draw(st.integers(1, 3)), kv_heads
    return layer(*sizes, draw(st.integers(1, 9)), draw(st.integers(1, 50)), draw(st.sampled_from([0.5, 2.0, 10.0])))


check = Checks(attention_share, explain(agrees(due), flops))

check("a single token, which sees itself", [layer(1, times_as_fast=1.0)])
check("each query sees the keys up to its own", [layer(3), layer(50)])
check("heads * head_dim need not be the width", [layer(5, width=6, head_dim=5)])
check("query heads that share keys make products of their own", [layer(9, kv_heads=2), layer(30, heads=6, kv_heads=1)])
check("a slower attention, too", [layer(20, times_as_fast=0.25)])
check("any layer", [layer(8192, 1024, 8, 2, 128, 4096, 5.0), layers()])

EXERCISE = Exercise(__file__, attention_share, check, points=2, minutes=8, difficulty="easy")
