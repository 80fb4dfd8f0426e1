"""The parallel MLP and block against others', and weak scaling (`make bench-parallel`).

Two gloo ranks, each with one thread on a core of its own. All implementations have the same
weights and inputs; outputs and input gradients are compared before anything is timed. Rounds are
interleaved in one run; medians, and the median ratio to ours with its quartiles, are printed.
"""

from __future__ import annotations

import copy
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import ParallelMLP, run_ranks
from step02_mlp_parallel.linear import ColumnParallelLinear
from step03_attention_parallel import ParallelBlock

from .peers import make_all
from .report import Table, beside, quartiles, ratios, show, slower_rank

SIZES = ((256, 2, 64), (768, 4, 256))  # hidden, batch, sequence
# Weak scaling: the work of a rank stays equal, so hidden² / ranks does. 1088² / 2 = 1.003 · 768².
WEAK = {1: 768, 2: 1088}
LAYERS = 4
TABLE_7 = {16: 0.82, 24: 0.80, 32: 0.77}  # heads -> the paper's scaling efficiency at 8.3B


@dataclass(frozen=True)
class Options:
    """Compare the parallel MLP with its peers at TP = 2."""

    rounds: int = 25
    save: str = ""
    """Also write the tables as JSON into this file."""


def own_core() -> None:
    """This rank's threads on one core, where the system lets us say so."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    torch.set_num_threads(1)


def one_step(module: nn.Module, x: Tensor, upstream: Tensor) -> float:
    """Seconds of a forward and backward, started together on all ranks."""
    module.zero_grad(set_to_none=True)
    x.grad = None
    dist.barrier()
    start = time.perf_counter()
    module(x).backward(upstream)
    return time.perf_counter() - start


def versus(kind: str, hidden: int, batch: int, seq: int, rounds: int) -> dict[str, Any]:
    """Seconds by implementation and round, on this rank."""
    warnings.simplefilter("ignore")
    own_core()
    config = GPTConfig(1, seq, hidden_size=hidden, num_layers=1, num_heads=8, dropout=0.0)
    modules, missing = make_all(kind, config)
    modules["ours, no overlap"] = copy.deepcopy(modules["ours"])
    for child in modules["ours, no overlap"].modules():
        if isinstance(child, ColumnParallelLinear):
            child.overlap = False
    torch.manual_seed(0)
    x = torch.randn(batch, seq, hidden, requires_grad=True)
    upstream = torch.randn(batch, seq, hidden)
    results = {}
    for name, module in modules.items():
        one_step(module, x, upstream)
        assert x.grad is not None
        results[name] = (module(x).detach(), x.grad.clone())
        for got, expected in zip(results[name], results["ours"], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    for i in range(rounds + 2):
        for name, module in modules.items():
            taken = one_step(module, x, upstream)
            if i >= 2:
                seconds[name].append(taken)
    return {"seconds": seconds, "missing": missing}


def weak(kind: str, rounds: int) -> dict[str, list[float]]:
    """GFLOP/s of this rank by round, in a stack of MLPs, forward and backward:
    alone (the other rank waits), beside another that computes for itself, and together."""
    own_core()
    stacks, inputs, flops = {}, {}, {}
    for n, hidden in WEAK.items():
        config = GPTConfig(1, 256, hidden, num_layers=LAYERS, num_heads=8)
        group = dist.group.WORLD if n > 1 else None
        make = ParallelMLP if kind == "MLP" else ParallelBlock
        layers = (make(config, group=group, name=str(i)) for i in range(LAYERS))
        stacks[n] = nn.Sequential(*layers).eval()  # without dropout
        inputs[n] = (torch.randn(4, 256, hidden, requires_grad=True), torch.randn(4, 256, hidden))
        weights = 8 * hidden + (0 if kind == "MLP" else 4 * hidden + 2 * 256)
        flops[n] = 3 * 2 * inputs[n][0].numel() * weights * LAYERS / n
    rates: dict[str, list[float]] = {"alone": [], "beside": [], "together": []}
    for i in range(rounds + 2):
        for name, row in rates.items():
            n = 2 if name == "together" else 1
            if name == "alone" and dist.get_rank() == 1:
                dist.barrier()
            else:
                seconds = one_step(stacks[n], *inputs[n])
                if i >= 2:
                    row.append(flops[n] / seconds / 1e9)
            dist.barrier()
    return rates


def by_heads(rounds: int) -> dict[int, list[float]]:
    """Seconds of a block's forward and backward by round, for each number of heads."""
    own_core()
    group, blocks = dist.group.WORLD, {}
    for heads in TABLE_7:
        config = GPTConfig(1, 256, 768, num_layers=1, num_heads=heads, dropout=0.0)
        blocks[heads] = ParallelBlock(config, group=group)
    x, upstream = torch.randn(4, 256, 768, requires_grad=True), torch.randn(4, 256, 768)
    seconds: dict[int, list[float]] = {heads: [] for heads in blocks}
    for i in range(rounds + 2):
        for heads, block in blocks.items():
            taken = one_step(block, x, upstream)
            if i >= 2:
                seconds[heads].append(taken)
    return seconds


def tables(options: Options) -> Iterator[Table]:
    for kind, (hidden, batch, seq) in itertools.product(("MLP", "block"), SIZES):
        yield beside_peers(kind, hidden, batch, seq, options.rounds)
    yield weak_scaling(options.rounds)
    heads = run_ranks(by_heads, 2, options.rounds, timeout=600)[0]
    rows = [
        [
            str(n),
            f"{statistics.median(row) * 1e3:.1f}",
            quartiles(ratios(heads[16], row)),
            f"{TABLE_7[n] / TABLE_7[16]:.2f}",
        ]
        for n, row in heads.items()
    ]
    yield Table(
        "The paper's Table 7 in small: one block, hidden 768, batch 4 x 256, TP = 2",
        ["heads", "ms", "speed, 16 heads = 1", "the paper"],
        rows,
        figures={str(n): statistics.median(ratios(heads[16], row)) for n, row in heads.items()},
    )


def beside_peers(kind: str, hidden: int, batch: int, seq: int, rounds: int) -> Table:
    ranks = run_ranks(versus, 2, kind, hidden, batch, seq, rounds, timeout=600)
    rows, figures = beside(slower_rank([rank["seconds"] for rank in ranks]), ranks[0]["missing"])
    title = f"{kind}, hidden {hidden}, batch {batch} x {seq}, TP = 2, forward + backward"
    return Table(title, ["", "ms", "times ours"], rows, figures=figures)


def weak_scaling(rounds: int) -> Table:
    rows, figures = [], {}
    for kind in ("MLP", "block"):
        rates = run_ranks(weak, 2, kind, rounds, timeout=600)[0]
        cells = [f"{statistics.median(rates[name]):.1f}" for name in rates]
        for base in ("alone", "beside"):
            kept = ratios(rates["together"], rates[base])
            figures[f"{kind} of {base}"] = statistics.median(kept)
            cells.append(quartiles(kept))
        rows.append([f"{LAYERS} {kind}s", *cells])
    return Table(
        f"Weak scaling, batch 4 x 256, GFLOP/s a rank: hidden {WEAK[1]} on one rank, "
        f"{WEAK[2]} at TP = 2",
        ["", "alone", "beside another", "TP = 2", "kept of alone", "kept of beside"],
        rows,
        "alone: the other core idle; beside: two ranks that don't know of each other. "
        "The paper keeps 0.82 of one GPU alone.",
        figures,
    )


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
