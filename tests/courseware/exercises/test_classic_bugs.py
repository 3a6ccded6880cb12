"""The bugs that published checks of tiled attention let pass are refused here."""

import pytest

from courseware import checks
from courseware.checks import registry
from courseware.editing import with_nodes_replaced

# Bug -> the exercise, and edits of its answer.
CLASSIC_BUGS = {
    "no max subtraction": (
        "08.flash_forward",
        [("tl.maximum(m_i, tl.max(scores, axis=1))", "tl.zeros([BLOCK_M], tl.float32)")],
    ),
    "running max starts at 0": (
        "08.flash_forward",
        [("tl.full([BLOCK_M], float('-inf'), tl.float32)", "tl.zeros([BLOCK_M], tl.float32)")],
    ),
    "the tile's max for the running max": (
        "08.flash_forward",
        [("tl.maximum(m_i, tl.max(scores, axis=1))", "tl.max(scores, axis=1)")],
    ),
    "acc not rescaled": ("08.flash_forward", [("acc * alpha[:, None]", "acc")]),
    "l not rescaled": ("08.flash_forward", [("l_i * alpha", "l_i")]),
    "alpha inverted": ("08.flash_forward", [("m_i - m_ref", "tl.where(m_i == float('-inf'), 0.0, m_ref - m_i)")]),
    "padded keys in the denominator": ("08.flash_forward", [("mask_n[None, :]", "mask_n[None, :] | True")]),
    "last tile dropped": ("08.flash_forward", [("kv_end", "tl.maximum(kv_end // BLOCK_N, 1) * BLOCK_N")]),
    "scale missing": ("08.flash_forward", [("scale * 1.4426950408889634", "1.4426950408889634")]),
    "scale 1/d": ("05.online_attention", [("np.sqrt(d)", "d")]),
    "exp2 without log2(e)": ("08.flash_forward", [("scale * 1.4426950408889634", "scale")]),
    "causal ignored": ("08.flash_forward", [("visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)", "visible")]),
    "causal, one key too many": ("08.flash_forward", [("offs_m[:, None] + n_k", "1 + offs_m[:, None] + n_k")]),
    "causal, one key too few": (
        "08.flash_forward",
        [("offs_n[None, :] <= offs_m[:, None] + n_k - n_q", "offs_n[None, :] < offs_m[:, None] + n_k - n_q")],
    ),
    "mask value 0": (
        "08.flash_forward",
        [
            (
                "visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)",
                "scores = tl.where(offs_n[None, :] <= offs_m[:, None] + n_k - n_q, scores, 0.0)",
            )
        ],
    ),
    "NaN on a fully masked tile": ("08.flash_forward", [("tl.where(m_new == float('-inf'), 0.0, m_new)", "m_new")]),
    "float16 accumulation": ("06.tiled_attention", [("m = m_new", "m, acc = (m_new, acc.astype(O.dtype))")]),
    "N x N": ("06.tiled_attention", [("n_k = len(K)", "n_k = len(K); block_q, block_k = (n_q, n_k)")]),
    "final division missing": ("08.flash_forward", [("acc / l_safe[:, None]", "acc")]),
}


def test_there_are_nineteen():
    assert len(CLASSIC_BUGS) == 19


@pytest.mark.parametrize("bug", CLASSIC_BUGS)
def test_each_is_refused(bug):
    exercise_id, edits = CLASSIC_BUGS[bug]
    wrong = with_nodes_replaced(registry.find(exercise_id).answer, edits, bug)
    result = checks.grade(exercise_id, getattr(wrong, "fn", wrong))
    assert result.attempted and not result.passed
