"""Lesson 14's explorer: requests come and go, and their characters lie in the pages of one pool.

What it shows is the log of a `Server` and the texts of the course's small model.
"""

from functools import cache
from types import SimpleNamespace

from course_lib.serving import model
from course_lib.serving.server import Server

from .explorer import Explorer, slider, tick
from .svg import Page, Panel
from .words import table

BEGINNING = "in the glossary\n"
# (step of arrival, the prompt after BEGINNING, new characters)
REQUESTS = (0, "score: ", 38), (1, "nan: ", 14), (3, "softmax: ", 34), (5, "roofline: ", 44), (12, "merge: ", 22)
NAMES = "ABCDE"
COLOURS = "QKVOS"
LINE_END = "\u21b5"  # shown for a newline
ROWS_A_LINE, GAP = 64, 0.5  # rows of the cache side by side in the picture, and between two pages
PAGE_SIZES, POOL_ROWS = (4, 8, 16, 32), (96, 128, 192, 256)
STEPS = range(1, 116)  # of the longest run: pages of 32 rows in the smallest pool


class _Replayed(Server):
    """A server whose model is known to say these texts: it hands out pages as ever, and computes nothing."""

    def __init__(self, texts, **options):
        super().__init__(model.TinyModel(n_layers=0, width=1, heads=1, kv_heads=1, head_dim=2), **options)
        self._texts = [model.encode(text) for text in texts]

    def _forward(self, requests, places):
        for request in requests:
            request.tokens.append(self._texts[request.number][len(request.tokens)])


@cache
def final_texts():
    """Each request's prompt with what the model writes after it, whatever else is served."""
    small, prompts = model.load(), [(BEGINNING + prompt, n_new) for _, prompt, n_new in REQUESTS]
    return [prompt + model.generate(small, prompt, n_new) for prompt, n_new in prompts]


@cache
def run(page_size, pool_rows, shares):
    """All requests served, from the first step to the last: a namespace for each step.

    log: its Step. texts: [request], its prompt and what it wrote, "" before it came. held: [page], its characters, ""
    for a free page. owners: [page][...], the requests that have each page.
    """
    server = _Replayed(final_texts(), n_pages=pool_rows // page_size, page_size=page_size, shares=shares)
    texts, steps = [""] * len(REQUESTS), []
    while len(server.log) <= REQUESTS[-1][0] or server.waiting or server.running:
        for request, (arrives, prompt, n_new) in enumerate(REQUESTS):
            if arrives == len(server.log):
                server.submit(BEGINNING + prompt, n_new)
                texts[request] = BEGINNING + prompt
        log = server.step()
        for request, character in log.new.items():
            texts[request] += character
        held = [""] * len(log.references)
        for request, pages in log.pages.items():
            stored = texts[request][: log.lengths[request]]
            for i, page in enumerate(pages):
                held[page] = max(held[page], stored[i * page_size :][:page_size], key=len)
        owners = [[r for r in log.pages if page in log.pages[r]] for page in range(len(held))]
        steps.append(SimpleNamespace(log=log, texts=tuple(texts), held=held, owners=owners))
    return steps


def describe(step, page_size):
    """What happened in a step, the counts, and each request's table of pages, as HTML."""
    now, n_pages, stored = step.log, len(step.held), sum(map(len, step.held))
    used = sum(count > 0 for count in now.references)
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
        for r, text in enumerate(step.texts) if text
    ]  # fmt: skip
    empty, fit = used * page_size - stored, n_pages * page_size // longest
    return (
        f"{'; '.join(happened) or 'Every request gets a character'}.<br>"
        f"<b>{used} of {n_pages} pages</b> are in use, with {stored} tokens and {empty} empty rows. Sharing saves "
        f"{saved} pages. If each request reserved the {longest} rows of the longest text, {fit} would fit. "
        f"{table(rows, ('request', '', 'its text', 'its pages'))}"
    )


def page(step, page_size, **chosen):
    """The pages of the pool after a step, with what they hold."""
    steps = run(page_size, **chosen)
    held, owners = steps[step - 1].held, steps[step - 1].owners
    n_lines = -(-len(held) * page_size // ROWS_A_LINE)
    panel = Panel(
        f"The pool: {len(held)} pages of {page_size} rows", 746, 36 * n_lines + 8, (0, ROWS_A_LINE), (n_lines, 0),
        margins=(4, 4, 4, 4),
    )  # fmt: skip
    row = 1 - GAP / page_size  # so that a gap remains between two pages
    said = []
    for number, (who, text) in enumerate(zip(owners, held, strict=True)):
        line, left = divmod(number * page_size, ROWS_A_LINE)
        css = "grey" if len(who) > 1 else COLOURS[who[0]] if who else "skipped"
        names = ", ".join(NAMES[r] for r in who)
        x = [left + GAP / 2 + row * i for i in range(page_size + 1)]
        tip = f"page {number} of {names}: {text!r}" if who else f"page {number} is free"
        said += [tip] * bool(who)
        if len(text) < page_size:
            panel.rect((x[len(text)], x[page_size]), (line + 0.42, line + 0.92), f"{css} pale" if who else css, tip=tip)
        if text:
            panel.rect((x[0], x[len(text)]), (line + 0.42, line + 0.92), css, tip=tip)
            # One place for each character, and no space that a browser would leave out.
            places = " ".join(f"{panel.x(at + row / 2):.1f}" for at in x[: len(text)])
            shown = text.replace("\n", LINE_END).replace(" ", "\u00a0")
            panel.element("text", f"mono middle on-colour {css}", shown, x=places, y=panel.y(line + 0.67) + 4)
        name = f"{number}: {names if page_size > 4 else names.replace(', ', '')}" if who else str(number)
        panel.text(x[0], line + 0.2, name, "small" if who else "soft small")
    what = f"The pool after step {step}. {'; '.join(said) or 'All pages are free'}."
    text = f"<b>Step {step} of {len(steps)}.</b> {describe(steps[step - 1], page_size)}"
    return Page(what, (panel,), text=text)


def explore():
    """The explorer: the pool's shape, sharing, and the step."""
    controls = {
        "page_size": slider("rows of a page", PAGE_SIZES, 16), "pool_rows": slider("rows in all", POOL_ROWS, 192),
        "shares": tick("share pages", start=True), "step": slider("step", STEPS, 8, play=True),
    }  # fmt: skip
    ends = {"step": lambda step, **chosen: len(run(**chosen))}
    written = {"page_size": PAGE_SIZES[2:], "pool_rows": (96, 192, 256), "shares": (True, False), "step": STEPS}
    return Explorer(page, controls, ends=ends, written=written)
