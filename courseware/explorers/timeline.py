"""Lesson 15's explorer: who does what when on an SM, as `sm_simulator` simulates a rung of the Hopper kernel."""

from dataclasses import dataclass
from functools import lru_cache

from course_lib.hardware import GPUS, KIB
from courseware.simulators import sm_simulator

from .figures import GREY, INK, PALE, SKY, TENSOR_COLOURS, label, panel
from .shell import Explorer, choice, menu, slider
from .words import table

KEY_TILES = 6  # that are drawn
STEADY_KEY_TILES = 32  # of the prediction
HEAD_DIMS, BLOCKS = (64, 128), (64, 128)
HALF, GAP = 0.38, 0.02  # a lane has two halves, with twice the gap between them
CHARACTERS = 120  # that fit beside each other
# How a span's name begins -> (what it is, colour, the upper half of its lane or the lower).
KINDS = {
    "copy to Q": ("copy of Q", TENSOR_COLOURS["Q"], 0), "copy to K": ("copy of K", TENSOR_COLOURS["K"], 0),
    "copy to V": ("copy of V", TENSOR_COLOURS["V"], 1), "store": ("store of O", GREY, 1),
    "S": ("S = Q K^T", TENSOR_COLOURS["S"], 0), "O": ("O += P V", TENSOR_COLOURS["O"], 0),
    "max": ("softmax", SKY, 1), "exp": ("softmax", SKY, 1), "rescale": ("O times alpha", "#9DCBEA", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """rung: of sm_simulator.RUNGS. consumers: groups that compute, where the rung leaves a choice."""

    rung: str = "a warp that fetches"
    stages: int = 2
    consumers: int = 2
    head_dim: int = 128
    block_k: int = 128

    @property
    def groups(self):
        return {"one group": 1, "groups take turns": 2}.get(self.rung, self.consumers)


@dataclass(frozen=True)
class Model:
    """run: of KEY_TILES key tiles, for the picture. steady: the Prediction for many."""

    settings: Settings
    run: sm_simulator.Run
    steady: sm_simulator.Prediction

    @property
    def steady_share(self):
        """The part of the steady state in which the tensor cores work."""
        s = self.settings
        product = 2 * 64 * s.block_k * s.head_dim / sm_simulator.H100.tensor_flops
        return s.groups * 2 * product / self.steady.cycles_per_key_tile

    @property
    def lanes(self):
        """{lane: [spans]}, from the top down: copies, then each group that computes."""
        lanes = {"copies": [span for span in self.run.spans if span.unit == "copy"]}
        for job in dict.fromkeys(span.job for span in self.run.spans if span.unit == "tensor"):
            lanes[job] = [span for span in self.run.spans if span.job == job and span.unit in ("tensor", "compute")]
        return lanes


@lru_cache(maxsize=256)
def evaluate(s):
    shape = s.rung, s.head_dim, s.block_k, s.stages
    return Model(
        s, sm_simulator.simulate(*shape, KEY_TILES, consumers=s.groups),
        sm_simulator.predict(*shape, STEADY_KEY_TILES, consumers=s.groups),
    )  # fmt: skip


def describe(model):
    """Cycles, shares and what stands in the way, as HTML."""
    s, run, limit = model.settings, model.run, GPUS["H100"].shared_bytes_per_block
    bubbles = run.bubbles("tensor")
    idle = sum(end - start for start, end in bubbles)
    rows = [
        ("a key tile in the steady state",
         f"{model.steady.cycles_per_key_tile:,.0f} cycles for {64 * s.groups} query rows"),
        ("tensor cores in the steady state", f"busy {model.steady_share:.0%}"),
        ("bubbles in the picture", f"{len(bubbles)}, together {idle:,.0f} of {run.cycles:,.0f} cycles"),
        ("shared memory", f"{run.shared_bytes / KIB:,.0f} KiB of {limit / KIB:.0f} KiB"
         + (": it does not fit" if run.shared_bytes > limit else "")),
    ]  # fmt: skip
    groups = "1 group that computes" if s.groups == 1 else f"{s.groups} groups that compute"
    note = f"<br>{s.rung} always has {groups}."
    return table(rows) + (note if s.groups != s.consumers else "")


def draw(model):
    """The timeline of the first key tiles. Returns a figure."""
    s, run, lanes = model.settings, model.run, model.lanes
    said = [f"{lane}: {len(spans)} spans" for lane, spans in lanes.items()]
    stages = "1 stage" if s.stages == 1 else f"{s.stages} stages"
    figure, axes = panel(
        1.5 + 0.62 * (len(lanes) + 1), x="clock cycles", left=0.12, below=0.8,
        title=f"{s.rung}: the first {KEY_TILES} key tiles, d = {s.head_dim}, {s.block_k} keys, {stages}",
        alt=f"Timeline of {run.cycles:,.0f} cycles. {'; '.join(said)}. The tensor cores are busy "
        f"{run.share('tensor'):.0%} of the time in the picture, {model.steady_share:.0%} in the steady state.",
    )  # fmt: skip
    axes.set(xlim=(0, run.cycles), ylim=(len(lanes) + 0.5, -0.5), yticks=[])
    for lane, name in enumerate([*lanes, "tensor cores"]):
        label(axes, -0.01, lane, name, ha="right", transform=axes.get_yaxis_transform())
    for kind, (name, colour, half) in KINDS.items():
        for lane, spans in enumerate(lanes.values()):
            of_kind = [span for span in spans if span.what.startswith(kind)]
            if not of_kind:
                continue
            top = lane - GAP - HALF if half == 0 else lane + GAP
            axes.broken_barh(
                [(span.start, span.end - span.start) for span in of_kind], (top, HALF), facecolors=colour,
                edgecolors="white", linewidth=0.6, label=name,
            )  # fmt: skip
            for span in of_kind if kind in ("S", "O", "exp") else ():
                tile = span.what.split()[-1]
                if span.end - span.start > 2 * len(tile) * run.cycles / CHARACTERS:
                    ink = INK if kind == "exp" else "white"
                    label(axes, (span.start + span.end) / 2, top + HALF / 2, tile, color=ink, size=8.5)
    for name, pieces, colour in (("busy", run.busy("tensor"), INK), ("bubble", run.bubbles("tensor"), PALE)):
        bars = [(start, end - start) for start, end in pieces]
        axes.broken_barh(bars, (len(lanes) - HALF / 2, HALF), facecolors=colour, label=name)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one of each name
    figure.legend(
        handles.values(), handles, loc="lower left", bbox_to_anchor=(0.1, -0.01), ncols=len(handles),
        frameon=False, fontsize=8.5, handlelength=0.9, handleheight=0.9, columnspacing=1, handletextpad=0.4,
    )  # fmt: skip
    return figure


def explore():
    """The explorer as a widget: the rung, stages, consumers, and the sizes of a tile."""
    start = Settings()
    return Explorer(
        lambda **chosen: evaluate(Settings(**chosen)), describe, draw,
        {"rung": menu("rung", sm_simulator.RUNGS, start.rung), "consumers": slider("consumers", 1, 2, start.consumers)},
        {"stages": slider("stages", 1, 4, start.stages), "head_dim": choice("d", HEAD_DIMS, start.head_dim)},
        {"block_k": choice("keys of a tile", BLOCKS, start.block_k)},
    )  # fmt: skip
