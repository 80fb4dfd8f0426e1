"""What fine-tuning leaves: a table, a plot, results.json and the answers themselves."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from step01_single_gpu.run_folder import Metrics, write_text

from .tasks import Task


def report(
    run: Path,
    task: Task,
    look: Task,
    seeds: list[int],
    logits: list[Tensor],
    metrics: Metrics,
    seconds: float,
) -> dict[str, Any]:
    """Score each seed's logits, their median and their ensemble; print, plot and write it all.

    `look`: the part of the task that the curve is of.
    """
    found = results(task, seeds, logits) | {"seconds": round(seconds, 1)}
    probabilities = ensemble(task, logits)
    write_text(run / "results.json", json.dumps(found, indent=2) + "\n")
    answers = json.dumps(task.predictions(probabilities), ensure_ascii=False)
    write_text(run / "predictions.json", answers + "\n")
    plot_curve(metrics, run / "curve.png", look, found)
    print(table(found))
    print(
        f"in {run}: config.json, metrics.jsonl, results.json, predictions.json, curve.png, and the "
        "weights of each seed (make evaluate RUN=, make export RUN= TO=)"
    )
    return found


def ensemble(task: Task, logits: list[Tensor]) -> Tensor:
    """The mean of the seeds' probabilities (the paper's five-way ensemble)."""
    return torch.stack([task.probabilities(one) for one in logits]).mean(0)


def results(task: Task, seeds: list[int], logits: list[Tensor]) -> dict[str, Any]:
    """Scores as shares of 1: "floor" (one answer to all), each seed's, and of several "median" and
    "ensemble"."""
    scores = [task.score(task.probabilities(one)) for one in logits]
    found: dict[str, Any] = {
        "task": task.name,
        "rows": {"train": len(task.train), "valid": len(task.valid)},
        "floor": task.floor(),
        "seeds": [{"seed": s, **score} for s, score in zip(seeds, scores, strict=True)],
    }
    if len(seeds) > 1:
        found["median"] = {k: statistics.median(score[k] for score in scores) for k in scores[0]}
        found["ensemble"] = task.score(ensemble(task, logits))
    return found


def table(found: dict[str, Any]) -> str:
    """The results as lines, in per cent."""
    rows = [("one answer to all", found["floor"])]
    rows += [(f"seed {score['seed']}", score) for score in found["seeds"]]
    rows += [(name, found[name]) for name in ("median", "ensemble") if name in found]
    names = [name for name in found["seeds"][0] if name != "seed"]
    left = max(len(name) for name, _ in rows)
    lines = [f"{'':<{left}}  " + "  ".join(names)]
    for name, scores in rows:
        cells = [
            f"{scores[k] if k == 'best_threshold' else 100 * scores[k]:{len(k)}.1f}"
            if k in scores
            else " " * len(k)
            for k in names
        ]
        lines.append(f"{name:<{left}}  " + "  ".join(cells))
    return "\n".join(lines)


def plot_curve(metrics: Metrics, path: Path, look: Task, found: dict[str, Any]) -> None:
    """curve.png: the score against the optimizer step, each seed, and the lines to get above.

    The curve is of a few rows and the last point of all of them, and one answer to all doesn't
    score the same on both: so there are two lines.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    primary, few = look.primary, f"{len(look.valid)} of the held-out rows"
    last = max(row["step"] for row in metrics.rows)
    for number, score in enumerate(found["seeds"]):
        looks = [
            (row["step"], 100 * row["look"])
            for row in metrics.rows
            if "look" in row and row["seed"] == score["seed"]
        ]
        color = f"C{number % 10}"
        label = f"seed {score['seed']}"
        axes.plot(*zip(*looks, strict=True), color=color, alpha=0.5, marker=".", lw=1,
                  label=f"{label}, {few}")  # fmt: skip
        axes.plot(last, 100 * score[primary], color=color, marker="o", ls="",
                  label=f"{label}, all held-out rows")  # fmt: skip
    if "ensemble" in found:
        axes.plot(last, 100 * found["ensemble"][primary], "k*", ms=12, label="ensemble")
    for scores, style, which in (
        (found["floor"], "--", "all held-out rows"), (look.floor(), ":", few)
    ):  # fmt: skip
        label = f"one answer to {which}"
        axes.axhline(100 * scores[primary], color="gray", ls=style, lw=1, label=label)
    axes.set(xlabel="optimizer step", ylabel=f"{primary} (%)", title=found["task"])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    figure.savefig(temporary, format="png", dpi=120)
    os.replace(temporary, path)
    plt.close(figure)
