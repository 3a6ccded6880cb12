"""Lesson 14's figure: how long a GPU takes, by `kernels.decode`'s estimate, if keys are split."""

from course_lib.kernels import decode
from courseware.explorers.svg import BLUE, GREEN, ORANGE

from .base import legend, panel


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
