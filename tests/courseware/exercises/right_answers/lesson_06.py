RIGHT_ANSWERS = {
    # The check compares with the answer itself, and so does not see a mistake in its formula.
    "choose_block_sizes": {
        "every pair tried": lambda s, d, b=2, m=16: max(
            (q * k, q, k) for q in range(m, s // (b * d), m) for k in range(m, s // (2 * b * d), m)
            if b * (q * d + 2 * k * d + q * k) <= s)[1:]},
    "visited_tiles": {
        "an array, of which the last query may lie beyond the end": {
            "min((i + 1) * block_q, n_q) - 1": "(i + 1) * block_q - 1", "return tiles": "return np.array(tiles)"}},
    "tiled_attention": {
        "divided by np.sqrt(d), which makes float64": {"s = q @ k.T * d**-0.5": "s = q @ k.T / np.sqrt(d)"},
        "float64 throughout, acc begins as NumPy's zeros": {
            "(Q, (q_start, q_stop)).astype(np.float32)": "(Q, (q_start, q_stop)).astype(np.float64)",
            "machine.full((len(q), d), 0.0)": "np.zeros((len(q), d))"},
        "in base 2, tiles freed by hand": {
            "s = q @ k.T * d**-0.5": "s = q @ k.T * (np.log2(np.e) * d**-0.5)",
            "np.exp(m - shift)": "np.exp2(m - shift)",
            "np.exp(s - shift[:, None])": "np.exp2(s - shift[:, None])",
            "            del k, v, s, p": "            for tile in (k, v, s, p):\n                machine.free(tile)"}},
    "flash_attention_bytes": {"as a float": {"matrix_bytes = n * d": "matrix_bytes = 1.0 * n * d"}},
}  # fmt: skip
