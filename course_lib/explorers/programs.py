"""Which elements one program of a launch touches: its program id and its block against the tensor's shape.

The model is the offsets arithmetic of `course_lib.kernels.warmup`; in one dimension a tensor is a single row.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import ListedColormap

from course_lib.explorers.figures import BLUE, GREY, INK, PALE, VERMILLION, Picture, png, tidy


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
    blocks = [grid * block for grid, block in zip(program.grid, program.block, strict=True)]
    n_rows, n_cols = blocks
    figure = Picture(max(1.45, min(4.35, 0.9 + 0.33 * n_rows)))
    (axes,) = figure.panels(1)
    bottom = 0.57 / figure.get_figheight()
    figure.subplots_adjust(left=0.06, right=0.985, bottom=bottom, top=1 - 0.35 / figure.get_figheight())
    tidy(axes, title=title)
    touched = program.touched
    # One mesh for all elements is several times faster to draw than a patch for each.
    edges = np.arange(program.shape[1] + 1), np.arange(program.shape[0] + 1)
    axes.pcolormesh(*edges, touched, cmap=ListedColormap([PALE, BLUE]), vmin=0, vmax=1, edgecolors="white", linewidth=1)
    if program.exists:
        row, col = np.nonzero(~program.mask)
        masked = {"facecolors": "white", "edgecolors": VERMILLION, "hatch": "///", "linewidths": 1}
        axes.boxes(program.cols[col], program.rows[row], 1, 1, **masked)
    if labels is None and program.shape[0] == 1:
        labels = [range(program.shape[1])]
    for row, line in enumerate(labels or ()):
        for col, label in enumerate(line):
            colour = "white" if touched[row, col] else INK
            axes.text(col + 0.5, row + 0.5, str(label), ha="center", va="center", fontsize=9, color=colour)
    (height, width), (i, j) = program.block, np.indices(program.grid)
    axes.boxes(j.ravel() * width, i.ravel() * height, width, height, facecolors="none", edgecolors=GREY, linewidths=1.2)
    axes.set_xlim(-0.1, n_cols + 0.1)
    axes.set_ylim(n_rows + 0.1, -0.1)
    starts = [j * program.block[1] + program.block[1] / 2 for j in range(program.grid[1])]
    axes.set_xticks(starts, range(len(starts)))
    axes.set_yticks([])
    axes.set_xlabel(block if program.is_row else "program_id(1)", fontsize=9.5, color=INK)
    if not program.is_row:
        starts = [i * program.block[0] + program.block[0] / 2 for i in range(program.grid[0])]
        axes.set_yticks(starts, range(len(starts)))
        axes.set_ylabel("program_id(0)", fontsize=9.5, color=INK)
    axes.xaxis.has_line = axes.yaxis.has_line = False
    return figure


def draw_counts(trace, **kinds):
    """Heat maps of a Trace side by side. kinds: tensor name -> "load" or "store"."""
    figure = Picture(3.0)
    panels = np.atleast_1d(figure.subplots(1, len(kinds)))
    figure.subplots_adjust(left=0.05, right=0.97, bottom=0.15, top=0.86, wspace=0.3)
    for axes, (name, kind) in zip(panels, kinds.items(), strict=True):
        counts = np.atleast_2d(trace.heatmap(name, kind))
        tidy(axes, title=f"{name}: {kind}s per element", x="column", y="row")
        image = axes.imshow(counts, aspect="auto", cmap="viridis", vmin=0, vmax=max(counts.max(), 1) + 1)
        figure.colorbar(image, ax=axes, ticks=range(int(counts.max()) + 2))
    return figure


def explore():
    """The explorer as an ipywidgets box: one dimension or two, shape, block and program id."""
    import ipywidgets as widgets

    wide = {"description_width": "100px"}
    grid = widgets.ToggleButtons(options=("1-D", "2-D"), description="grid", style=wide | {"button_width": "90px"})

    def slider(value, low, high, description):
        return widgets.IntSlider(value, low, high, description=description, style=wide)

    def power(value, description):
        return widgets.SelectionSlider(options=(1, 2, 4, 8), value=value, description=description, style=wide)

    rows, cols = slider(5, 1, 12, "rows"), slider(10, 1, 24, "columns")
    block_m, block_n = power(2, "BLOCK_M"), power(4, "BLOCK_N")
    pid_0, pid_1 = slider(0, 0, 11, ""), slider(0, 0, 23, "")
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

    def show(_change=None):
        two = grid.value == "2-D"
        for control in (rows, block_m, pid_0):
            control.layout.display = None if two else "none"
        # Named as in a kernel: columns are axis 1 of two, and axis 0 if there is one.
        cols.description, block_n.description = ("columns", "BLOCK_N") if two else ("elements", "BLOCK")
        pid_0.description, pid_1.description = "program_id(0)", f"program_id({int(two)})"
        if two:
            sizes = (rows.value, cols.value), (block_m.value, block_n.value), (pid_0.value, pid_1.value)
            program = Program(*sizes)
        else:
            program = one_dimension(cols.value, block_n.value, pid_1.value)
        text.value = describe(program)
        image.value = png(draw(program))

    for control in (grid, rows, cols, block_m, block_n, pid_0, pid_1):
        control.observe(show, names="value")
    show()
    lines = [[grid], [cols, rows], [block_n, block_m], [pid_1, pid_0]]
    return widgets.VBox([*map(widgets.HBox, lines), text, image])
