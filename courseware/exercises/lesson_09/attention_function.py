"""Forward and backward as one operation of PyTorch: a torch.autograd.Function."""

import inspect
from functools import partial

import numpy as np

from course_lib import reference
from course_lib.reference.attention import causal_mask
from courseware.checks import AnswerError, Checks, Exercise, Finding, compare, judging, single_finding
from courseware.checks.calling import GuardedAnswer, is_remote

from ..common.oracles import attention_output
from .gradients import FEWER_KEYS, FEWER_QUERIES, SENTENCE, SQUARE, expected_gradients, small_inputs

TORCH = ("torch", "torch.autograd", "torch.autograd.function")
STATISTICS = ("lse", "delta")  # a number for each query


def attention_function(q, k, v, causal, scale, kernels):
    """Attention of one head that PyTorch can differentiate, made of the launches of four kernels.

    q: [n_q, d]; k, v: [n_k, d]; torch tensors of one dtype, of any strides. causal, scale: for the launches.
    kernels: holds the launches. Each takes tensors whose rows follow one another (contiguous), and no others.
        launch_forward(q, k, v, causal, scale) returns o, lse
        launch_delta(o, do) returns delta
        launch_dkdv(q, k, v, do, lse, delta, causal, scale) returns dk, dv
        launch_dq(q, k, v, do, lse, delta, causal, scale) returns dq
    Returns o, from the apply of a subclass of torch.autograd.Function. A backward, with a do of any strides, gives q,
        k and v their gradients. Of tensors, the forward keeps no more than q, k, v, o and lse, by save_for_backward.
        Kernels have no second derivative: the backward is marked with torch.autograd.function.once_differentiable.

    >>> import torch
    >>> from course_lib.kernels import plain_backward as kernels
    >>> from course_lib.runtime import device
    >>> q, k, v = (torch.ones(n, 4, device=device(), requires_grad=True) for n in (3, 2, 2))
    >>> attention_function(q, k, v, False, 0.5, kernels).sum().backward()
    >>> v.grad.sum(dim=1).tolist()
    [6.0, 6.0]
    """
    import torch
    from torch.autograd.function import once_differentiable

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, scale):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            o, lse = kernels.launch_forward(q, k, v, causal, scale)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.causal, ctx.scale = causal, scale
            return o

        @staticmethod
        @once_differentiable
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            do = do.contiguous()
            delta = kernels.launch_delta(o, do)
            dk, dv = kernels.launch_dkdv(q, k, v, do, lse, delta, ctx.causal, ctx.scale)
            dq = kernels.launch_dq(q, k, v, do, lse, delta, ctx.causal, ctx.scale)
            return dq, dk, dv, None, None

    return Attention.apply(q, k, v, causal, scale)


class Launches:
    """What the launches do, in NumPy. calls: of each, its name and arguments."""

    def __init__(self):
        self.calls = []

    @classmethod
    def parameters(cls):
        names = [name for name in dir(cls) if name.startswith("launch_")]
        return {name: [*inspect.signature(getattr(cls, name)).parameters][1:] for name in names}

    def __call__(self, name, *arguments):
        given = dict(zip(self.parameters()[name], arguments, strict=True))
        self.calls.append((name, given))
        rows, keys = np.shape(given.get("q", given.get("o"))), np.shape(given.get("k"))
        due = dict.fromkeys(("q", "o", "do"), rows) | dict.fromkeys("kv", keys) | dict.fromkeys(STATISTICS, rows[:1])
        for parameter, x in given.items():
            if np.shape(x) != due.get(parameter, ()) or (np.ndim(x) < 2 and parameter in due.keys() - set(STATISTICS)):
                raise ValueError(f"{parameter} has shape {np.shape(x)}, which does not fit the other arguments")
        return getattr(self, name)(**given)

    def launch_forward(self, q, k, v, causal, scale):
        return reference.attention(q, k, v, causal=causal, scale=scale, return_lse=True)

    def launch_delta(self, o, do):
        return (o * do).sum(axis=1)

    def launch_dkdv(self, q, k, v, do, lse, delta, causal, scale):
        P, dS = self._tile(q, k, v, do, lse, delta, causal, scale)
        return scale * dS.T @ q, P.T @ do

    def launch_dq(self, q, k, v, do, lse, delta, causal, scale):
        return scale * self._tile(q, k, v, do, lse, delta, causal, scale)[1] @ k

    def _tile(self, q, k, v, do, lse, delta, causal, scale):
        S = reference.scores(q, k, scale)
        visible = causal_mask(*S.shape) if causal else np.ones(S.shape, bool)
        P = np.where(visible, np.exp(np.where(visible, S, 0) - np.where(visible, lse[:, None], 0)), 0)
        return P, P * (do @ v.T - delta[:, None])


