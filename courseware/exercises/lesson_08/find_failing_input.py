"""The bug hunt: for each of six wrong kernels, an input that shows that it is wrong."""

import numpy as np

from courseware import bug_hunt
from courseware.checks import Checks, Exercise, single_finding
from courseware.checks.kernel_calls import TRITON


def find_failing_input(kernel):
    """An input on which a kernel of the bug hunt is wrong.

    kernel: its name, "A" to "F".
    Returns a dict: q [heads, n_q, d]; k, v [heads, n_k, d], NumPy arrays of finite numbers, all float32 or all
        float16; causal: True or False; block_q, block_k: 16, 32 or 64. 1 to 4 heads, lengths 1 to 256, d 1 to 64,
        and neither q k^T nor the exact output larger than the dtype can hold.
    A call has 2 seconds, so a search belongs before the answer: return the input that it found.
    The kernel runs with the scale d ** -0.5, and with BLOCK_D the smallest power of two that is at least 16 and d.
    The kernel is wrong on it if o or lse differs from the exact one by more than the error budget: twice the error of
        plain PyTorch in the same dtype, plus one rounding to that dtype and 8 roundings to float32.

    >>> sorted(find_failing_input("A"))
    ['block_k', 'block_q', 'causal', 'k', 'q', 'v']
    """
    rng = np.random.default_rng(0)
    n_q, n_k, d, dtype, causal, block_q = 16, 16, 16, np.float32, False, 16
    if kernel == "A":  # rows that do not see a visited tile
        n_q, n_k, causal, block_q = 32, 32, True, 32
    elif kernel == "B":  # a short last tile of keys
        n_k = 24
    elif kernel == "C":  # unequal lengths
        n_k, causal = 32, True
    elif kernel == "D":  # sums beyond float16, though their mean is not
        n_k, dtype = 128, np.float16
    elif kernel == "E":  # a padded head dimension
        d = 24
    q, k, v = (rng.standard_normal((1, n, d)).astype(dtype) for n in (n_q, n_k, n_k))
    if kernel == "D":
        q, v = 0 * q, 0 * v + 1000
    elif kernel == "F":  # all scores far below 0
        q, k = 0 * q + 10, 0 * k - 10
    return {"q": q, "k": k, "v": v, "causal": causal, "block_q": block_q, "block_k": 16}


def outside_contract(given):
    """Why an input is not one that the kernels promise to handle, as (kind, text), or None."""
    names = ("q", "k", "v", "causal", "block_q", "block_k")
    if given is None:
        text = "the answer returned None, as a function does that comes to its end without a return"
        return "nothing", f"{text}\nif it searches among inputs of yours, perhaps none of them shows this mistake"
    if not isinstance(given, dict):
        return "type", f"the answer returned a {type(given).__name__}, not a dict"
    if set(given) != set(names):
        found = ", ".join(map(str, given)) or "none"
        return "type", f"the dict that is returned has the keys {found}; it should have {', '.join(names)}"
    q, k, v = given["q"], given["k"], given["v"]
    for name, x in zip("qkv", (q, k, v), strict=True):
        if not isinstance(x, np.ndarray):
            kind = f"{type(x).__module__.split('.')[0]}.{type(x).__name__}"
            return "type", f"{name} is a {kind}; it should be a NumPy array, which x.numpy() makes of a torch tensor"
        if x.ndim != 3:
            return "shape", f"{name} has the shape {x.shape}; it should have three axes, [heads, length, d]"
        if x.dtype not in (np.float16, np.float32) or x.dtype != q.dtype:
            said = f"{name} has dtype {x.dtype}"
            if x.dtype == np.float64:
                said += ", which NumPy makes unless told otherwise"
            return "format", f"{said}; accepted: float32 or float16, the same for q, k and v"
        if not np.isfinite(x).all():
            return "finite", f"{name} is not finite everywhere, and NaN and infinities break right kernels too"
    heads, n_q, d = q.shape
    if k.shape != v.shape or (k.shape[0], k.shape[2]) != (heads, d):
        return "shape", f"the shapes {q.shape}, {k.shape} and {v.shape} do not belong together"
    if not (1 <= heads <= 4 and 1 <= n_q <= 256 and 1 <= k.shape[1] <= 256 and 1 <= d <= 64):
        return "size", f"shapes {q.shape} and {k.shape}; accepted: 1 to 4 heads, lengths 1 to 256 and d 1 to 64"
    if given["causal"] not in (True, False):
        return "type", "causal is neither True nor False"
    if not {given["block_q"], given["block_k"]} <= {16, 32, 64}:
        return "size", f"block_q = {given['block_q']!r}, block_k = {given['block_k']!r}; accepted: 16, 32 and 64"
    if no_measure := bug_hunt.no_measure(q, k):
        return "finite", no_measure
    return None


def shows_the_mistake(answer, kernel):
    given = answer.run(lambda: answer.answer(kernel))
    # Inputs are arbitrary, so answers are alike if these verdicts on them are: that is what is noted.
    if wrong := outside_contract(given):
        answer.note(wrong)
        return single_finding(*wrong)
    is_right = bug_hunt.error_beyond_budget(kernel, **given) is None
    answer.note(is_right)
    if not is_right:
        return None
    sizes = ", ".join(f"{name} {list(given[name].shape)}" for name in "qkv")
    settings = f"causal={given['causal']}, block_q={given['block_q']}, block_k={given['block_k']}"
    text = f"kernel {kernel} is right on this input: {sizes}, {given['q'].dtype}, {settings}"
    return single_finding("right", f"{text}\n{bug_hunt.MISTAKES[kernel]['look_at']}")


check = Checks(find_failing_input)

for kernel in bug_hunt.NAMES:
    check(f"kernel {kernel} is wrong on its input", [(kernel,)], calls=shows_the_mistake)

EXERCISE = Exercise(__file__, find_failing_input, check, points=6, minutes=20, difficulty="hard", imports=TRITON)
