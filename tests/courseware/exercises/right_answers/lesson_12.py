RIGHT_ANSWERS = {
    "thread_map": {"as a list": {"element // columns, element % columns": "list(divmod(element, columns))"}},
    "sectors": {"as a list of int64": {"return len(touched), -(-len(elements) * element_bytes // 32)":
                                        "return [np.int64(len(touched)), -(-len(elements) * element_bytes // 32)]"}},
    "bank_conflicts": {"in int64": {"max(words_in_bank)": "np.max(words_in_bank)"}},
    "find_the_race": {"a list that has some twice": {"return {word for": "return 2 * [word for", "> 1}": "> 1]"}},
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
