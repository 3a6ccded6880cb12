"""Lesson 14's explorer: requests come and go, and their characters lie in the pages of one pool.

What it shows is the log of a `Server` that runs the course's small model. `draw_programs` is a picture of its
own: how long a GPU takes, by `kernels.decode`'s estimate, if keys are split.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from course_lib.kernels import decode
from course_lib.serving import model
from course_lib.serving.server import Server

from .drawing import cells, pale
from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, Picture, label, legend, panel
from .shell import Explorer, choice, slider, tick
from .words import table

BEGINNING = "in the glossary\n"
# (step of arrival, the prompt after BEGINNING, new characters)
REQUESTS = (
    (0, "score: ", 38),
    (1, "nan: ", 14),
    (3, "softmax: ", 34),
    (5, "roofline: ", 44),
    (12, "merge: ", 22),
)
NAMES = "ABCDE"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION)
SHARED = "#666666"
LINE_END = "\u21b5"  # shown for a newline, which would break the line of text over the cells
ROWS_A_LINE, GAP = 64, 0.5  # rows of the cache side by side in the picture, and between two pages
ADVANCE = 0.602  # the width of a monospaced character, as a part of its size
PAGE_SIZES, POOL_ROWS = (4, 8, 16, 32), (96, 128, 192, 256)


def attention(q, k_cache, v_cache, lengths, *, block_table):
    """What `flash_decode` computes, with PyTorch's attention of one sequence after the other, for any page size."""
    outputs = []
    for row, n, pages in zip(q, lengths.tolist(), block_table.long(), strict=True):
        k, v = (cache[pages].transpose(0, 1).flatten(1, 2)[:, :n] for cache in (k_cache, v_cache))
        visible = torch.ones(row.shape[1], n, dtype=torch.bool).tril(n - row.shape[1])
        outputs.append(scaled_dot_product_attention(row, k, v, attn_mask=visible, enable_gqa=True))
    return torch.stack(outputs)


@dataclass(frozen=True)
class Run:
    """steps: a Step for each step. texts: [step][request], its prompt and what it wrote, "" before it came."""

    page_size: int
    steps: tuple
    texts: tuple

    @property
    def n_steps(self):
        return len(self.steps)

    def characters(self, step):
        """{page: its characters, "" for a free page} after a step."""
        now, found = self.steps[step], [""] * len(self.steps[step].references)
        for request, pages in now.pages.items():
            stored = self.texts[step][request][: now.lengths[request]]
            for i, page in enumerate(pages):
                found[page] = max(found[page], stored[i * self.page_size :][: self.page_size], key=len)
        return found

    def owners(self, step):
        """[page][...]: the requests that have each page."""
        pages = self.steps[step].pages
        return [[r for r in pages if page in pages[r]] for page in range(len(self.steps[step].references))]


@lru_cache
def run(page_size, pool_rows, shares):
    """All requests served, from the first step to the last."""
    server = Server(
        model.load(), n_pages=pool_rows // page_size, page_size=page_size, shares=shares, attention=attention
    )
    texts, every = [""] * len(REQUESTS), []
    while len(server.log) <= REQUESTS[-1][0] or server.waiting or server.running:
        for request, (arrives, prompt, n_new) in enumerate(REQUESTS):
            if arrives == len(server.log):
                server.submit(BEGINNING + prompt, n_new)
                texts[request] = BEGINNING + prompt
        for request, character in server.step().new.items():
            texts[request] += character
        every.append(tuple(texts))
    return Run(page_size, tuple(server.log), tuple(every))


def describe(of, step):
    """What happened in a step, the counts, and each request's table of pages, as HTML."""
    now, step = of.steps[min(step, of.n_steps) - 1], min(step, of.n_steps) - 1
    n_pages, used = len(now.references), sum(count > 0 for count in now.references)
    stored = sum(map(len, of.characters(step)))
    happened = [
        *(f"{NAMES[r]} gives its pages up and waits" for r in now.preempted),
        *(f"{NAMES[r]} begins" + f" and shares {n} tokens" * (n > 0) for r, n in now.admitted.items()),
        *(f"page {source} is copied to page {target}" for source, target in now.copies),
        *(f"{NAMES[r]} is finished" for r in now.finished),
    ]
    saved = sum(count - 1 for count in now.references if count > 1)
    longest = max(len(BEGINNING + prompt) + n_new for _, prompt, n_new in REQUESTS)
    rows = [
        (NAMES[r], "waits" if r in now.waiting else "runs" if r in now.pages else "done", f"<tt>{text}</tt>",
         ", ".join(map(str, now.pages.get(r, ()))))
        for r, text in enumerate(of.texts[step]) if text
    ]  # fmt: skip
    empty, fit = used * of.page_size - stored, n_pages * of.page_size // longest
    return (
        f"<b>Step {step + 1} of {of.n_steps}.</b> {'; '.join(happened) or 'Every request gets a character'}.<br>"
        f"<b>{used} of {n_pages} pages</b> are in use, with {stored} tokens and {empty} empty rows. Sharing saves "
        f"{saved} pages. If each request reserved the {longest} rows of the longest text, "
        f"{fit} would fit. "
        f"{table(rows, ('request', '', 'its text', 'its pages'))}"
    )


