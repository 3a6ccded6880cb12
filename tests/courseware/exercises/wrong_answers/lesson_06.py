"""Lesson 06: wrong answers, and what the check has to say of each."""

from courseware.exercises.lesson_06.choose_block_sizes import choose_block_sizes


def with_ceiling(most):
    """block_q up to `most` only."""

    def answer(sram_bytes, d, dtype_bytes=2, multiple_of=16):
        budget, best = sram_bytes // dtype_bytes, None
        for block_q in range(multiple_of, min(most, budget) + 1, multiple_of):
            block_k = (budget - block_q * d) // (2 * d + block_q) // multiple_of * multiple_of
            if block_k >= multiple_of and (best is None or block_q * block_k >= best[0] * best[1]):
                best = block_q, block_k
        if best is None:
            raise ValueError("nothing fits")
        return best

    return answer


def fits_strictly(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    return choose_block_sizes(sram_bytes - 1, d, dtype_bytes, multiple_of)


def powers_of_two(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    best = None
    for q in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            if q % multiple_of or k % multiple_of or dtype_bytes * (q * d + 2 * k * d + q * k) > sram_bytes:
                continue
            if best is None or (q * k, q) > (best[0] * best[1], best[0]):
                best = q, k
    if best is None:
        raise ValueError
    return best


def exchanged(*sizes):
    return choose_block_sizes(*sizes)[::-1]


TEST = "if not causal or j * block_k <= last_query + n_k - n_q:"
LASTQ = "last_query = min((i + 1) * block_q, n_q) - 1"
TILED_S = "s = q @ k.T * d**-0.5"
END = "kv_end = min(max(q_stop + n_k - n_q, 0), n_k) if causal else n_k"

WRONG_ANSWERS = {
    "choose_block_sizes": {
        "a ceiling of 320": (with_ceiling(320), "The search ends before the budget does: larger tiles fit."),
        "a ceiling of 128": (with_ceiling(128), "The search ends before the budget does: larger tiles fit."),
        "a ceiling of 256": (with_ceiling(256), "The search ends before the budget does: larger tiles fit."),
        "exchanged": (exchanged, "The two sizes are exchanged: (block_k, block_q) comes back."),
        "a fixed pair": (lambda s, d, b=2, m=16: (64, 64), "The same pair comes back, whatever the arguments are."),
        "None where nothing fits": (
            lambda s, d, b=2, m=16: choose_block_sizes(s, d, b, m) if b * (3 * m * d + m * m) <= s else None,
            "",
        ),
        "multiple of 16 always": (
            lambda s, d, b=2, m=16: choose_block_sizes(s, d, b, 16),
            "the answer raised ValueError: sram_bytes is 800; the",
        ),
        "floats": (
            lambda *a: tuple(map(float, choose_block_sizes(*a))),
            "the answer did not return two whole numbers of at least 1,",
        ),
        "M / 4d": (
            lambda s, d, b=2, m=16: (min(s // b // (4 * d), d) // m * m or m, s // b // (4 * d) // m * m or m),
            "",
        ),
    },
    "visited_tiles": {
        "skipping by the first query": (
            {LASTQ: "last_query = i * block_q"},
            "You test whether the tile's first query sees the first key.",
        ),
        "not rounded up in queries": (
            {"(n_q + block_q - 1) // block_q": "n_q // block_q"},
            "The short last tile of queries is missing.",
        ),
        "rounded up too far": (
            {"(n_k + block_k - 1) // block_k": "n_k // block_k + 1"},
            "One tile too many is visited where the sizes divide the",
        ),
        "block_q for both": ({"j * block_k <=": "j * block_q <="}, "never visited: [(0, 1), (1, 2), (1, 3)]"),
        "< for <=": (
            {"j * block_k <=": "j * block_k <"},
            "A tile whose first key is just the last visible one is left",
        ),
        "last key": ({"j * block_k <=": "j * block_k + block_k - 1 <="}, "never visited: [(0, 0), (2, 1)]"),
        "only fully visible": (
            {TEST: "if not causal or min((j + 1) * block_k, n_k) - 1 <= i * block_q + n_k - n_q:"},
            "",
        ),
        "(j, i)": (
            {"tiles.append((i, j))": "tiles.append((j, i))"},
            "The pairs are the wrong way round: the tile of queries",
        ),
        "rows": (
            {"tiles.append((i, j))": "tiles.append((i * block_q, j * block_k))"},
            "The pairs hold the tiles' first rows, not their numbers.",
        ),
        "n_q - n_k": ({"+ n_k - n_q:": "+ n_q - n_k:"}, "The shift n_k - n_q has the wrong sign."),
        "last query one beyond": (
            {LASTQ: "last_query = min((i + 1) * block_q, n_q)"},
            "You visit a tile if the key after the last visible one is",
        ),
        "a set": ({"return tiles": "return set(tiles)"}, "the answer did not return a list of pairs (i, j)"),
        "a count": ({"return tiles": "return len(tiles)"}, "the answer did not return a list of pairs (i, j)"),
        "a mask": (
            {"return tiles": "return np.ones((n_q, n_k), bool)"},
            "the answer did not return a list of pairs (i, j)",
        ),
        "from 1": (
            {"tiles.append((i, j))": "tiles.append((i + 1, j + 1))"},
            "The tiles are counted from 1, not from 0.",
        ),
        "triangular tiles": ({TEST: "if not causal or j <= i:"}, "never visited: [(0, 1), (1, 2), (1, 3)]"),
        "hidden ones": (
            {TEST: "if not causal or j * block_k > last_query + n_k - n_q:"},
            "The hidden tiles come back, not those to visit.",
        ),
    },
    "flash_attention_bytes": {
        "one tile too many": (
            {"n_tiles = (n + block_q - 1) // block_q": "n_tiles = n // block_q + 1"},
            "One tile too many is counted where block_q divides n.",
        ),
        "K V of whole tiles": (
            {"n_tiles * 2 * matrix_bytes\n": "n_tiles * 2 * n_tiles * block_q * d * bytes_per_element\n"},
            "",
        ),
        "O not written at the start": (
            {"start_bytes = matrix_bytes + statistics_bytes": "start_bytes = statistics_bytes"},
            "A matrix that is moved only once is missing: K and V",
        ),
        "Q read per key tile": (
            {
                "return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes": "return matrix_bytes + n_tiles * 3 * matrix_bytes"
            },
            "",
        ),
        "statistics in q_outer": (
            {
                "return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes": "return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes + statistics_bytes"
            },
            "",
        ),
        "one statistic": (
            {"statistics_bytes = 2 * n * 4": "statistics_bytes = n * 4"},
            "Only one of l and m is counted.",
        ),
        "8 bytes": (
            {"statistics_bytes = 2 * n * 4": "statistics_bytes = 2 * n * 8"},
            "l and m are counted with 8 bytes each. They have 4.",
        ),
        "statistics read only": (
            {"+ 2 * statistics_bytes)": "+ statistics_bytes)"},
            "For every key tile l and m are counted once. They are read",
        ),
        "O once": (
            {"n_tiles * (3 * matrix_bytes + 2 * statistics_bytes)": "n_tiles * (matrix_bytes + 2 * statistics_bytes)"},
            "",
        ),
        "K once": (
            {"return start_bytes + 2 * matrix_bytes": "return start_bytes + matrix_bytes"},
            "A matrix that is moved only once is missing: K and V",
        ),
        "a pair": (
            {
                "return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes": "return 2 * matrix_bytes, n_tiles * 2 * matrix_bytes"
            },
            "",
        ),
        "orders exchanged": (
            {
                'if order == "q_outer":': 'if order == "kv_outer":',
                '    if order == "kv_outer":\n        start': '    if order == "q_outer":\n        start',
            },
            "",
        ),
        "None for another": (
            {"    raise ValueError(f\"order is {order!r}; accepted: 'q_outer', 'kv_outer'\")": "    return None"},
            "",
        ),
        "KeyError": (
            {
                "    raise ValueError(f\"order is {order!r}; accepted: 'q_outer', 'kv_outer'\")": "    raise KeyError(order)"
            },
            "",
        ),
        "standard attention": (
            {
                "return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes": "return 4 * matrix_bytes + 4 * n * n * bytes_per_element"
            },
            "",
        ),
    },
    "tiled_attention": {
        "acc is divided in each pass": (
            {"acc = alpha[:, None] * acc + p @ v": "acc = (alpha[:, None] * acc + p @ v) / l[:, None]"},
            "The output is divided by l more than once.",
        ),
        "1/d": ({"d**-0.5": "d**-1.0"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "1/sqrt(block_k)": ({"d**-0.5": "block_k**-0.5"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "keys from block_q": (
            {"k_stop = min(k_start + block_k, n_k)": "k_stop = min(k_start + block_q, n_k)"},
            "rows 2 to 3 of K are never loaded",
        ),
        "mask by tile": (
            {"s[np.arange(k_start, k_stop) > visible] = -np.inf": "pass"},
            "Key tiles are skipped, but within the last tiles visited",
        ),
        "skips by the first query": (
            {END: "kv_end = min(max(q_start + 1 + n_k - n_q, 0), n_k) if causal else n_k"},
            "",
        ),
        "no skip": ({END: "kv_end = n_k"}, "Key tiles are loaded that causal hides from every query of"),
        "l reset": (
            {"l = alpha * l + p.sum(axis=1)": "l = p.sum(axis=1)"},
            "l holds the terms of the last tile of keys alone.",
        ),
        "float16 scores": (
            {"q = machine.load(Q, (q_start, q_stop)).astype(np.float32)": "q = machine.load(Q, (q_start, q_stop))"},
            "",
        ),
        "stored in every step": (
            {
                "            m = m_new\n": "            m = m_new\n            machine.store(O, (q_start, q_stop), (acc / np.where(l == 0, 1.0, l)[:, None]).astype(O.dtype))\n"
            },
            "",
        ),
        "V loaded twice": (
            {
                "v = machine.load(V, (k_start, k_stop))": "v = machine.load(V, (k_start, k_stop))\n            v = machine.load(V, (k_start, k_stop))"
            },
            "",
        ),
        "Q loaded in the loop": (
            {
                "            k = machine.load(K": "            q = machine.load(Q, (q_start, q_stop)).astype(np.float32)\n            k = machine.load(K"
            },
            "",
        ),
        "sum over the wrong axis": (
            {"p.sum(axis=1)": "p.sum(axis=0)"},
            "the answer raised ValueError: operands could not be",
        ),
        "hidden -1e9": (
            {"= -np.inf\n            m_new": "= -1e9\n            m_new"},
            "A finite number hides the keys. Where a query sees no key",
        ),
        "returns out": (
            {"        machine.store(O, (q_start, q_stop), out.astype(O.dtype))": "        return out"},
            "these rows of O were never stored: [0, 1]",
        ),
        "first tile of queries only": (
            {"for q_start in range(0, n_q, block_q)": "for q_start in range(0, min(n_q, block_q), block_q)"},
            "",
        ),
        "last queries dropped": (
            {"for q_start in range(0, n_q, block_q)": "for q_start in range(0, n_q - n_q % block_q, block_q)"},
            "",
        ),
        "rows of O wrong": (
            {"machine.store(O, (q_start, q_stop)": "machine.store(O, (0, q_stop - q_start)"},
            "these rows of O were never stored: [2]",
        ),
        "blocks exchanged": (
            {"    n_k = len(K)\n": "    n_k = len(K)\n    block_q, block_k = block_k, block_q\n"},
            "256 bytes are read from K, where 128 are enough",
        ),
        "a mask without the offset": (
            {
                "visible = np.arange(q_start, q_stop)[:, None] + n_k - n_q": "visible = np.arange(q_stop - q_start)[:, None] + n_k - n_q"
            },
            "",
        ),
        "keys of the mask from 0": (
            {"np.arange(k_start, k_stop) > visible": "np.arange(k_stop - k_start) > visible"},
            "",
        ),
        "no min for the tail": (
            {"q_stop = min(q_start + block_q, n_q)": "q_stop = q_start + block_q"},
            "The last tile asks for rows beyond the end.",
        ),
        "-1e9 for both": (
            {
                "machine.full(len(q), -np.inf)": "machine.full(len(q), -1e9)",
                "= -np.inf\n            m_new": "= -1e9\n            m_new",
            },
            "A finite number takes the place of -inf.",
        ),
        "hidden weights set to 0": (
            {
                "                s[np.arange(k_start, k_stop) > visible] = -np.inf\n": "",
                "            l = alpha * l": "            if causal:\n                p[np.arange(k_start, k_stop) > visible] = 0\n            l = alpha * l",
            },
            "The maximum of a row includes scores that causal hides.",
        ),
        "initial m finite": (
            {"machine.full(len(q), -np.inf)": "machine.full(len(q), -1e4)"},
            "A finite number takes the place of -inf.",
        ),
        "scores put in HBM": (
            {"            p = np.exp": "            machine.hbm(np.zeros((4, 4)), 'S')\n            p = np.exp"},
            "",
        ),
    },
}
