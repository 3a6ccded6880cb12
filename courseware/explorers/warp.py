"""Lesson 12's explorer: one load of a warp, on the sectors of device memory and on the 32 banks of shared memory.

The counts are those of `simulators.cuda_emulator.request`, the rules of one request.
"""

from itertools import groupby
from types import SimpleNamespace

import numpy as np

from courseware.simulators.cuda_emulator import request

from .explorer import Explorer, menu, slider
from .svg import LETTER, Page, Panel

FLOAT_BYTES = 4
MIN_ROWS = 8  # for passes
# (row, load of that row) of a lane in a step of the loop, here from 0; a row has `loads` of them.
MAPPINGS = {
    "along the row": lambda lane, step, loads: divmod(32 * step + lane, loads),
    "down the column": lambda lane, step, loads: (lane, step),
    "4 rows of 8 lanes": lambda lane, step, loads: (lane // 8 + 8 * step // loads * 4, (8 * step + lane % 8) % loads),
    "row lane % 8": lambda lane, step, loads: (lane % 8, step),
    "row lane // 2 % 8": lambda lane, step, loads: (lane // 2 % 8, step),
    "all lanes one address": lambda lane, step, loads: (0, step),
}


def evaluate(mapping, columns=32, padding=0, floats=1, step=1):
    """One load of a warp from a matrix of floats in rows, as a namespace.

    mapping: which lane loads from where, a key of MAPPINGS. columns: floats of a row, a multiple of 8 * floats.
    padding: floats behind each row that hold nothing. floats: that a lane loads at once, 1, 2 or 4. step: of the
    loop around the load, from 1; after the last of its steps it begins again.

    The namespace has the arguments; element_bytes; pitch: floats from one row to the next; rows of the matrix: 32 if
    there is one for each lane, and 8 otherwise; steps: how many it takes until every lane has been everywhere that the
    mapping leads it to; places: (row, column) of the first float that each lane loads; addresses: where each lane's
    load begins, in bytes from the matrix's beginning; requested_bytes: that some lane wants, each counted once; and
    misaligned: the first address that no GPU loads from, because element_bytes does not divide it, None if there is
    none. Of what a GPU loads, sectors: their numbers, of device memory that the request touches; passes: {bank: lanes}
    for each pass over the banks; group_of_pass: the lanes that each pass serves some of, a range for each; conflicts;
    and memory: int [rows, pitch], for each float: 0 stays, 1 lies in a touched sector, 2 is requested, 3 is padding.
    """
    load = SimpleNamespace(mapping=mapping, columns=columns, padding=padding, floats=floats, step=step)
    load.element_bytes, load.pitch, loads = floats * FLOAT_BYTES, columns + padding, columns // floats
    load.rows = 32 if mapping == "down the column" else 8
    load.steps = loads * load.rows // 32 if mapping in ("along the row", "4 rows of 8 lanes") else loads
    of_lanes = (MAPPINGS[mapping](lane, (step - 1) % load.steps, loads) for lane in range(request.LANES))
    load.places = tuple((row, number * floats) for row, number in of_lanes)
    load.addresses = [(row * load.pitch + column) * FLOAT_BYTES for row, column in load.places]
    load.requested_bytes = len(set(load.addresses)) * load.element_bytes
    load.misaligned = next((address for address in load.addresses if address % load.element_bytes), None)
    load.passes, load.group_of_pass, load.memory = [], [], np.zeros((load.rows, load.pitch), int)
    if load.misaligned is not None:
        return load
    asked = load.addresses, load.element_bytes
    load.sectors, load.passes = request.sectors(*asked), request.passes(*asked)
    load.conflicts, groups = request.conflicts(*asked), request.groups(*asked)
    first_lanes = [min(min(lanes) for lanes in of_banks.values()) for of_banks in load.passes]
    load.group_of_pass = [next(group for group in groups if lane in group) for lane in first_lanes]
    place = np.arange(load.memory.size).reshape(load.memory.shape)
    load.memory += np.isin(place * FLOAT_BYTES // request.SECTOR_BYTES, list(load.sectors))
    load.memory[:, columns:] = np.where(load.memory[:, columns:], 1, 3)
    for row, column in load.places:
        load.memory[row, column : column + floats] = 2
    return load


def page(**settings):
    """The load on the rows of a matrix in device memory, on the banks of shared memory, and in words and numbers."""
    load = evaluate(**settings)
    floats = "one float" if load.floats == 1 else f"{load.floats} floats"
    rows = f"rows of {load.columns}" + (f" and {load.padding} of padding" if load.padding else "")
    text = f"<b>{load.mapping}</b>, step {load.step} of {load.steps}: each lane loads {floats} from {rows}. "
    if load.misaligned is not None:
        text += (
            f"A lane loads {load.element_bytes} bytes from address {load.misaligned}, which {load.element_bytes} "
            "does not divide: a GPU stops with the error <i>misaligned address</i>."
        )
    else:
        moved_bytes, passes, conflicts = len(load.sectors) * request.SECTOR_BYTES, len(load.passes), load.conflicts
        text += (
            f"<br>In device memory: <b>{_several(len(load.sectors), 'sector')}</b>, {moved_bytes:,} bytes, of which "
            f"{load.requested_bytes} are requested. In shared memory: <b>{_several(passes, 'pass', 'passes')}</b>, "
            f"{_several(conflicts, 'of them a conflict', 'of them conflicts') if conflicts else 'no conflict'}."
        )
    return Page("A warp's load on device memory and on the banks.", (_memory(load),), (_banks(load),), text=text)


def _several(count, one, more=None):
    return f"{count} {one if count == 1 else more or one + 's'}"


def _memory(load):
    title = "no GPU loads like this"
    if load.passes:
        title = f"{_several(len(load.sectors), 'sector')} of 8 floats (pale), and the floats that are requested (blue)"
    panel = Panel(
        f"Device memory: {title}", 746, 64 + (160 if load.rows == 8 else 192), (0, load.pitch), (load.rows, 0), grid="",
        x_ticks=range(0, load.pitch + 1, 8), x_label="float of a row",
        y_ticks=[(row + 0.5, str(row)) for row in range(0, load.rows, load.rows // 8)],
        y_label=f"row{' (one a lane)' if load.rows == request.LANES else ''}",
    )  # fmt: skip
    kinds = np.array(["", "P pale", "Q", "skipped"], object)
    panel.cells(kinds[load.memory].tolist(), x=range(load.pitch + 1))
    # A sector is 8 floats, counted from the beginning of the matrix, wherever a row begins.
    for place in range(0, load.memory.size, 8):
        row, column = divmod(place, load.pitch)
        panel.line([(column, row), (column, row + 1)], "grey thin")
    for row in range(load.rows + 1):
        panel.line([(0, row), (load.pitch, row)], "grey hair")
    for row, column in dict.fromkeys(load.places) if load.passes else ():
        lanes = [lane for lane, place in enumerate(load.places) if place == (row, column)]
        _served(panel, column, row, lanes, load.floats, f"row {row}, float {column}", "Q")
    return panel


def _banks(load):
    passes, groups = load.passes, load.group_of_pass
    begins = [number for number, group in enumerate(groups) if number == 0 or group != groups[number - 1]]
    conflicts = f", {load.conflicts} by conflict (orange)" if passes and load.conflicts else ", no conflict"
    title = f"{_several(len(passes), 'pass', 'passes')}, one a row{conflicts}" if passes else "no GPU loads like this"
    n_rows = max(MIN_ROWS, len(passes))
    panel = Panel(
        f"Shared memory: {title}", 746, 64 + max(18 * MIN_ROWS, 6 * n_rows), (0, request.BANKS), (n_rows, 0), grid="",
        x_ticks=[(bank + 0.5, str(bank)) for bank in range(0, request.BANKS, 4)], x_label="bank",
        margins=(84, 16, 10, 36), y_ticks=[(i + 0.5, f"lanes {groups[i][0]}-{groups[i][-1]}") for i in begins],
    )  # fmt: skip
    panel.cells([["empty"] * request.BANKS for _ in range(n_rows)])
    for number, of_banks in enumerate(passes):
        for bank, lanes, width in _side_by_side(of_banks):
            where = f"bank {bank}" if width == 1 else f"banks {bank} to {bank + width - 1}"
            css = "Q" if number in begins else "K"
            panel.rect((bank, bank + width), (number, number + 1), f"cell {css}")
            _served(panel, bank, number, lanes, width, f"pass {number + 1}, {where}", css)
    return panel


def _side_by_side(of_banks):
    """(first bank, lanes, how many banks) of neighbours that deliver to the same lanes in one pass."""
    in_turn = enumerate(sorted(of_banks))
    for (lanes, _), banks in groupby(in_turn, key=lambda place: (of_banks[place[1]], place[1] - place[0])):
        (_, first), *more = banks
        yield first, lanes, 1 + len(more)


def _served(panel, left, top, lanes, width, where, css):
    """The lanes that a place delivers to: when one points at it, and as far as there is room, in it."""
    said = f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {_spans(lanes)}"
    panel.rect((left, left + width), (top, top + 1), "clear", tip=f"{where}: {said}")
    if panel.y(top + 1) - panel.y(top) > 12:
        room = panel.x(left + width) - panel.x(left)
        text = next((x for x in (_spans(lanes), f"{lanes[0]}, \u2026") if LETTER * len(x) < room), "")
        panel.text(left + width / 2, top + 0.5, text, f"middle small on-colour {css}")


def _spans(lanes):
    """0-7 if they follow each other, and 0, 8, 16 otherwise."""
    return f"{lanes[0]}-{lanes[-1]}" if len(lanes) == lanes[-1] - lanes[0] + 1 > 2 else ", ".join(map(str, lanes))


def explore():
    """The explorer: a mapping, the matrix, and what a lane loads at once, step by step."""
    controls = {
        "mapping": menu("mapping", list(MAPPINGS), "down the column"),
        "columns": slider("row (floats)", (32, 64, 128)), "padding": slider("padding", (0, 1, 2, 4, 8)),
        "floats": slider("a lane loads", {"4 bytes": 1, "8 bytes": 2, "16 bytes": 4}),
        "step": slider("step", range(1, 129), play=True),
    }  # fmt: skip
    written = {"mapping": MAPPINGS, "padding": (0, 1, 4), "floats": (1, 2, 4), "step": (1, 2)}
    return Explorer(page, controls, ends={"step": lambda **chosen: evaluate(**chosen).steps}, written=written)
