"""The words of shared memory for which a block's threads race."""

import itertools

from hypothesis import strategies as st

from courseware.checks import Checks, Evidence, Exercise, Finding, show, single_finding


def find_the_race(accesses):
    """The words of shared memory for which threads race: no barrier decides which of two accesses comes first.

    Two accesses race if they are to one word, by different threads, between the same two barriers, and at least one of
    them is a store.

    accesses: of the threads of one block, a list of (thread, interval, kind, word), in no particular order. interval:
        how many barriers the thread had passed before. kind: "load" or "store". word: its number.
    Returns the set of these words.

    >>> find_the_race([(0, 0, "store", 7), (1, 0, "load", 7), (0, 1, "store", 9), (1, 2, "load", 9)])
    {7}
    """
    threads, stored = {}, set()
    for thread, interval, kind, word in accesses:
        place = word, interval
        threads.setdefault(place, set()).add(thread)
        if kind == "store":
            stored.add(place)
    return {word for word, interval in stored if len(threads[word, interval]) > 1}


def racing_pairs(accesses):
    """{word: two accesses to it that race}."""
    pairs = {}
    for one, other in itertools.combinations(accesses, 2):
        (thread, *when, kind, word), (other_thread, *other_when, other_kind, other_word) = one, other
        if word == other_word and when == other_when and thread != other_thread and "store" in (kind, other_kind):
            pairs.setdefault(word, (one, other))
    return pairs


def finds_all_and_no_other(returned, accesses):
    right = racing_pairs(accesses)
    if not isinstance(returned, set | frozenset | list | tuple):
        text = "the answer did not return a set of words"
        return single_finding("type", text, show(returned), _shown(right))
    findings = []
    if missing := sorted(right.keys() - set(returned)):
        one, other = right[missing[0]]
        findings.append(Finding("", "missing", f"a race is missed: {one} and {other}"))
    if extra := set(returned) - right.keys():
        findings.append(Finding("", "extra", f"there is no race for {', '.join(map(str, sorted(extra)))}"))
    return Evidence(tuple(findings), _shown(returned), _shown(right)) if findings else None


def _shown(words):
    return str(set(words) or "set()")


def case(*accesses):
    return {"accesses": list(accesses)}


ACCESSES = st.tuples(
    st.sampled_from([0, 1, 2, 32]), st.integers(0, 2), st.sampled_from(["load", "store"]), st.integers(5, 6)
)
check = Checks(find_the_race, finds_all_and_no_other)

check(
    "one thread stores and another loads, in either order",
    [case((0, 0, "store", 7), (32, 0, "load", 7)), case((32, 0, "load", 7), (0, 0, "store", 7))],
)
check("two threads store", [case((0, 1, "store", 7), (32, 1, "store", 7))])
check("two threads load", [case((0, 0, "load", 7), (32, 0, "load", 7))])
check("one thread alone", [case((3, 0, "store", 7), (3, 0, "load", 7), (3, 0, "store", 7))])
check(
    "a barrier in between",
    [case((0, 0, "store", 7), (32, 1, "load", 7)), case((0, 0, "store", 7), (32, 1, "load", 7), (0, 1, "load", 7))],
)
check("two lanes of one warp", [case((0, 0, "store", 7), (1, 0, "load", 7))])
check(
    "other accesses come between the two",
    [
        case((0, 0, "store", 7), (0, 0, "store", 8), (32, 0, "load", 7)),
        case((0, 0, "store", 7), (0, 0, "load", 7), (32, 1, "load", 7), (32, 0, "load", 7)),
        case((3, 0, "load", 7), (0, 0, "load", 7), (3, 0, "store", 7)),
        case((0, 0, "load", 7), (0, 0, "store", 7), (3, 0, "store", 7)),
        case((0, 0, "load", 7), (3, 1, "store", 7), (0, 1, "load", 7)),
    ],
)
check("two words race", [case((0, 0, "store", 5), (32, 0, "load", 5), (0, 1, "store", 6), (32, 1, "load", 6))])
check(
    "any accesses",
    [
        case((0, 0, "load", 5), (1, 0, "load", 5), (1, 1, "store", 5), (2, 1, "load", 6), (0, 1, "store", 6)),
        st.lists(ACCESSES, max_size=8).map(lambda accesses: {"accesses": accesses}),
    ],
)

EXERCISE = Exercise(__file__, find_the_race, check, points=2, minutes=8, difficulty="easy")
