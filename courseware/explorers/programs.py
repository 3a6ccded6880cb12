"""Which elements one program of a launch touches: its program id and its block against the tensor's shape.

The model is the offsets arithmetic of `course_lib.kernels.triton_basics`; in one dimension a tensor is a single row.
"""

import numpy as np

from .explorer import Explorer, buttons, menu, slider
from .svg import Page, Panel

CELL = 26  # pixels of an element


class Program:
    """One program of a launch over a tensor of `shape`, by blocks. All pairs are (rows, columns).

    grid: programs along each axis. exists: whether it is one of them. rows, cols: the block's offsets, also those
    outside the tensor; mask: which lanes are inside, bool [block rows, block columns]. touched: which elements of the
    tensor the program touches, bool in its shape. is_row: whether it is one-dimensional: a kernel launched over it has
    one axis, number 0.
    """

    def __init__(self, shape, block, pid):
        self.shape, self.block, self.pid = shape, block, pid
        self.grid = tuple(-(-size // of) for size, of in zip(shape, block, strict=True))
        self.exists = all(0 <= i < programs for i, programs in zip(pid, self.grid, strict=True))
        self.rows, self.cols = (i * of + np.arange(of) for i, of in zip(pid, block, strict=True))
        self.mask = (self.rows < shape[0])[:, None] & (self.cols < shape[1])[None, :]
        self.touched = np.outer(np.isin(range(shape[0]), self.rows), np.isin(range(shape[1]), self.cols))
        self.is_row = shape[0] == block[0] == 1


def one_dimension(n, block, pid):
    """Program `pid` of a launch over n elements in blocks of `block`."""
    return Program((1, n), (1, block), (0, pid))


def describe(program, block="program"):
    """The program in words and numbers, as HTML. block: what it is called if it is none."""
    grid = f"{program.grid[1]}" if program.is_row else f"{program.grid[0]} x {program.grid[1]}"
    of = "of a grid of" if block == "program" else "of"
    head = f"<b>{block.capitalize()} {_place(program, *program.pid)}</b> {of} {grid}"
    if not program.exists:
        return f"{head}: there is no such program, and nothing is touched."
    rows, cols = (f"{x[0]} to {x[-1]}" if len(x) > 1 else f"{x[0]}" for x in (program.rows, program.cols))
    where = f"offsets {cols}" if program.is_row else f"rows {rows}, columns {cols}"
    lanes, inside = program.mask.size, int(program.mask.sum())
    return f"{head}: {where}.<br>{lanes} lanes, {inside} inside the tensor, {lanes - inside} masked off."


def _place(program, row, col):
    """A place in a grid: both numbers, or one if the tensor has one row."""
    return f"{col}" if program.is_row else f"({row}, {col})"


def draw(program, title="blue: touched by this program; hatched: masked off", labels=None, block="program"):
    """The tensor's elements, the blocks of all programs, and one program's lanes: a Page.

    labels: what stands in each element, a list of rows; by default its number if there is one row. block: what the
    blocks of one row are called, if they are not one program each.
    """
    (height, width), (down, across) = program.block, program.grid
    names = (block, "") if program.is_row else ("program_id(1)", "program_id(0)")
    wide = 40 + CELL * width * across
    right = max(24, 370 - wide)  # room for the title
    panel = Panel(
        title, wide + right, 58 + CELL * height * down, (0, width * across), (height * down, 0),
        x_ticks=[(width * (j + 0.5), str(j)) for j in range(across)], x_label=names[0], grid="",
        y_ticks=[] if program.is_row else [(height * (i + 0.5), str(i)) for i in range(down)],
        margins=(40, right, 20, 38),
    )  # fmt: skip
    panel.element("text", "soft", names[1], x=0, y=12)

    def tip(i, j):
        owner = _place(program, i // height, j // width)
        return f"element {_place(program, i, j)}: program {owner}, lane {_place(program, i % height, j % width)}"

    kinds = np.where(program.touched, "Q", "ground").tolist()
    panel.cells(kinds, tips=tip, chosen=lambda i, j: {"pid_0": i // height, "pid_1": j // width})
    for row, col in np.argwhere(~program.mask) if program.exists else ():
        x, y = program.cols[col], program.rows[row]
        panel.rect((x, x + 1), (y, y + 1), "cell hatched")
    if labels is None and program.is_row:
        labels = [range(program.shape[1])]
    for i, line in enumerate(labels or ()):
        for j, text in enumerate(line):
            panel.text(j + 0.5, i + 0.5, str(text), f"middle {'on-colour' if program.touched[i, j] else ''}")
    for i in range(down + 1):
        panel.level(height * i, "thin grey")
    for j in range(across + 1):
        panel.upright(width * j, "thin grey")
    return Page("A tensor's elements in blocks.", (panel,), text=describe(program, block))


def page(grid, cols, rows, block_n, block_m, pid_1, pid_0):
    """The page of the explorer's settings; a one-dimensional grid has no rows."""
    if grid == "1-D":
        return draw(one_dimension(cols, block_n, pid_1))
    return draw(Program((rows, cols), (block_m, block_n), (pid_0, pid_1)))


def explore():
    """The explorer: one dimension or two, shape, block and program id."""
    controls = {
        "grid": buttons("grid", ("1-D", "2-D"), "2-D"),
        "cols": slider("columns", range(1, 25), 10), "block_n": menu("BLOCK_N", (1, 2, 4, 8), 4),
        "pid_1": slider("program of columns", range(24), 2, play=True),
        "rows": slider("rows (2-D)", range(1, 13), 5), "block_m": menu("BLOCK_M (2-D)", (1, 2, 4, 8), 2),
        "pid_0": slider("program of rows (2-D)", range(12), 2),
    }  # fmt: skip
    written = {"grid": ("1-D", "2-D"), "cols": range(8, 13), "block_n": (4, 8), "pid_1": range(4), "pid_0": range(3)}
    return Explorer(page, controls, written=written)
