"""GPipe and 1F1B beside tensor parallelism (`make bench-pipeline`): bubble, time, memory, wire.

Gloo ranks with one thread, on a core each as far as there are so many. All layouts have the same
weights, rows and micro-batches; their losses are compared before anything is timed. A step is
forward, backward, the exchange of the tied gradient, and AdamW (without clipping, whose norm would
be a collective of its own). Rounds are interleaved in one run.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.machine import keep_freed_memory
from step02_mlp_parallel import run_ranks

from . import bubbles
from .layouts import LAYOUTS, ROWS, Step
from .parallel import own_core
from .report import Table, quartiles, ratios, show
from .schedules import bubble
from .stages import StageGrid

# The output layer is worth 1.3 of 8 blocks, so 2 stages are as unequal as those of the paper's
# 355M model (4.1 of 24).
MODEL = GPTConfig(4096, 64, hidden_size=256, num_layers=8, num_heads=4, dropout=0.0)
MICRO_BATCHES = (4, 8)  # memory at both, the rest at the last
WARM_UP = 2


@dataclass(frozen=True)
class Options:
    """Compare pipelines with tensor parallelism at equal ranks."""

    rounds: int = 7
    save: str = ""
    """Also write the tables as JSON into this file."""


def measured(config: GPTConfig, micro_batches: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """For each layout this rank is part of: seconds by round, and facts."""
    own_core()
    keep_freed_memory()
    m = micro_batches[-1]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (m * ROWS, config.seq_length), generator=generator)
    steps: dict[str, Step | None] = {}
    for layout in LAYOUTS:
        grid = StageGrid(layout.pp, layout.tp)
        steps[layout.name] = Step(config, layout, grid) if grid.member else None
    found = {}
    for name, step in steps.items():
        dist.barrier()
        if step is not None:
            found[name] = step.facts(micro_batches, tokens) | {"seconds": []}
    for i in range(rounds + WARM_UP):
        for name, step in steps.items():
            dist.barrier()
            if step is None:
                continue
            start = time.perf_counter()
            step.backward(tokens, tokens)
            step.optimizer.step()
            if i >= WARM_UP:
                found[name]["seconds"].append(time.perf_counter() - start)
    return found


def tables(options: Options) -> Iterator[Table]:
    """Bubbles (bubbles.py), then time, then memory and wire."""
    yield from bubbles.tables(options.rounds)
    yield from beside(options.rounds)


def beside(
    rounds: int, config: GPTConfig = MODEL, micro_batches: tuple[int, ...] = MICRO_BATCHES
) -> list[Table]:
    """Time, and memory and wire, of all layouts. AssertionError if their losses differ."""
    quiet = {"KINETO_LOG_LEVEL": "6"}  # torch's profiler reports its start and end on stderr
    ranks = run_ranks(measured, 4, config, micro_batches, rounds, timeout=600, env=quiet)
    found = {
        layout.name: [row[layout.name] for row in ranks if layout.name in row]
        for layout in LAYOUTS
    }  # fmt: skip
    expected = found["one rank"][0]["loss"]
    for name, rows in found.items():
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        if any(abs(loss - expected) > 1e-4 * abs(expected) for loss in losses) or not losses:
            raise AssertionError(f"{name} has losses {losses}, one rank {expected}")
    return [_speed(found, config, micro_batches[-1]), _memory_and_wire(found, micro_batches)]


def _speed(found: dict[str, Any], config: GPTConfig, m: int) -> Table:
    tokens = m * ROWS * config.seq_length
    seconds = {  # a step is over when the slowest rank is
        name: [max(column) for column in zip(*(row["seconds"] for row in rows), strict=True)]
        for name, rows in found.items()
    }
    rows, figures = [], {}
    for layout in LAYOUTS:
        name = layout.name
        rate = tokens / statistics.median(seconds[name])
        figures[f"tokens/s {name}"] = rate
        text = ""
        if layout.schedule:
            against = ratios(seconds[f"TP {layout.ranks}"], seconds[name])
            figures[f"speed against TP {name}"] = statistics.median(against)
            text = quartiles(against)
        waits = f"{bubble(layout.pp, m):.2f}" if layout.schedule else ""
        rows.append([name, str(layout.ranks), f"{rate:.0f}", text, waits])
    cores = os.cpu_count() or 1
    note = (
        ""
        if cores >= 4
        else f"Four ranks share {cores} cores: what one stage leaves idle another takes, so there "
        "a bubble costs nothing, and the figures show work and messages only."
    )
    return Table(
        f"Training step, {config.num_layers} layers of {config.hidden_size}, vocabulary "
        f"{config.vocab_size}, {m} micro-batches of {ROWS} x {config.seq_length}",
        ["", "ranks", "tokens/s", "speed, TP at equal ranks = 1", "(p-1)/(m+p-1)"],
        rows,
        note,
        figures,
    )


def _memory_and_wire(found: dict[str, Any], micro_batches: tuple[int, ...]) -> Table:
    rows = []
    figures: dict[str, float] = {}
    for name, ranks in found.items():
        columns = {"weights": max(row["weights"] for row in ranks) / 2**20}
        for m in micro_batches:
            columns[f"activations m={m}"] = max(row["held"][m] for row in ranks) / 2**20
        busiest = max(ranks, key=lambda row: row["passed on"] + row["reduced"])
        for what in ("passed on", "reduced"):
            columns[what] = busiest[what] / 2**20
        columns["messages"] = busiest["messages"]
        figures |= {f"{what} {name}": value for what, value in columns.items()}
        rows.append([name, *(f"{value:.1f}" for value in list(columns.values())[:-1])])
        rows[-1].append(f"{columns['messages']:.0f}")
    return Table(
        "Memory and wire of the fullest rank, MiB",
        [
            "", "weights, gradients, AdamW",
            *(f"activations, m={m}" for m in micro_batches),
            "to the next stage", "all-reduced", "messages",
        ],
        rows,
        "Activations: the rise of allocated bytes during a step, gradients apart, and the buffers "
        "to receive into (torch has one for each micro-batch in both schedules). Sent in a step of "
        f"m={micro_batches[-1]}: counted; an all-reduce as a ring does it, 2(n-1)/n of its buffer.",
        figures,
    )  # fmt: skip


def main(options: Options) -> None:
    print(f"torch {torch.__version__}, gloo, one thread a rank, {os.cpu_count()} cores")
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
