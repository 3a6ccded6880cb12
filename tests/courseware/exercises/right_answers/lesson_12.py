import itertools

import numpy as np


def map_by_divmod(thread, step, n_threads, rows, columns):
    row, column = divmod(thread + n_threads * step, columns)
    return [row, column] if row < rows else None


def sectors_by_numpy(addresses, element_bytes):
    asked = np.unique([address for address in addresses if address is not None])
    return [np.unique(asked // 32).size, (asked.size * element_bytes + 31) // 32]


def passes_by_numpy(addresses):
    words = np.unique([address // 4 for address in addresses if address is not None]).astype(int)
    return np.bincount(words % 32, minlength=32).max()


def races_by_pairs(accesses):
    return sorted(
        one[3]
        for one, other in itertools.permutations(accesses, 2)
        if one[0] != other[0] and one[1] == other[1] and one[3] == other[3] and one[2] == "store"
    )


RIGHT_ANSWERS = {
    "thread_map": {"by divmod, as a list": map_by_divmod},
    "sectors": {"by np.unique": sectors_by_numpy},
    "bank_conflicts": {"by np.bincount": passes_by_numpy},
    "find_the_race": {"pair by pair, as a list": races_by_pairs},
    "warp_softmax": {
        "it returns early": {"x += (long long)row * n;": "if (n < 1) return;\n      x += (long long)row * n;"}},
    "solve": {
        "the query in shared memory, the values copied while the keys are used": {
            "k_tile[16][128], v_tile[16][128];": "k_tile[16][128], v_tile[16][128], q_tile[16][128];",
            "q[i] = row < M && c < d ?": "q_tile[warp][c] = row < M && c < d ?",
            "key = start + warp;  // each warp copies one row of both tiles": (
                "key = start + warp;\n"
                "        for (int i = 0; i < 4; i++) q[i] = lane + 32 * i < d ? q_tile[warp][lane + 32 * i] : 0.0f;"
            ),
            "          v_tile[warp][c] = key < N ? V[key * d + c] : 0.0f;\n": "",
            "        for (int j = 0; j < 16; j++) {\n          float score": (
                "        for (int c = lane; c < d; c += 32) v_tile[warp][c] = key < N ? V[key * d + c] : 0.0f;\n"
                "        __syncthreads();\n"
                "        for (int j = 0; j < 16; j++) {\n          float score"
            )}},
}  # fmt: skip
