"""Lesson 12: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

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
    },
    "warp_softmax": {
        "each lane its own sum": ({SHUFFLE: "for (int apart = 0; apart > 0; apart /= 2) {"}, "a row adds up to 32, not to 1"),
    },
    "solve": {
        "the first 32 columns": ({SCORE: "for (int apart = 16; apart > 8; apart /= 2) score +="}, "output is wrong at every row"),
    },
}  # fmt: skip
