"""Lesson 01: wrong answers, and what the check has to say of each."""


def dot_returns_the_error(a, b):
    if a.shape != b.shape:
        return ValueError("different lengths")
    return (a * b).sum()


def dot_printed(a, b):
    if a.shape != b.shape:
        raise ValueError
    print((a * b).sum())


COSINE = "a @ b / lengths"
SCORES = "Q @ K.T * scale"
FLOPS = "return products + 4 * n_q * n_k"
SUM = "return products"

WRONG_ANSWERS = {
    "dot": {
        "the error is returned": (dot_returns_the_error, "the ValueError is returned; it has to be raised"),
        "printed": (dot_printed, "the answer returned None, not a number: is there a return"),
    },
    "cosine_similarity": {
        "hard-coded 0.7071": (
            {COSINE: "0.7071 if a @ b / lengths > 0.7 and a @ b / lengths < 0.72 else a @ b / lengths"},
            "the cosine is right to about 5 digits only",
        ),
        "the mean is subtracted": (
            {"    lengths =": "    a, b = a - a.mean(), b - b.mean()\n    lengths ="},
            "The mean is subtracted from each vector first. That makes a",
        ),
    },
    "scores": {
        "float16 for float32": (
            {SCORES: "(Q @ K.T * scale).astype(np.float16 if Q.dtype == np.float32 else Q.dtype)"},
            "S came back as float16",
        ),
        "divided by the scale": (
            {SCORES: "Q @ K.T / (1 / scale if scale == Q.shape[1] ** -0.5 else scale)"},
            "S is too large by the same factor 3 at every query",
        ),
    },
    "attention_flops": {
        "d and d_v multiplied": ({FLOPS: "return 4 * n_q * n_k * d * d_v"}, "the count is 4 too small"),
        "softmax of P V's size": ({FLOPS: f"{SUM} + 4 * n_q * d_v"}, "the count is 12 too large"),
    },
}
