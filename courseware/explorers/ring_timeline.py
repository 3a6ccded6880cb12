"""Lesson 16's explorer: who computes, sends and waits when in a ring of GPUs, as `simulators.ring` simulates it."""

from functools import cache
from types import SimpleNamespace

import numpy as np

from course_lib.hardware import GPUS
from courseware.simulators import ring

from .explorer import Explorer, buttons, menu, slider
from .svg import Page, Panel
from .words import table

HEADS, HEAD_DIM = 16, 128  # of Q, K and V alike, in bf16
KERNEL_FLOPS_PER_S = 600e12  # about what lesson 15's kernel reached, bf16, causal, 16k tokens
LINKS = {
    "NVLink, 450 GB/s": GPUS["H100"].nvlink_bytes_per_s,
    "PCIe, 63 GB/s": GPUS["H100"].pcie_bytes_per_s,
    "a network, 12.5 GB/s": 12.5e9,
}
LENGTHS = {f"{2**k}k": 2**k * 1024 for k in range(3, 10)}
START = {"ranks": 4, "zigzag": True, "n": 32_768, "link": "NVLink, 450 GB/s"}
HALF = 0.36  # a lane has two halves: arithmetic above, what the rank sends below
COLOURS = ("Q", "K", "V", "O", "S", "P", "grey", "dQ")  # of the ranks, by whose keys a rank computes with


@cache
def evaluate(**chosen):
    """A ring as it is simulated with settings, those of START where nothing else is chosen, as a namespace.

    n: tokens of the sequence, causal. compute: [ranks, steps] seconds; transfer: seconds; steps: of `ring.timeline`;
    end: seconds until the last rank is done; least: the arithmetic of all ranks over their number.
    """
    s = SimpleNamespace(**START | chosen)
    pairs = ring.visible_pairs(s.n, s.ranks, s.zigzag)
    compute = (4.0 * HEAD_DIM * HEADS * pairs / KERNEL_FLOPS_PER_S).tolist()
    sent_bytes = 2 * HEADS * (s.n // s.ranks) * HEAD_DIM * 2
    model = SimpleNamespace(settings=s, compute=compute, sent_bytes=sent_bytes, transfer=sent_bytes / LINKS[s.link])
    model.steps = ring.timeline(compute, model.transfer)
    model.end = max(step.computed for step in model.steps.values())
    model.least = float(np.sum(compute)) / s.ranks
    return model


def draw(model):
    """The timeline, a lane for each rank; milliseconds and bytes."""
    s, ms = model.settings, 1e3
    panel = Panel(
        f"{s.ranks} ranks, {s.n // 1024}k tokens, {'zigzag' if s.zigzag else 'contiguous'} shards, {s.link}",
        746, 74 + 40 * s.ranks, (0, ms * model.end), (s.ranks - 0.5, -0.5), margins=(60, 14, 24, 36),
        x_ticks=np.linspace(0, ms * model.end, 6).round(2).tolist(), x_label="ms",
    )  # fmt: skip
    panel.legend({"sends keys and values on": "grey"}, left=430)
    panel.element("text", "", "upper half: computes with the keys of rank 0, 1, ...", x=60, y=12)
    for (rank, number), step in model.steps.items():
        source = (rank - number) % s.ranks
        if number == 0:
            panel.element("text", "end", f"rank {rank}", x=54, y=panel.y(rank) + 4)
        if step.computed > step.start:
            start, stop = ms * step.start, ms * step.computed
            tip = f"step {number}: rank {rank} computes with the keys of rank {source}, {start:.4g} to {stop:.4g} ms"
            panel.rect((start, stop), (rank - HALF, rank - 0.02), f"bar {COLOURS[source]}", tip=tip)
            if panel.x(stop) - panel.x(start) > 12:
                css = f"middle small on-colour {COLOURS[source]}"
                panel.text((start + stop) / 2, rank - HALF / 2, str(source), css)
        if step.sent > step.send:
            start, stop = ms * step.send, ms * step.sent
            tip = f"step {number}: rank {rank} sends the keys of rank {source} on, {start:.4g} to {stop:.4g} ms"
            panel.rect((start, stop), (rank + 0.02, rank + HALF), "bar grey pale", tip=tip)
    said = ", ".join(f"rank {rank} {sum(of) / model.end:.0%}" for rank, of in enumerate(model.compute))
    longest = max(step.computed - step.start for step in model.steps.values())
    seconds = model.end, model.least, longest, model.transfer, max(ring.waited(model.compute, model.transfer))
    end, least, longest, transfer, waited = (f"{ms * x:,.3g} ms" for x in seconds)
    text = table([
        ("until the last rank is done", f"{end}; {least} if the arithmetic were dealt out evenly and nobody waited"),
        ("a step", f"at most {longest} of arithmetic; a transfer of {model.sent_bytes / 1e6:,.4g} MB takes {transfer}"),
        ("waiting before the last step", f"at most {waited}"),
        ("beside one GPU", f"{model.least * s.ranks / model.end:.2f} times as fast"),
    ])  # fmt: skip
    return Page(f"Timeline of {ms * model.end:.3g} ms. Computing: {said}.", (panel,), text=text)


def explore():
    """The explorer: how many ranks, the order of the shards, the length, and the link."""
    controls = {
        "ranks": slider("ranks", (2, 4, 8)), "zigzag": buttons("shards", {"zigzag": True, "contiguous": False}),
        "n": slider("tokens", LENGTHS), "link": menu("link", LINKS.keys()),
    }  # fmt: skip
    return Explorer(lambda **chosen: draw(evaluate(**chosen)), controls, start=START)
