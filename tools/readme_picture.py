"""Draws the README's pictures anew: `python -m tools.readme_picture`.

The moving one is lesson 08's first explorer, step by step, as an image that needs no script. The other is the finished
kernel's speed, as recorded.
"""

import re
import textwrap
from html import escape

from courseware.bench import records
from courseware.explorers import hero
from courseware.explorers.svg import BLUE, GREY, SKY, Panel, style
from courseware.explorers.words import plain
from courseware.figures.base import INK, PALE, Picture, label, png, tidy

from .authoring import NOTEBOOKS

MOVING, SPEED = NOTEBOOKS / "images/hero.svg", NOTEBOOKS / "images/speed.png"
LEFT, TOP, WIDTH, HEIGHT, LINE = -20, -76, 412, 600, 15.5  # pixels; the weights' left upper corner is at 0, 0
STILL, PAUSE = 15, 5  # the step that is shown where nothing may move; for how many more steps the last one stays
# Of the record attention-h100, the fastest first.
METHODS = {"sdpa_cudnn": "cuDNN", "ours": "this course", "flex": "FlexAttention", "sdpa_flash": "FlashAttention-2"}


def moving():
    """The SVG: of each step what is its own, visible for its share of the time, and over it what all steps share."""
    frames = [re.findall("<[^/].*?(?=<[^/]|$)", _step(now)) for now in hero.moments("kernel")]
    shared = [piece for piece in frames[0] if all(piece in frame for frame in frames)]
    seconds, n = hero.MS / 1000, len(frames) + PAUSE
    each = "".join(
        f'<g class="f{" still" * (i == STILL)}{" last" * (i == len(frames) - 1)}" '
        f'style="animation-delay:{i * seconds:.1f}s">{"".join(piece for piece in frame if piece not in shared)}</g>'
        for i, frame in enumerate(frames)
    )
    one, last = (f"{{0%{{visibility:visible}}{100 * steps / n:.3f}%{{visibility:hidden}}}}" for steps in (1, 1 + PAUSE))
    colours, drawings = style().splitlines()[0], style().partition("Drawings.")[2].partition("*/")[2]
    rules = (
        f"{colours}{drawings}.explorer{{--ink:#222;--soft:#555;--edge:#ddd;--page:#fff;color:var(--ink)}}"
        f"@keyframes one{one}@keyframes last{last}"
        f".f{{visibility:hidden;animation:one {n * seconds:.1f}s step-end infinite}}"
        ".f.last{animation-name:last}"
        "@media (prefers-reduced-motion:reduce){.f{animation:none}.still{visibility:visible}}"
        "@media (prefers-color-scheme:dark){.explorer{--ink:#ddd;--soft:#aaa;--edge:#444;--page:#0d1117}}"
        ".explorer .under{fill:var(--page)}.explorer .lit{fill:var(--now);opacity:.3}"
        ".explorer .mono{font:12px monospace}"
    )
    place = f'x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="explorer" viewBox="{LEFT} {TOP} {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}"><style>{escape(rules, quote=False)}</style>'
        f'<rect class="under" {place} rx="6"/>{each}{"".join(shared)}</svg>\n'
    )


def _step(now):
    """A moment's drawing: what happens in words, the weights, the state, and the lines."""
    panel = Panel("", WIDTH, HEIGHT, (0, 1), (0, 1))
    panel.element("text", "big", "A query walks over its keys, two at a time", x=LEFT + 12, y=TOP + 24)
    for place, line in enumerate(textwrap.wrap(plain(now.said), 62)):
        panel.element("text", "", line, x=LEFT + 12, y=TOP + 46 + 17 * place)
    for left, (name, text) in zip((12, 112, 170, 278), hero.state(now).items(), strict=False):
        panel.element("text", "big", text, x=LEFT + left, y=226)
        panel.element("text", "small", name, x=LEFT + left, y=242)
    for place, (phase, line) in enumerate(hero.code("kernel")):
        if phase == now.phase:
            panel.element("rect", "lit", x=LEFT + 6, y=255 + LINE * place, width=WIDTH - 12, height=LINE)
        written = line.removeprefix("    ").replace(" ", "\u00a0")
        panel.element("text", "mono", written, x=LEFT + 12, y=267 + LINE * place)
    weights = hero.picture("kernel", now).html()
    return re.search("<svg[^>]*>(.*)</svg>", weights)[1] + re.search("<svg[^>]*>(.*)</svg>", panel.html())[1]


def speed():
    """A figure."""
    alt = "On an H100, the course's kernel is slower than cuDNN and faster than FlashAttention-2."
    figure = Picture(2.6, 5, alt=alt)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.04, right=0.97, bottom=0.19, top=0.88)
    setting = {"n": 16_384, "head_dim": 128, "causal": False}
    for of, shift, shades in (("forward", -0.2, (BLUE, GREY)), ("backward", 0.2, (SKY, PALE))):
        (row,) = records.rows("attention-h100", **setting, **{"pass": of})
        for place, method in enumerate(METHODS):
            tflops, ours = row["tflops"][method], method == "ours"
            axes.barh(place + shift, tflops, height=0.36, color=shades[not ours])
            label(axes, tflops + 8, place + shift, f"{tflops:.0f} {of}" if ours else f"{tflops:.0f}", ha="left")
            if of == "forward":
                label(axes, 10, place + shift, METHODS[method], ha="left", color="white" if ours else INK)
    where = f"fp16, N = {setting['n']:,}, d = {setting['head_dim']}"
    tidy(axes, title=f"speed, beside PyTorch's ({where})", x="TFLOP/s")
    machine = records.provenance("attention-h100").replace(", ", "\n")
    label(axes, 880, 3.4, machine, size=8, ha="right", va="bottom")
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(0, 880)
    return figure


if __name__ == "__main__":
    MOVING.write_text(moving(), encoding="utf-8")
    SPEED.write_bytes(png(speed()))
    print(MOVING, SPEED, sep="\n")
