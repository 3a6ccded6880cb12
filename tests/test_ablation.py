"""The tool that takes misconceptions out: it tells those that are needed from those that are not."""

import pytest

from courseware.checks import registry
from tools import ablation


@pytest.mark.parametrize(
    "exercise_id, name, became",
    [
        ("02.largest_exp_input", "the logarithm is to base 2", "worse"),
        ("04.attention", "the scale is missing", "as good"),
    ],
)
def test_a_message_is_as_good_if_it_names_a_line_that_changed(exercise_id, name, became):
    assert name in [misconception.name for misconception in registry.find(exercise_id).misconceptions]
    found, message = ablation.graded_without(exercise_id, name)
    assert found == became, message


def test_a_line_that_is_missing_changes_the_one_after_it():
    def right(x):
        x = x + 1
        x = 2 * x
        return x

    def wrong(x):
        x = x + 1
        return x

    assert ablation.changed_lines(right, right) == set()
    assert ablation.changed_lines(right, wrong) == {1, 3}
