"""The bytes of one decoding step: held in pages, read, and written."""

from hypothesis import strategies as st

from course_lib import traffic
from course_lib.serving.paged_cache import PagePool
from courseware.checks import Checks, Evidence, Exercise, Finding, are_numbers, show, single_finding


def decode_bytes(lengths, heads, kv_heads, d, page_size, splits, bytes_per_element):
    """Bytes of one decoding step, with one new query for each sequence: (held, read, written).

    lengths: how many keys each sequence has, a list; 0 is possible. heads: of q and o; kv_heads: of keys and values, a
        divisor of heads. Rows of q, k, v and o have d elements of bytes_per_element bytes.
    held: by the keys and values in the cache. They lie in pages. A page has room for the keys and the values of
        page_size tokens of one sequence, for all kv_heads. No sequences share a page.
    read and written: by programs, one for each sequence, head of keys and split. A program reads the rows of q that use
        its head of keys, even if its split has no keys, and the keys and values of its split, once for all these rows;
        of a page, only rows in use. If splits is 1, it writes its rows of o. Otherwise it writes a state for each of
        its rows, even if its split has no keys: m, l and the d elements of acc, all float32. Then each state is read
        once to merge them, and o is written.
    Lengths and block tables do not count. All three are whole numbers.

    >>> decode_bytes([5, 3], heads=4, kv_heads=2, d=8, page_size=4, splits=1, bytes_per_element=2)
    (768, 640, 128)
    >>> decode_bytes([5, 3], heads=4, kv_heads=2, d=8, page_size=4, splits=2, bytes_per_element=2)
    (768, 1408, 768)
    """
    row_bytes = d * bytes_per_element
    n_pages = sum(-(-length // page_size) for length in lengths)
    held = 2 * kv_heads * n_pages * page_size * row_bytes
    rows = len(lengths) * heads
    read = splits * rows * row_bytes + 2 * kv_heads * sum(lengths) * row_bytes
    written = rows * row_bytes
    if splits > 1:
        states_bytes = splits * rows * (2 + d) * 4
        read += states_bytes
        written += states_bytes
    return held, read, written


def counted(lengths, heads, kv_heads, d, page_size, splits, bytes_per_element):
    """(held, {tensor: (bytes read, written)}): pages as a pool hands them out, the rest as the tracer counts it."""
    n_pages = sum(lengths) + len(lengths)
    pool = PagePool(n_pages, page_size)
    for length in lengths:
        pool.append(pool.start(), length)
    page_bytes = 2 * kv_heads * page_size * d * bytes_per_element
    step = traffic.decode(lengths, d, heads=heads, kv_heads=kv_heads, splits=splits, dtype_bytes=bytes_per_element)
    of_state = {name: (step.by_tensor[name].write_bytes,) * 2 for name in ("stats", "acc") if name in step.by_tensor}
    return (n_pages - len(pool.free)) * page_bytes, step.by_tensor | of_state


def agrees_with_the_counts(returned, **inputs):
    held, by_tensor = counted(**inputs)
    right = held, *map(sum, zip(*by_tensor.values(), strict=True))
    if not are_numbers(returned, 3):
        text = "the answer did not return three whole numbers"
        return single_finding("type", text, show(returned), "(held, read, written)")
    tensors = {"Q": "q", "K": "k and v", "O": "o", "stats": "m and l", "acc": "acc"}
    sizes = {said: by_tensor[name] for name, said in tensors.items() if name in by_tensor}
    sizes["k and v"] = tuple(2 * n_bytes for n_bytes in sizes["k and v"])
    parts = ["", *(", ".join(f"{name} {both[i]}" for name, both in sizes.items() if both[i]) for i in (0, 1))]
    findings = []
    for name, now, due, of_them in zip(("held", "read", "written"), returned, right, parts, strict=True):
        if now != due:
            kind = "too many" if now > due else "too few"
            text = f"{name} is {now}, {kind} by {show(abs(now - due))}"
            findings.append(Finding(name, kind, text + (f"; of {due}: {of_them}" if of_them else "")))
    return Evidence(tuple(findings), show(tuple(returned)), show(right)) if findings else None


def step(lengths, heads, kv_heads, d, page_size, splits=1, bytes_per_element=2):
    return locals()


@st.composite
def steps(draw):
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    kv_heads = draw(st.integers(1, 3))
    sizes = kv_heads * draw(st.integers(1, 4)), kv_heads, draw(st.integers(1, 70)), draw(st.integers(1, 5))
    return step(lengths, *sizes, splits=draw(st.integers(1, 4)), bytes_per_element=draw(st.sampled_from([1, 2, 4])))


check = Checks(decode_bytes, agrees_with_the_counts)

check("one sequence in full pages", [step([12], 3, 3, 8, 4), step([10], 2, 2, 6, 5, bytes_per_element=4)])
check("query heads that share keys: these are held and read once", [step([12], 6, 2, 8, 4), step([12], 5, 1, 8, 4)])
check("sequences of unequal lengths, in full pages", [step([12, 4, 20], 6, 3, 8, 4), step([0, 3], 4, 2, 8, 3)])
check("a last page that is not full", [step([13], 6, 2, 8, 4), step([5, 11, 1], 6, 3, 8, 4)])
check(
    "several splits: their states are written, and read for the merge",
    [step([12], 6, 2, 8, 4, splits=3), step([7, 9], 4, 1, 5, 4, splits=2, bytes_per_element=4)],
)
check("splits without keys", [step([1, 0], 6, 2, 8, 4, splits=3)])
check("any step", [step([8192, 5000], 32, 8, 128, 16, splits=16), steps()])

EXERCISE = Exercise(__file__, decode_bytes, check, points=3, minutes=10, difficulty="medium")
