"""The bugs that published checks of tiled attention let pass: each is a misconception here, so each is refused.

test_exercises.py shows for every misconception that its own property refuses it, in its own words.
"""

import pytest

from courseware.checks import registry

# Bug -> exercise -> the misconception's name there.
CLASSIC_BUGS = {
    "no max subtraction": {
        "03.stable_softmax": "F21: the max is not subtracted", "05.online_attention": "the max is not subtracted",
        "06.tiled_attention": "no max subtraction", "08.flash_forward": "no max is subtracted",
    },
    "running max starts at 0": {
        "05.online_attention": "the running max starts at 0", "06.tiled_attention": "running max starts at 0",
        "08.flash_forward": "the running max starts at 0",
    },
    "the tile's max for the running max": {
        "05.online_softmax_update": "claim C: the block's max is taken for the running max",
        "06.tiled_attention": "tile max for running max", "08.flash_forward": "the tile's max replaces the running max",
    },
    "acc not rescaled": {
        "05.online_softmax_update": "acc is not rescaled", "06.tiled_attention": "no rescale of acc",
        "08.flash_forward": "acc is not rescaled",
    },
    "l not rescaled": {
        "05.online_softmax_update": "l is not rescaled", "06.tiled_attention": "no rescale of l",
        "08.flash_forward": "l is not rescaled",
    },
    "alpha inverted": {
        "05.online_softmax_update": "alpha is upside down", "06.tiled_attention": "alpha upside down",
        "08.flash_forward": "alpha is upside down",
    },
    "padded keys in the denominator": {
        "06.tiled_attention": "short tile padded with zero keys", "08.flash_forward": "padded keys get weight",
    },
    "last tile dropped": {
        "05.online_attention": "the last block is dropped", "06.tiled_attention": "last tile of keys dropped",
        "08.flash_forward": "the last tile of keys is dropped",
    },
    "scale missing": {
        "04.attention": "the scale is missing", "05.online_attention": "the scale is missing",
        "08.flash_forward": "scale is missing",
    },
    "scale 1/d": {"04.attention": "the scale is 1/d", "05.online_attention": "the scale is 1/d"},
    "exp2 without log2(e)": {
        "05.online_softmax_update": "2 ** x for exp(x)", "05.online_attention": "2 ** x for exp(x)",
        "08.flash_forward": "exp2 without log2(e)",
    },
    "causal ignored": {
        "04.attention": "causal is ignored", "06.tiled_attention": "causal ignored",
        "08.flash_forward": "causal is ignored",
    },
    "causal, one key too many": {
        "04.attention": "each query sees one key too many", "06.tiled_attention": "sees the next key",
        "08.flash_forward": "one key too many",
    },
    "causal, one key too few": {
        "04.attention": "no query sees its own key", "06.tiled_attention": "does not see its own key",
        "08.flash_forward": "one key too few",
    },
    "mask value 0": {
        "04.attention": "hidden scores are 0", "06.tiled_attention": "hidden scores set to 0",
        "08.flash_forward": "hidden scores are set to 0",
    },
    "NaN on a fully masked tile": {
        "05.online_softmax_update": "-inf minus -inf", "06.tiled_attention": "-inf minus -inf",
        "08.flash_forward": "-inf minus -inf in an empty row",
    },
    "float16 accumulation": {"05.online_attention": "acc is float16", "06.tiled_attention": "float16 accumulation"},
    "N x N": {"05.online_attention": "all rows are read at once", "06.tiled_attention": "the N x N matrix in SRAM"},
    "final division missing": {
        "05.online_attention": "the division by l is missing", "06.tiled_attention": "final division missing",
        "08.flash_forward": "o is not divided by l",
    },
}  # fmt: skip


def test_there_are_nineteen():
    assert len(CLASSIC_BUGS) == 19


@pytest.mark.parametrize("bug", CLASSIC_BUGS)
def test_each_is_among_the_slips(bug):
    for exercise_id, name in CLASSIC_BUGS[bug].items():
        names = [misconception.name for misconception in registry.find(exercise_id).misconceptions]
        assert name in names, (exercise_id, name)
