"""The host's side of lesson 08's kernel: allocate the results, find strides, block sizes and grid, launch."""

import functools
import inspect

import numpy as np

from course_lib import reference
from course_lib.kernels.plain_forward import flash_forward
from course_lib.language import WRITTEN
from courseware import bug_hunt
from courseware.checks import AnswerError, Checks, Exercise, Finding, case_of, expected, judging, single_finding
from courseware.checks.kernel_calls import TRITON, Launch, compare_launch, plain, traced

triton = WRITTEN.triton


def launch_by_hand(kernel, q, k, v, causal, block_m, block_n):
    """Attention in one launch of section 4's kernel, without the course's `launched`.

    kernel: flash_forward. q: a torch tensor [heads, n_q, d]; k, v: [heads, n_k, d]; all float32 or all float16, on one
        device, with any strides. There may be no heads, but at least one query, key and column.
    causal, block_m, block_n: for the kernel. Its BLOCK_D is the smallest that it takes, its scale d ** -0.5.
    Returns (o, lse) as the kernel has written them: new tensors on q's device, o [heads, n_q, d] in q's dtype, and lse
        float32 [heads, n_q].
    The kernel reads q, k and v where they lie. Only where the last axis of one has gaps, for which the kernel takes no
        stride, it reads a copy. There is a program for each tile of queries of each head, and no other.

    >>> import torch
    >>> from course_lib import runtime
    >>> from course_lib.kernels.plain_forward import flash_forward
    >>> q, k, v = (torch.ones(1, n, 4, device=runtime.device()) for n in (2, 3, 3))
    >>> o, lse = launch_by_hand(flash_forward, q, k, v, causal=True, block_m=16, block_n=32)
    >>> tuple(o.shape), lse.cpu().numpy().round(3)
    ((1, 2, 4), array([[2.693, 3.099]], dtype=float32))
    """
    import torch

    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    heads, n_q, d = q.shape
    o = torch.empty((heads, n_q, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((heads, n_q), dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(n_q, block_m), heads)
    kernel[grid](
        q, k, v, o, lse,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), o.stride(0), o.stride(1),
        lse.stride(0), n_q, k.shape[1], d**-0.5,
        IS_CAUSAL=causal, HEAD_DIM=d, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=max(16, triton.next_power_of_2(d)),
    )  # fmt: skip
    return o, lse


SIGNATURE = inspect.signature(plain(flash_forward))
OPTIONS = "num_warps", "num_stages", "num_ctas", "maxnreg"  # of a launch, and no parameters of the kernel


class NoLaunch(Exception):
    """What cannot be launched, and why."""


class RecordedKernel:
    """flash_forward, launched under the tracer. What Triton does not take is refused, in plainer words.

    launches: (grid, parameter without _ptr -> argument, Trace) of each; no Trace of tensors that are not in memory.
    """

    arg_names = tuple(SIGNATURE.parameters)

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return functools.partial(self.launch, grid)

    def __call__(self, *_, **__):
        raise NoLaunch("a kernel is launched with its grid in brackets, kernel[grid](arguments)")

    def launch(self, grid, *arguments, **named):
        """Run all programs, or raise NoLaunch."""
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        try:
            call = SIGNATURE.bind(*arguments, **named).arguments
        except TypeError as error:
            raise NoLaunch(f"{error}; the kernel has {', '.join(self.arg_names)}") from None
        grid = _numbers_of_programs(grid(call) if callable(grid) else grid)
        _acceptable(call, options.get("num_warps", 4))
        trace = traced(plain(flash_forward), grid, call) if call["q_ptr"].device.type == "cpu" else None
        self.launches.append((grid, {name.removesuffix("_ptr"): value for name, value in call.items()}, trace))


def _numbers_of_programs(grid):
    if isinstance(grid, int):
        raise NoLaunch(f"the grid is an int, {grid}; it is a tuple, with the programs along each axis")
    if not isinstance(grid, tuple | list) or not 1 <= len(grid) <= 3:
        raise NoLaunch(f"the grid is {grid!r}; it is a tuple of one to three numbers of programs")
    for size in grid:
        if not isinstance(size, int):
            raise NoLaunch(f"the grid holds {size!r}, which is no int: triton.cdiv(n, size) divides and rounds up")
    return (*grid, 1, 1)[:3]


def _acceptable(call, num_warps):
    import torch

    device = getattr(call["q_ptr"], "device", None)
    for name, value in call.items():
        if name.endswith("_ptr"):
            if not isinstance(value, torch.Tensor):
                raise NoLaunch(f"{name} came as {_said(value)}; a launch takes the tensor, and finds its address")
            if value.device != device:
                stands = ", which stands for a GPU in this test" * (device.type == "meta")
                raise NoLaunch(f"{name} is on the device {value.device}, and q_ptr on {device}{stands}")
        elif callable(value):
            raise NoLaunch(f"{name} came as a method: x.stride is to be called, as in x.stride(0)")
        elif not isinstance(value, int | float):
            raise NoLaunch(f"{name} came as {_said(value)}; it is a number")
    for name in ("BLOCK_M", "BLOCK_N", "BLOCK_D"):
        size, power = call[name], triton.next_power_of_2(int(call[name]))
        if size < 16:
            raise NoLaunch(f"{name} is {size}, and the compiler's tl.dot takes no less than 16")
        if size != power:
            raise NoLaunch(f"{name} is {size}, no power of two; triton.next_power_of_2({size}) is {power}")
    if num_warps not in (1, 2, 4, 8, 16, 32):
        raise NoLaunch(f"num_warps is {num_warps}; it is 1, 2, 4, 8, 16 or 32")


def _said(value):
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def wrong_launch(kernel, returned, q, k, v, causal, block_m, block_n, **_):
    """What is wrong with how the kernel was launched and what came back, before anybody looks at numbers."""
    if len(kernel.launches) != 1:
        text = f"the kernel was launched {len(kernel.launches)} times; one launch has programs for all heads and tiles"
        never = "the kernel was never launched: kernel[grid](arguments) does it"
        return single_finding("launches", text if kernel.launches else never)
    ((grid, call, _),) = kernel.launches
    if wrong := _wrong_inputs(call, q=q, k=k, v=v) or _wrong_outputs(call, q):
        return wrong
    right = bug_hunt.forward_launch(q, k, v, q.shape[2] ** -0.5, causal, block_m, block_n)
    for name, number in right.items():
        if isinstance(number, int | float) and abs(call[name] - number) > 1e-6:
            came, due = (repr(x) if isinstance(x, bool) else f"{x:.6g}" for x in (call[name], number))
            return single_finding("argument", f"{name} is {came} here; it should be {due}", part=name)
    return _wrong_strides(call) or _wrong_grid(grid, (*right["grid"], 1)) or _wrong_return(returned, call)


def _wrong_inputs(call, **inputs):
    import torch

    for name, x in inputs.items():
        came = call[name]
        if _place(came) == _place(x) and came.shape == x.shape:
            continue
        if others := [other for other, y in inputs.items() if _place(came) == _place(y) and other != name]:
            return single_finding("exchanged", f"{name}_ptr is {others[0]}, not {name}", part=name)
        if came.shape != x.shape or came.dtype != x.dtype:
            text = f"{name}_ptr has shape {tuple(came.shape)} and {came.dtype}, unlike {name}"
            return single_finding("argument", f"{text}: {tuple(x.shape)}, {x.dtype}", part=name)
        is_copy = x.device.type == "meta" or torch.equal(came, x)
        if x.stride(2) == 1 or not is_copy:
            text = f"{name}_ptr is a copy of {name}, whose strides {x.stride()} the kernel can follow"
            text = text if is_copy else f"{name}_ptr is neither {name} nor a copy of it"
            return single_finding("copied", text, part=name)
    for name in inputs:
        if call[name].numel() and call[name].stride(2) != 1:
            text = f"in {name}_ptr, neighbouring columns lie {call[name].stride(2)} elements apart: its strides are "
            text += f"{call[name].stride()}. The kernel has no stride for columns, and takes them for neighbours"
            return single_finding("columns", text, part=name)
    return None


def _wrong_outputs(call, q):
    import torch

    for name, shape, dtype in (("o", q.shape, q.dtype), ("lse", q.shape[:2], torch.float32)):
        x = call[name]
        if over := [other for other in "qkv" if _place(x) == _place(call[other])]:
            return single_finding("allocated", f"{name}_ptr is {over[0]}, and the kernel writes over it", part=name)
        if (x.shape, x.dtype) != (shape, dtype):
            text = f"{name} is allocated as {tuple(x.shape)}, {x.dtype}; it should be {tuple(shape)}, {dtype}"
            return single_finding("allocated", text, part=name)
        if q.numel() and x.stride(-1) != 1 and x.shape[-1] > 1:
            text = f"{name} has the strides {x.stride()}; the kernel takes neighbours of its last axis to touch"
            return single_finding("columns", text, part=name)
    return None


def _wrong_strides(call):
    strides = ((pointer, *each) for pointer, names in bug_hunt.STRIDES.items() for each in enumerate(names))
    for pointer, axis, name in strides:
        tensor = pointer.removesuffix("_ptr")
        x, came = call[tensor], call[name]
        if x.numel() and x.shape[axis] > 1 and came != x.stride(axis):
            noun = ("heads", "keys" if tensor in "kv" else "queries")[axis]
            text = f"{name} is {came}; the {noun} of {tensor} lie {x.stride(axis)} elements apart"
            return single_finding("stride", f"{text}: {tensor}.stride({axis}) of the tensor that is passed", part=name)
    return None


def _wrong_grid(grid, due):
    if grid == due:
        return None
    text = f"the grid is {grid[:2]}; it should be {due[:2]}, the tiles of queries and the heads"
    if grid[:2] == due[1::-1]:
        text += ": the kernel takes program_id(0) for the tile and program_id(1) for the head"
    elif grid[0] < due[0]:
        text += ": the last queries have no program"
    elif grid[0] > due[0]:
        text += ": some programs have no queries"
    return single_finding("grid", text)


def _wrong_return(returned, call):
    import torch

    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return single_finding("returned", f"what comes back is {_said(returned)}; it should be the tuple (o, lse)")
    for name, x in zip(("o", "lse"), returned, strict=True):
        if not isinstance(x, torch.Tensor):
            return single_finding("returned", f"{name} comes back as {_said(x)}; it should be the tensor", part=name)
        if _place(x) != _place(call[name]) or x.shape != call[name].shape or x._version:
            text = f"{name} comes back as something else than the kernel wrote"
            is_exchanged = [_place(each) for each in returned] == [_place(call["lse"]), _place(call["o"])]
            return single_finding("returned", "(lse, o) comes back, not (o, lse)" if is_exchanged else text, part=name)
    return None


def _place(x):
    """Where a tensor begins, also one without memory."""
    return x.untyped_storage()._cdata, x.storage_offset()


def launch_is_right(kernel, returned, q, k, v, causal, dtype, **names):
    """A test: launched as it should be, and the results are those of attention."""
    if wrong := wrong_launch(kernel, returned, q, k, v, causal, **names):
        return wrong
    ((_, call, trace),) = kernel.launches
    if changed := [name for name, x in zip("qkv", (q, k, v), strict=True) if x._version]:
        return single_finding("modified", f"the call changes {' and '.join(changed)} in place", part=changed[0])
    if dtype != "float32" or trace is None or not q.numel():  # float16 has errors of its own
        return None
    arrays = [x.double().numpy() for x in (q, k, v)]
    launch = Launch({f"{name}_ptr": call[name].double().numpy() for name in ("o", "lse")}, trace)

    def attention(q, k, v):
        heads = [reference.attention(*each, causal=causal, return_lse=True) for each in zip(q, k, v, strict=True)]
        return tuple(map(np.stack, zip(*heads, strict=True)))

    return compare_launch(launch, expected(("o", "lse"), attention, *arrays, terms=(50.0, 50.0)))


CALL = """\
import torch
from course_lib.kernels.plain_forward import flash_forward
rng = np.random.default_rng(0)
x = [torch.from_numpy(rng.standard_normal((heads, n, d)).astype(dtype)).to(device) for n in (n_q, n_k, n_k)]
x = [each.permute(order).contiguous() for each, order in zip(x, orders)]  # as they lie in memory
x = [torch.nn.functional.pad(each, (0, i * gap))[..., : each.shape[2]] for i, each in enumerate(x, 1)]
q, k, v = (each.permute(*np.argsort(order).tolist()) for each, order in zip(x, orders))
launch_by_hand(flash_forward, q, k, v, causal, block_m, block_n)"""


def recorded(call, test):
    """As `judging`, with a kernel that is new for each call: test(kernel, returned, **names)."""

    def judged(answer, **inputs):
        kernel = RecordedKernel()
        try:
            return judging(call, functools.partial(test, kernel), flash_forward=kernel)(answer, **inputs)
        except AnswerError as error:
            said, *line = error.finding.text.split("\n")
            why = said.partition("NoLaunch")[2].partition(": ")[2]  # a class of its own where the answer is marked
            if "CUDA" in said:
                why = "there is no GPU here, and the answer asks for one: results belong on q.device, wherever that is"
            if not why:
                raise
            raise AnswerError(Finding("", "launch exception", "\n".join([why, *line]))) from None

    return judged


ROWS, HEADS, COLUMNS = (0, 1, 2), (1, 0, 2), (0, 2, 1)  # axes as they lie in memory: heads in rows, columns outside
case = case_of(
    "heads n_q n_k d block_m block_n causal dtype gap orders device",
    d=16, block_m=16, block_n=16, causal=False, dtype="float32", gap=0, orders=(ROWS,) * 3, device="cpu",
)  # fmt: skip
check = Checks(CALL, launch_is_right, case, through=recorded)

check("one head, one tile: (o, lse), allocated, written and returned", [(1, 16, 32), (1, 32, 16, 16, 32)])
check("a program for each tile of each head", [case(2, 48, 32, causal=True), (3, 32, 64, 32, 16, 32)])
check("queries that no tile divides", [(2, 20, 9), case(1, 5, 7, causal=True)])
check("any d from 1 up", [(1, 16, 16, 24), (2, 16, 20, 3)])
check(
    "rows with gaps, heads inside rows: read where they lie",
    [case(2, 20, 24, gap=4), case(2, 20, 24, orders=(HEADS, HEADS, HEADS))],
)
check(
    "a last axis with gaps",
    [case(2, 20, 24, orders=orders) for orders in ((COLUMNS,) * 3, (ROWS, COLUMNS, ROWS), (ROWS, HEADS, COLUMNS))],
)
check("float16: o is float16, lse is float32", [case(2, 20, 24, dtype="float16")])
check("on the device of the inputs, and without heads", [case(2, 20, 24, device="meta"), (0, 20, 24)])

EXERCISE = Exercise(
    __file__, launch_by_hand, check, points=4, minutes=15, difficulty="medium", imports=(*TRITON, "torch")
)
