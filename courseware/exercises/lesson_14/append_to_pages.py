"""Room for more tokens of one sequence, in pages that it may share with others."""

from hypothesis import strategies as st

from course_lib.serving.paged_cache import OutOfPages, PagePool
from courseware.checks import Checks, Exercise, not_modified, show, single_finding


def append_to_pages(pages, length, n_tokens, page_size, free, references):
    """Room in a paged cache for n_tokens more tokens of one sequence.

    pages: the numbers of the sequence's pages, in the order of its tokens. They hold length tokens, page_size in each,
        fewer in the last; [] if length is 0. Other sequences may have some of these pages, too: those that begin with
        the same tokens.
    free: the numbers of the free pages. references: how many sequences have each page; 0 if it is free. All lists.
    The sequence must take as few pages as it can, one after the other from the end of free; for 0 tokens, none. It must
        not write a token into a page that other sequences have: if the next token belongs in such a page, the sequence
        first takes a free page for a copy. The copy replaces the shared page in pages, and the references of the shared
        page go down by one.
    Returns None if there are too few free pages. Otherwise (pages, free, references, copies, places), the first three
        as they are afterwards; copies: a list of (source, target), pages to be copied before anything is written, one
        at most; places: a list of (page, row), where each of the new tokens goes.
    The arguments stay as they are.

    >>> append_to_pages([2], 3, 2, page_size=4, free=[1, 0], references=[0, 0, 1])
    ([2, 0], [1], [1, 0, 1], [], [(2, 3), (0, 0)])
    >>> append_to_pages([2], 3, 1, page_size=4, free=[1, 0], references=[0, 0, 2])
    ([0], [1], [1, 0, 1], [(2, 0)], [(0, 3)])
    """
    must_copy = n_tokens > 0 and length % page_size > 0 and references[pages[-1]] > 1
    n_pages = -(-(length + n_tokens) // page_size)
    if n_pages - len(pages) + must_copy > len(free):
        return None
    pages, free, references, copies = list(pages), list(free), list(references), []
    if must_copy:
        source = pages.pop()
        references[source] -= 1
        copies.append((source, free[-1]))
    while len(pages) < n_pages:
        pages.append(free.pop())
        references[pages[-1]] = 1
    places = [(pages[token // page_size], token % page_size) for token in range(length, length + n_tokens)]
    return pages, free, references, copies, places


NAMES = ("pages", "free", "references", "copies", "places")


def by_the_pool(pages, length, n_tokens, page_size, free, references):
    """What a PagePool makes of it. It gets to this state by an append that finds just these pages free."""
    pool = PagePool(len(references), page_size)
    sequence = pool.start()
    pool.free = pages[::-1]
    pool.append(sequence, length)
    pool.free, pool.references = list(free), list(references)
    try:
        page_of_token, rows, copies = pool.append(sequence, n_tokens)
    except OutOfPages:
        return None
    (table,), _ = pool.tables([sequence])
    places = list(zip(page_of_token.tolist(), rows.tolist(), strict=True))
    return table[: -(-(length + n_tokens) // page_size)].tolist(), pool.free, pool.references, copies, places


def agrees_with_the_pool(returned, **inputs):
    right = by_the_pool(**inputs)
    if returned is None and right is None:
        return None
    if right is None:
        n = len(inputs["free"])
        text = f"{n} free page{' is' if n == 1 else 's are'} too few, and the answer did not return None"
        return single_finding("too few pages", text, show(returned), "None")
    if returned is None:
        text = "the answer returned None, although there are enough free pages"
        return single_finding("enough pages", text, "None", show(right))
    if not isinstance(returned, tuple | list) or len(returned) != len(NAMES):
        text = f"the answer returned neither None nor ({', '.join(NAMES)})"
        return single_finding("type", text, show(returned), show(right))
    came, due = (dict(zip(NAMES, map(_listed, values), strict=True)) for values in (returned, right))
    wrong = [name for name in NAMES if came[name] != due[name]]
    if not wrong:
        return None
    text, name = f"not as it should be: {', '.join(wrong)}", wrong[0]
    now, then = came[name], due[name]
    if isinstance(now, list) and len(now) != len(then):
        text += f"; {name} has length {len(now)}, not {len(then)}"
    elif isinstance(now, list):
        text += f"; {name} has the right entries in another order" * (sorted(map(repr, now)) == sorted(map(repr, then)))
        place = next(i for i, entry in enumerate(now) if entry != then[i])
        text += f"; {name}[{place}] is {show(now[place])}, not {show(then[place])}"
    if came["copies"] and not due["copies"]:
        text += "\na page is copied, although the sequence writes into none that others have"
    elif due["copies"] and not came["copies"]:
        text += "\nno page is copied, although the next token belongs in one that others have"
    rows = [place[1] for place in came["places"] or [] if isinstance(place, list) and len(place) == 2]
    if bad := [row for row in rows if not 0 <= row < inputs["page_size"]]:
        text += f"\nthere is no row {bad[0]}: the rows of a page are 0 to {inputs['page_size'] - 1} here"
    shown = ("\n".join(f"{name}: {show(values[name])}" for name in wrong) for values in (came, due))
    return single_finding("list", text, *shown, part=", ".join(wrong))


def _listed(value):
    """Lists throughout, in place of tuples and arrays."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_listed(x) for x in value] if isinstance(value, tuple | list) else value


def state(pages, length, n_tokens, page_size, free, shared=()):
    """shared: pages of the sequence that others have, too. Pages that are neither its own nor free belong to others."""
    references = [1] * (max([0, *pages, *free]) + 2)
    for page in free:
        references[page] = 0
    for page in shared:
        references[page] += 1 + page % 2
    values = list(pages), length, n_tokens, page_size, list(free), references
    return dict(zip(("pages", "length", "n_tokens", "page_size", "free", "references"), values, strict=True))


def appended(length, n_tokens, shared, free=(3, 1, 0)):
    """To a sequence with the pages 5 and 2, of 3 tokens each."""
    return state([5, 2], length, n_tokens, 3, free, shared)


@st.composite
def states(draw):
    page_size, length = draw(st.integers(1, 4)), draw(st.integers(0, 9))
    n_pages, n_free = -(-length // page_size), draw(st.integers(0, 4))
    order = draw(st.permutations(range(n_pages + n_free)))
    pages, free = list(order[:n_pages]), list(order[n_pages:])
    # A sequence shares its first pages.
    shared = pages[: draw(st.integers(0, n_pages))]
    return state(pages, length, draw(st.integers(0, 8)), page_size, free, shared)


check = Checks(append_to_pages, agrees_with_the_pool)

check("the last page has room for the new tokens", [state([4], 1, 3, 5, [0, 2]), state([1, 3], 4, 1, 3, [])])
check(
    "the last page is full, or there is none: the sequence takes the page at the end of free",
    [state([5, 2], 6, 1, 3, [3, 1, 0]), state([], 0, 2, 3, [4, 0, 1]), state([6], 4, 4, 4, [1, 5, 3])],
)
check(
    "many tokens at once, in the last page and in new ones",
    [state([5, 2], 5, 6, 3, [3, 1, 0]), state([4], 1, 8, 3, [0, 2, 6]), state([], 0, 7, 2, [3, 5, 0, 1, 2])],
)
check(
    "the next token belongs in a page that others have: it is copied first",
    [appended(5, 1, [5, 2]), state([3], 1, 1, 4, [6, 2], [3]), appended(5, 6, [5, 2], [3, 1, 0, 4])],
)
check(
    "the sequence writes into no shared page: nothing is copied",
    [appended(6, 1, [5, 2]), appended(5, 1, [5]), appended(5, 0, [5, 2])],
)
check(
    "free pages that are just enough, and one too few",
    [appended(5, 4, [5], [1]), appended(5, 5, [5], [1]), appended(5, 1, [5, 2], []), appended(5, 1, [5, 2], [0])],
)
check(
    "the arguments stay as they are",
    [appended(5, 6, [5, 2], [3, 1, 0, 4]), appended(5, 8, [5, 2], [3, 1]), appended(5, 1, [5, 2], [])],
    calls=not_modified,
)
check("any sequence", [state([3, 0, 2], 5, 3, 2, [1, 4], shared=[3, 0]), states()])

EXERCISE = Exercise(__file__, append_to_pages, check, points=4, minutes=15, difficulty="medium")
