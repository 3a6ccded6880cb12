RIGHT_ANSWERS = {
    "predict_rung": {"in float32": {"return programs": "return np.float32(programs)"}},
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
