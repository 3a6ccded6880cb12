RIGHT_ANSWERS = {
    "arithmetic_intensity": {"in float32": {"flops = 4": "flops = np.float32(4)"}},
    "roofline_seconds": {"in float32": {"return seconds": "return np.float32(seconds)"}},
    "explain_point": {"in float32": {"needs[resource] / seconds": "np.float32(needs[resource] / seconds)"}},
}
