import numpy as np

PROMOTED = "x.astype(np.promote_types(x.dtype, np.float32))"
RIGHT_ANSWERS = {
    "stable_softmax": {
        "by log-sum-exp, in float64": {PROMOTED: "x.astype(np.float64)", "s.max(": "np.logaddexp.reduce(s, "},
        "another shift within a few units, in long double": {
            PROMOTED: "x.astype(np.longdouble)",
            "np.exp(s - s.max(axis=axis, keepdims=True))": "np.exp(s - s.max(axis=axis, keepdims=True) - 1)"}},
    "logsumexp": {
        "logaddexp": lambda x, axis=-1: np.logaddexp.reduce(x.astype(np.promote_types(x.dtype, "f")), axis=axis),
        "a large negative shift for rows of -inf": {"np.where(m == -np.inf, 0, m)": "np.where(m == -np.inf, -1e9, m)"},
    },
    "masked_softmax": {
        "in float64, an epsilon too small to count": {"np.promote_types(x.dtype, np.float32)": "np.float64",
                                                      "np.where(l == 0, 1, l)": "(l + 1e-30)"}},
}  # fmt: skip
