"""Displays a text and its HTML twin. The style is legible on light and dark alike, and each output carries it: a front
end may draw one output without the others."""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from html import escape as escape

from .cells import shell

# Okabe and Ito's palette, as in the figures.
EDGES = {"quiet": "#888888", "passed": "#009E73", "failed": "#D55E00", "guess": "#0072B2"}

STYLE = (
    "<style>"
    f".course{{border-left:4px solid {EDGES['quiet']};padding:.1em 0 .1em 1em;margin:.3em 0;line-height:1.45}}"
    + "".join(f".course.{mood}{{border-color:{colour}}}" for mood, colour in EDGES.items())
    + ".course p{margin:.3em 0}.course ul{margin:.3em 0;padding-left:1.4em}"
    ".course pre{margin:.3em 0;padding:.4em .7em;white-space:pre-wrap;background:rgba(128,128,128,.14)}"
    f".course .right,.course .wrong{{margin-left:1.1em;padding-left:.7em;border-left:3px solid {EDGES['passed']}}}"
    f".course .wrong{{border-color:{EDGES['failed']}}}"
    ".course summary{cursor:pointer}.course-name{display:inline-block;min-width:15em}"
    f".course-done{{color:{EDGES['passed']}}}"
    ".course-table td{white-space:nowrap}.course-table{font-variant-numeric:tabular-nums}"
    ".course-table td[align=left],.course-table th[align=left],.course-table caption{text-align:left}"
    ".course-table td p{white-space:normal;min-width:18em;margin:0}"  # a sentence
    ".course-bar{display:inline-block;width:8em;margin-left:.7em;text-align:left}"
    f".course-bar i{{display:inline-block;height:.7em;background:{EDGES['guess']}}}"
    "</style>"
)


def in_notebook() -> bool:
    return shell() is not None


def boxed(content: str, mood: str = "quiet") -> str:
    """HTML with a coloured edge."""
    return f'{STYLE}<div class="course {mood}">{content}</div>'


def show(text: str, content: str, widget: Callable | None = None) -> None:
    """Display the HTML `content` in a notebook, or the text where HTML is not understood; print it elsewhere.

    widget: makes what is shown instead where there is a kernel.
    """
    if not in_notebook():
        print(text)
        return
    from IPython.display import display

    live = {} if widget is None else widget()._repr_mimebundle_()
    display({**live, "text/plain": text, "text/html": content}, raw=True)


@contextlib.contextmanager
def said_after(seconds: float, text: str) -> Iterator[None]:
    """Displays the text in a notebook if what is done meanwhile takes longer, and until it is done."""
    if not in_notebook():
        yield
        return
    from IPython.display import display

    handles = []

    def say():
        handles.append(display({"text/plain": text, "text/html": boxed(text)}, raw=True, display_id=True))

    # In the cell's context, so that it is shown below that cell.
    timer = threading.Timer(seconds, contextvars.copy_context().run, [say])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for handle in handles:
            handle.update({"text/plain": "", "text/html": ""}, raw=True)
