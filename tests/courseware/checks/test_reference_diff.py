"""Where an answer differs from the right one: in as few and as small places as are enough."""

import ast

import pytest

from courseware.checks.reference_diff import fewest_differences

RIGHT = """
def mean_of_squares(xs, skip):
    total = 0
    count = 0
    for x in xs:
        if x != skip:
            total += x * x
            count += 1
    return total / count
"""


def is_right(source):
    exec(source, namespace := {})
    try:
        return [namespace["mean_of_squares"](*given) for given in (([1, 2, 4], 2), ([3, 5, 1, 3], 1))] == [8.5, 43 / 3]
    except (NameError, ZeroDivisionError):
        return False


def differences(source):
    """(old, new) of each, as text. Asking for them leaves the tree as it was."""
    tree = ast.parse(source)
    before = ast.dump(tree)
    found = fewest_differences(tree, ast.parse(RIGHT), is_right)
    assert ast.dump(tree) == before
    nodes = [(each.old, each.new) for each in found]
    return [tuple(node and (ast.unparse(node) or type(node).__name__) for node in pair) for pair in nodes]


@pytest.mark.parametrize(
    "edits, told",
    [({"total": "s", "xs": "values", "x * x": "x + x"}, [("Add", "Mult")]),  # other names are no difference
     ({"count": "n", "            n += 1\n": ""}, [(None, "n += 1")]),  # and ours are not told
     ({"    return": "    count += 1\n    return"}, [("count += 1", None)]),
     # One of the two alone is not enough.
     ({"x * x": "x + x", "count = 0": "count = 1"}, [("1", "0"), ("Add", "Mult")]),
     # What is right in itself is none.
     ({"x * x": "x ** 2", "x != skip": "x == skip"}, [("Eq", "NotEq")])],
)  # fmt: skip
def test_the_smallest_difference_that_is_enough_is_found(edits, told):
    source = RIGHT
    for old, new in edits.items():
        assert old in source
        source = source.replace(old, new)
    assert differences(source) == told


def test_of_another_algorithm_there_are_none():
    source = "def mean_of_squares(xs, skip):\n    return np.mean([x * x for x in xs if x > skip])\n"
    assert differences(source) == []
