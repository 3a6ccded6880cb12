"""The bugs that published checks of tiled attention let pass: each is a wrong answer here, so each is rejected.

test_exercises.py shows for every wrong answer that it fails, on its own property, with its own hint.
"""

import pytest

from course_lib.grading import registry

# Bug -> exercise -> the wrong answer's name there.
CLASSIC_BUGS = {
    "no max subtraction": {
        "03.stable_softmax": "F21: no max subtraction", "05.online_attention": "no max subtraction",
        "06.tiled_attention": "no max subtraction",
    },
    "running max starts at 0": {
        "05.online_attention": "running max starts at 0", "06.tiled_attention": "running max starts at 0",
    },
    "the tile's max for the running max": {
        "05.online_softmax_update": "claim C: the block's max for the running max",
        "06.tiled_attention": "tile max for running max",
    },
    "acc not rescaled": {
        "05.online_softmax_update": "no rescale of acc", "06.tiled_attention": "no rescale of acc",
    },
    "l not rescaled": {"05.online_softmax_update": "no rescale of l", "06.tiled_attention": "no rescale of l"},
    "alpha inverted": {"05.online_softmax_update": "alpha upside down", "06.tiled_attention": "alpha upside down"},
    "padded keys in the denominator": {"06.tiled_attention": "short tile padded with zero keys"},
    "last tile dropped": {
        "05.online_attention": "last block dropped", "06.tiled_attention": "last tile of keys dropped",
    },
    "scale missing": {"04.attention": "scale missing", "05.online_attention": "scale missing"},
    "scale 1/d": {"04.attention": "scale 1/d", "05.online_attention": "scale 1/d"},
    "exp2 without log2(e)": {
        "05.online_softmax_update": "exp2 without log2(e)", "05.online_attention": "exp2 without log2(e)",
    },
    "causal ignored": {"04.attention": "causal ignored", "06.tiled_attention": "causal ignored"},
    "causal, one key too many": {
        "04.attention": "causal off by one, into the future", "06.tiled_attention": "sees the next key",
    },
    "causal, one key too few": {
        "04.attention": "causal off by one, without itself", "06.tiled_attention": "does not see its own key",
    },
    "mask value 0": {"04.attention": "mask value 0", "06.tiled_attention": "hidden scores set to 0"},
    "NaN on a fully masked tile": {
        "05.online_softmax_update": "-inf minus -inf", "06.tiled_attention": "-inf minus -inf",
    },
    "float16 accumulation": {
        "05.online_attention": "float16 accumulation", "06.tiled_attention": "float16 accumulation",
    },
    "N x N": {"05.online_attention": "all scores at once", "06.tiled_attention": "the N x N matrix in SRAM"},
    "final division missing": {
        "05.online_attention": "final division missing", "06.tiled_attention": "final division missing",
    },
}  # fmt: skip


def test_there_are_nineteen():
    assert len(CLASSIC_BUGS) == 19


@pytest.mark.parametrize("bug", CLASSIC_BUGS)
def test_each_is_among_the_wrong_answers(bug):
    for exercise_id, name in CLASSIC_BUGS[bug].items():
        assert name in [wrong.name for wrong in registry.find(exercise_id).wrong_answers], (exercise_id, name)
