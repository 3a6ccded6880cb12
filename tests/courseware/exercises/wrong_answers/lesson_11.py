"""Lesson 11: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

SHARE = 'counts["wait_clocks"] / at_once'
ISSUE = 'counts["instructions"] * counts["warps"] / gpu["schedulers"]'
SEEN = "seen += -(-keys // block_k)"
NEEDED = "needed_bytes = (n + 2 * block_k * pairs) * row_bytes"

WRONG_ANSWERS = {
    "predict_rung": {
        "tiles are left out": ({'programs * counts["tiles"] * tile_clocks': "programs * tile_clocks"}, "too small by the factor 0.2"),
        "one wave too many": ({'-(-counts["programs"] // gpu["sms"])': 'counts["programs"] // gpu["sms"] + 1'}, "the time is too large by the factor 2"),
        "waves of resident programs": ({"programs * counts[\"tiles\"]": "-(-programs // at_once) * counts[\"tiles\"]"}, "the time is too small by the factor 0.5"),
        "the wait is cut": ({SHARE: 'counts["wait_clocks"] // at_once'}, "the time is right to about 3 digits only"),
        "the wait is shared by warps": ({SHARE: 'counts["wait_clocks"] / counts["warps"]'}, "the time is too small by the factor 0.6062"),
        "schedulers multiply": ({ISSUE: 'counts["instructions"] * counts["warps"] * gpu["schedulers"]'}, "the time is too large by the factor 4.75"),
        "the product is shared by schedulers": ({'counts["product_clocks"] +': 'counts["product_clocks"] / gpu["schedulers"] +'}, "the time is too small by the factor 0.775"),
        "the product for each warp": ({'counts["product_clocks"] +': 'counts["product_clocks"] * counts["warps"] +'}, "the time is too large by the factor 3.1"),
        "waits before the first tile only": ({"programs * counts[\"tiles\"] * tile_clocks": "programs * (counts[\"tiles\"] * (tile_clocks - " + SHARE + ") + " + SHARE + ")"}, "the time is too small by the factor 0.5886"),
        "max for min": ({'min(counts["resident"], programs)': 'max(counts["resident"], programs)'}, "the time is too small by the factor 0.9032"),
        "milliseconds": ({'/ gpu["clock_hz"]': '/ gpu["clock_hz"] * 1e3'}, "factor 1000"),
    },
    "find_the_waste": {
        "pairs by the tiles of Q": ({'kernel["v_bytes"] // (block_k * row_bytes)': '(n // block_q) * (n // block_k)'}, "the number is not the one that belongs to this verdict"),
        "triangle of whole tiles": ({SEEN: "seen += start // block_k + 1 if kernel['causal'] else n // block_k"}, "only if the first query of its tile"),
        "element bytes forgotten": ({'kernel["d"] * kernel["element_bytes"]': 'kernel["d"]'}, "the number is not the one that belongs to this verdict"),
        "O is needed too": ({NEEDED: NEEDED.replace("(n +", "(2 * n +")}, "twice the rows of Q, or those of the output"),
        "K alone": ({NEEDED: NEEDED.replace("2 * block_k", "block_k")}, "one tile of keys or values for each pair"),
        "the name alone": ({"    return (verdict, ratios[verdict]) if ratios[verdict] > 1 else (\"nothing\", 1.0)": "    return verdict if ratios[verdict] > 1 else 'nothing'"}, "did not return a verdict"),
        "the excess, not the ratio": ({"return (verdict, ratios[verdict])": "return (verdict, ratios[verdict] - 1)"}, "and not the whole ratio"),
        "0 for nothing": ({'> 1 else ("nothing", 1.0)': '> 1 else ("nothing", 0.0)'}, "the number is not the one that belongs to this verdict"),
    },
}  # fmt: skip
