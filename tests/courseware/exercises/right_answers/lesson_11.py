import math

import numpy as np


def seconds_by_numpy(counts, gpu):
    issue = counts["instructions"] * counts["warps"] / gpu["schedulers"]
    softmax = max(issue, counts["exponentials"] / gpu["exponentials_per_clock"])
    of_a_tile = np.array([counts["product_clocks"], softmax, counts["wait_clocks"]])
    programs = math.ceil(counts["programs"] / gpu["sms"])
    shares = of_a_tile / [1, 1, counts["resident"] if counts["resident"] < programs else programs]
    return np.float32(shares.sum() * counts["tiles"] * programs / gpu["clock_hz"])


RIGHT_ANSWERS = {
    "predict_rung": {"by NumPy, in float32": seconds_by_numpy},
    "make_it_fast": {
        "scaled first, in one FMA": {
            "(scores - m_new[:, None]) * scale_log2": "scores * scale_log2 - (m_new * scale_log2)[:, None]"
        },
        "addresses in 64 bits, v late": {
            "offs_n = start_n + tl.arange(0, BLOCK_N)": "offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)",
            "            v = tl.load(v_ptr + tile)\n": "",
            "l_i = l_i * alpha +": "v = tl.load(v_ptr + tile)\n            l_i = l_i * alpha +",
        },
    },
    "find_the_waste": {"in float32": {'"waits": (': '"waits": np.float32('}},
}
