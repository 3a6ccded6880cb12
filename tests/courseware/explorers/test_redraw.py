"""Redrawing is fast enough to follow a control that is dragged.

Times are CPU time, and one redraw of several has to be fast enough, because the machine may be busy. On an idle one
they stay below 200 ms. On a slower machine the limit grows by what a plain picture takes there.
"""

import time

import pytest

from courseware.explorers import (
    attention_memory,
    backward_passes,
    dot_products,
    figures,
    float_formats,
    forward_kernel,
    mask_painter,
    programs,
    roofline,
    stable_softmax,
    timeline,
    warp,
    worklog,
)

LIMIT_MS, PLAIN_PICTURE_MS = 300, 60
# Each explorer, settings under which its picture is full, and the control that is moved: between two values.
EXPLORERS = {
    "crowd": (dot_products.explore_crowd, {}, "d", (64, 128)),
    "float formats": (float_formats.explore, {}, "shift all", (0, 90)),
    "stable softmax": (stable_softmax.explore, {"logits": "12 random logits"}, "times", (9, 10)),
    "attention memory": (attention_memory.explore, {}, "N", (1024, 2048)),
    "programs": (programs.explore, {"grid": "2-D", "rows": 12, "columns": 24, "BLOCK_N": 1}, "program_id(0)", (1, 2)),
    "forward": (forward_kernel.explore, {"BLOCK_M": 8, "BLOCK_N": 8}, "tile", (0, 1)),
    "roofline": (roofline.explore, {}, "B_r", (64, 128)),
    "warp": (warp.explore, {"row (floats)": 128, "padding": 1}, "step", (8, 9)),
    "timeline": (timeline.explore, {"rung": "groups take turns"}, "d", (64, 128)),
    "worklog": (worklog.explore, {}, "N", (1024, 4096)),
    "paint": (mask_painter.explore, {"block_k": 3}, "block_q", (3, 4)),
    "backward": (backward_passes.explore, {"queries": 24, "keys": 24, "causal": False}, "visit", (20, 21)),
}  # fmt: skip


def plain_picture_ms():
    start = time.process_time()
    figure, axes = figures.panel(3, title="a plain picture", x="x", alt="a line")
    axes.plot(range(50))
    figures.png(figure)
    return 1e3 * (time.process_time() - start)


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_redraw_takes_less_than_300_ms(name, shell_of, record_property):
    explore, settings, moved, values = EXPLORERS[name]
    shell, times_ms = shell_of(explore()), []
    for description, value in settings.items():
        shell[description].value = value
    for value in values:  # what is drawn for the first time may take longer
        shell[moved].value = value
    limit_ms = LIMIT_MS * max(1, min(plain_picture_ms() for _ in range(3)) / PLAIN_PICTURE_MS)
    for value in 3 * values:
        before, start = shell["Image"].value, time.process_time()
        shell[moved].value = value
        times_ms.append(1e3 * (time.process_time() - start))
        assert shell["Image"].value != before
        if times_ms[-1] < limit_ms:
            break
    record_property("redraw_ms", round(min(times_ms)))
    assert min(times_ms) < limit_ms