def differentiated(answer, q, k, v, do, causal, scale, how=""):
    """What comes of the answer's call, and of the backward with do: as `courseware.worker.gradients` says.

    Its launches are done in NumPy, and are in "calls". AnswerError if the answer, guarded, raises.
    """
    launches, guarded = Launches(), isinstance(answer, GuardedAnswer)
    function, given = answer.answer if guarded else answer, ([q, k, v, causal, scale], Launches.parameters(), do, how)
    if is_remote(function):
        run = partial(function.differentiate, launches, *given)
    else:
        from courseware.worker import gradients  # imports PyTorch

        run = partial(gradients.differentiated, function, launches, *given)
    made = answer.run(run) if guarded else run()
    if guarded:
        answer.note(made, launches.calls)
        if "problem" in made:
            raise AnswerError(Finding("", "problem", made["problem"]))
    return made | {"calls": launches.calls}


def right(made, q, k, v, do, causal, scale, **_):
    do = np.ones_like(q) if do is None else do
    o, lse = reference.attention(q, k, v, causal=causal, scale=scale, return_lse=True)
    known = {"q": q, "k": k, "v": v, "o": o, "do": do, "lse": lse, "delta": (o * do).sum(axis=1)}
    known |= {"causal": causal, "scale": scale}
    for name, given in made["calls"]:
        for parameter, x in given.items():
            instead = [f"{each} in place of {parameter}" for each, value in known.items() if same(x, value)]
            what = [*instead, f"another {parameter} than the call's"][0]
            what = what if np.ndim(x) else f"{parameter} {x}, not {known[parameter]}"
            if not same(x, known[parameter]):
                return single_finding("argument", f"{name} is given {what}")
    for name in ("launch_forward", "launch_dkdv", "launch_dq"):
        if name not in dict(made["calls"]):
            return single_finding("launches", f"{name} is never called")
    parts = attention_output("o", q, k, v, causal, scale), expected_gradients(q, k, v, do, causal, scale)
    return compare((made["o"], *made["gradients"]), [*parts[0], *parts[1]])


def same(x, due):
    return np.shape(x) == np.shape(due) and np.allclose(x, due, rtol=1e-5, atol=1e-6)


def kept(made, q, k, v, **_):
    if made["kept"]:
        return single_finding("kept", f"ctx.{made['kept'][0]} holds a tensor, which save_for_backward should keep")
    saved, most = made["saved_elems"], 2 * q.size + k.size + v.size + len(q)
    text = f"{saved} numbers are saved, where q, k, v, o and lse have {most}"
    return None if 0 < saved <= most else single_finding("saved", text)


CALL = """\
from courseware.exercises.lesson_09.attention_function import differentiated
differentiated(attention_function, q, k, v, do, causal, scale)"""


def inputs(given, causal=False, scale=0.5):
    return given | {"causal": causal, "scale": scale}


check = Checks(CALL, right, inputs, partial(judging, differentiated=differentiated))

check("o is what the launch of the forward makes; o.backward(do) gives q, k and v their gradients", [(SQUARE,)])
check("causal and scale are those of the call, in all launches", [(SQUARE, True, 0.3), (SENTENCE, False, 2.0)])
check("more queries than keys, and fewer", [(FEWER_KEYS, True), (FEWER_QUERIES,), small_inputs().map(inputs)])
check("do of any strides: o.sum() makes all of it of one number", [(SENTENCE | {"do": None},)])
check("q, k, v and do of any strides", [(SENTENCE,)], call=CALL[:-1] + ", 'columns')")
check("of tensors, q, k, v, o and lse are kept, by save_for_backward alone", [(SENTENCE,)], test=kept)
check("a second derivative raises", [(SENTENCE,)], call=CALL[:-1] + ", 'twice')", test=lambda made, **_: None)

EXERCISE = Exercise(__file__, attention_function, check, points=3, minutes=15, difficulty="medium", imports=TORCH)
