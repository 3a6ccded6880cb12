"""An answer that launches a kernel on torch tensors. Tensors are here; the kernel and what it launches, the grader's.

A tensor travels as the number of its memory and how it lies there; the bytes of memories travel once each way.
"""

import functools
from types import SimpleNamespace

import torch

# What an answer finds as triton: the host's side of it.
triton = SimpleNamespace(cdiv=lambda x, y: -(-x // y), next_power_of_2=lambda n: 1 << (n - 1).bit_length())
TENSOR = "tensor"


class Memories:
    """The memories of tensors, each as a tensor of bytes, by the numbers that both sides know them by."""

    def __init__(self):
        self.of_number, self._number_of = {}, {}

    def add(self, number, memory):
        """memory: a tensor of bytes."""
        self.of_number[number] = memory
        self._number_of[memory.untyped_storage()._cdata] = number

    def described(self, value):
        """What is sent for a value: of a tensor, its place; of several, those in them; of anything else, itself."""
        if isinstance(value, list | tuple):
            return [self.described(part) for part in value]
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        if storage._cdata not in self._number_of:
            self.add(len(self.of_number), torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage))
        place = str(value.dtype).removeprefix("torch."), value.shape, value.stride(), value.storage_offset()
        return [TENSOR, self._number_of[storage._cdata], *map(_plain, place), value._version]

    def tensor(self, number, dtype, shape, stride, offset, version):
        """The tensor that is described so. Raises what torch raises where it does not lie in its memory."""
        memory = self.of_number[number]
        x = memory.as_strided([memory.numel()], [1]).view(getattr(torch, dtype)).as_strided(shape, stride, offset)
        return x if version == 0 else x.add_(0)

    def contents(self):
        """Number -> the bytes; of a memory that is on no CPU, how many there are."""
        return {n: x.numpy() if x.device.type == "cpu" else x.numel() for n, x in self.of_number.items()}

    def update(self, contents):
        """Take over bytes, and memories that are not known yet."""
        for number, content in contents.items():
            is_elsewhere = isinstance(content, int)
            memory = (
                torch.empty(content, dtype=torch.uint8, device="meta") if is_elsewhere else torch.from_numpy(content)
            )
            if number not in self.of_number:
                self.add(number, memory)
            elif not is_elsewhere:
                self.of_number[number].untyped_storage().copy_(memory.untyped_storage())


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


class Kernel:
    """Stands for the grader's kernel. names: of its parameters."""

    def __init__(self, names, ask, memories):
        self._names, self._ask, self._memories = names, ask, memories

    def __getitem__(self, grid):
        return functools.partial(self._launch, grid)

    def __call__(self, *_, **__):
        return self._ask("called")

    def _launch(self, grid, *given, **named):
        grid = grid(dict(zip(self._names, given, strict=False)) | named) if callable(grid) else grid
        described = [self._memories.described(value) for value in given]
        named = {name: self._memories.described(value) for name, value in named.items()}
        self._memories.update(self._ask("launch", grid, described, named, self._memories.contents()))


def called(answer, ask, names, arguments, contents):
    """What comes of answer(kernel, *arguments), described. ask(operation, ...): asks the grader."""
    memories = Memories()
    memories.update(contents)
    given = [memories.tensor(*x[1:]) if isinstance(x, list) else x for x in arguments]
    return memories.described(answer(Kernel(names, ask, memories), *given))
