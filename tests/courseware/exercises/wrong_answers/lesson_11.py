"""Lesson 11: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

WRONG_ANSWERS = {
    "predict_rung": {
        "tiles are left out": ({'programs * counts["tiles"] * tile_clocks': "programs * tile_clocks"}, "too small by the factor 0.2"),
        "one wave too many": ({'-(-counts["programs"] // gpu["sms"])': 'counts["programs"] // gpu["sms"] + 1'}, "the time is too large by the factor 2"),
    },
    "find_the_waste": {
        "pairs by the tiles of Q": ({'kernel["v_bytes"] // (block_k * row_bytes)': '(n // block_q) * (n // block_k)'}, "the number is not the one that belongs to this verdict"),
        "element bytes forgotten": ({'kernel["d"] * kernel["element_bytes"]': 'kernel["d"]'}, "the number is not the one that belongs to this verdict"),
    },
}  # fmt: skip
