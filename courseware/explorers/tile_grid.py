"""The grid of score tiles, which lessons 06 and 09 go through visit by visit, and how they draw it and what it moves.

`tile_grid` is the model: which tiles FlashAttention visits, in which order, and which it skips. The tests compare the
visits with the loads that the memory machine logs, which `visit_starts` and `bytes_moved` cut into visits.
"""

from types import SimpleNamespace

import numpy as np

from course_lib import masks, traffic

from .svg import Panel

ORDERS = ("q_outer", "kv_outer")


def tile_grid(n_q, n_k, block_q, block_k, causal, order):
    """Which tiles of the scores are visited, in which order, as a namespace. Tile (i, j): query tile i, key tile j.

    Sizes are counts of at least 1. order: "q_outer" (FA2 Alg. 1) or "kv_outer" (FA1 Alg. 1). The namespace has tiles: a
    masks.Tiles; visit_number: [query tiles, key tiles] int, 1 for the tile that is visited first, 0 for a skipped one;
    n_visits; visits: (i, j) of the visited tiles, in order; skipped: those that are never visited, row by row; and
    pairs: how many scores each visit computes.
    Raises ValueError or TypeError as traffic.flash_attention does.
    """
    # The same checks, and the same messages, as for the bytes that are shown beside the grid.
    traffic.flash_attention(n_q, n_k, 1, block_q=block_q, block_k=block_k, causal=causal, order=order)
    mask = masks.causal() if causal else masks.full()
    tiles = mask.tiles(n_q, n_k, block_q, block_k)
    visited = tiles.kinds != masks.HIDDEN
    if order == "q_outer":
        number = np.cumsum(visited).reshape(visited.shape)
    else:
        number = np.cumsum(visited.T).reshape(visited.T.shape).T
    number = np.where(visited, number, 0)
    visits = tuple(map(tuple, np.argwhere(visited)[np.argsort(number[visited])].tolist()))
    skipped = tuple(map(tuple, np.argwhere(~visited).tolist()))
    queries, keys = (np.ptp(rows, axis=1) for rows in (tiles.query_rows, tiles.key_rows))
    pairs = [int(queries[i] * keys[j]) for i, j in visits]
    return SimpleNamespace(
        tiles=tiles, visit_number=number, n_visits=len(visits), visits=visits, skipped=skipped, pairs=pairs
    )


def rows_of(grid, i, j):
    """What meets in a tile, in words: ("queries 4 to 7", "keys 0 to 2")."""
    spans = ("queries", grid.tiles.query_rows[i]), ("keys", grid.tiles.key_rows[j])
    return tuple(f"{name} {start} to {stop - 1}" for name, (start, stop) in spans)


def visit_starts(events, begin, end, inner, outer):
    """Where visits begin in a machine's log, from `begin` to `end`.

    The first begins with the log, and so counts what precedes it; every other one at the inner loop's load, or at the
    outer loop's loads just before that.
    """
    starts = []
    for index in range(begin, end):
        if (events[index].kind, events[index].tensor) == ("load", inner):
            while index > begin and events[index - 1].kind == "load" and events[index - 1].tensor in outer:
                index -= 1
            starts.append(index)
    return [begin, *starts[1:]]


def bytes_moved(events, ends, names):
    """tensor -> (bytes read, bytes written) of the log's first `end` events, for each of the ends: a tuple."""
    moved, done, steps = dict.fromkeys(names, (0, 0)), 0, []
    for end in ends:
        for event in events[done:end]:
            read, written = moved[event.tensor]
            is_load = event.kind == "load"
            moved = moved | {event.tensor: (read + event.n_bytes * is_load, written + event.n_bytes * (not is_load))}
        steps.append(moved)
        done = end
    return tuple(steps)


def total_bytes(moved):
    """All bytes of one of `bytes_moved`'s steps."""
    return sum(map(sum, moved.values()))


