import numpy as np


def softmax_by_lse(x, axis=-1):
    s = np.moveaxis(x.astype(np.float64), axis, 0)
    return np.moveaxis(np.exp(s - np.logaddexp.reduce(s, axis=0)), 0, axis).astype(x.dtype)


def masked_row_by_row(x, mask):
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape[:-1]):
        visible = np.flatnonzero(np.broadcast_to(mask, x.shape)[index])
        if len(visible):
            s = x[index][visible].astype(np.float64)
            terms = np.exp(s - s.max())
            out[index][visible] = terms / terms.sum()
    return out


RIGHT_ANSWERS = {
    "stable_softmax": {
        "by log-sum-exp, in float64": softmax_by_lse,
        "another shift within a few units, in long double": {
            "s = x.astype(np.promote_types(x.dtype, np.float32))": "s = x.astype(np.longdouble)",
            "np.exp(s - s.max(axis=axis, keepdims=True))": "np.exp(s - s.max(axis=axis, keepdims=True) - 1)"}},
    "logsumexp": {
        "logaddexp": lambda x, axis=-1: np.logaddexp.reduce(x.astype(np.promote_types(x.dtype, "f")), axis=axis),
        "a large negative shift for rows of -inf": {"np.where(m == -np.inf, 0, m)": "np.where(m == -np.inf, -1e9, m)"},
    },
    "masked_softmax": {"row by row, visible entries alone": masked_row_by_row,
                       "an epsilon too small to count": {"np.where(l == 0, 1, l)": "(l + 1e-30)"}},
}  # fmt: skip