def draw(of, step):
    """The pages of the pool after a step, with what they hold. Returns a figure."""
    step = min(step, of.n_steps) - 1
    held, owners, size = of.characters(step), of.owners(step), of.page_size
    said = [
        f"page {page} of {', '.join(NAMES[r] for r in who)}: {text!r}"
        for page, (who, text) in enumerate(zip(owners, held, strict=True)) if who
    ]  # fmt: skip
    lines = -(-len(held) * size // ROWS_A_LINE)
    alt = f"The pool after step {step + 1}. {'; '.join(said) or 'All pages are free'}."
    figure = Picture(0.1 + 0.6 * lines, alt=alt)
    axes = figure.add_axes((0.005, 0, 0.99, 1))
    axes.set(xlim=(0, ROWS_A_LINE), ylim=(lines + 0.05, 0))
    axes.set_axis_off()
    row = 1 - GAP / size  # so that a gap remains between two pages
    kinds = (*COLOURS, SHARED, PALE)
    palette = ("white", *(pale(pale(kind)) for kind in kinds), *kinds)
    edges, kinds_of_cells = [[] for _ in range(lines)], [[] for _ in range(lines)]
    # A line of text for each page and a grid for each line of pages, because matplotlib takes a millisecond for each.
    style = {"family": "monospace", "size": row * 72 * figure.get_figwidth() * 0.99 / ROWS_A_LINE / ADVANCE / 2}
    for page, (who, text) in enumerate(zip(owners, held, strict=True)):
        line, left = divmod(page * size, ROWS_A_LINE)
        kind = kinds.index(SHARED if len(who) > 1 else COLOURS[who[0]] if who else PALE)
        x = left + GAP / 2 + row * np.arange(size + 1)
        edges[line] += x.tolist()
        kinds_of_cells[line] += [1 + kind + len(kinds) * (i < len(text)) for i in range(size)] + [0]  # 0: the gap
        between = ", " if size > 4 else ""  # a short page has no room for five names and their commas
        name = f"{page}: {between.join(NAMES[r] for r in who)}" if who else str(page)
        label(axes, x[0], line + 0.2, name, color=INK if who else GREY, ha="left", size=8.5)
        if text:
            shown = " ".join(text.replace("\n", LINE_END))
            ink = INK if kinds[kind] == ORANGE else "white"  # white on orange is hard to read
            label(axes, x[0] + row / 4, line + 0.62, shown, color=ink, ha="left", **style)
    for line, (x, of_line) in enumerate(zip(edges, kinds_of_cells, strict=True)):
        cells(axes, [of_line[:-1]], palette, x=x, y=(line + 0.35, line + 0.9))
    return figure


def explore():
    """The explorer as a widget: the pool's shape, sharing, and the step."""
    rows = (
        {"page_size": choice("rows of a page", PAGE_SIZES, 16), "shares": tick("share pages", True)},
        {"pool_rows": choice("rows in all", POOL_ROWS, 192)},
        {"step": slider("step", 1, run(16, 192, True).n_steps, 8)},
    )

    def last_step(step, **chosen):
        return run(**chosen).n_steps

    return Explorer(run, describe, draw, *rows, step="step", ends={"step": last_step}, play="step")


def draw_programs(shapes, n_slots):
    """How long decoding takes by `decode.tiles_of_a_slot`, for every number of splits. Returns a figure.

    shapes: name -> (programs without splits, key tiles). n_slots: how many programs run at a time.
    """
    chosen = {name: decode.splits(*shape, n_slots) for name, shape in shapes.items()}
    said = [
        f"{name}: {decode.tiles_of_a_slot(*shape, n_slots, 1)} tiles without splits, "
        f"{decode.tiles_of_a_slot(*shape, n_slots, chosen[name])} with {chosen[name]}"
        for name, shape in shapes.items()
    ]
    figure, axes = panel(
        3.2, alt=f"Time against the number of splits. {'; '.join(said)}.", y="time (tiles of keys)",
        x="parts that each sequence's keys are split into", title="time until the last program ends, as estimated",
    )  # fmt: skip
    for (name, shape), colour in zip(shapes.items(), (BLUE, ORANGE, GREEN), strict=False):
        splits = range(1, 41)
        tiles = [decode.tiles_of_a_slot(*shape, n_slots, s) for s in splits]
        axes.plot(splits, tiles, ".-", color=colour, label=name, markersize=4, linewidth=1)
        axes.plot(chosen[name], tiles[chosen[name] - 1], "o", color=colour, markersize=8)
    axes.set(xlim=(0, 41), ylim=(0, None))
    legend(axes, loc="upper left", bbox_to_anchor=(0.12, 1.0))
    return figure