def grid_panel(grid, done, title, width=214, *, height=220, tips=None, choose=None, before=0):
    """The grid after `done` visits: queries downwards, keys to the right.

    Blue tiles have been visited, the orange one is being visited, white ones come later, grey ones are skipped. Numbers
    of visits stand in tiles that have room for them; where they have none, a line shows the way. A red line separates
    visible from hidden scores. tips: function of (i, j), what is said of a tile; None: its rows. choose: what a click
    on a tile chooses beside its visit; None: nothing at all. before: how many visits are before the grid's first.
    """
    tiles, number = grid.tiles, grid.visit_number
    x, y = ([0, *(stop for _, stop in rows)] for rows in (tiles.key_rows, tiles.query_rows))
    is_narrow = number.shape[1] == 1 and tiles.n_k == 1
    panel = Panel(
        title, width, height, x=(0, tiles.n_k), y=(tiles.n_q, 0), grid="", margins=(42, 18, 8, 34),
        x_ticks=() if is_narrow else (0, tiles.n_k), y_ticks=(0, tiles.n_q), x_label="" if is_narrow else "key",
        y_label="query",
    )  # fmt: skip

    def kind(visit):
        if not visit or visit > done:
            return "empty" if visit else "skipped"
        return "now" if visit == done < grid.n_visits else "P pale"

    def chosen(i, j):
        return choose | {"visit": before + int(number[i, j])} if choose is not None and number[i, j] else None

    tips = tips or (lambda i, j: " and ".join(rows_of(grid, i, j)))
    panel.cells([[kind(visit) for visit in row] for row in number.tolist()], x=x, y=y, tips=tips, chosen=chosen)
    if tiles.mask == masks.causal():
        queries = np.arange(tiles.n_q) if tiles.n_q <= 64 else np.array([0, tiles.n_q - 1])  # where a stair is visible
        _, stops = tiles.mask.key_range(queries, tiles.n_q, tiles.n_k)
        panel.line([(stop, i + down) for i, stop in zip(queries, stops, strict=True) for down in (0, 1)], "bad")
    middles = [((x[j] + x[j + 1]) / 2, (y[i] + y[i + 1]) / 2) for i, j in grid.visits]
    if panel.x(x[1]) - panel.x(0) > 19 and panel.y(y[1]) - panel.y(0) > 13:
        for visit, (tile, middle) in enumerate(zip(grid.visits, middles, strict=True), start=1):
            # Neither the red line nor the orange ground makes a number hard to read.
            is_hard = tiles.kinds[tile] == masks.PARTIAL or kind(visit) == "now"
            panel.text(*middle, str(visit), "middle halo" if is_hard else "middle")
    else:
        panel.line(middles[:done], "thin ink")
    return panel


def moved_panel(title, width, height, rows, loops):
    """Bars of bytes by tensor: what was read so far, paler what was written, dashed what both come to in the end.

    rows: name -> the tensors that count in it. loops: name -> (step so far, last step), as `bytes_moved` gives them,
    each with a bar in a row.
    """

    def moved(step, tensors):
        return [sum(step.get(tensor, (0, 0))[way] for tensor in tensors) for way in (0, 1)]

    most = max(sum(moved(end, tensors)) for tensors in rows.values() for _, end in loops.values())
    panel = Panel(
        title, width, height, x=(0, most), y=(len(rows) - 0.5, -0.5), x_ticks=((0, "0"), (most, f"{most:,}")),
        margins=(44, 30, 4, 20),
    )  # fmt: skip
    high = 0.8 / len(loops)
    for place, (name, tensors) in enumerate(rows.items()):
        panel.text(0, place, name, "end", right=-6)
        for i, (loop, (step, end)) in enumerate(loops.items()):
            (read, written), in_all = moved(step, tensors), sum(moved(end, tensors))
            y = place - 0.4 + high * i, place - 0.48 + high * (i + 1)
            panel.rect((0, read), y, f"bar {tensors[0]}")
            panel.rect((read, read + written), y, f"bar {tensors[0]} pale")
            tip = f"{name}, {loop}: {read:,} bytes read and {written:,} written, of {in_all:,} in all"
            panel.rect((0, in_all), y, "outline dashed grey", tip=tip, pointer_events="all")
    return panel


def bars_panel(title, width, bars, *, left=112, right=96, **about):
    """A panel of `stacked` bars. left, right: pixels for their names, and for the notes behind bar and limit."""
    lengths = [sum(length for _, length, _ in parts) for parts, *_ in bars.values()]
    most = max(*lengths, *(limit for _, _, *limits in bars.values() for limit in limits))
    y = len(bars) - 0.5, -0.5
    panel = Panel(title, width, 22 * len(bars) + 4, x=(0, most), y=y, margins=(left, right, 2, 2))
    panel.stacked(bars, **about)
    return panel
