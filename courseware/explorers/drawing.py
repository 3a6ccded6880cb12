"""Kinds of drawing that several pictures share: logarithmic axes, cells, matrices of numbers, stacked bars."""

import numpy as np
from matplotlib.colors import ListedColormap, to_rgb

from .figures import INK, label, panels
from .words import number, vector


def log_axes(axes, ticks, names=None, *, y_base=10):
    """Logarithmic axes, with these ticks on x and no others; y_base None: y stays linear."""
    axes.set_xscale("log", base=2)
    if y_base:
        axes.set_yscale("log", base=y_base)
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks] if names is None else names)
    axes.minorticks_off()


def curves(axes, x, named, styles, **style):
    """A curve for each name -> [n] of `named`, with its own of the styles: (colour, matplotlib's format)."""
    for (name, y), (colour, form) in zip(named.items(), styles, strict=False):
        axes.plot(x, y, form, color=colour, label=name, **{"markersize": 4} | style)


def bare(axes):
    """No box, and no marks at the ticks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK, labelsize=9.5)


def names_below(axes, names):
    """The names of what stands at 0, 1, 2, ..., below the axes, as texts: ticks would double the time of a redraw."""
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.xaxis.labelpad = 18
    for x, name in enumerate(names):
        label(axes, x, -0.025, name, va="top", transform=axes.get_xaxis_transform())


def pale(colour):
    """The colour mixed with white: what is written, beside what is read."""
    return tuple(0.45 * part + 0.55 for part in to_rgb(colour))


def cells(axes, values, colours, *, x=None, y=None, **edges):
    """A grid of cells, each in the colour that its whole number is the index of. x, y: edges (None: 0, 1, 2, ...)."""
    values = np.asarray(values)
    x, y = (np.arange(n + 1) if at is None else at for at, n in ((x, values.shape[1]), (y, values.shape[0])))
    edges = {"edgecolors": "white", "linewidth": 1} | edges
    axes.pcolormesh(x, y, values, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, **edges)


def shaded(axes, matrix, rows, columns, *, write=number, signed=False, size=9.5):
    """A matrix as numbers, each on a ground that darkens with it, under the names of the columns.

    write: number -> text. signed: negative numbers have a colour of their own.
    """
    finite = np.where(np.isfinite(matrix), matrix, 0)
    most = 1.6 * max(np.abs(finite).max(), 1e-9)  # so that the darkest ground is still pale enough for ink
    least = -most if signed else min(finite.min(), 0)
    axes.imshow(finite, cmap="PuOr" if signed else "Blues", vmin=least, vmax=most, aspect="auto")
    for (i, j), value in np.ndenumerate(matrix):
        label(axes, j, i, write(value), size=size)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    bare(axes)


def draw_matrices(matrices, rows, columns, *, signed=False):
    """Matrices as numbers, side by side. rows, columns: names; other columns are numbered.

    matrices: title -> [n, k]. signed: as of `shaded`.
    """
    writes = ["{:.0f}".format if np.array_equal(m, np.round(m)) else number for m in matrices.values()]
    numbers = [
        f"{title}: {'; '.join(f'{name} {vector(line, write)}' for name, line in zip(rows, matrix, strict=True))}"
        for (title, matrix), write in zip(matrices.items(), writes, strict=True)
    ]
    widths, alone = [matrix.shape[1] for matrix in matrices.values()], len(matrices) == 1
    place = {"width": 4.8, "left": 0.13} if alone else {"left": 0.06, "wspace": 0.25}
    figure, every = panels(
        2.9, *widths, below=0.12, above=0.68, alt=f"Numbers, row by row. {'. '.join(numbers)}.", **place
    )
    for axes, (title, matrix), write in zip(every, matrices.items(), writes, strict=True):
        named = columns if matrix.shape[1] == len(columns) else [f"{title[0]}{j}" for j in range(matrix.shape[1])]
        shaded(axes, matrix, rows, named, write=write, signed=signed, size=10)
        axes.set_title(title, loc="left", y=1.14, fontsize=10.5, color=INK)
    return figure


def stacked(axes, bars, notes, *, end=None, behind=None, scale=True):
    """Horizontal bars from the top down, each of parts end to end, with a note behind it.

    bars: name -> [(label, length, colour)]; a label is written where its part has room for it. notes: a text for each
    bar. The axis ends at `end`, or a tenth behind the longest bar. behind: for each bar, a place that its note has to
    stay behind. scale: whether the axis below is drawn.
    """
    longest = max(sum(length for _, length, _ in parts) for parts in bars.values())
    axes.set_xlim(0, end or 1.1 * longest)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks([])
    if not scale:
        axes.set_xticks([])
        bare(axes)
    points = 72 * axes.bbox.width / axes.figure.dpi / axes.get_xlim()[1]
    drawn = []
    for y, (bar, parts, note) in enumerate(zip(bars, bars.values(), notes, strict=True)):
        label(axes, -0.01, y, bar, ha="right", transform=axes.get_yaxis_transform())
        left = 0
        for name, length, colour in parts:
            drawn.append((y, length, left, colour))
            if length * points > 4 + 4.7 * len(name):
                dark = np.dot(to_rgb(colour), (0.21, 0.72, 0.07)) < 0.5
                label(axes, left + length / 2, y, name, color="white" if dark else INK)
            left += length
        label(axes, max(left, behind[y]) if behind else left, y, f"  {note}", ha="left")
    places, lengths, lefts, colours = zip(*drawn, strict=True)
    axes.barh(places, lengths, left=lefts, height=0.66, color=colours, edgecolor="white", linewidth=0.6)
