"""Which elements one program of a launch touches: its program id and its block against the tensor's shape.

The model is the offsets arithmetic of `course_lib.kernels.triton_basics`; in one dimension a tensor is a single row.
"""

from dataclasses import dataclass

import numpy as np

from .drawing import bare, cells
from .figures import BLUE, GREY, INK, PALE, VERMILLION, label, panels, tidy
from .shell import Explorer, buttons, choice, slider
from .words import plain


@dataclass(frozen=True)
class Program:
    """One program of a launch over a tensor of `shape`, by blocks. All pairs are (rows, columns).

    grid: programs along each axis. rows, cols: the block's offsets, also those outside the tensor.
    """

    shape: tuple
    block: tuple
    pid: tuple

    @property
    def grid(self):
        return tuple(-(-size // block) for size, block in zip(self.shape, self.block, strict=True))

    @property
    def is_row(self):
        """Whether it is one-dimensional: a kernel launched over it has one axis, number 0."""
        return self.shape[0] == self.block[0] == 1

    @property
    def exists(self):
        return all(0 <= pid < programs for pid, programs in zip(self.pid, self.grid, strict=True))

    @property
    def rows(self):
        return self.pid[0] * self.block[0] + np.arange(self.block[0])

    @property
    def cols(self):
        return self.pid[1] * self.block[1] + np.arange(self.block[1])

    @property
    def mask(self):
        """Which lanes of the block are inside the tensor: bool [block rows, block columns]."""
        return (self.rows < self.shape[0])[:, None] & (self.cols < self.shape[1])[None, :]

    @property
    def touched(self):
        """Which elements of the tensor the program touches: bool in its shape."""
        touched = np.zeros(self.shape, dtype=bool)
        if self.exists:
            touched[np.ix_(self.rows[self.rows < self.shape[0]], self.cols[self.cols < self.shape[1]])] = True
        return touched


def one_dimension(n, block, pid):
    """Program `pid` of a launch over n elements in blocks of `block`."""
    return Program((1, n), (1, block), (0, pid))


def describe(program):
    """The program in words and numbers, as HTML."""
    grid = f"{program.grid[1]}" if program.is_row else f"{program.grid[0]} x {program.grid[1]}"
    name = f"{program.pid[1]}" if program.is_row else f"({program.pid[0]}, {program.pid[1]})"
    head = f"<b>Program {name}</b> of a grid of {grid}"
    if not program.exists:
        return f"{head}: there is no such program, and nothing is touched."
    inside = int(program.mask.sum())

    def span(offsets):
        return f"{offsets[0]} to {offsets[-1]}" if len(offsets) > 1 else f"{offsets[0]}"

    where = f"offsets {span(program.cols)}"
    if not program.is_row:
        where = f"rows {span(program.rows)}, columns {span(program.cols)}"
    return (
        f"{head}: {where}.<br>{program.mask.size} lanes, {inside} inside the tensor, "
        f"{program.mask.size - inside} masked off."
    )


def draw(program, title="blue: touched by this program; hatched: masked off", labels=None, block="program"):
    """The tensor's elements, the blocks of all programs, and one program's lanes. Returns a figure.

    labels: what stands in each element, a list of rows; by default its number if there is one row. block: what the
    blocks of one row are called, if they are not one program each.
    """
    n_rows, n_cols = (grid * block for grid, block in zip(program.grid, program.block, strict=True))
    alt = f"A tensor's elements in blocks. {plain(describe(program))}"
    figure, (axes,) = panels(max(1.45, min(4.35, 0.9 + 0.33 * n_rows)), left=0.06, below=0.57, above=0.35, alt=alt)
    x, y = (block, None) if program.is_row else ("program_id(1)", "program_id(0)")
    tidy(axes, title=title, x=x, y=y)
    touched = program.touched
    cells(axes, touched, (PALE, BLUE))
    if program.exists:
        row, col = np.nonzero(~program.mask)
        hatched = {"facecolor": "white", "edgecolor": VERMILLION, "hatch": "///", "linewidth": 1}
        axes.bar(program.cols[col], 1, 1, program.rows[row], align="edge", **hatched)
    if labels is None and program.shape[0] == 1:
        labels = [range(program.shape[1])]
    for row, line in enumerate(labels or ()):
        for col, text in enumerate(line):
            label(axes, col + 0.5, row + 0.5, str(text), color="white" if touched[row, col] else INK)
    # Drawn as lines, because there may be hundreds of blocks.
    (height, width), (down, across) = program.block, program.grid
    axes.hlines(height * np.arange(down + 1), 0, n_cols, color=GREY, linewidth=1.2)
    axes.vlines(width * np.arange(across + 1), 0, n_rows, color=GREY, linewidth=1.2)
    axes.set(xlim=(-0.1, n_cols + 0.1), ylim=(n_rows + 0.1, -0.1), yticks=[])
    axes.set_xticks(width * (np.arange(across) + 0.5), range(across))
    if not program.is_row:
        axes.set_yticks(height * (np.arange(down) + 0.5), range(down))
    bare(axes)
    return figure


def explore():
    """The explorer as a widget: one dimension or two, shape, block and program id."""
    powers = (1, 2, 4, 8)
    lines = (
        {"grid": buttons("grid", ("1-D", "2-D"), "2-D")},
        {"cols": slider("columns", 1, 24, 10), "rows": slider("rows", 1, 12, 5)},
        {"block_n": choice("BLOCK_N", powers, 4), "block_m": choice("BLOCK_M", powers, 2)},
        {"pid_1": slider("program_id(1)", 0, 23, 2), "pid_0": slider("program_id(0)", 0, 11, 2)},
    )

    def model_of(grid, cols, rows, block_n, block_m, pid_1, pid_0):
        two = grid == "2-D"
        # Named as in a kernel: columns are axis 1 of two, and axis 0 if there is one.
        names = ("columns", "BLOCK_N", "program_id(1)") if two else ("elements", "BLOCK", "program_id(0)")
        for line, name in zip(lines[1:], names, strict=True):
            of_columns, of_rows = line.values()
            of_columns.description = name
            of_rows.layout.display = None if two else "none"
        return Program((rows, cols), (block_m, block_n), (pid_0, pid_1)) if two else one_dimension(cols, block_n, pid_1)

    return Explorer(model_of, describe, draw, *lines)
