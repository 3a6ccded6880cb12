"""Lesson 06: wrong answers, and what the check has to say of each."""

from courseware.exercises.lesson_06.choose_block_sizes import choose_block_sizes

LASTQ = "last_query = min((i + 1) * block_q, n_q) - 1"
END = "kv_end = min(max(q_stop + n_k - n_q, 0), n_k) if causal else n_k"

WRONG_ANSWERS = {
    "choose_block_sizes": {
        "a fixed pair": (lambda s, d, b=2, m=16: (64, 64), "The same pair comes back, whatever the arguments are."),
        "None where nothing fits": (
            lambda s, d, b=2, m=16: choose_block_sizes(s, d, b, m) if b * (3 * m * d + m * m) <= s else None,
            "",
        ),
    },
    "visited_tiles": {
        "skipping by the first query": (
            {LASTQ: "last_query = i * block_q"},
            "You test whether the tile's first query sees the first key.",
        ),
        "rounded up too far": (
            {"(n_k + block_k - 1) // block_k": "n_k // block_k + 1"},
            "range(n_k // block_k + 1) the first time",
        ),
    },
    "flash_attention_bytes": {
        "K V of whole tiles": (
            {"n_tiles * 2 * matrix_bytes\n": "n_tiles * 2 * n_tiles * block_q * d * bytes_per_element\n"},
            "",
        ),
        "Q read per key tile": (
            {
                "return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes": "return matrix_bytes + n_tiles * 3 * matrix_bytes"
            },
            "",
        ),
    },
    "tiled_attention": {
        "keys from block_q": (
            {"k_stop = min(k_start + block_k, n_k)": "k_stop = min(k_start + block_q, n_k)"},
            "rows 2 to 3 of K are never loaded",
        ),
        "skips by the first query": (
            {END: "kv_end = min(max(q_start + 1 + n_k - n_q, 0), n_k) if causal else n_k"},
            "",
        ),
    },
}
