"""Lesson 00's picture: above, the online softmax of lesson 05 over four tokens; below, the memory it saves."""

import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.explorers import online_softmax
from courseware.explorers.svg import BLUE, GREY, ORANGE, VERMILLION

from .base import INK, Picture, label, log_axes, tidy
from .lesson_05 import BEFORE

HEADS, HEAD_DIM = 32, 128
ALT = (
    "Four steps of the online softmax over a sentence of four tokens: each new key that raises the maximum shrinks "
    "the weights before it by 0.37. Below, against the length, the memory of standard attention grows with its "
    "square and FlashAttention's with the length."
)


def draw():
    """Returns a figure."""
    figure = Picture(5.6, alt=ALT)
    strip, curves = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    for part in (strip, curves):
        part.set_facecolor("white")
    _draw_steps(strip)
    curves.subplots_adjust(left=0.075, right=0.985, bottom=0.17, top=0.85)
    _draw_memory(curves.subplots())
    return figure


def _draw_steps(figure):
    scores, values, names = online_softmax.streams()["the sentence"]
    model = online_softmax.run(scores, values, names=names)
    panels = figure.subplots(1, 4, sharey=True)
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.13, top=0.72, wspace=0.12)
    title = "One pass: each key that raises the maximum shrinks all weights before it by the same factor"
    figure.suptitle(title, x=0.075, ha="left", fontsize=10.5, color=INK)
    for j, axes in enumerate(panels, start=1):
        before, step = model.steps[j - 1], model.steps[j]
        tidy(axes, title=f"alpha = {step.alpha:.2f}, l = {step.l:.2f}")
        axes.bar(range(4), step.weights, width=0.7, color=[BLUE] * (j - 1) + [ORANGE] * (5 - j))
        (old,) = np.nonzero(before.weights)
        axes.bar(old, before.weights[old], **BEFORE)
        axes.set_xticks(range(4), names)
        axes.set_xlim(-0.6, 3.6)
        axes.set_yticks([0, 0.5, 1])
    panels[0].set_ylabel("weight in acc", fontsize=9.5, color=INK)


def _draw_memory(axes):
    lengths = 2 ** np.arange(10, 18)
    layer = {"heads": HEADS, "dtype_bytes": 2}
    blocks = {"block_q": 128, "block_k": 64, "return_lse": True}
    standard = [traffic.standard_attention(int(n), int(n), HEAD_DIM, **layer).peak_bytes for n in lengths]
    flash = [traffic.flash_attention(int(n), int(n), HEAD_DIM, **layer, **blocks).peak_bytes for n in lengths]
    tidy(axes, title=f"memory beyond Q, K, V and O ({HEADS} heads, fp16)", x="length N", y="GiB")
    axes.plot(lengths, np.array(standard) / 2**30, marker="v", color=VERMILLION)
    axes.plot(lengths, np.array(flash) / 2**30, marker="o", color=BLUE)
    gpu = GPUS["A100"]
    axes.axhline(gpu.hbm_bytes / 2**30, color=GREY, linewidth=1, linestyle="--")
    label(axes, lengths[0], gpu.hbm_bytes / 2**30 * 1.4, f"all of an {gpu.name}", ha="left", va="baseline")
    label(axes, lengths[2], standard[1] / 2**30, "standard", size=9.5, ha="left", va="baseline", color=VERMILLION)
    label(axes, lengths[3], flash[4] / 2**30 * 3.5, "FlashAttention", size=9.5, ha="left", va="baseline", color=BLUE)
    log_axes(axes, [2**10, 2**12, 2**14, 2**16], ["1k", "4k", "16k", "64k"])
