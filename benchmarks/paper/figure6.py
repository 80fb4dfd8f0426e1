"""The paper's figure 6 in small (`make figure6`): three GPT-2s, the same text, the same steps.

The training program of step 5 on two tensor-parallel ranks. The question is the paper's: does the
larger model have the lower validation perplexity after the same number of steps?
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tqdm import tqdm

from step01_single_gpu import GPTConfig
from step01_single_gpu.programs import run_program
from step01_single_gpu.run_folder import new_run, write_text
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import warm_up
from step05_hybrid_dp import train
from step05_hybrid_dp.options import Options as TrainOptions

MODELS = {  # name -> layers, hidden; heads of 32
    "small": (2, 64),
    "middle": (3, 128),
    "large": (4, 256),
}


@dataclass(frozen=True)
class Options:
    """Train three sizes for the same steps and draw their validation perplexity."""

    steps: int = 150
    batch_size: int = 8
    looks: int = 10
    """How often the validation text is looked at."""
    corpus: str = "presidents"
    root: Path = Path("data")
    run: Path | None = None
    """Folder for the runs and the plot; None is the next free runs/figure6-NNN."""


@dataclass(frozen=True)
class Sized(TrainOptions):
    """The training program's options, with these models."""

    models: ClassVar[Mapping[str, GPTConfig]] = {
        name: GPTConfig(8192, 128, hidden_size=hidden, num_layers=layers, num_heads=hidden // 32)
        for name, (layers, hidden) in MODELS.items()
    }


def main(options: Options) -> dict[str, list[tuple[int, float]]]:
    """The curves: of each model (step, validation perplexity)."""
    warm_up("torch._dynamo")
    folder = new_run(options.run, "figure6")
    curves = {}
    for name in (bar := tqdm(MODELS, unit=" models", disable=None)):
        bar.set_description_str(name)
        every = max(1, options.steps // options.looks)
        given = Sized(
            model=name, steps=options.steps, batch_size=options.batch_size, corpus=options.corpus,
            root=options.root, run=folder / name, tp=2, dp=1, valid_every=every,
            checkpoint_every=options.steps, warmup=max(1, options.steps // 10),
        )  # fmt: skip
        run_ranks(one_rank, 2, given, timeout=3600.0)
        lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(json.loads, lines) if "valid_loss" in row]
        curves[name] = [(row["step"], math.exp(row["valid_loss"])) for row in rows]
    sizes = {name: Sized.models[name].num_parameters for name in MODELS}
    found = {"steps": options.steps, "parameters": sizes, "perplexity": curves}
    write_text(folder / "results.json", json.dumps(found, indent=1) + "\n")
    plot(found, folder / "figure6.png")
    for name, curve in curves.items():
        size, last = sizes[name] / 1e6, curve[-1][1]
        print(f"{name:<8}{size:6.1f} M weights   validation perplexity {last:7.1f}")
    print(f"in {folder}: figure6.png, results.json, and a run folder for each")
    return curves


def one_rank(given: Sized) -> None:
    """The training program on this rank, in silence."""
    with contextlib.redirect_stdout(io.StringIO()):
        train.main(given)


def plot(found: dict[str, object], path: Path) -> None:
    """Validation perplexity against the step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves, sizes = found["perplexity"], found["parameters"]
    assert isinstance(curves, dict)
    assert isinstance(sizes, dict)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, curve in curves.items():
        steps, perplexities = zip(*curve, strict=True)
        label = f"{sizes[name] / 1e6:.1f} M weights"
        axes.plot(steps, perplexities, marker="o", ms=3, label=label)
    axes.set(yscale="log", xlabel="optimizer step", ylabel="validation perplexity (per token)")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    run_program(main, Options)
