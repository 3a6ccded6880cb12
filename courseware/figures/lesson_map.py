"""The map of the course: one table of its lessons, and the picture that lesson 00 draws from it."""

import textwrap
from dataclasses import dataclass

from matplotlib.patches import FancyBboxPatch

from courseware.explorers.svg import BLUE, GREY

from .base import INK, Picture


@dataclass(frozen=True)
class Lesson:
    """number: as in the notebook's name. needs: lessons it builds on, by number. ready: it is there."""

    number: str
    title: str
    idea: str
    needs: tuple[str, ...] = ()
    ready: bool = False


PARTS = {
    "Part I: the mathematics, in NumPy": (
        Lesson("00", "Start here", "how checks, hints and progress work", ready=True),
        Lesson("01", "Dot products", "similarity as a sum; why divide by sqrt(d)", ready=True),
        Lesson("02", "Softmax overflow", "what a float can hold, and where exp leaves it", ("01",), ready=True),
        Lesson("03", "Stable softmax", "subtract the maximum; log-sum-exp; masks", ("02",), ready=True),
        Lesson("04", "Attention", "the N x N matrix, and what moving it costs", ("01", "03"), ready=True),
        Lesson("05", "Online softmax", "one pass over a stream of keys and values", ("03", "04"), ready=True),
    ),
    "Part II: the algorithm and the machine": (
        Lesson("06", "Tiled attention", "tiles in SRAM, every byte counted", ("05",), ready=True),
        Lesson("07", "First Triton kernels", "programs, pointers, masks", ("03",), ready=True),
        Lesson("08", "The forward kernel", "05's update in 06's loop, as a kernel", ("06", "07"), ready=True),
        Lesson("09", "FlashAttention backward", "recompute instead of remember", ("08",), ready=True),
        Lesson("10", "Performance", "measure without fooling yourself", ("08",), ready=True),
        Lesson("11", "Making it fast", "predict a change, then measure it", ("10",), ready=True),
    ),
    "Part III: beyond": (
        Lesson("12", "Thread by thread", "the same in CUDA C++", ("05", "08"), ready=True),
        Lesson("13", "Masks and variants", "which tiles a mask leaves; ALiBi, dropout", ("08", "09"), ready=True),
        Lesson("14", "Inference", "decoding, split-KV, paged caches", ("05", "08"), ready=True),
        Lesson("15", "Hopper", "warps with different jobs", ("08", "11"), ready=True),
        Lesson("16", "Beyond one GPU", "ring attention", ("05", "08")),
        Lesson("17", "In a model", "training with your own kernel", ("09",)),
    ),
}


def lesson_map():
    """A box for each lesson: filled if it is there, dashed if it is not there yet. Returns a figure."""
    parts = [f"{part}: {', '.join(f'{one.number} {one.title}' for one in lessons)}" for part, lessons in PARTS.items()]
    figure = Picture(5.4, alt=f"The lessons as boxes, in three parts. {'. '.join(parts)}.")
    axes = figure.add_axes((0.005, 0.005, 0.99, 0.99))
    axes.set_axis_off()
    axes.set_xlim(0, 6)
    axes.set_ylim(0, 3 * 1.12)
    for row, (part, lessons) in enumerate(reversed(PARTS.items())):
        bottom = row * 1.12
        axes.text(0.04, bottom + 1.0, part, fontsize=10.5, va="center", color=INK)
        for column, lesson in enumerate(lessons):
            _draw_lesson(axes, column + 0.04, bottom + 0.05, lesson)
    key = "filled: there    dashed: not there yet"
    axes.text(5.96, 3.24, key, fontsize=9, ha="right", va="center", color=INK)
    return figure


def _draw_lesson(axes, left, bottom, lesson):
    width, height = 0.92, 0.82
    face, ink = (BLUE, "white") if lesson.ready else ("white", INK)
    box = FancyBboxPatch(
        (left + 0.03, bottom + 0.03), width - 0.06, height - 0.06, boxstyle="round,pad=0.03", facecolor=face,
        edgecolor=BLUE if lesson.ready else GREY, linestyle="-" if lesson.ready else "--",
    )  # fmt: skip
    axes.add_patch(box)
    title = textwrap.fill(f"{lesson.number}  {lesson.title}", 17)
    idea = textwrap.fill(lesson.idea, 21)
    needs = f"needs {', '.join(lesson.needs)}" if lesson.needs else ""
    axes.text(left + 0.05, bottom + height - 0.05, title, fontsize=9.5, weight="bold", va="top", color=ink)
    axes.text(left + 0.05, bottom + 0.16, idea, fontsize=8, va="bottom", color=ink)
    axes.text(left + 0.05, bottom + 0.05, needs, fontsize=8, va="bottom", color=ink)
