def blocks_by_trying(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    """Every pair of sizes, without a formula for the larger block_k."""
    pairs = []
    for block_q in range(multiple_of, sram_bytes + 1, multiple_of):
        for block_k in range(multiple_of, sram_bytes + 1, multiple_of):
            if dtype_bytes * (block_q * d + 2 * block_k * d + block_q * block_k) > sram_bytes:
                break
            pairs.append((block_q * block_k, block_q, block_k))
    if not pairs:
        raise ValueError("nothing fits")
    return max(pairs)[1:]


RIGHT_ANSWERS = {
    "choose_block_sizes": {"every pair tried": blocks_by_trying},
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
