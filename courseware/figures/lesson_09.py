"""Lesson 09's figure: the matrix products of the backward's passes."""

from courseware.explorers.svg import Page
from courseware.explorers.tile_grid import bars_panel


def draw_products(programs):
    """A row of boxes for each program, a box for each matrix product, 2 n_q n_k d FLOPs. programs: name -> products."""
    bars = {}
    for name, products in programs.items():
        bars[name] = [(one, 1, one.replace(" again", " pale")) for one in products], str(len(products))
    title = "Matrix products; pale: only because something was not kept"
    each = "; ".join(f"{name}: {len(products)}, {', '.join(products)}" for name, products in programs.items())
    panel = bars_panel(title, 730, bars, left=150, right=30)
    return Page(f"Rows of boxes, one for each matrix product. {each}.", (panel,))
