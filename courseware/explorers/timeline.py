"""Lesson 15's explorer: who does what when on an SM, as `sm_simulator` simulates a rung of the Hopper kernel."""

from functools import cache
from types import SimpleNamespace

from course_lib.hardware import GPUS, KIB
from courseware.simulators import sm_simulator

from .explorer import Explorer, menu, slider
from .svg import Page, Panel
from .words import table

KEY_TILES = 6  # that are drawn
STEADY_KEY_TILES = 32  # of the prediction
HALF, GAP = 0.38, 0.02  # a lane has two halves, with twice the gap between them
# How a span's name begins -> (what it is, class, the upper half of its lane or the lower).
KINDS = {
    "copy to Q": ("copy of Q", "Q", 0), "copy to K": ("copy of K", "K", 0), "copy to V": ("copy of V", "V", 1),
    "store": ("store of O", "grey", 1), "S": ("S = Q K^T", "S", 0), "O": ("O += P V", "O", 0),
    "max": ("softmax", "P", 1), "exp": ("softmax", "P", 1), "rescale": ("O times alpha", "P pale", 1),
}  # fmt: skip
START = {"rung": "a warp that fetches", "stages": 2, "consumers": 2, "head_dim": 128, "block_k": 128}


@cache
def evaluate(**chosen):
    """A rung as it is simulated with settings, those of START where nothing else is chosen, as a namespace.

    rung: of sm_simulator.RUNGS. consumers: groups that compute, where the rung leaves a choice. The namespace has
    settings; groups, how many compute; run, of KEY_TILES key tiles, for the picture; steady, the Prediction for many,
    and steady_share, the part of its time in which the tensor cores work; lanes, {lane: [spans]}, from the top down:
    copies, then each group that computes.
    """
    s = SimpleNamespace(**START | chosen)
    model = SimpleNamespace(settings=s, groups={"one group": 1, "groups take turns": 2}.get(s.rung, s.consumers))
    shape = s.rung, s.head_dim, s.block_k, s.stages
    model.run = sm_simulator.simulate(*shape, KEY_TILES, consumers=model.groups)
    model.steady = sm_simulator.predict(*shape, STEADY_KEY_TILES, consumers=model.groups)
    product_cycles = 2 * 64 * s.block_k * s.head_dim / sm_simulator.H100.tensor_flops
    model.steady_share = model.groups * 2 * product_cycles / model.steady.cycles_per_key_tile
    spans = model.run.spans
    model.lanes = {"copies": [span for span in spans if span.unit == "copy"]}
    for job in dict.fromkeys(span.job for span in spans if span.unit == "tensor"):
        model.lanes[job] = [span for span in spans if span.job == job and span.unit in ("tensor", "compute")]
    return model


def draw(model):
    """The timeline of the first key tiles; cycles, shares and what stands in the way."""
    s, run, lanes = model.settings, model.run, model.lanes
    stages = "1 stage" if s.stages == 1 else f"{s.stages} stages"
    panel = Panel(
        f"{s.rung}: the first {KEY_TILES} key tiles, d = {s.head_dim}, {s.block_k} keys, {stages}",
        746, 104 + 46 * (len(lanes) + 1), (0, run.cycles), (len(lanes) + 0.5, -0.5), margins=(84, 14, 42, 36),
        x_ticks=range(0, int(run.cycles) + 1, 500 if run.cycles < 4000 else 2000), x_label="clock cycles",
    )  # fmt: skip
    meanings = [*dict.fromkeys(kind[:2] for kind in KINDS.values()), ("busy", "ink"), ("bubble", "skipped")]
    panel.legend(dict(meanings[:5]))
    panel.legend(dict(meanings[5:]), top=28)
    for lane, (name, spans) in enumerate(lanes.items()):
        panel.element("text", "end", name, x=78, y=panel.y(lane) + 4)
        for kind, (what, css, half) in KINDS.items():
            top = lane + (GAP if half else -GAP - HALF)
            for span in spans:
                if span.what.startswith(kind):
                    tip = f"{span.what} ({what}): cycles {span.start:,.0f} to {span.end:,.0f}"
                    panel.rect((span.start, span.end), (top, top + HALF), f"bar {css}", tip=tip)
                    tile = span.what.split()[-1] if kind in ("S", "O", "exp") else ""
                    if panel.x(span.end) - panel.x(span.start) > 8 * len(tile):
                        panel.text((span.start + span.end) / 2, top + HALF / 2, tile, f"middle small on-colour {css}")
    panel.element("text", "end", "tensor cores", x=78, y=panel.y(len(lanes)) + 4)
    for pieces, css, what in ((run.busy("tensor"), "ink", "busy"), (run.bubbles("tensor"), "skipped", "a bubble")):
        for start, end in pieces:
            tip = f"{what}: cycles {start:,.0f} to {end:,.0f}"
            panel.rect((start, end), (len(lanes) - HALF / 2, len(lanes) + HALF / 2), css, tip=tip)
    said = "; ".join(f"{lane}: {len(spans)} spans" for lane, spans in lanes.items())
    bubbles, limit = run.bubbles("tensor"), GPUS["H100"].shared_bytes_per_block
    idle = sum(end - start for start, end in bubbles)
    rows = [
        ("a key tile in the steady state",
         f"{model.steady.cycles_per_key_tile:,.0f} cycles for {64 * model.groups} query rows"),
        ("tensor cores in the steady state", f"busy {model.steady_share:.0%}"),
        ("bubbles in the picture", f"{len(bubbles)}, together {idle:,.0f} of {run.cycles:,.0f} cycles"),
        ("shared memory", f"{run.shared_bytes / KIB:,.0f} KiB of {limit / KIB:.0f} KiB"
         + (": it does not fit" if run.shared_bytes > limit else "")),
    ]  # fmt: skip
    groups = "1 group that computes" if model.groups == 1 else f"{model.groups} groups that compute"
    note = f"<br>{s.rung} always has {groups}." if model.groups != s.consumers else ""
    return Page(
        f"Timeline of {run.cycles:,.0f} cycles. {said}. The tensor cores are busy {run.share('tensor'):.0%} of the "
        f"time in the picture, {model.steady_share:.0%} in the steady state.", (panel,), text=table(rows) + note,
    )  # fmt: skip


def explore():
    """The explorer: the rung, stages, consumers, and the sizes of a tile."""
    controls = {
        "rung": menu("rung", sm_simulator.RUNGS), "consumers": slider("consumers", (1, 2)),
        "stages": slider("stages", range(1, 5), play=True), "head_dim": slider("d", (64, 128)),
        "block_k": slider("keys of a tile", (64, 128)),
    }  # fmt: skip
    return Explorer(lambda **chosen: draw(evaluate(**chosen)), controls, start=START)
