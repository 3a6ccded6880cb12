import math

import numpy as np


def seconds_by_numpy(counts, gpu):
    softmax = counts["instructions"] * counts["warps"], counts["exponentials"] / gpu["exponentials_per_clock"]
    of_a_tile = np.array([counts["product_clocks"], max(softmax[0] / gpu["schedulers"], softmax[1]), counts["wait_clocks"]])
    programs = math.ceil(counts["programs"] / gpu["sms"])
    shares = of_a_tile / [1, 1, counts["resident"] if counts["resident"] < programs else programs]
    return np.float32(shares.sum() * counts["tiles"] * programs / gpu["clock_hz"])


RIGHT_ANSWERS = {
    "predict_rung": {"by NumPy, in float32": seconds_by_numpy},
    "find_the_waste": {"in float32": {'"waits": (': '"waits": np.float32('}},
}
