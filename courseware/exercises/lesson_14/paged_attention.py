"""Attention of the newest tokens of several sequences, over keys and values that lie in pages."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Evidence, Exercise, ExpectedOutput, Finding, compare, exactly, judging
from courseware.exercises.common.oracles import attention_output
from courseware.exercises.common.precision import lost_digits


def paged_attention(q, k_pages, v_pages, block_table, lengths, scale):
    """Attention of each sequence's newest tokens to its keys and values, which lie in pages.

    q: [batch, heads, n_new, d]. k_pages, v_pages: [n_pages, kv_heads, page_size, d]. kv_heads divides heads, and
        consecutive query heads share one head of keys: with 6 heads and 2 kv_heads, heads 0 to 2 use kv head 0.
    lengths: [batch], how many keys each sequence has, those of the n_new newest tokens counted: n_new or more, or 0 for
        a place in the batch that is empty. block_table: [batch, most pages], whole numbers. The keys and values of
        sequence b are in the pages block_table[b, 0], block_table[b, 1] and so on, page_size in each, fewer in the
        last.
    Causal: the last new token sees all keys of its sequence, the one before it all but the last, and so on. The scores
        are multiplied by scale.
    What lies behind a sequence's last key may be anything: rows of its last page and pages of nobody may be NaN, and
        further entries of its row in the table need not be the numbers of pages. None of it may be used.
    Returns o, [batch, heads, n_new, d], in float32 or float64 as you like, 0 for an empty place. q and the pages are
        both float32 or both float64, and are not modified, nor are the other inputs.

    >>> k_pages = v_pages = np.array([[[[5.0], [np.nan]]], [[[1.0], [3.0]]]])
    >>> paged_attention(np.zeros((1, 1, 1, 1)), k_pages, v_pages, np.array([[1, 0]]), np.array([3]), 1.0)
    array([[[[3.]]]])
    """
    batch, heads, n_new, d = q.shape
    _, kv_heads, page_size, _ = k_pages.shape
    o = np.zeros((batch, heads, n_new, d))
    for b, length in enumerate(lengths):
        if length == 0:
            continue
        keys = np.arange(length)
        pages, rows = block_table[b, keys // page_size], keys % page_size
        K, V = k_pages[pages, :, rows], v_pages[pages, :, rows]  # [length, kv_heads, d]
        visible = keys <= length - n_new + np.arange(n_new)[:, None]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = np.where(visible, q[b, head] @ K[:, kv_head].T * scale, -np.inf)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            o[b, head] = p @ V[:, kv_head] / p.sum(axis=1, keepdims=True)
    return o


CALL = """\
from course_lib.serving.paged_cache import PagePool
rng, pool = np.random.default_rng(seed), PagePool(24, page_size)
q = rng.standard_normal((len(lengths), heads, n_new, d))
k, v = ([rng.standard_normal((n, kv_heads, d)) for n in lengths] for _ in "kv")
rng.shuffle(pool.free)
k_pages, v_pages = np.full((2, 24, kv_heads, page_size, d), np.nan)
sequences = [pool.start() for _ in lengths]
for b, n in enumerate(lengths):
    pages, rows, _ = pool.append(sequences[b], n)
    k_pages[pages, :, rows], v_pages[pages, :, rows] = k[b], v[b]
block_table, lengths = pool.tables(sequences)
block_table[np.arange(block_table.shape[1]) * page_size >= lengths[:, None]] = 10**6
paged_attention(q, k_pages, v_pages, block_table, lengths, scale)"""


def with_scores(scores, factors="1"):
    """The call in which queries have these scores with the n keys of sequence b, times a factor for each new token."""
    lines = f"""\
