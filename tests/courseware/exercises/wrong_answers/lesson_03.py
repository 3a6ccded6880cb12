"""Lesson 03: wrong answers, and what the check has to say of each."""

MAX = "s.max(axis=axis, keepdims=True)"


def shifted_by(shift):
    return {MAX: shift}


HIDE = "s = np.where(mask, x, -np.inf).astype(np.promote_types(x.dtype, np.float32))"
LAST = "np.where(l == 0, 1, l)"

WRONG_ANSWERS = {
    "stable_softmax": {
        "shifted by the mean": (
            shifted_by("s.mean(axis=axis, keepdims=True)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the midrange": (
            shifted_by("(s.max(axis=axis, keepdims=True) + s.min(axis=axis, keepdims=True)) / 2"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
    },
    "logsumexp": {
        "shifted by the mean": (
            {"m = s.max(axis=axis, keepdims=True)": "m = s.mean(axis=axis, keepdims=True)"},
            "What is subtracted is not the largest entry, so an entry",
        ),
        "shifted by the minimum": (
            {"m = s.max(axis=axis, keepdims=True)": "m = s.min(axis=axis, keepdims=True)"},
            "What is subtracted is not the largest entry, so an entry",
        ),
    },
    "masked_softmax": {
        "-1e4": (
            {HIDE: HIDE.replace("-np.inf", "-1e4"), "p = np.exp(s - ": "p = mask * np.exp(s - "},
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "hidden rows uniform": (
            {
                LAST: "np.where(l == 0, 1, l)",
                "return (p": "p, l = np.where(l == 0, 1, p), np.where(l == 0, x.shape[-1], l)\n    return (p",
            },
            "softmax is wrong",
        ),
    },
}
