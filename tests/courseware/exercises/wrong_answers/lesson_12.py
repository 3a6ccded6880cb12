"""Lesson 12: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

LAST = "for (int i = lane; i < n; i += 32) y[i] = expf(x[i] - m) / l;"
SHUFFLE = "for (int apart = 16; apart > 0; apart /= 2) {"
SCORE = "for (int apart = 16; apart > 0; apart /= 2) score +="

WRONG_ANSWERS = {
    "thread_map": {
        "one too early": ({"element >= rows * columns": "element >= rows * columns - 1"}, "there is an element left for this thread"),
        "wraps around": ({"    if element >= rows * columns:\n        return None\n": "    element %= rows * columns\n"}, "the elements before this one are all there are, so nothing is left"),
    },
    "sectors": {
        "enough first": ({"return len(touched), -(-len(elements) * element_bytes // 32)": "return -(-len(elements) * element_bytes // 32), len(touched)"}, "touched and enough are swapped"),
    },
    "bank_conflicts": {
        "different banks": ({"max(words_in_bank)": "sum(map(bool, words_in_bank))"}, "the number of passes is 31 too large"),
        "the last bank with a conflict": ({"max(words_in_bank)": "([0] + [n for n in words_in_bank if n])[-1]"}, "the number of passes is 2 too small"),
    },
    "find_the_race": {
        "in order only": ({"len(threads[word, interval]) > 1": "len(threads[word, interval]) > 2"}, "a race is missed: (0, 0, 'store', 7) and (32, 0, 'load', 7)"),
        "the words of all stores": ({"if len(threads[word, interval]) > 1": ""}, "there is no race for 7"),
        "as a list of places": ({"return {word for": "return {(word, interval) for"}, "a race is missed: (0, 0, 'store', 7) and (32, 0, 'load', 7)"),
    },
    "warp_softmax": {
        "each lane its own sum": ({SHUFFLE: "for (int apart = 0; apart > 0; apart /= 2) {"}, "a row adds up to 32, not to 1"),
        "the merged max is not kept": ({"l_other * expf(m_other - m_new);\n        m = m_new;": "l_other * expf(m_other - m_new);"}, "y is wrong at every row"),
        "in base 2": ({LAST: LAST.replace("expf", "exp2f")}, "y is wrong at every row"),
        "the row's end": ({LAST: LAST.replace("i < n", "i < n - 1")}, "y: 4 of 128 elements are never stored (column 31 of every row)"),
        "y is written twice": ({LAST: "for (int i = lane; i < n; i += 32) y[i] = expf(x[i] - m);\n      for (int i = lane; i < n; i += 32) y[i] /= l;"}, "the launch stores"),
        "a name from a header": ({"= __int_as_float(0x7f800000)": "= INFINITY"}, "INFINITY"),
        "a name from another header": ({"= __int_as_float(0x7f800000)": "= FLT_MAX"}, "FLT_MAX"),
        "blockDim for 4": ({"blockIdx.x * 4": "blockIdx.x * 8"}, "y: 80 of 240 elements are never stored (rows 4 to 5)"),
    },
    "solve": {
        "scale of 128": ({"1.0f / sqrtf(d)": "1.0f / sqrtf(128.0f)"}, "The scores are divided by sqrt(128)"),
        "the first 32 columns": ({SCORE: "for (int apart = 16; apart > 8; apart /= 2) score +="}, "output is wrong at every row"),
        "K's tile for V's": ({"p * v_tile[j]": "p * k_tile[j]"}, "output is wrong at every row"),
    },
}  # fmt: skip
