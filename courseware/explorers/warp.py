"""Lesson 12's explorer, and its pictures: one load of a warp, on the sectors of device memory and on the 32 banks.

The counts are those of `kernels.cuda.request`, the rules of one request. `draw_copies` and `draw_ladder` are pictures
of their own: which warp copies what, and the rungs of the CUDA ladder. `line_beside_line` is lesson 12's last table.
"""

import inspect
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from course_lib.kernels import plain_forward
from course_lib.kernels.cuda import launches
from courseware.simulators.cuda_emulator import request

from .drawing import bare, cells, log_axes
from .figures import BLUE, GREY, INK, ORANGE, PALE, VERMILLION, Picture, label, legend, panel, panels, tidy
from .shell import Explorer, choice, menu, slider
from .words import plain

FLOAT_BYTES = 4
TOUCHED = "#9DCBEA"
# Where there are more of them, there is no room for text.
MAX_NAMED_PASSES, MAX_NAMED_LOADS = 8, 40
CHARACTERS_PER_INCH = 17
# (row, load of that row) of a lane in a step of the loop, here from 0; a row has `loads` of them.
MAPPINGS = {
    "along the row": lambda lane, step, loads: divmod(32 * step + lane, loads),
    "down the column": lambda lane, step, loads: (lane, step),
    "4 rows of 8 lanes": lambda lane, step, loads: (lane // 8 + 8 * step // loads * 4, (8 * step + lane % 8) % loads),
    "row lane % 8": lambda lane, step, loads: (lane % 8, step),
    "row lane // 2 % 8": lambda lane, step, loads: (lane // 2 % 8, step),
    "all lanes one address": lambda lane, step, loads: (0, step),
}


@dataclass(frozen=True)
class Load:
    """One load of a warp from a matrix of floats in rows.

    mapping: which lane loads from where, a key of MAPPINGS. columns: floats of a row, a multiple of 8 * floats.
    padding: floats behind each row that hold nothing. floats: that a lane loads at once, 1, 2 or 4. step: of the
    loop around the load, from 1; after the last of its steps it begins again.
    """

    mapping: str
    columns: int = 32
    padding: int = 0
    floats: int = 1
    step: int = 1

    @property
    def element_bytes(self):
        return self.floats * FLOAT_BYTES

    @property
    def pitch(self):
        """Floats from one row to the next."""
        return self.columns + self.padding

    @property
    def rows(self):
        """Rows of the matrix: 32 if there is one for each lane, and 8 otherwise."""
        return 32 if self.mapping == "down the column" else 8

    @property
    def steps(self):
        """How many steps it takes until every lane has been everywhere that the mapping leads it to."""
        loads = self.columns // self.floats
        return loads * self.rows // 32 if self.mapping in ("along the row", "4 rows of 8 lanes") else loads

    @cached_property
    def places(self):
        """(row, column) of the first float that each lane loads."""
        place_of, step = MAPPINGS[self.mapping], (self.step - 1) % self.steps
        places = (place_of(lane, step, self.columns // self.floats) for lane in range(request.LANES))
        return tuple((row, load * self.floats) for row, load in places)

    @property
    def addresses(self):
        """Where each lane's load begins, in bytes. The matrix begins at 0."""
        return [(row * self.pitch + column) * FLOAT_BYTES for row, column in self.places]

    @property
    def misaligned(self):
        """The first address that no GPU loads from, because element_bytes does not divide it; None if there is none."""
        return next((address for address in self.addresses if address % self.element_bytes), None)

    @cached_property
    def sectors(self):
        """Numbers of the sectors of device memory that the request touches."""
        return request.sectors(self.addresses, self.element_bytes)

    @cached_property
    def passes(self):
        """{bank: lanes} for each pass over the banks."""
        return request.passes(self.addresses, self.element_bytes)

    @cached_property
    def conflicts(self):
        return request.conflicts(self.addresses, self.element_bytes)

    @property
    def requested_bytes(self):
        """Bytes that some lane wants, each counted once."""
        return len(set(self.addresses)) * self.element_bytes

    @property
    def memory(self):
        """Int [rows, pitch], for each float: 0 stays, 1 lies in a touched sector, 2 is requested, 3 is padding."""
        place = np.arange(self.rows * self.pitch).reshape(self.rows, self.pitch)
        state = np.isin(place * FLOAT_BYTES // request.SECTOR_BYTES, list(self.sectors)).astype(int)
        state[:, self.columns :] = np.where(state[:, self.columns :], 1, 3)
        for row, column in self.places:
            state[row, column : column + self.floats] = 2
        return state

    @property
    def group_of_pass(self):
        """The lanes that each pass serves some of: a range for each."""
        groups = request.groups(self.addresses, self.element_bytes)
        first_lanes = [min(min(lanes) for lanes in of_banks.values()) for of_banks in self.passes]
        return [next(group for group in groups if lane in group) for lane in first_lanes]


def describe(load):
    """The load in words and numbers, as HTML."""
    floats = "one float" if load.floats == 1 else f"{load.floats} floats"
    rows = f"rows of {load.columns}" + (f" and {load.padding} of padding" if load.padding else "")
    head = f"<b>{load.mapping}</b>, step {load.step} of {load.steps}: each lane loads {floats} from {rows}. "
    if load.misaligned is not None:
        return (
            f"{head}A lane loads {load.element_bytes} bytes from address {load.misaligned}, which {load.element_bytes} "
            "does not divide: a GPU stops with the error <i>misaligned address</i>."
        )
    moved_bytes = len(load.sectors) * request.SECTOR_BYTES
    passes, conflicts = len(load.passes), load.conflicts
    return (
        f"{head}<br>In device memory: <b>{_several(len(load.sectors), 'sector')}</b>, {moved_bytes:,} bytes, of which "
        f"{load.requested_bytes} are requested. In shared memory: <b>{_several(passes, 'pass', 'passes')}</b>, "
        f"{_several(conflicts, 'of them a conflict', 'of them conflicts') if conflicts else 'no conflict'}."
    )


def _several(count, one, more=None):
    return f"{count} {one if count == 1 else more or one + 's'}"


def draw(load):
    """The load on the rows of a matrix in device memory, and on the banks of shared memory. Returns a figure."""
    figure = Picture(5.3, alt=f"A warp's load on device memory and on the banks. {plain(describe(load))}")
    memory, banks = figure.subplots(2, 1, height_ratios=(1.15, 1))
    figure.subplots_adjust(left=0.09, right=0.985, bottom=0.1, top=0.925, hspace=0.48)
    _draw_memory(memory, load)
    _draw_banks(banks, load)
    return figure


def _draw_memory(axes, load):
    if load.misaligned is None:
        state = load.memory
        title = f"{_several(len(load.sectors), 'sector')} of 8 floats (blue), and the floats that are requested (dark)"
    else:
        state, title = np.zeros((load.rows, load.pitch)), "no GPU loads like this"
    one_a_lane = " (one a lane)" if load.rows == request.LANES else ""
    tidy(axes, title=f"device memory: {title}", x="float of a row", y=f"row{one_a_lane}")
    axes.set(xlim=(-0.002 * load.pitch, 1.002 * load.pitch), ylim=(load.rows + 0.05, -0.05))
    cells(axes, state, ("white", TOUCHED, BLUE, PALE), edgecolors="none")
    # A sector is 8 floats, counted from the beginning of the matrix, wherever a row begins.
    begins = np.flatnonzero(np.arange(state.size) % 8 == 0)
    row, column = begins // load.pitch, begins % load.pitch
    axes.vlines(column, row, row + 1, color=GREY, linewidth=0.8)
    axes.hlines(range(load.rows + 1), 0, load.pitch, color=GREY, linewidth=0.3)
    if load.misaligned is None and load.rows < request.LANES and load.pitch <= MAX_NAMED_LOADS * load.floats:
        for (row, column), lanes in _lanes_by(load.places).items():
            _write(axes, column, row, lanes, load.floats, BLUE)
    axes.set_yticks(np.arange(0, load.rows, load.rows // 8) + 0.5, range(0, load.rows, load.rows // 8))
    axes.set_xticks(range(0, load.pitch + 1, 8))
    bare(axes)


def _draw_banks(axes, load):
    passes = load.passes if load.misaligned is None else []
    groups = load.group_of_pass if passes else []
    begins = [number for number, group in enumerate(groups) if number == 0 or group != groups[number - 1]]
    conflicts = f", {load.conflicts} by conflict (orange)" if passes and load.conflicts else ", no conflict"
    title = f"{_several(len(passes), 'pass', 'passes')}, one a row{conflicts}" if passes else "no GPU loads like this"
    tidy(axes, title=f"shared memory: {title}", x="bank")
    n_rows = max(MAX_NAMED_PASSES, len(passes))
    axes.set(xlim=(-0.05, request.BANKS + 0.05), ylim=(n_rows + 0.05, -0.05))
    state = np.zeros((n_rows, request.BANKS), dtype=int)
    for number, of_banks in enumerate(passes):
        state[number, list(of_banks)] = 1 if number in begins else 2
        if n_rows <= MAX_NAMED_PASSES:
            for bank, lanes, width in _side_by_side(of_banks):
                _write(axes, bank, number, lanes, width, BLUE if number in begins else ORANGE)
    cells(axes, state, ("white", BLUE, ORANGE), edgecolors=PALE, linewidth=0.4)
    if len(begins) > 1:
        axes.hlines(begins, 0, request.BANKS, color=INK, linewidth=1)
    axes.set_xticks(np.arange(0, request.BANKS, 4) + 0.5, range(0, request.BANKS, 4))
    axes.set_yticks(np.array(begins) + 0.5, [f"lanes {groups[i][0]}-{groups[i][-1]}" for i in begins])
    bare(axes)


def _lanes_by(places):
    lanes = {}
    for lane, place in enumerate(places):
        lanes.setdefault(place, []).append(lane)
    return lanes


def _side_by_side(of_banks):
    """(first bank, lanes, how many banks) of neighbours that deliver to the same lanes in one pass."""
    pieces = []
    for bank in sorted(of_banks):
        if pieces and pieces[-1][1] == of_banks[bank] and sum(pieces[-1][::2]) == bank:
            pieces[-1][2] += 1
        else:
            pieces.append([bank, of_banks[bank], 1])
    return pieces


def _write(axes, left, top, lanes, width, colour):
    """The numbers of some lanes in a cell of this width and colour, as far as there is room."""
    first, last = axes.get_xlim()
    characters = width * axes.bbox.width / (last - first) / axes.figure.dpi * CHARACTERS_PER_INCH
    spans = f"{lanes[0]}-{lanes[-1]}" if len(lanes) == lanes[-1] - lanes[0] + 1 > 2 else ""
    texts = [spans or ", ".join(map(str, lanes)), f"{lanes[0]}, \N{HORIZONTAL ELLIPSIS}"]
    for text in texts:
        if len(text) + 0.3 <= characters:
            ground = {"facecolor": colour, "edgecolor": "none", "pad": 0.5}
            ink = "white" if colour == BLUE else INK
            label(axes, left + width / 2, top + 0.5, text, color=ink, size=7.5, bbox=ground)
            break


def draw_copies(rows, columns, warps):
    """Two ways in which the warps of a block copy a tile, 32 elements of a row at a time. Returns a figure."""
    pieces = np.arange(rows * columns // request.LANES).reshape(rows, -1)
    row, chunk = np.indices(pieces.shape)
    ways = {
        "a warp takes a row": (row % warps, row // warps * pieces.shape[1] + chunk),
        "consecutive threads, consecutive elements": (pieces % warps, pieces // warps),
    }
    first = [f"{title}: row 0 by warps {', '.join(map(str, warp[0]))}" for title, (warp, _) in ways.items()]
    alt = f"Who copies what of a tile of {rows} x {columns}. {'; '.join(first)}."
    figure, every = panels(0.95 + 0.19 * rows, 1, 1, wspace=0.14, alt=alt)
    for axes, (title, (warp, step)) in zip(every, ways.items(), strict=True):
        tidy(axes, title=title, x="column", y="row")
        cells(axes, step, (TOUCHED, "#F5D58A"), x=range(0, columns + 1, request.LANES))
        for i, j in np.ndindex(pieces.shape):
            label(axes, request.LANES * (j + 0.5), i + 0.5, f"warp {warp[i, j]}, step {step[i, j]}", size=8)
        axes.set(ylim=(rows, 0), yticks=np.arange(0, rows, 4) + 0.5, yticklabels=range(0, rows, 4))
        axes.set_xticks(range(0, columns + 1, request.LANES))
        bare(axes)
    return figure


def draw_ladder(rungs, peak_tflops, note):
    """For each rung, what its counts allow, and what was measured. Returns a figure.

    rungs: name -> TFLOP/s (if nothing overlaps, if everything does, measured).
    """
    said = [f"{name}: {low:.1f} to {high:.1f}, measured {found:.1f}" for name, (low, high, found) in rungs.items()]
    alt = f"TFLOP/s of each rung by its counts, and measured. {'; '.join(said)}."
    figure, axes = panel(1.5 + 0.3 * len(rungs), title="", left=0.17, above=0.5, note=note, alt=alt, x="TFLOP/s")
    low, high, measured = np.array(list(rungs.values())).T
    y = np.arange(len(rungs))
    axes.hlines(y, low, high, color=TOUCHED, linewidth=9, label="by the counts")
    axes.plot(measured, y, "o", color=VERMILLION, label="measured")
    for place, found in enumerate(measured):
        label(axes, found, place - 0.36, f"{found:.1f}", size=8)
    axes.axvline(peak_tflops, color=GREY, linestyle=":", label="peak of fp32")
    log_axes(axes, (1, 2, 4, 8, 16, 32, 64), y_base=None)
    axes.set(xlim=(0.7, 90), ylim=(len(rungs) - 0.4, -0.8))
    axes.set_yticks(y, list(rungs))
    legend(figure, ncols=3, loc="upper left", bbox_to_anchor=(0.16, 1.0))
    return figure


# What lesson 08's Triton program leaves to its compiler: a fragment of its line, and of the plain CUDA kernel's.
DECIDED = {
    "which warp takes which row": ("offs_m = ", "long long row ="),
    "which lane loads what, and so the sectors": ("q = tl.load(", "q_row[c] = row < M"),
    "what goes through shared memory, and the banks": ("k = tl.load(", "k_row[c] = k;"),
    "where the block waits": (None, "the tile is complete"),
    "how products are divided among threads": ("scores = tl.dot(", "scores[j] += q.x"),
    "how lanes learn a row's maximum": ("m_new = tl.maximum(", "m_new = fmaxf(m_new, scores[j])"),
    "which registers hold acc": ("acc += tl.dot(", "acc[i] += p * v_tile"),
}


def line_beside_line():
    """[(line of lesson 08's kernel or None, line of plain_attention.cu, what Triton decides)], for a table."""
    sources = inspect.getsource(plain_forward), launches.source("plain_attention.cu")
    return [(*map(_line, sources, fragments), what) for what, fragments in DECIDED.items()]


def _line(source, fragment):
    """The one line with this fragment, without its comment, as code."""
    if fragment is None:
        return None
    (found,) = (line for line in source.splitlines() if fragment in line)
    return f"`{found.split('  // ')[0].strip()}`"


def explore():
    """The explorer as a widget: a mapping, the matrix, and what a lane loads at once, step by step."""
    rows = (
        {"mapping": menu("mapping", MAPPINGS, "down the column")},
        {"columns": choice("row (floats)", (32, 64, 128), 32), "padding": choice("padding", (0, 1, 2, 4, 8), 0)},
        {"floats": choice("a lane loads", [("4 bytes", 1), ("8 bytes", 2), ("16 bytes", 4)], 1)},
        {"step": slider("step", 1, 32, 1)},
    )

    def last_step(**settings):
        return Load(**settings).steps

    return Explorer(Load, describe, draw, *rows, ends={"step": last_step}, play="step")
