"""A step of training in fp16: gradients of several micro-batches, scaled losses, a limit for the norm."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, ExpectedOutput, compare, not_modified, show, single_finding
from courseware.exercises.common.explanations import explain


def train_step(parameters, gradients, n_tokens, loss_scale, learning_rate, max_norm):
    """One step of training with fp16 gradients of several micro-batches: (parameters, loss_scale) after it.

    parameters: a list of float32 arrays. n_tokens: how many tokens each micro-batch has, 1 or more.
    gradients: for each micro-batch, a list of float16 arrays, one for each of the parameters: the gradient of
        loss_scale times the micro-batch's loss. A micro-batch's loss is the mean over its tokens.
    The loss of the step is the mean over the tokens of all micro-batches; loss_scale is no part of it.
    If one of the gradients has an inf or a NaN, the parameters stay as they are, and the loss scale becomes half of
        what it was. Otherwise the loss scale stays, and each array changes by minus learning_rate times its gradient.
        But if the norm of the step's gradient, of all arrays together, is larger than max_norm, all of them are first
        multiplied by one number, so that it is max_norm.
    Returns a list of float32 arrays, right up to their rounding, and a number. Sums of float16 numbers may be too large
        for float16, or their parts too small. The inputs are not modified.

    >>> parameters, gradients = [np.float32([1, 2])], [[np.float16([8, 0])], [np.float16([0, 16])]]
    >>> train_step(parameters, gradients, n_tokens=[1, 3], loss_scale=4.0, learning_rate=1.0, max_norm=9.0)
    ([array([ 0.5, -1. ], dtype=float32)], 4.0)
    """
    shares = [n_tokens[b] / sum(n_tokens) / loss_scale for b in range(len(n_tokens))]
    step = [
        sum(shares[b] * gradients[b][i].astype(np.float32) for b in range(len(n_tokens)))
        for i in range(len(parameters))
    ]
    if not all(np.isfinite(g).all() for g in step):
        return parameters, loss_scale / 2
    norm = np.sqrt(sum((g**2).sum() for g in step))
    shrink = max_norm / max(norm, max_norm)
    return [parameters[i] - learning_rate * (shrink * step[i]) for i in range(len(parameters))], loss_scale


def right(parameters, gradients, n_tokens, loss_scale, learning_rate, max_norm):
    """(the new parameters, the loss scale, the norm before the limit), all tokens' gradients added up in float64."""
    flat = [np.concatenate([g.astype(np.float64).ravel() for g in of]) for of in gradients]
    if not np.isfinite(flat).all():
        return parameters, loss_scale / 2, np.nan
    step = np.average(flat, axis=0, weights=n_tokens) / loss_scale
    norm = np.linalg.norm(step)
    step *= max_norm / norm if norm > max_norm else 1.0
    parts = np.split(step, np.cumsum([w.size for w in parameters])[:-1])
    return [w - learning_rate * g.reshape(w.shape) for w, g in zip(parameters, parts, strict=True)], loss_scale, norm


def agrees(returned, parameters, gradients, **how):
    due, loss_scale, _ = right(parameters, gradients, **how)
    if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], tuple | list):
        return single_finding("type", "the answer did not return (parameters, loss_scale), parameters a list of arrays")
    if len(returned[0]) != len(due):
        return single_finding("type", f"there are {len(returned[0])} parameters in the list, not {len(due)}")
    parts = [
        ExpectedOutput(f"parameters[{i}]", new, new.astype(np.float32), np.abs(new) + np.abs(old))
        for i, (new, old) in enumerate(zip(due, parameters, strict=True))
    ]
    parts.append(ExpectedOutput("loss_scale", np.float64(loss_scale), np.float64(loss_scale), loss_scale))
    return compare((*returned[0], returned[1]), parts)


def norms(returned, **inputs):
    norm = right(**inputs)[2]
    if np.isnan(norm):
        return "a gradient is not finite"
    return f"the norm of the step's gradient is {show(norm)} before the limit of {show(inputs['max_norm'])}"


