RIGHT_ANSWERS = {
    "attention_share": {"as a list of float64": {
        "return share, 1 / (1 - share + share / times_as_fast)":
        "return [np.float64(share), 1 / (1 - share + share / times_as_fast)]"}},
    "course_attention": {"in float32": {"(batch, n_q, heads, d)": "(batch, n_q, heads, d), np.float32"}},
    "train_step": {
        "in float64": {
            "return parameters, loss_scale / 2": "return list(parameters), 0.5 * loss_scale",
            ".astype(np.float32)": ".astype(np.float64)",
            "(shrink * step[i])": "np.float32(shrink * step[i])"}},
}  # fmt: skip
