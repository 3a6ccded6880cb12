"""What tracing returns: loads and stores of each element of each tensor, and accesses out of bounds."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Violation:
    """Accesses out of bounds by one load or store of one program.

    tensor: its name. program: the program ids (x, y, z). kind: "load" or "store". count: elements out of bounds.
    index, last: where the first and the last of them point, as (batch, ..., row, column) of the tensor. The leading
        index of the axes that the access goes along takes the excess, so it may be negative or too large.
    shape: the tensor's.
    """

    kernel: str
    tensor: str
    program: tuple
    kind: str
    count: int
    index: tuple
    last: tuple
    shape: tuple

    def __str__(self):
        return (
            f"{self.kernel}, program {self.program}: {self.kind} of {self.count} elements outside "
            f"{self.tensor} {list(self.shape)}, the first at {list(self.index)}"
        )


@dataclass
class TensorTrace:
    """Accesses to one tensor. loads, stores: how often each element was loaded and stored, int32 in its shape."""

    name: str
    shape: tuple
    itemsize_bytes: int
    loads: np.ndarray
    stores: np.ndarray

    @property
    def moved_bytes(self):
        """(load_bytes, store_bytes)."""
        return tuple(int(counts.sum()) * self.itemsize_bytes for counts in (self.loads, self.stores))


@dataclass
class Trace:
    """Everything that `trace` counted. It is complete when the with-block has ended.

    rounding_dots: how many `tl.dot`, of all programs together, had float32 inputs that a GPU would round to TF32. The
    interpreter rounds nothing, so the results do not show it.
    dots: how many `tl.dot`. requests: (tensor, program, "load" or "store") -> how many loads or stores.
    widest: lanes of the widest load or store, including lanes that a mask switches off.
    """

    tensors: dict = field(default_factory=dict)
    violations: list = field(default_factory=list)
    rounding_dots: int = 0
    dots: int = 0
    requests: Counter = field(default_factory=Counter)
    widest: int = 0

    @property
    def load_bytes(self):
        """Bytes requested by loads, of all tensors together."""
        return sum(loaded for loaded, _ in self.by_tensor.values())

    @property
    def store_bytes(self):
        """Bytes requested by stores, of all tensors together."""
        return sum(stored for _, stored in self.by_tensor.values())

    @property
    def by_tensor(self):
        """{name: (load_bytes, store_bytes)} in the order of first use."""
        return {name: tensor.moved_bytes for name, tensor in self.tensors.items()}

    def heatmap(self, name, kind="load"):
        """How often each element was loaded or stored: int32 array in the tensor's shape."""
        if kind not in ("load", "store"):
            raise ValueError(f"kind must be 'load' or 'store', got {kind!r}")
        tensor = self._tensor(name)
        return tensor.loads if kind == "load" else tensor.stores

    def unwritten(self, name):
        """Which elements of a tensor no program stored: bool array in its shape."""
        return self._tensor(name).stores == 0

    def draw(self, name, kind="load"):
        """A matplotlib Figure of `heatmap`: leading dimensions stacked as rows, head_dim as columns."""
        from matplotlib.figure import Figure

        counts = self.heatmap(name, kind)
        rows = counts.reshape(-1, counts.shape[-1]) if counts.ndim > 1 else counts[:, None]
        figure = Figure(figsize=(4.5, 4), layout="constrained", facecolor="white")
        axes = figure.subplots()
        image = axes.imshow(rows, aspect="auto", cmap="viridis", interpolation="nearest", vmin=0)
        axes.set(xlabel="column", ylabel="row", title=f"{name}: {kind}s per element")
        figure.colorbar(image, label=f"{kind}s")
        return figure

    def add(self, other):
        """Add the counts of `other`, the trace of another launch. A tensor whose shape differs replaces ours."""
        self.violations += other.violations
        self.rounding_dots += other.rounding_dots
        self.dots += other.dots
        self.requests += other.requests
        self.widest = max(self.widest, other.widest)
        for name, tensor in other.tensors.items():
            known = self.tensors.get(name)
            if known is None or known.shape != tensor.shape:
                self.tensors[name] = tensor
            else:
                known.loads += tensor.loads
                known.stores += tensor.stores

    def _tensor(self, name):
        if name not in self.tensors:
            raise KeyError(f"no tensor {name!r} was traced; there are {', '.join(self.tensors) or 'none'}")
        return self.tensors[name]
