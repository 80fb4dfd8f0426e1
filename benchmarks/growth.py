"""How cost grows: with the number of ranks, and with each size of the model (`make bench-growth`).

Ranks: starting them, a training step of the tiny model of `make grid`, memory of a rank's own. Two
cores take turns, so the time of a step should grow as ranks / cores do. Sizes: one rank trains a
small GPT-2 while one size is doubled again and again; the slope of log time over log size stands
beside that of the GEMMs that it needs.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from step01_single_gpu import GPT, GPTConfig
from step01_single_gpu.machine import keep_freed_memory, training_flops
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.crowd import let_others_first
from step02_mlp_parallel.launch import warm_up
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp.ddp import DataParallel
from step05_hybrid_dp.grid import Grid
from step05_hybrid_dp.optimizer import clip_grad_norm_

from .report import Table, show

RANKS = (1, 2, 4, 8, 16, 32, 64)
TINY = GPTConfig(64, 16, hidden_size=64, num_layers=2, num_heads=8, dropout=0.0)
BASE = GPTConfig(1024, 64, hidden_size=128, num_layers=2, num_heads=4, dropout=0.0)
TOKENS = 1024  # of a step, whatever the sequence length
GROWN = {
    "hidden_size": (128, 256, 512),
    "num_layers": (2, 4, 8),
    "seq_length": (64, 128, 256, 512),
    "vocab_size": (1024, 4096, 16384),
}


@dataclass(frozen=True)
class Options:
    """Measure how time and memory grow with ranks and sizes."""

    rounds: int = 5
    most: int = RANKS[-1]
    """Stop at this many ranks."""
    save: str = ""
    """Also write the tables as JSON into this file."""


@dataclass
class Cost:
    """Of one rank."""

    started: float  # seconds since the epoch, when the group was there
    step: float  # seconds
    memory: float  # MiB that no other process shares


def one_rank(rounds: int) -> Cost:
    """Join, make the grid, take a few training steps."""
    started = time.time()
    world = dist.get_world_size()
    grid = Grid(min(8, world), max(1, world // 8), device_type="cpu")
    let_others_first()
    rng = RNGTracker(0, tp_rank=grid.tp_rank, tp_size=grid.tp_size, dp_rank=grid.dp_rank)
    model = ParallelGPT(TINY, group=grid.tp_group, rng=rng, vocab_multiple=1)
    engine, optimizer = DataParallel(model, grid.dp_group), make_optimizer(model)
    rows = torch.zeros(2, TINY.seq_length, dtype=torch.long)
    seconds = []
    for _ in range(rounds + 2):
        dist.barrier()
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        engine.backward_global_mean([(rows, rows)])
        clip_grad_norm_(model, 1.0, grid.tp_group)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return Cost(started, statistics.median(seconds[2:]), own_mib())


def own_mib() -> float:
    """Memory of this process alone, in MiB; NaN where the system doesn't say."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        return math.nan
    lines = rollup.read_text().splitlines()
    return sum(int(x.split()[1]) for x in lines if x.startswith("Private_")) / 2**10


def by_ranks(options: Options) -> Table:
    warm_up("torch._dynamo")
    run_ranks(own_mib, 2)  # the server is there
    rows = []
    figures: dict[str, float] = {}
    cores = os.cpu_count() or 1
    for n in (n for n in RANKS if n <= options.most):
        began = time.time()
        costs: list[Cost] = run_ranks(one_rank, n, options.rounds, timeout=300)
        cost = Cost(
            max(c.started for c in costs) - began,
            max(c.step for c in costs),
            statistics.mean(c.memory for c in costs),
        )
        figures |= {f"start {n}": cost.started, f"step {n}": cost.step, f"MiB {n}": cost.memory}
        grown = cost.step / figures["step 1"]
        cells = [f"{cost.started:.2f}", f"{cost.step * 1e3:.1f}", f"{grown:.1f}"]
        rows.append([str(n), *cells, f"{max(1.0, n / cores):.0f}", f"{cost.memory:.1f}"])
    return Table(
        f"Cost by the number of ranks (tp up to 8, then dp), {cores} cores",
        ["ranks", "start, s", "step, ms", "step / that of 1", "ranks / cores", "MiB a rank"],
        rows,
        "the tiny model: 2 layers, hidden 64; the same rows on each rank",
        figures,
    )


def seconds_of(config: GPTConfig, rounds: int) -> float:
    """Median of a training step on TOKENS tokens, in this process."""
    model = GPT(config)
    optimizer = make_optimizer(model)
    rows = torch.randint(config.vocab_size, (TOKENS // config.seq_length, config.seq_length))
    seconds = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model.loss(rows, rows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def by_size(options: Options) -> Table:
    keep_freed_memory()
    rows = []
    figures: dict[str, float] = {}
    for name, values in GROWN.items():
        configs = [GPTConfig(**(dataclasses.asdict(BASE) | {name: value})) for value in values]
        seconds = [seconds_of(config, options.rounds) for config in configs]
        work = [training_flops(config, TOKENS) for config in configs]
        sizes = [float(value) for value in values]
        measured, expected = slope(sizes, seconds), slope(sizes, work)
        figures |= {f"{name}, measured": measured, f"{name}, GEMMs": expected}
        times = " · ".join(f"{s * 1e3:.0f}" for s in seconds)
        rows.append(
            [name, " · ".join(map(str, values)), times, f"{measured:.2f}", f"{expected:.2f}"]
        )
    return Table(
        f"Training step on {TOKENS:,} tokens, one process: with what power of a size time grows",
        ["", "sizes", "ms", "measured", "of the GEMMs"],
        rows,
        f"the others as in: hidden {BASE.hidden_size}, {BASE.num_layers} layers, sequence "
        f"{BASE.seq_length}, vocabulary {BASE.vocab_size:,}",
        figures,
    )


def slope(x: list[float], y: list[float]) -> float:
    """Of the straight line through log y over log x, least squares."""
    return statistics.linear_regression(list(map(math.log, x)), list(map(math.log, y))).slope


def tables(options: Options) -> Iterator[Table]:
    yield by_ranks(options)
    yield by_size(options)


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
