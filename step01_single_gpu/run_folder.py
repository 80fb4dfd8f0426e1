"""The folder of a run: options, metrics, a plot, a sample, the newest checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any


def new_run(run: Path | None, model: str, root: Path = Path("runs")) -> Path:
    """Make the folder `run`, or the next free runs/<model>-NNN.

    Raises ValueError if `run` exists: a finished run is never overwritten.
    """
    if run is not None:
        try:
            run.mkdir(parents=True)
        except FileExistsError as error:
            raise ValueError(
                f"{run} exists already; name another with --run, or go on with --resume {run}"
            ) from error
        return run
    number = 1
    while True:
        try:
            path = root / f"{model}-{number:03d}"
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1


def newest_run(root: Path = Path("runs")) -> Path:
    """The run folder with the newest checkpoint. Raises ValueError if there is none."""
    # A run of step 1's program has the first, one of step 5's the second.
    marks = [*root.glob("*/checkpoint.pt"), *root.glob("*/checkpoints/latest")]
    if not marks:
        raise ValueError(f"no run with a checkpoint in {root}/; train one first: make train")
    newest = max(marks, key=lambda path: path.stat().st_mtime)
    return root / newest.relative_to(root).parts[0]


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_options(run: Path, options: Any) -> None:
    """config.json: every option of the run, as plain values."""
    values = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    write_text(run / "config.json", json.dumps(values, indent=2) + "\n")


def resumed_options(given: Any, may_change: Collection[str] = ("steps",)) -> Any:
    """The options of the run that `given.resume` names, with those given that may change. (One
    given as its default can't be told from one left out, and stays the run's.)

    Raises ValueError if the folder has no config.json, or if another option was given that the run
    does not have: changing it in mid-run would train another model than either.
    """
    path = given.resume / "config.json"
    if not path.is_file():
        raise ValueError(f"{given.resume} is not a run folder: it has no config.json")
    saved = json.loads(path.read_text())
    foreign = sorted(saved.keys() - vars(given).keys())
    if foreign:
        raise ValueError(
            f"{path} has options that this program doesn't know ({', '.join(foreign)}): it is the "
            f"run of another one, which trained {saved.get('model')}; with make, say MODEL= too"
        )
    changed = {}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        plain = str(value) if isinstance(value, Path) else value
        plain = list(plain) if isinstance(plain, tuple) else plain  # as JSON keeps it
        if field.name in ("resume", "run"):
            continue
        if value != field.default and plain != saved.get(field.name):
            if field.name not in may_change:
                allowed = ", ".join(f"--{name}" for name in may_change)
                raise ValueError(
                    f"--{field.name} is {value} but the run has {saved.get(field.name)}; a resumed "
                    f"run keeps its options (only {allowed} may change): leave it out"
                )
            changed[field.name] = value
    # (A profile was asked of that start, not of this one.)
    kept = {k: v for k, v in saved.items() if k not in ("resume", "run", "profile")} | changed
    return dataclasses.replace(given, **{**kept, "root": Path(kept["root"])})


class Metrics:
    """metrics.jsonl: one JSON object a line, each with its "step"."""

    def __init__(self, run: Path, *, until: int = 0) -> None:
        """Keep the lines of steps up to `until` (what a resumed run has done already)."""
        path = run / "metrics.jsonl"
        self.rows: list[dict[str, Any]] = []
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:  # torn by a full disk or a power cut
                continue
            if row["step"] <= until:
                self.rows.append(row)
        write_text(path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self.path = path

    def add(self, **row: Any) -> None:
        """Append one line, written at once."""
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def plot_loss(metrics: Metrics, path: Path, unigram: float) -> None:
    """loss.png: training and validation loss against the step, and the line to get below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    train = [(r["step"], r["loss"]) for r in metrics.rows if "loss" in r]
    valid = [(r["step"], r["valid_loss"]) for r in metrics.rows if "valid_loss" in r]
    if train:
        axes.plot(*zip(*train, strict=True), color="tab:blue", alpha=0.5, lw=1, label="training")
    if valid:
        axes.plot(*zip(*valid, strict=True), color="tab:orange", marker="o", label="validation")
    axes.axhline(unigram, color="gray", ls="--", lw=1, label="word frequencies alone")
    axes.set(xlabel="optimizer step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
