OURS = "np.array([logit, logit - 0.5, logit - 1, logit - 1.5])"
RIGHT_ANSWERS = {
    "largest_exp_input": {"in float64": {"float(np.floor(limit / gap) * gap)": "np.float64(limit // gap * gap)"}},
    "naive_softmax": {"powers of e": {"np.exp(x)": "x.dtype.type(np.e) ** x"}},
    "breaking_input": {
        "as far down as a weight may go, in the format's own dtype": {
            OURS: "np.array([logit - 3.5, logit, logit - 0.5, logit - 3], dtype.replace('bfloat16', 'f'))"},
        "a list": {OURS: "[logit - 1, logit - 0.5, logit, logit - 2]"}},
}  # fmt: skip
