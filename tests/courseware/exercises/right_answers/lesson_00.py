RIGHT_ANSWERS = {
    "softmax_scale": {"in float32": {"head_dim**-0.5": "np.float32(1) / np.sqrt(np.float32(head_dim))"}},
}
