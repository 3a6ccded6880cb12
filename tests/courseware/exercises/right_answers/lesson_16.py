SENT = "np.roll([link.send(rank, {0}[rank]) for rank in range(ranks)], 1, axis=0)"

RIGHT_ANSWERS = {
    "zigzag_shards": {"as lists": {"return rows, back": "return rows.tolist(), back.tolist()"}},
    "visible_blocks": {"as lists of int64": {"(0, n), (0, n), True": "[[np.int64(0), n], [0, np.int64(n)], np.True_]"}},
    "ring_attention": {
        "keys and values travel as one array": {
            f"K = {SENT.format('K')}": f"KV = {SENT.format('np.concatenate([K, V], axis=2)')}",
            f"V = {SENT.format('V')}": "K, V = KV[:, :, :d], KV[:, :, d:]"}},
    "exposed_seconds": {"as a list": {"return start - compute[:, :-1].sum(axis=1)":
                                      "return (start - compute[:, :-1].sum(axis=1)).tolist()"}},
}  # fmt: skip
