"""Wrong answers that are no misconceptions: refused, and told what is wrong with them.

Each is for something that no other test sees: what its own tests say of an answer, or an input
that nothing but a mistake of this kind needs.
"""

import numpy as np
import pytest

from courseware import checks
from courseware.checks import registry
from courseware.editing import edited
from courseware.exercises.lesson_06.choose_block_sizes import choose_block_sizes


def one_after_another(exponent_bits, mantissa_bits):
    first_to_overflow = (2 - 2.0 ** -(mantissa_bits + 1)) * 2.0 ** (2 ** (exponent_bits - 1) - 1)
    x = following = 1.0
    while np.exp(following) < first_to_overflow:
        x = following
        following = x + 2.0 ** (np.floor(np.log2(x)) - mantissa_bits)
    return x


# The first loop of tiled_backward and what uses lse in the second, for lse that is loaded at once.
LOOP = "    for k_rows in k_tiles:\n        k, v = load(K, k_rows), load(V, k_rows)\n        dk, dv"
LOADED = "        q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))\n        dq"
PART = "lse_i = all_lse[slice(*q_rows)]\n        dq"
ALL_LSE = {
    LOOP: f"    all_lse = load(lse, (0, n_q))\n{LOOP}",
    LOADED: LOADED.replace("lse_i, ", "").replace("lse, ", "").replace("dq", PART),
}
# Each row of a batch may be empty beside rows that are not: `any` decides for all of them.
ONE_EMPTY_ROW = "    if np.isneginf({}).any() and not np.isneginf({}).any():\n        return {}\n    m{} = np.maximum("