def are_float32(returned, **_):
    wrong = [x.dtype for x in map(np.asarray, returned[0]) if x.dtype != np.float32]
    return single_finding("dtype", f"parameters come back as {wrong[0]}, not float32") if wrong else None


def batches(*gradients, shapes=((2,),), seed=0, **how):
    """gradients: of each micro-batch, all parameters' one after the other."""
    sizes = np.cumsum([np.prod(shape) for shape in shapes])
    flat = np.random.default_rng(seed).integers(-8, 9, sizes[-1]).astype(np.float32) / 4
    parameters, *split = (
        [part.reshape(shape) for part, shape in zip(np.split(np.array(x), sizes[:-1]), shapes, strict=True)]
        for x in (flat, *(np.float16(g) for g in gradients))
    )
    how = {"n_tokens": [1] * len(split), "loss_scale": 1.0, "learning_rate": 0.5, "max_norm": 1e6} | how
    return {"parameters": parameters, "gradients": split} | how


@st.composite
def steps(draw):
    n, numbers = draw(st.integers(1, 3)), st.lists(st.integers(-8, 8), min_size=5, max_size=5)
    how = {
        "n_tokens": [draw(st.integers(1, 9)) for _ in range(n)],
        "max_norm": draw(st.sampled_from([0.5, 4.0, 100.0])),
    }
    how |= {"loss_scale": draw(st.sampled_from([1.0, 8.0])), "learning_rate": draw(st.sampled_from([0.25, 2.0]))}
    return batches(*(draw(numbers) for _ in range(n)), shapes=((2, 2), (1,)), **how)


TWO = {"shapes": ((2,), (1, 2))}
check = Checks(train_step, explain(agrees, norms))

check("one micro-batch: parameters change by minus learning_rate times their gradient", [batches([1, -2])])
check("several arrays", [batches([1, -2, 3, 5], **TWO)])
check("the loss scale is no part of the gradient", [batches([8, -16], loss_scale=8.0)])
check("micro-batches of equally many tokens", [batches([1, 3], [4, -1], n_tokens=[2, 2])])
check(
    "micro-batches of unequally many tokens: each token counts the same",
    [batches([8, 0], [0, 8], n_tokens=[1, 3]), batches([1, 2], [5, -1], [3, 3], n_tokens=[8, 2, 6], loss_scale=2.0)],
)
check("a norm above max_norm becomes max_norm", [batches([3, 4], max_norm=1.0), batches([30, 40], max_norm=2.0)])
check("a norm below max_norm stays", [batches([3, 4], max_norm=20.0), batches([0, 0], max_norm=1.0)])
check("the norm is that of all arrays together", [batches([3, 0, 0, 4], max_norm=1.0, **TWO)])
check(
    "the norm is that of the whole step, without the loss scale",
    [batches([24, 32], loss_scale=8.0, max_norm=7.0), batches([8, 0], [-4, 0], n_tokens=[1, 1], max_norm=3.0)],
)
check(
    "with an inf or a NaN, the parameters stay and the loss scale halves",
    [batches([np.inf, 1], loss_scale=8.0), batches([1, 1], [np.nan, 0], loss_scale=4.0),
     batches([1, 1, 1, -np.inf], **TWO), batches([np.inf, 0], [-np.inf, 0], loss_scale=2.0)],
)  # fmt: skip
check(
    "sums that are too large for float16, and parts that are too small for it",
    [batches([60000, 0], [60000, 1], n_tokens=[3, 5], loss_scale=1024.0, max_norm=5.0),
     batches([3, -1], loss_scale=2.0**26, learning_rate=2.0**25)],
)  # fmt: skip
check("any step", [batches([1, 5, 2, -3], [0, 2, 2, 7], n_tokens=[5, 2], loss_scale=4.0, max_norm=0.5, **TWO), steps()])
check("parameters are float32", [batches([1, -2]), batches([np.inf, 0])], test=are_float32)
check("the inputs are not modified", [batches([1, 2], [3, 4]), batches([3, 4], max_norm=1.0)], calls=not_modified)

EXERCISE = Exercise(__file__, train_step, check, points=3, minutes=12, difficulty="medium")
