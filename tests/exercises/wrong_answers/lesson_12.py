"""Lesson 12: wrong answers that are no slips, and what the check has to say of each."""

LAST = "for (int i = lane; i < n; i += 32) y[i] = expf(x[i] - m) / l;"
SHUFFLE = "for (int apart = 16; apart > 0; apart /= 2) {"
SCORE = "for (int apart = 16; apart > 0; apart /= 2) score +="

WRONG_ANSWERS = {
    "thread_map": {
        "columns first": ({"element // columns, element % columns": "element % rows, element // rows"}, ""),
        "one too early": ({"element >= rows * columns": "element >= rows * columns - 1"}, ""),
        "one too late": ({"element >= rows * columns": "element > rows * columns"}, ""),
        "a thread takes a row": ({"step * n_threads + thread": "thread * columns + step"}, ""),
        "neighbours in time": ({"step * n_threads + thread": "thread * -(-rows * columns // n_threads) + step"}, ""),
        "wraps around": ({"    if element >= rows * columns:\n        return None\n": "    element %= rows * columns\n"}, ""),
        "rows for columns": ({"element // columns, element % columns": "element // rows, element % rows"}, ""),
        "(column, row)": ({"element // columns, element % columns": "element % columns, element // columns"}, ""),
    },
    "sectors": {
        "the first byte's address over 4": ({"address // 32": "address // 4"}, ""),
        "lines of 128 bytes": ({"address // 32": "address // 128"}, ""),
        "the span": ({"touched = {address // 32 for address in elements}": "touched = range(min(elements, default=0) // 32, max(elements, default=-1) // 32 + 1)"}, ""),
        "4 bytes an element": ({"len(elements) * element_bytes": "len(elements) * 4"}, ""),
        "lanes for elements": ({"-(-len(elements)": "-(-len([a for a in addresses if a is not None])"}, ""),
        "rounded down": ({"-(-len(elements) * element_bytes // 32)": "len(elements) * element_bytes // 32"}, ""),
        "enough first": ({"return len(touched), -(-len(elements) * element_bytes // 32)": "return -(-len(elements) * element_bytes // 32), len(touched)"}, ""),
    },
    "bank_conflicts": {
        "different banks": ({"max(words_in_bank)": "sum(map(bool, words_in_bank))"}, ""),
        "conflicts, not passes": ({"max(words_in_bank)": "max(words_in_bank) - 1"}, ""),
        "at least one pass": ({"max(words_in_bank)": "max(1, *words_in_bank)"}, ""),
        "16 banks": ({"word % 32": "word % 16"}, ""),
        "the last bank with a conflict": ({"max(words_in_bank)": "([0] + [n for n in words_in_bank if n])[-1]"}, ""),
        "bytes for words": ({"address // 4 for": "address for"}, ""),
    },
    "find_the_race": {
        "loads count": ({'        if kind == "store":\n': "        if kind:\n"}, ""),
        "one barrier is not enough": ({"place = word, interval": "place = word, interval // 2"}, ""),
        "in order only": ({"len(threads[word, interval]) > 1": "len(threads[word, interval]) > 2"}, ""),
        "warps are in step": ({"add(thread)": "add(thread // 32)"}, ""),
        "the words of all stores": ({"if len(threads[word, interval]) > 1": ""}, ""),
        "as a list of places": ({"return {word for": "return {(word, interval) for"}, ""),
    },
    "warp_softmax": {
        "each lane its own sum": ({SHUFFLE: "for (int apart = 0; apart > 0; apart /= 2) {"}, ""),
        "half of the lanes merge": ({SHUFFLE: "for (int apart = 8; apart > 0; apart /= 2) {"}, ""),
        "the merged max is not kept": ({"l_other * expf(m_other - m_new);\n        m = m_new;": "l_other * expf(m_other - m_new);"}, ""),
        "in base 2": ({LAST: LAST.replace("expf", "exp2f")}, ""),
        "the row's end": ({LAST: LAST.replace("i < n", "i < n - 1")}, ""),
        "blockDim for 4": ({"blockIdx.x * 4": "blockIdx.x * 8"}, ""),
        "not divided": ({LAST: LAST.replace(" / l", "")}, ""),
        "down for xor": ({"m_other = __shfl_xor_sync": "m_other = __shfl_down_sync", "l_other = __shfl_xor_sync": "l_other = __shfl_down_sync"}, ""),
    },
    "solve": {
        "scale of 128": ({"1.0f / sqrtf(d)": "1.0f / sqrtf(128.0f)"}, ""),
        "scale squared": ({"score * scale": "score * scale * scale"}, ""),
        "no barrier at the end": ({"        __syncthreads();  // all warps are done with the tiles\n": ""}, "Line"),
        "the first 32 columns": ({SCORE: "for (int apart = 16; apart > 8; apart /= 2) score +="}, ""),
        "alpha for acc alone": ({"l = l * alpha + p;": "l = l + p;"}, ""),
        "keys beyond the end count": ({"start + j < N ? score * scale : -infinity": "score * scale"}, ""),
        "K's tile for V's": ({"p * v_tile[j]": "p * k_tile[j]"}, ""),
        "not divided": ({"acc[i] / l": "acc[i]"}, ""),
    },
}  # fmt: skip
