"""figure7.png: four panels that are drawn from a study's runs and nothing else."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from .stability_results import ORDERS, Study, shown_rate

# Told apart by colour-blind readers, in grey, and by their marks.
COLOURS = {"original": "#ee7733", "rearranged": "#4477aa"}
MARKS = {"original": "s", "rearranged": "o"}


def draw(study: Study, path: Path) -> None:
    """Loss curves; gradients of the layers before and after a few steps; the largest rates."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes: Any
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    depth, rate = max(study.values("depth")), shown_rate(study)
    figure.suptitle(
        f"Narrow BERTs in both norm orders, same data, {len(study.values('seed'))} start(s), "
        f"weights start as {study.start}'s"
    )
    loss_curves(axes[0, 0], study, depth, rate)
    layer_gradients(axes[0, 1], study, 0, rate)
    layer_gradients(axes[1, 1], study, 1, rate)
    axes[0, 1].set_title("Gradient of each layer's weights before the first step")
    axes[1, 1].set_title(f"… and after {study.probe} steps at rate {rate:g}, no warm-up")
    largest_rates(axes[1, 0], study)
    both = [axis.get_ylim() for axis in axes[:, 1]]
    for axis in axes[:, 1]:  # one scale, so that the eye can compare
        axis.set_ylim(min(low for low, _ in both), max(high for _, high in both))
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.tmp.png")
    figure.savefig(temporary, dpi=110)
    os.replace(temporary, path)
    plt.close(figure)


def loss_curves(axis: Any, study: Study, depth: int, rate: float) -> None:
    """Every run without warm-up at one depth; the rate whose gradients are shown stands out."""
    for norm in ORDERS:
        key = {"norm": norm, "depth": depth, "warmup": 0}
        for run in study.of(**key):
            thick = run["rate"] == rate
            first = thick and run["seed"] == min(study.values("seed"))
            axis.plot(
                range(1, len(run["losses"]) + 1), smooth(run["losses"]), color=COLOURS[norm],
                lw=2.0 if thick else 0.8, alpha=1.0 if thick else 0.35,
                ls="-" if norm == "rearranged" else "--",
                label=f"{norm}, rate {rate:g}" if first else None,
            )  # fmt: skip
    axis.axhline(study.unigram, color="black", ls=":", lw=1.2, label="word frequencies alone")
    axis.set(xlabel="optimizer step", ylabel="loss (nats per masked word)")
    axis.set_title(f"{depth} layers, no warm-up (thin: the other rates)")
    axis.set_ylim(top=1.1 * math.log(study.vocab_size))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=9)


def smooth(losses: list[float], width: int = 4) -> list[float]:
    """Mean of each loss and up to `width - 1` before it: the batches differ."""
    windows = [losses[max(0, i - width + 1) : i + 1] for i in range(len(losses))]
    return [sum(window) / len(window) for window in windows]


def layer_gradients(axis: Any, study: Study, look: int, rate: float) -> None:
    """One line for each order and depth over the layers, the first at the left."""
    depths = study.values("depth")
    for norm in ORDERS:
        for depth in depths:
            row = study.layers(look, norm=norm, depth=depth, rate=rate, warmup=0)
            axis.plot(
                range(1, len(row) + 1), row, color=COLOURS[norm], marker=MARKS[norm], ms=3, lw=1.5,
                ls="-" if norm == "rearranged" else "--",
                label=norm if depth == depths[0] else None,
            )  # fmt: skip
    axis.set(yscale="log", xlabel="layer (1: next to the embeddings)")
    axis.set_ylabel("gradient norm")
    axis.set_xticks(depths, [str(depth) for depth in depths])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=9)


def largest_rates(axis: Any, study: Study) -> None:
    """The largest rate at which all seeds train, against depth; "none" has a line of its own."""
    depths, rates = study.values("depth"), study.values("rate")
    none = rates[0] / 3
    for norm, aside in zip(ORDERS, (-0.03, 0.03), strict=True):
        for warmup in study.values("warmup"):
            found = [study.largest_rate(norm=norm, depth=d, warmup=warmup) for d in depths]
            up = 1.06 if warmup else 1.0
            axis.plot(
                [d * math.exp(aside) for d in depths],
                [(none if rate is None else rate) * up for rate in found],
                color=COLOURS[norm], marker=MARKS[norm], ms=7, lw=1.5,
                ls=":" if warmup else "-", fillstyle="none" if warmup else "full",
                label=f"{norm}, {f'warm-up of {warmup} steps' if warmup else 'no warm-up'}",
            )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="layers", ylabel="learning rate")
    axis.set_title("Largest rate at which all starts learn more than frequencies")
    axis.set_xticks(depths, [str(depth) for depth in depths])
    axis.set_yticks([none, *rates], ["none", *(f"{rate:g}" for rate in rates)])
    axis.minorticks_off()
    axis.set(xlim=(depths[0] / 1.3, depths[-1] * 1.3), ylim=(none / 1.5, rates[-1] * 3))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=9)
