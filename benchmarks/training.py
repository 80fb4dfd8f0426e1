"""Weak scaling of the whole training step (`make bench-training`).

Two gloo ranks with a core each. A round is: rank 0 alone, with the other core idle; both ranks for
themselves, without communication; DP = 2, the same model on twice the batch; TP = 2, a model of
twice the weights in its matrices; TP = 2 on the same model (strong scaling, the paper's Table 8).
But for the last, equal work a rank; a step is forward, backward, reductions,
clipping and AdamW, by step 5's own code.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.machine import keep_freed_memory, training_flops
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.wire import Group
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp.ddp import DataParallel
from step05_hybrid_dp.optimizer import clip_grad_norm_

from .parallel import own_core
from .report import Table, quartiles, ratios, show

ROWS, SEQ = 4, 256  # of a rank
ALONE = GPTConfig(8192, SEQ, hidden_size=512, num_layers=4, num_heads=8, dropout=0.0)
# 728² / 2 = 1.01 · 512²; heads of 91 and 64 numbers. The vocabulary stays, cut in two.
WIDE = dataclasses.replace(ALONE, hidden_size=728)
# Figure 5: 2 GPUs; 64-way data parallel against none. Table 8: 1.64 times as fast on 2 GPUs.
PAPER = {"TP = 2": 0.82, "DP = 2": 0.96, "TP = 2, same model": 0.82}


@dataclass(frozen=True)
class Options:
    """Compare one rank's rate alone with its rate among two."""

    rounds: int = 15
    save: str = ""
    """Also write the tables as JSON into this file."""


class Step:
    """A training step that can be repeated."""

    def __init__(self, config: GPTConfig, tp: Group, dp: Group) -> None:
        rng = RNGTracker(0)
        self.tp = tp
        self.model = ParallelGPT(config, group=tp, rng=rng)
        self.engine = DataParallel(self.model, dp)
        self.optimizer = make_optimizer(self.model)
        shape = (ROWS, SEQ)
        self.rows = [(torch.randint(8192, shape), torch.randint(8192, shape))]
        if tp is not None:  # tensor-parallel ranks see the same rows
            for part in self.rows[0]:
                dist.broadcast(part, 0)
        ranks = 1 if tp is None else dist.get_world_size(tp)
        self.flops = training_flops(config, ROWS * SEQ) / ranks  # of this rank

    def seconds(self) -> float:
        start = time.perf_counter()
        self.model.zero_grad(set_to_none=True)
        self.engine.backward_global_mean(self.rows)
        clip_grad_norm_(self.model, 1.0, self.tp)
        self.optimizer.step()
        return time.perf_counter() - start


def rates(rounds: int) -> dict[str, list[float]]:
    """GFLOP/s of this rank by round."""
    own_core()
    keep_freed_memory()
    world: Any = dist.group.WORLD
    steps = {
        "alone": Step(ALONE, None, None),
        "DP = 2": Step(ALONE, None, world),
        "TP = 2": Step(WIDE, world, None),
        "TP = 2, same model": Step(ALONE, world, None),
    }
    steps["beside"] = steps["alone"]
    order = ("alone", "beside", "DP = 2", "TP = 2", "TP = 2, same model")
    found: dict[str, list[float]] = {name: [] for name in order}
    for i in range(rounds + 2):
        for name, row in found.items():
            dist.barrier()
            if name == "alone" and dist.get_rank() == 1:
                continue
            seconds = steps[name].seconds()
            if i >= 2:
                row.append(steps[name].flops / seconds / 1e9)
    return found


def tables(options: Options) -> Iterator[Table]:
    found = run_ranks(rates, 2, options.rounds, timeout=1200)[0]
    rows, figures = [], {}
    for name, row in found.items():
        cells = [name, f"{statistics.median(row):.1f}"]
        for base in ("alone", "beside"):
            kept = ratios(row, found[base])
            figures[f"{name} of {base}"] = statistics.median(kept)
            cells.append(quartiles(kept) if name in PAPER else "")
        rows.append([*cells, f"{PAPER[name]:.2f}" if name in PAPER else ""])
    yield Table(
        f"Weak scaling of the whole training step, hidden {ALONE.hidden_size} "
        f"(TP = 2: {WIDE.hidden_size}), 4 layers, {ROWS} x {SEQ} tokens a rank",
        ["", "GFLOP/s a rank", "of a rank alone", "of one beside another", "the paper"],
        rows,
        "beside: two ranks that compute at the same time, each for itself. "
        f"Strong scaling: the same model is {2 * figures['TP = 2, same model of alone']:.2f} times "
        "as fast on two ranks (the paper: 1.64).",
        figures,
    )


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