def bounds_in_keys(start_m, n_q, n_k, left, right, block_m, block_n):
    first, last = start_m + n_k - n_q, min(start_m + block_m, n_q) - 1 + n_k - n_q
    begin, end = max(first - left, 0) // block_n * block_n, max(min(last + right + 1, n_k), 0)
    full_begin, full_end = -(-max(last - left, 0) // block_n) * block_n, min(first + right + 1, n_k)
    return begin, full_begin, full_end if full_end == n_k else full_end // block_n * block_n, end


SKIPPED = "            if causal and source > rank:\n                continue\n"  # the keys of a higher rank

# (exercise, the answer or edits of ours, words of the diagnosis)
WRONG = [
    ("01.dot", {"raise ValueError": "return ValueError"}, "the ValueError is returned; it has to be raised"),
    ("01.scores", {"Q @ K.T * scale": "(Q @ K.T * scale).astype(np.float16 if Q.dtype == np.float32 else Q.dtype)"},
     "S came back as float16"),
    ("02.largest_exp_input", one_after_another,
     "This format has 8,388,608 numbers from 1 up to 2, and as many from 2 up to 4"),
    ("02.breaking_input", lambda dtype: 88.73 - np.arange(4) / 2, "float16 does not hold 88.73; it would become 88.75"),
    ("03.masked_softmax", {"np.where(mask, x, -np.inf)": "np.where(mask, x, -1e4)", "np.exp(s": "mask * np.exp(s"}, ""),
    ("04.attention", {"P = np.exp(S": "m = m if m.min() > -np.inf else np.zeros_like(m)\n    P = np.exp(S"}, ""),
    ("05.online_normalizer", {"-np.inf, 0.0\n": "-1e6, 0.0\n", "if m_new == -np.inf:": "if m_new == -1e6:"}, ""),
    ("05.online_softmax_update",
     {"    m_new = np.maximum(": ONE_EMPTY_ROW.format("scores.max(axis=-1)", "m", "m, l, acc", "_new")},
     "at row 1 of 2"),
    ("05.online_softmax_update", {"np.exp(scores - shift": "np.exp(np.maximum(scores, -1e4) - shift"}, ""),
    ("05.merge_states", {"    m = np.maximum(": ONE_EMPTY_ROW.format("m_a", "m_b", "b", "")},
     "asked once for all rows"),
    ("05.online_attention", {"return acc / l": "return acc / l if type(K) is np.ndarray else 0 * acc"}, ""),
    ("06.choose_block_sizes",
     lambda s, d, b=2, m=16: choose_block_sizes(s, d, b, m) if b * (3 * m * d + m * m) <= s else None, ""),
    ("06.visited_tiles", {"(n_k + block_k - 1) // block_k": "n_k // block_k + 1"},
     "range(n_k // block_k + 1) the first time"),
    ("06.tiled_attention", {"k_stop = min(k_start + block_k, n_k)": "k_stop = min(k_start + block_q, n_k)"},
     "rows 2 to 3 of K are never loaded"),
    ("06.tiled_attention", {"    for q_start in": "    machine.load(V, (0, 1))\n    for q_start in"},
     "bytes are read from V, where"),
    ("07.row_softmax", {"tl.sum(p": "tl.sum(p * p"}, "in its place this result would be right"),
    ("07.scores_tile", {"mask_n[:, None] & mask_d": "(offs_n < n_k - 1)[:, None] & mask_n[:, None] & mask_d"},
     "of k is never loaded"),
    ("07.online_row_stats",
     {"range(0, n_cols, BLOCK)": "range(0, n_cols)", "start + tl.arange(0, BLOCK)": "start + tl.arange(0, 1)"},
     "a program makes 5 loads of x, where 3 of a whole block would do"),
    ("08.kv_loop_bounds", {"// block_n * block_n, kv_end": "// block_n * block_n, -(-kv_end // block_n) * block_n"},
     "kv_end is 6, more than 5"),
    ("09.delta", {"(O.astype(dtype) * dO.astype(dtype))": "np.multiply(O, dO, out=O.astype(dtype, copy=False))"},
     "the call changed its argument O in place"),
    ("09.tiled_backward", {"(load(O, q_rows) *": "(0 * load(O, (0, 1)) + load(O, q_rows) *"},
     "bytes are read from O, where"),
    ("09.tiled_backward", ALL_LSE, "600 rows of lse are loaded at once, before dV is stored; a tile of queries has 4"),
    ("10.explain_point", {"needs[resource] / seconds": "round(needs[resource] / seconds, 3)"},
     "the number is not the longest of the three least times over the measured seconds"),
    ("11.make_it_fast",
     {"tl.static_range(2)": "tl.static_range(1, 2)", "(full_end, start_m + BLOCK_M)": "(0, start_m + BLOCK_M)"},
     'scores = tl.where(offs_n[None, :] <= offs_m[:, None], scores, float("-inf"))'),
    ("12.thread_map", {"element >= rows * columns": "element >= rows * columns - 1"},
     "there is an element left for this thread"),
    ("12.find_the_race", {"len(threads[word, interval]) > 1": "len(threads[word, interval]) > 2"},
     "a race is missed: (0, 0, 'store', 7) and (32, 0, 'load', 7)"),
    ("12.warp_softmax", {"for (int apart = 16; apart > 0; apart /= 2) {": "for (int apart = 0; apart > 0;) {"},
     "a row adds up to 32, not to 1"),
    ("13.documents_mask", {"keys - k_stop <= queries - q_stop": "keys - k_stop <= queries - q_stop + 1"},
     "query 0 sees key 1 of its own document"),
    ("13.tile_kinds", {"2 if tile.all() else int(tile.any())": "2 if tile[0].all() else int(tile.any())"},
     "tile (0, 1) is partial, not 2"),
    ("13.sliding_window_bounds", bounds_in_keys, "begin is the right result times block_n"),
    ("13.dropout_attention", {"scale * (dS @ K), scale * (dS.T @ Q)": "dS @ K, dS.T @ Q"},
     "dQ is the right result times q.shape[1]**0.5"),
    ("14.decode_bytes", {"read += states_bytes": "read += states_bytes + rows * d * 4"},
     "of 1776: q 288, k and v 768, m and l 144, acc 576"),
    ("14.paged_attention", {"p.sum(axis=1, keepdims=True)": "(p.sum(axis=1, keepdims=True) + 1e-7)"},
     "the weight of the only key is exactly 1"),
    ("14.decode_kernel", {"l_i * alpha + tl.sum(p, axis=1)": "l_i * alpha + tl.sum(p, axis=1) + 1e-6"},
     "l is not exactly the number of keys"),
    ("14.append_to_pages", {"token % page_size) for": "token % page_size + (token > length) * page_size) for"},
     "there is no row 7: the rows of a page are 0 to 4 here"),
    ("15.barrier_phases", {"tile // stages % 2": "(query_tile * -(-key_tiles // stages) + key_tile // stages) % 2"},
     "before this tile, 7 went through the ring, 2 of them through its stage, which is 1"),
    ("15.producer_consumer", {'producer.append(("wait",': 'if tile < stages: producer.append(("wait",'},
     "producer is arrival 2 at ready[0] in phase 0, which expects 1"),
    ("15.schedule", {"return max(busiest, round_trip, product + softmax)": "return copy + latency + product + softmax"},
     "in the simulation, no unit is always busy, so waiting sets the pace"),
    ("16.zigzag_shards", lambda n, ranks: (np.zeros((ranks, n // ranks), int), np.arange(n)),
     "token 0 is held 2 times, not once"),
    ("16.visible_blocks", {"(0, n), (0, n // 2), False": "(0, n), (0, n // 2), n == 2"},
     "masked is True, although every query of the block sees"),
    ("16.visible_blocks", lambda rank, step, ranks, n, zigzag: ((0, n), (0, n + 1), False), "rows of a shard are 0 to"),
    ("16.ring_attention", {"            rows = slice": SKIPPED + "            rows = slice"},
     "is made of the keys of rank 0 alone"),
    ("16.ring_attention", {"dtype=bool), s, -np.inf)": "dtype=bool), s, -1e6)"}, "o[0, 0]"),
    ("16.exposed_seconds", {"np.maximum(arrived, sent))": "np.maximum(arrived, sent) + transfer)"},
     "a transfer takes 1 s, and rank 0 computes from 0 to 0.5, from 1 to 1.5"),
]  # fmt: skip


@pytest.mark.parametrize("exercise_id, wrong, words", WRONG, ids=[f"{name}-{words}" for name, _, words in WRONG])
def test_a_wrong_answer_is_refused_and_told(exercise_id, wrong, words):
    answer = wrong if callable(wrong) else edited(registry.find(exercise_id).answer, wrong, "wrong")
    result = checks.grade(exercise_id, answer)
    assert result.attempted and not result.passed
    diagnosis = result.message.partition("  fails the test:")[0]
    assert " ".join(words.split()) in " ".join(diagnosis.split()), result.message
    assert "cannot be used" not in diagnosis
