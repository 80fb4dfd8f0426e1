"""`python -m step05_hybrid_dp.trajectories`: one model, seven layouts (`make trajectories`).

The training program itself, on real text, with the same global batches and dropout on (invariant
mode): the loss curves must lie on one another. In float64 to rounding; in float32 as far as sums
in another order allow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from step01_single_gpu.programs import run_program
from step01_single_gpu.run_folder import new_run
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import warm_up

from . import train
from .options import Options as TrainOptions

LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (2, 4), (4, 2))  # tp × dp
BOUND = 1e-9  # float64


@dataclass(frozen=True)
class Options:
    """Train the same model at several layouts and compare the losses of every step."""

    steps: int = 50
    model: str = "gpt2-mini"
    seq_length: int = 32
    batch_size: int = 8
    dropout: float = 0.1
    corpus: str = "presidents"
    root: Path = Path("data")
    run: Path | None = None
    """Folder for the runs and the plot; None is the next free runs/trajectories-NNN."""


Losses = dict[tuple[int, int], list[float]]  # by layout, one a step


def main(options: Options) -> dict[str, float]:
    """Largest relative difference of a loss from the first layout's, for each dtype."""
    warm_up("torch._dynamo")
    folder = new_run(options.run, "trajectories")
    curves: dict[str, Losses] = {}
    worst = {}
    with tqdm(total=2 * len(LAYOUTS), unit=" runs", disable=None) as bar:
        for dtype in (torch.float64, torch.float32):
            name = str(dtype).removeprefix("torch.")
            losses = curves[name] = {}
            for tp, dp in LAYOUTS:
                bar.set_description_str(f"{name}, tp {tp} x dp {dp}")
                run = folder / f"{name}-{tp}x{dp}"
                given = _training(options, tp, dp, run)
                run_ranks(one_rank, tp * dp, given, dtype, timeout=1800.0)
                losses[tp, dp] = read_losses(run)
                bar.update()
            worst[name] = largest_difference(losses)
    plot(curves, folder / "trajectories.png")
    for name, losses in curves.items():
        print(f"\n{name}: loss of the last step, largest difference from 1 x 1 in any of them")
        first = losses[LAYOUTS[0]]
        for layout, row in losses.items():
            off = largest_difference({LAYOUTS[0]: first, layout: row})
            print(f"  tp {layout[0]} x dp {layout[1]}   {row[-1]:.12f}   {off:.1e}")
    print(f"\nin {folder}: trajectories.png, and a run folder for each")
    if not worst["float64"] <= BOUND:
        raise ValueError(f"float64 losses differ by {worst['float64']:.1e}; the bound is {BOUND}")
    return worst


def one_rank(given: TrainOptions, dtype: torch.dtype) -> None:
    """The training program on this rank, in silence."""
    torch.set_default_dtype(dtype)
    with contextlib.redirect_stdout(io.StringIO()):
        train.main(given)


def read_losses(run: Path) -> list[float]:
    """The loss of each step, from metrics.jsonl."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def largest_difference(losses: Losses) -> float:
    """The largest relative difference from the first layout, over all steps."""
    first, *others = (torch.tensor(row, dtype=torch.float64) for row in losses.values())
    return max((((row - first).abs() / first).max().item() for row in others), default=0.0)


def plot(curves: dict[str, Losses], path: Path) -> None:
    """The curves on one another, and below them how far each is from the first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes: Any
    figure, axes = plt.subplots(
        2, len(curves), figsize=(11, 6.5), sharex=True, sharey="row", layout="constrained",
        squeeze=False,
    )  # fmt: skip
    styles = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1))]
    for column, (name, losses) in enumerate(curves.items()):
        first = torch.tensor(losses[LAYOUTS[0]], dtype=torch.float64)
        for (layout, row), style in zip(losses.items(), styles, strict=False):
            label = f"tp {layout[0]} × dp {layout[1]}"
            steps = range(1, len(row) + 1)
            axes[0, column].plot(steps, row, ls=style, lw=1.5, label=label)
            off = (torch.tensor(row, dtype=torch.float64) - first).abs() / first
            if layout != LAYOUTS[0]:
                floor = off.clamp(min=1e-17).tolist()  # zero has no place on a logarithmic axis
                axes[1, column].plot(steps, floor, ls=style, lw=1.2, label=label)
        axes[0, column].set(title=name, ylabel="loss" if column == 0 else "")
        axes[1, column].set(yscale="log", xlabel="optimizer step")
        axes[1, column].set_ylabel("relative difference from 1 × 1" if column == 0 else "")
        for line in (0, 1):
            axes[line, column].grid(alpha=0.3)
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _training(options: Options, tp: int, dp: int, run: Path) -> TrainOptions:
    return TrainOptions(
        **{k: v for k, v in dataclasses.asdict(options).items() if k not in ("run",)},
        tp=tp,
        dp=dp,
        run=run,
        rng="invariant",
        precision="fp32",
        lr=5e-4,  # calm: with few tokens a batch, the default rate makes the loss jump
        warmup=5,
        valid_every=options.steps,
        checkpoint_every=options.steps,
        compare_every=10,
        keep=1,
    )


if __name__ == "__main__":
    run_program(main, Options)
