"""Small changes of the answers, as `make mutants` makes them, and classic bugs: the checks refuse them.

Of the mutants a sample; all of them take minutes.
"""

import functools
import inspect
import json
import random

import pytest

from courseware.checks import registry
from courseware.checks.cuda_calls import lacks_compiler
from courseware.checks.kernel_calls import runs_here
from courseware.editing import with_nodes_replaced
from tools import mutants as tool

EXERCISES = [exercise_id for exercise_id in registry.exercises() if exercise_id not in tool.INPUTS]
EACH = 2  # of the mutants of an exercise
mutants_of = functools.cache(lambda exercise_id: tool.mutants(registry.find(exercise_id).answer))


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_a_sample_is_refused(exercise_id):
    exercise = registry.find(exercise_id)
    if not runs_here(exercise) or lacks_compiler(exercise):
        pytest.skip("a check takes seconds here, or cannot run")
    different = [mutant for mutant in mutants_of(exercise_id) if not tool.is_equivalent(exercise_id, mutant)]
    for mutant in random.Random(20261123).sample(different, min(EACH, len(different))):
        assert not tool.accepted(exercise_id, mutant.source), f"{mutant.line}\n{mutant.becomes}"


# Published checks of tiled attention let these pass, and so may a check that refuses every misconception.
# What is wrong -> an expression of the answer, and what is there.
CLASSIC_BUGS = {
    "08.flash_forward": {
        "running max starts at 0": ("tl.full([BLOCK_M], float('-inf'), tl.float32)", "tl.zeros([BLOCK_M], tl.float32)"),
        "the tile's max for the running max": ("tl.maximum(m_i, tl.max(scores, axis=1))", "tl.max(scores, axis=1)"),
        "padded keys in the denominator": ("mask_n[None, :]", "mask_n[None, :] | True"),
        "last tile dropped": ("kv_end", "tl.maximum(kv_end // BLOCK_N, 1) * BLOCK_N"),
        "NaN on a fully masked tile": ("tl.where(m_new == float('-inf'), 0.0, m_new)", "m_new"),
    },
    "05.online_attention": {"scale 1/d": ("np.sqrt(d)", "d")},
    "06.tiled_attention": {
        "float16 accumulation": ("m = m_new", "m, acc = (m_new, acc.astype(O.dtype))"),
        "N x N": ("n_k = len(K)", "n_k = len(K); block_q, block_k = (n_q, n_k)")},
}  # fmt: skip


@pytest.mark.parametrize("exercise_id, bug", [(name, bug) for name, bugs in CLASSIC_BUGS.items() for bug in bugs])
def test_a_classic_bug_is_refused(exercise_id, bug):
    wrong = with_nodes_replaced(registry.find(exercise_id).answer, [CLASSIC_BUGS[exercise_id][bug]], bug)
    assert not tool.accepted(exercise_id, inspect.getsource(getattr(wrong, "fn", wrong)))


def test_an_answer_itself_is_accepted():
    for exercise_id in ("04.attention", "07.vector_add"):
        assert tool.accepted(exercise_id, inspect.getsource(registry.find(exercise_id).answer))


def test_every_edit_of_the_list_makes_a_mutant():
    for exercise_id, edits in tool.equivalents().items():
        made = mutants_of(exercise_id)
        assert [edit for edit in edits if not any(tool.is_made_by(edit, mutant) for mutant in made)] == []


def test_the_record_counts_every_mutant_as_refused_or_equivalent():
    record = json.loads(tool.RECORD.read_text(encoding="utf-8"))
    assert record["command"] == "make mutants" and set(record["exercises"]) <= set(EXERCISES)
    for counts in record["exercises"].values():
        assert counts["made"] == counts["refused"] + counts["equivalent"] > 0 and counts["date"] and counts["commit"]