scores = [{scores} for b, n in enumerate(lengths)]
q[:], q[..., 0], k = 0, {factors} / scale, [np.resize(s, (d, kv_heads, len(s))).T for s in scores]
rng.shuffle"""
    return CALL.replace("rng.shuffle", lines)


def expected_output(q, k, v, scale):
    """o of the whole batch, from the keys and values of each sequence side by side."""
    heads = [of_head(q, k, v, scale, *at)[0] for at in np.ndindex(q.shape[:2])]
    parts = zip(*((head.expected, head.plain, head.terms + 0 * head.plain) for head in heads), strict=True)
    return [ExpectedOutput("o", *(np.array(part).reshape(q.shape) for part in parts), index="sequence")]


def of_head(q, k, v, scale, b, head, kv_head=None):
    """[ExpectedOutput] of a head of a sequence. kv_head: instead of its own."""
    kv_head = head * k[0].shape[1] // q.shape[1] if kv_head is None else kv_head
    return attention_output(f"o[{b}, {head}]", q[b, head], k[b][:, kv_head], v[b][:, kv_head], True, scale)


def gives_attention(returned, q, k, v, scale, **_):
    """Told of the first head that is wrong, or NaN, where that is no better told of the batch."""
    evidence = compare(returned, expected_output(q, k, v, scale))
    if evidence is None or evidence.findings[0].kind not in ("values", "factor", "nan"):
        return evidence
    group = q.shape[1] // k[0].shape[1]
    heads = [at for at in np.ndindex(q.shape[:2]) if len(k[at[0]])]
    with_nan = [at for at in heads if np.isnan(np.asarray(returned)[at]).any()]
    if evidence.findings[0].kind == "nan" and len(with_nan) in (0, len(heads)):
        return evidence
    for b, head in with_nan or heads:
        came = np.asarray(returned)[b, head]
        if found := compare(came, of_head(q, k, v, scale, b, head)):
            for other in set(range(k[0].shape[1])) - {head // group}:
                if compare(came, of_head(q, k, v, scale, b, head, other)) is None:
                    text = f"it is what query head {head} gets from kv head {other}, not {head // group}"
                    return found.with_account(text)
            return found
    return evidence


ONE_KEY = CALL.replace("rng.shuffle", "v = [np.rint(9 * x) for x in v]\nrng.shuffle")


def gives_the_value(returned, q, v, **_):
    """A weight of exactly 1, times a whole number: not rounded in float32 either."""
    expected = np.array([np.repeat(x[0], q.shape[1] // x.shape[1], axis=0)[:, None] for x in v])
    parts = exactly("o", expected, 0.0, "sequence")
    evidence = compare(returned, parts) or lost_digits([returned], parts)
    return evidence and evidence.with_account("the weight of the only key is exactly 1")


def gives_means(returned, q, v, **_):
    """One head whose scores are all equal: the mean of the values that each new token sees."""
    n_new = q.shape[2]
    means = [[[x[: len(x) - n_new + t + 1, 0].mean(axis=0) for t in range(n_new)]] for x in v]
    return compare(returned, [ExpectedOutput("o", np.array(means), np.float32(means), 1.0, "sequence")])


def not_modified(answer, **inputs):
    judging(CALL, lambda returned, **_: None)(answer, **inputs)
    names = ("q", "k_pages", "v_pages", "block_table", "lengths", "scale")
    findings = [Finding("", "modified", f"the call changed its argument {names[i]} in place") for i in answer.modified]
    return Evidence(tuple(findings)) if findings else None


def batch(lengths, heads=1, kv_heads=1, n_new=1, d=3, page_size=4, scale=0.3, seed=0):
    return locals()


@st.composite
def batches(draw):
    n_new, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(n_new, 9) | st.just(0), min_size=1, max_size=2))
    page_size, d, seed = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 9))
    scale, heads = draw(st.sampled_from([0.3, 0.7, 1.5])), kv_heads * draw(st.integers(1, 3))
    return batch(lengths, heads, kv_heads, n_new, d, page_size, scale, seed)


check = Checks(CALL, gives_attention)

check("one sequence in one full page", [batch([4], d=6), batch([4], d=5, seed=2)])
check("one sequence in several full pages, which lie anywhere", [batch([8]), batch([15], d=2, page_size=5)])
check("a last page that is not full", [batch([3]), batch([5]), batch([11], page_size=5)])
check("sequences of unequal lengths", [batch([5, 9, 2]), batch([8, 9]), batch([1, 7], page_size=3, d=2), batch([9, 2])])
check("query heads that share keys", [batch([5], heads=6, kv_heads=2), batch([6, 3], heads=6, kv_heads=3, d=2)])
check(
    "several new tokens: the last one sees all keys",
    [batch([3], n_new=3), batch([6], n_new=3), batch([5, 11], heads=4, kv_heads=2, n_new=2, page_size=3)],
)
check("a single key: o is its value", [batch([1, 1], heads=4, kv_heads=2)], call=ONE_KEY, test=gives_the_value)
check("scores near 1000", [batch([5, 7])], call=with_scores("1000 - np.arange(n) / 4"))
check(
    "scores that differ by 1000 from token to token, and from sequence to sequence",
    [batch([5, 7], n_new=3)],
    call=with_scores("1000 * (b + 1) - np.arange(n) / 4", "np.arange(n_new)"),
)
rising = with_scores("1000 * np.arange(n) - 20000")
check("hidden scores far above the visible ones", [batch([6], n_new=3)], call=rising)
check(
    "all scores -4e6: o is the mean of the visible values",
    [batch([6, 9], n_new=3)],
    call=with_scores("np.full(n, -4e6)"),
    test=gives_means,
)
check("an empty place in the batch gets 0", [batch([5, 0, 3]), batch([0], n_new=2, heads=2)])
check("the inputs are not modified", [batch([5, 3], heads=4, kv_heads=2)], calls=not_modified)
check("any batch", [batch([7, 0, 13], heads=6, kv_heads=3, n_new=2, page_size=5, d=4, scale=0.7), batches()])

EXERCISE = Exercise(__file__, paged_attention, check, points=5, minutes=15, difficulty="hard")
