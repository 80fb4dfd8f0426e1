"""What a fine-tuning run keeps of each seed, so that it can go on, be scored again and exported.

    runs/boolq-001/seed-0/…  seed-1/…   weights, encoder and head: step 5's checkpoints, whole or
                                        not there, which open at any (tp, dp)

A seed is saved once, when its training is done. So it is finished, or it starts again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from step01_single_gpu.run_folder import Metrics, write_text
from step05_hybrid_dp.agreement import Layout
from step05_hybrid_dp.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint


def save_seed(run: Path, seed: int, model: nn.Module, step: int, grid: Layout) -> None:
    """Keep the weights as they are after `step` steps. Collective; errors as `save_checkpoint`."""
    save_checkpoint(run / f"seed-{seed}", model, None, step=step, grid=grid)


def load_seed(run: Path, seed: int, model: nn.Module, grid: Layout) -> int:
    """Put them into `model`; returns the step. Collective; errors as `load_checkpoint`."""
    step: int = load_checkpoint(run / f"seed-{seed}", model, grid=grid)["step"]
    return step


def saved_seeds(run: Path) -> list[int]:
    """The seeds whose training is done, in order."""
    folders = [folder for folder in run.glob("seed-*") if newest_checkpoint(folder) is not None]
    return sorted(int(folder.name.removeprefix("seed-")) for folder in folders)


def metrics_of(run: Path, seeds: Sequence[int]) -> Metrics:
    """The run's metrics.jsonl, to be added to, with the training of these seeds alone: of one that
    starts again nothing stays, and the last scores are made anew."""
    path = run / "metrics.jsonl"
    if path.is_file():
        found = Metrics(run, until=sys.maxsize).rows
        kept = [row for row in found if row["seed"] in seeds and "loss" in row]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
    return Metrics(run, until=sys.maxsize)
