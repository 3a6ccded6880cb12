"""Lesson 17's pictures beside its explorer: curves of the loss, attention's share of a step; tables of its record."""

import numpy as np

from courseware.bench import records
from courseware.explorers import training_step
from courseware.explorers.svg import BLUE, GREEN, GREY, ORANGE, VERMILLION

from .base import curves, legend, log_axes, panels, tidy

RECORD, OVER_RANKS = training_step.RECORD, "ring-h200-x2"
WAYS = "one_gpu", "data_parallel", "context_parallel"
CONTROL = {"control": "flash_attention, one parameter changed by 1e-7"}
NAMES = {method: name for name, method in training_step.METHODS.items()} | {"sdpa": "PyTorch"} | CONTROL
STYLES = {
    "ours": (BLUE, "-"), "sdpa": (GREEN, "--"), "sdpa_flash": (GREEN, "--"), "sdpa_cudnn": (ORANGE, "--"),
    "plain": (VERMILLION, ":"), "eager": (GREY, "-."),
}  # fmt: skip


def recorded_losses():
    """{method: the loss at each step of training on the GPU}."""
    return {row["method"]: row["losses"] for row in records.rows(RECORD, kind="curve") if "losses" in row}


def draw_losses(losses, note=None):
    """A curve for each {method: losses}. A figure."""
    said = [f"{NAMES[name]}: {each[0]:.4g} to {each[-1]:.4g}" for name, each in losses.items()]
    figure, (axes,) = panels(3.0, note=note, alt=f"Curves of the loss, step by step. {'; '.join(said)}.")
    tidy(axes, x="step", y="loss (nats a character)")
    steps = np.arange(1, len(next(iter(losses.values()))) + 1)
    curves(axes, steps, {NAMES[n]: each for n, each in losses.items()}, [STYLES[n] for n in losses], linewidth=1.6)
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend(axes)
    return figure


def apart(beside="ours", last=20):
    """Rows of a table: how far each method's recorded loss is from another's, in the first steps and in the last."""
    losses = recorded_losses()
    off = {name: np.abs(np.subtract(each, losses[beside])) for name, each in losses.items() if name != beside}
    return [(NAMES[name], f"{each[:last].mean():.1e}", f"{each[-last:].mean():.1e}") for name, each in off.items()]


def shares():
    """[(n, attention's share of the FLOPs, of the time)] of the steps with `flash_attention`."""
    (model,) = records.rows(RECORD, kind="model")
    rest, found = training_step.measured("values"), []
    for n, row in sorted(training_step.measured("ours").items()):
        matrices, attention = training_step.flops(n, model["width"], model["n_layers"], model["tokens"])
        found.append((n, attention / (attention + matrices), 1 - rest[n]["ms"] / row["ms"]))
    return found


def draw_shares():
    """Attention's share of a step against the context, by FLOPs and measured. A figure."""
    n, by_flops, by_time = zip(*shares(), strict=True)
    said = [f"{k:,}: {100 * a:.0f} % of the FLOPs, {100 * b:.0f} % of the time" for k, a, b in shares()]
    figure, (axes,) = panels(
        2.9, note=records.provenance(RECORD), alt=f"Attention's share of a step. {'; '.join(said)}."
    )
    tidy(axes, x="tokens of a sequence", y="attention's share (%)")
    named = {"of the FLOPs": 100 * np.array(by_flops), "of the time": 100 * np.array(by_time)}
    curves(axes, n, named, ((GREY, "--"), (BLUE, "o-")))
    log_axes(axes, n, [f"{k // 1024}k" for k in n], y_base=None)
    axes.set_ylim(0, 100)
    legend(axes)
    return figure


def steps(what="ms"):
    """Rows of a table: a context, and of each attention ms, or GB if what is "peak_bytes". Of what failed, nothing."""
    of = {method: training_step.measured(method) for method in (*training_step.METHODS.values(), "values")}
    size = 1e9 if what == "peak_bytes" else 1
    return [
        (f"{n // 1024}k", *(n in rows and f"{rows[n][what] / size:,.0f}" or "" for rows in of.values()))
        for n in sorted(of["ours"])
    ]


def over_ranks():
    """Rows of a table: tokens of a sequence, sequences, and ms of a step in each of WAYS."""
    found = {}
    for row in records.rows(OVER_RANKS, kind="step"):
        found.setdefault((row["n"], row["batch"]), {})[row["method"]] = round(row["ms"])
    return [(f"{n // 1024}k", batch, *(of.get(way) for way in WAYS)) for (n, batch), of in found.items()]
