"""Draws the picture at the head of the README anew: `python -m tools.readme_picture`.

It is lesson 00's, with the finished kernel's speed, as recorded, in place of the bytes requested.
"""

from courseware.bench import records
from courseware.explorers.svg import BLUE, GREY, SKY
from courseware.figures import lesson_00
from courseware.figures.base import INK, PALE, label, png, tidy

from .authoring import NOTEBOOKS

# Of the record attention-h100, the fastest first.
METHODS = {"sdpa_cudnn": "cuDNN", "ours": "this course", "flex": "FlexAttention", "sdpa_flash": "FlashAttention-2"}


def draw():
    """Returns a figure."""
    alt = "on an H100, the course's kernel is slower than cuDNN and faster than FlashAttention-2."
    return lesson_00.draw(_draw_speed, alt)


def _draw_speed(axes):
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
    label(axes, 815, 3.4, machine, size=8.5, ha="right", va="bottom")
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(0, 815)


if __name__ == "__main__":
    path = NOTEBOOKS / "images/readme.png"
    path.write_bytes(png(draw(), colours=64))
    print(path)
