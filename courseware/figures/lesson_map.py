"""The map of the course: one table of its lessons, and the picture that lesson 00 draws from it."""

import textwrap
from dataclasses import dataclass

from matplotlib.patches import FancyBboxPatch

from courseware.explorers.svg import BLUE

from .base import INK, Picture


@dataclass(frozen=True)
class Lesson:
    """number: as in the notebook's name. needs: lessons it builds on, by number."""

    number: str
    title: str
    idea: str
    needs: tuple[str, ...] = ()


PARTS = {
    "Part I: the mathematics, in NumPy": (
        Lesson("00", "Start here", "how checks, hints and progress work"),
        Lesson("01", "Dot products", "similarity as a sum; why divide by sqrt(d)"),
        Lesson("02", "Softmax overflow", "what a float can hold, and where exp leaves it", ("01",)),
        Lesson("03", "Stable softmax", "subtract the maximum; log-sum-exp; masks", ("02",)),
        Lesson("04", "Attention", "the N x N matrix, and what moving it costs", ("01", "03")),
        Lesson("05", "Online softmax", "one pass over a stream of keys and values", ("03", "04")),
    ),
    "Part II: the algorithm and the machine": (
        Lesson("06", "Tiled attention", "tiles in SRAM, every byte counted", ("05",)),
        Lesson("07", "First Triton kernels", "programs, pointers, masks", ("03",)),
        Lesson("08", "The forward kernel", "05's update in 06's loop, as a kernel", ("06", "07")),
        Lesson("09", "FlashAttention backward", "recompute instead of remember", ("08",)),
        Lesson("10", "Performance", "measure without fooling yourself", ("08",)),
        Lesson("11", "Making it fast", "predict a change, then measure it", ("10",)),
    ),
    "Part III: beyond": (
        Lesson("12", "Thread by thread", "the same in CUDA C++", ("05", "08")),
        Lesson("13", "Masks and variants", "which tiles a mask leaves; ALiBi, dropout", ("08", "09")),
        Lesson("14", "Inference", "decoding, split-KV, paged caches", ("05", "08")),
        Lesson("15", "Hopper", "warps with different jobs", ("08", "11")),
        Lesson("16", "Many GPUs", "one sequence on several, in a ring", ("05", "08")),
        Lesson("17", "A real model", "an adapter, training, serving", ("08", "09", "14")),
    ),
}


def lesson_map():
    """A box for each lesson. Returns a figure."""
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
    return figure


def _draw_lesson(axes, left, bottom, lesson):
    width, height = 0.92, 0.82
    box = FancyBboxPatch(
        (left + 0.03, bottom + 0.03), width - 0.06, height - 0.06, boxstyle="round,pad=0.03", color=BLUE
    )
    axes.add_patch(box)
    title = textwrap.fill(f"{lesson.number}  {lesson.title}", 17)
    idea = textwrap.fill(lesson.idea, 21)
    needs = f"needs {', '.join(lesson.needs)}" if lesson.needs else ""
    axes.text(left + 0.05, bottom + height - 0.05, title, fontsize=9.5, weight="bold", va="top", color="white")
    axes.text(left + 0.05, bottom + 0.16, idea, fontsize=8, va="bottom", color="white")
    axes.text(left + 0.05, bottom + 0.05, needs, fontsize=8, va="bottom", color="white")
