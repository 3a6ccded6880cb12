"""Lesson 06's figures: orders of visits, bytes by tensor, elements moved, and what lies in SRAM."""

from itertools import product

from courseware.explorers import tile_grid
from courseware.explorers.svg import BLUE, VERMILLION, Page

from .base import INK, curves, legend, log_axes, panels, tidy


def draw_elements(by_length, by_sram):
    """Two panels on logarithmic axes: elements moved against N, and against M.

    by_length, by_sram: (x values, and for each x what the paper's tiles move, the largest tile moves, and the bound).
    """
    names = "paper's tiles, keys outermost", "largest tile, queries outermost", "lower bound's growth"
    by_x = [(x, dict(zip(names, zip(*moved, strict=True), strict=True))) for x, moved in (by_length, by_sram)]
    ends = [
        f"from {what} = {x[0]:,} to {x[-1]:,}: "
        + ", ".join(f"{name} {moved[0]:.2g} to {moved[-1]:.2g}" for name, moved in named.items())
        for what, (x, named) in zip("NM", by_x, strict=True)
    ]
    alt = f"Elements moved, {'; '.join(ends)}."
    figure, (left, right) = panels(3.3, 1, 1, alt=alt)
    tidy(left, title="elements moved against length", x="N, queries and keys", y="elements")
    tidy(right, title="elements moved against SRAM", x="M, elements of SRAM", y="elements")
    for axes, (x, named) in zip((left, right), by_x, strict=True):
        curves(axes, x, named, ((VERMILLION, "s-"), (BLUE, "o-"), (INK, "--")))
        log_axes(axes, x)
    legend(left)
    return figure


def draw_orders(n_q, n_k, block_q, block_k):
    """The visiting order of both loops, without and with causal."""
    grids = {
        f"{order}{', causal' if causal else ''}": tile_grid.tile_grid(n_q, n_k, block_q, block_k, causal, order)
        for causal, order in product((False, True), tile_grid.ORDERS)
    }
    orders = [f"{name}: {grid.visit_number.tolist()}" for name, grid in grids.items()]
    return Page(
        f"The order in which each loop visits the tiles, row by row, 0 for a skipped one. {'; '.join(orders)}.",
        [tile_grid.grid_panel(grid, grid.n_visits, name, 172, height=178) for name, grid in grids.items()],
    )  # fmt: skip


def draw_bytes(counts):
    """Bars of bytes by tensor, paler what is written. counts: what it is -> {tensor: (bytes read, bytes written)}."""
    bars = {}
    for name, by_tensor in counts.items():
        parts = [
            (tensor, n_bytes / 1e6, f"{tensor}{pale}")
            for tensor, both in by_tensor.items()
            for n_bytes, pale in zip(both, ("", " pale"), strict=True) if n_bytes
        ]  # fmt: skip
        bars[name] = parts, f"{sum(map(sum, by_tensor.values())) / 1e6:.2f}"
    totals = ", ".join(f"{name}: {note}" for name, (_, note) in bars.items())
    panel = tile_grid.bars_panel("Megabytes (10\u2076 bytes) by tensor; pale: written", 730, bars, right=60)
    return Page(f"Bars of megabytes by tensor. {totals}.", (panel,))


def draw_budget(peak_holders, *, block_q, block_k, d):
    """What the four fp16 tiles take, and what the machine held at its peak, stacked. peak_holders: of its report."""
    four_tiles = dict.fromkeys("QKV", 2 * d * block_k) | {"Q": 2 * d * block_q, "S": 2 * block_q * block_k}
    # What no load brought has no name of its own; float32 of this size is one of these.
    of_size = {4 * block_q * d: "acc, old and new", 4 * block_q * block_k: "S, P"}
    held = dict.fromkeys((*"QKV", *reversed(of_size.values()), ""), 0)
    for name, n_bytes in peak_holders:
        held[name[0] if name[0] in "QKV" else of_size.get(n_bytes, "")] += n_bytes
    budget_bytes = sum(four_tiles.values())
    cases = {"the four tiles": four_tiles, "the machine": held}
    bars = {
        case: (tile_grid.parts_of(parts), f"{sum(parts.values()):,}", budget_bytes) for case, parts in cases.items()
    }
    totals = "; ".join(f"{case}: {total}" for case, (_, total, _) in bars.items())
    panel = tile_grid.bars_panel(f"Bytes in SRAM; line: the budget of {budget_bytes:,}", 730, bars)
    return Page(f"Bars of bytes in SRAM by tensor, against a budget of {budget_bytes:,}. {totals}.", (panel,))
