"""The adapter between a model and a kernel: heads, scale, padding, queries of a cache."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, agrees, expected, not_modified, single_finding
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.oracles import weights
from courseware.simulators.one_sequence import Kernel


def course_attention(kernel, query, key, value, attention_mask, scaling):
    """Attention as a layer of a model asks for it, by a kernel that takes one sequence without padding.

    query: [batch, heads, n_q, d]; key, value: [batch, kv_heads, n_k, d]. kv_heads divides heads, and consecutive query
        heads share one head of keys: with 6 heads and 2 kv_heads, heads 0 to 2 use kv head 0. The queries are those of
        the last n_q of n_k tokens: in decoding n_q is 1, and the keys of former tokens come from a cache.
    attention_mask: None, or [batch, n_k], 1 for a token and 0 for padding, which stands before a sequence or behind it.
        Every sequence has a token. scaling: multiplies the scores; None for 1 / sqrt(d).
    A query sees the key of its own token and those of the earlier tokens of its sequence.
    kernel.attention(q, k, v, scale) returns [heads, n_q, d]. It takes q: [heads, n_q, d]; k, v: [heads, n_k, d]; all of
        as many heads; 1 query at least, and n_q at most n_k. It is causal: the last query sees all keys, the one before
        it all but the last, and so on. Launch it once for a sequence, or not at all.
    Returns o, [batch, n_q, heads, d]: the heads of a token lie side by side, for the matrix that follows. A query that
        is padding has 0. The inputs are not modified.

    >>> from courseware.simulators.one_sequence import Kernel
    >>> x, mask = np.arange(3.0).reshape(1, 1, 3, 1), np.array([[0, 1, 1]])
    >>> course_attention(Kernel(), 0 * x, x, x, mask, scaling=None).ravel()
    array([0. , 1. , 1.5])
    """
    batch, heads, n_q, d = query.shape
    n_k = key.shape[2]
    scale = d**-0.5 if scaling is None else scaling
    key, value = (np.repeat(x, heads // key.shape[1], axis=1) for x in (key, value))
    mask = np.ones((batch, n_k)) if attention_mask is None else attention_mask
    o = np.zeros((batch, n_q, heads, d))
    for b in range(batch):
        tokens = np.flatnonzero(mask[b])
        keys = slice(tokens[0], tokens[-1] + 1)
        start, stop = max(tokens[0] - (n_k - n_q), 0), tokens[-1] + 1 - (n_k - n_q)
        if start < stop:
            made = kernel.attention(query[b, :, start:stop], key[b, :, keys], value[b, :, keys], scale)
            o[b, start:stop] = made.transpose(1, 0, 2)
    return o


def whole(query, key, value, attention_mask, scaling):
    """Head by head, from what the mask leaves of the causal one."""
    o, (batch, heads, n_q, _), n_k = np.zeros_like(query), query.shape, key.shape[2]
    shown = np.ones((batch, n_k), bool) if attention_mask is None else attention_mask > 0
    visible = np.tri(n_q, n_k, n_k - n_q, dtype=bool) & shown[:, None] & shown[:, n_k - n_q :, None]
    for b, h in np.ndindex(batch, heads):
        kv_head = h * key.shape[1] // heads
        o[b, h] = weights(query[b, h], key[b, kv_head], visible[b], scaling) @ value[b, kv_head]
    return o.swapaxes(1, 2)


def outputs(query, key, value, attention_mask, scaling, gain=1, **_):
    mask = None if attention_mask is None else np.asarray(attention_mask, np.float64)
    size = 1 + abs(query).max() * abs(key).max() * query.shape[3]

    def of(query, key, value):
        return gain * whole(query, key, value, mask, scaling)

    return expected("o", of, query, key, value, terms=size * gain * abs(value).max(), index="sequence")


def launched(returned, kernel, query, key, attention_mask, **_):
    """What the kernel was given, where that is not what it should be."""
    n_q, n_k = query.shape[2], key.shape[2]
    mask = np.ones((len(query), n_k)) if attention_mask is None else attention_mask
    due = [(int(row[n_k - n_q :].sum()), int(row.sum())) for row in mask if row[n_k - n_q :].any()]
    came, due = (", ".join(f"{q} queries and {k} keys" for q, k in of) for of in (kernel.launches, due))
    return "" if came == due else f"the kernel was given {came or 'nothing'}; due: {due or 'nothing'}"


def once_a_sequence(returned, kernel, query, **_):
    n, batch = len(kernel.launches), len(query)
    return single_finding("launches", f"{n} launches for {batch} sequences") if n > batch else None


def leaves_inputs_alone(answer, gain=1, **inputs):
    return not_modified(answer, kernel=Kernel(), **inputs)


def tokens(n_q, n_k, heads=2, kv_heads=2, batch=1, d=3, mask=None, scaling=0.3, seed=0, gain=1):
    """Small random numbers with many digits."""
    rng = np.random.default_rng(seed)
    query, key, value = (
        rng.integers(-8, 9, (batch, h, n, d)) / 4 for h, n in ((heads, n_q), (kv_heads, n_k), (kv_heads, n_k))
    )
    mask = None if mask is None else np.array(mask)
    return {"query": query, "key": key, "value": value, "attention_mask": mask, "scaling": scaling} | (
        {} if gain == 1 else {"gain": gain}
    )


@st.composite
def padded(draw):
    batch, n_k = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    ends = [sorted(draw(st.lists(st.integers(0, n_k), min_size=2, max_size=2, unique=True))) for _ in range(batch)]
    mask = [[int(first <= i < stop) for i in range(n_k)] for first, stop in ends]
    kv_heads = draw(st.integers(1, 2))
    heads, n_q = kv_heads * draw(st.integers(1, 3)), draw(st.integers(1, n_k))
    return tokens(n_q, n_k, heads, kv_heads, batch, mask=mask, scaling=draw(st.sampled_from([None, 0.3])))


KERNEL = "from courseware.simulators.one_sequence import Kernel\nkernel = Kernel()\n"
CALL = KERNEL + "course_attention(kernel, query, key, value, attention_mask, scaling)"
check = Checks(CALL, explain(agrees(outputs), launched))

check("one sequence: the kernel's output, tokens before heads", [tokens(3, 3), tokens(4, 4, heads=3, kv_heads=3)])
check("without scaling, scores are divided by sqrt(d)", [tokens(3, 3, scaling=None), tokens(2, 2, d=5, scaling=None)])
check("several sequences", [tokens(3, 3, batch=2), tokens(4, 4, batch=3, d=2)])
check("query heads that share keys", [tokens(3, 3, heads=4), tokens(2, 2, heads=6, kv_heads=3, batch=2)], credit=2)
check("fewer queries than keys: those of the last tokens", [tokens(1, 4, heads=4), tokens(2, 5, batch=2)])
check(
    "padding in front",
    [tokens(3, 3, mask=[[0, 1, 1]]), tokens(4, 4, batch=2, mask=[[0, 0, 0, 1], [0, 1, 1, 1]])],
    credit=3,
)
check("padding behind", [tokens(3, 3, mask=[[1, 1, 0]]), tokens(4, 4, batch=2, mask=[[1, 0, 0, 0], [1, 1, 1, 1]])])
check(
    "padding and fewer queries than keys",
    [tokens(1, 4, 4, mask=[[0, 0, 1, 1]]), tokens(2, 4, batch=2, mask=[[1, 1, 1, 0], [0, 0, 0, 1]]),
     tokens(2, 5, batch=2, mask=[[1, 1, 0, 0, 0], [0, 1, 1, 1, 0]]), padded()],
)  # fmt: skip
check(
    "the kernel computes: one whose output is doubled doubles the result",
    [tokens(3, 3, heads=4, gain=2), tokens(2, 4, batch=2, mask=[[1, 1, 1, 0], [0, 1, 1, 1]], gain=2)],
    call=CALL.replace("Kernel()\n", "Kernel(gain=gain)\n"),
)
check(
    "one launch for a sequence",
    [tokens(3, 3, heads=6, batch=2), tokens(1, 3, batch=3), tokens(3, 3, heads=4, mask=[[0, 1, 1]])],
    test=once_a_sequence,
)
check("the inputs are not modified", [tokens(3, 3, heads=4, mask=[[0, 1, 1]])], calls=leaves_inputs_alone)

EXERCISE = Exercise(__file__, course_attention, check, points=5, minutes=20, difficulty="medium")
