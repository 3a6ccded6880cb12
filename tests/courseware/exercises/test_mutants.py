"""Small changes of the answers, as `make mutants` makes them: the checks refuse a sample; all of them take minutes."""

import functools
import json
import random

import numpy as np
import pytest

from courseware.checks import registry
from courseware.checks.cuda_calls import lacks_compiler
from courseware.checks.kernel_calls import runs_here
from tools import mutants as tool

EXERCISES = [exercise_id for exercise_id in registry.exercises() if exercise_id not in tool.INPUTS]
EACH = 2  # of the mutants of an exercise


@functools.cache
def mutants_of(exercise_id):
    return tool.mutants(registry.find(exercise_id).answer)


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_a_sample_is_refused(exercise_id):
    exercise, entries = registry.find(exercise_id), tool.equivalents().get(exercise_id, [])
    if not runs_here(exercise) or lacks_compiler(exercise):
        pytest.skip("a check takes seconds here, or cannot run")
    different = [mutant for mutant in mutants_of(exercise_id) if tool.entry_of(mutant, entries) is None]
    for mutant in random.Random(20261123).sample(different, min(EACH, len(different))):
        assert not tool.accepted(exercise_id, mutant.source), f"{mutant.line}\n{mutant.becomes}"


def test_an_answer_itself_is_accepted():
    for exercise_id in ("04.attention", "07.vector_add"):
        source = tool.inspect.getsource(registry.find(exercise_id).answer)
        assert tool.accepted(exercise_id, tool.textwrap.dedent(source))


def test_every_entry_of_the_list_is_a_mutant_and_says_why():
    for exercise_id, entries in tool.equivalents().items():
        made = {(mutant.line, mutant.becomes) for mutant in mutants_of(exercise_id)}
        listed = [(entry["line"], text) for entry in entries for text in entry["becomes"]]
        assert set(listed) <= made and len(set(listed)) == len(listed), set(listed) - made
        assert all(entry.keys() == {"because", "line", "becomes"} and entry["because"] for entry in entries)


def python_changes():
    def answer(scores, n_k, n_q, block, *, causal=False):
        """What it does."""
        m = np.max(scores, axis=1, keepdims=True)
        total = 0.0
        for start in range(0, n_k, block):
            total += (scores[start : start + block] - m).astype(np.float32).sum()
        return total, -(-n_q // block), causal and n_q < n_k

    return {(mutant.line, mutant.becomes) for mutant in tool.mutants(answer)}


def test_mistakes_of_every_kind_are_made():
    loop = "for start in range(0, n_k, block):"
    add = "total += (scores[start:start + block] - m).astype(np.float32).sum()"
    last, top = "return (total, -(-n_q // block), causal and n_q < n_k)", "m = np.max(scores, axis=1, keepdims=True)"
    assert python_changes() >= {
        (top, top.replace("max", "min")), (top, top.replace("1", "0")), (top, "m = np.max(scores, keepdims=True)"),
        (loop, loop.replace("n_k", "n_q")), (loop, loop.replace("n_k,", "n_k - block,")), (add, "pass"),
        (add, add.replace("+=", "=")), (add, add.replace(".astype(np.float32)", "")), (add, add.replace("- m", "+ m")),
        (add, add.replace("start:", ":")), (last, last.replace("-(-n_q // block)", "n_q // block")),
        (last, last.replace("and", "or")), (last, last.replace("<", "<=")), (last, last.replace("causal and ", "")),
    }  # fmt: skip
    assert all("What it does" not in line for line, _ in python_changes())


def test_mutants_of_cuda_change_what_runs_alone():
    made = {mutant[:2] for mutant in tool.mutants(registry.find("12.solve").answer)}
    assert {
        ("__syncthreads();  // the tiles are complete", ";  // the tiles are complete"),
        ("l = l * alpha + p;", "l = l * alpha - p;"), ("acc[i] = 0.0f;", "acc[i] = 1.0f;"),
        ("for (int start = 0; start < N; start += 16) {", "for (int start = 0; start <= N; start += 16) {"),
    } <= made  # fmt: skip
    assert not any(line.startswith(('"""', "Its signature", "//")) for line, _ in made)


def test_the_record_counts_every_mutant_as_refused_or_equivalent():
    record = json.loads(tool.RECORD.read_text(encoding="utf-8"))
    assert record["command"] == "make mutants" and set(record["exercises"]) <= set(EXERCISES)
    for counts in record["exercises"].values():
        assert counts["made"] == counts["refused"] + counts["equivalent"] > 0 and counts["date"] and counts["commit"]
