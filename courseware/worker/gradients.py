"""An answer that makes a torch.autograd.Function, called forward and backward. Its launches are the grader's."""

import inspect
from types import SimpleNamespace

import numpy as np
import torch
import torch._functorch.utils  # noqa: F401 - which the first apply imports, in an answer's time
from torch.utils._pytree import tree_leaves


def differentiated(answer, launch, arguments, parameters, do=None, how=""):
    """What comes of answer(*arguments, kernels) and its backward, as a dictionary of arrays, numbers and texts.

    arguments: arrays, given as tensors that require a gradient, and numbers. kernels has a function for each name in
    parameters, {name: names of its arguments}, and launch(name, *arguments) does its work, on arrays.
    do: gradient of o; None is that of o.sum(). how: "columns", not the rows, of tensors lie side by side; or "twice",
    the first gradient is differentiated again.
    """

    def tensor(x):
        x = torch.from_numpy(x.copy())
        return x.T.contiguous().T if how == "columns" else x

    given = [tensor(x).requires_grad_() if isinstance(x, np.ndarray) else x for x in arguments]
    kernels = SimpleNamespace(**{name: _launching(launch, name, names) for name, names in parameters.items()})
    o = answer(*given, kernels)
    if not torch.is_tensor(o):
        return {"problem": f"the function returned {type(o).__name__}, not the tensor o"}
    node = o.grad_fn
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):  # as below a reshape
        node = next((before for before, _ in node.next_functions if before is not None), None)
    if node is None:
        return {"problem": "no torch.autograd.Function is behind what came back: is it what apply returned?"}
    kept = [name for name, x in vars(node).items() if any(map(torch.is_tensor, tree_leaves(x)))]
    made = {"o": o.detach().numpy().copy(), "kept": kept, "saved_elems": sum(x.numel() for x in node.saved_tensors)}
    leaves = [x for x in given if torch.is_tensor(x)]
    if how == "twice":
        first, *_ = torch.autograd.grad(o.square().sum(), leaves, create_graph=True)
        try:
            (first.sum() + leaves[0].sum()).backward()
        except RuntimeError:
            return made
        return made | {"problem": "a second derivative does not raise"}
    (o.sum() if do is None else o).backward(None if do is None else tensor(do))
    return made | {"gradients": tuple(None if x.grad is None else x.grad.numpy() for x in leaves)}


def _launching(launch, name, parameters):
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(each, kind) for each in parameters])

    def launching(*given, **named):
        arguments = signature.bind(*given, **named).arguments
        for parameter, x in arguments.items():
            if torch.is_tensor(x) and not x.is_contiguous():
                text = f"{parameter} has strides {x.stride()}, and the kernel takes its rows to follow one another"
                raise ValueError(text)
        made = launch(name, *(x.detach().numpy() if torch.is_tensor(x) else x for x in arguments.values()))
        return tuple(map(torch.from_numpy, made)) if isinstance(made, tuple) else torch.from_numpy(made)

    return launching
