"""The planner against this machine (`make bench-plan`): memory and time of real training steps.

Memory: all blocks that torch's allocator holds at the peak of a step, on the fullest rank, beside
what the planner reckons (without what no tensor accounts for). Time: medians; the planner is told
this machine's GEMM rate as measured just before, its other rates stand in machines.py.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from step01_single_gpu.config import PAPER_MODELS, GPTConfig
from step01_single_gpu.machine import gemm_peak, keep_freed_memory
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import run_ranks
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp.cost_model import Layout, memory
from step05_hybrid_dp.ddp import DataParallel
from step05_hybrid_dp.grid import Grid
from step05_hybrid_dp.machines import MACHINES
from step05_hybrid_dp.optimizer import clip_grad_norm_
from step05_hybrid_dp.time_model import iteration

from .parallel import own_core
from .report import Table, show

MINI = PAPER_MODELS["gpt2-mini"]
DEEP = GPTConfig(8192, 256, hidden_size=384, num_layers=6, num_heads=6, dropout=0.0)
CASES = (  # name, model, layout; batches of a size that two cores take in seconds
    ("gpt2-mini", MINI, Layout(1, 1, 8, 8, "fp32", recompute=False)),
    ("gpt2-mini", MINI, Layout(2, 1, 8, 8, "fp32", recompute=False)),
    ("gpt2-mini", MINI, Layout(1, 2, 8, 16, "fp32", recompute=False)),
    ("gpt2-mini, recompute", MINI, Layout(2, 1, 8, 8, "fp32", recompute=True)),
    ("6 x 384, no dropout", DEEP, Layout(1, 1, 4, 4, "fp32", recompute=False)),
    ("6 x 384, no dropout", DEEP, Layout(2, 1, 4, 4, "fp32", recompute=False)),
    ("6 x 384, no dropout", DEEP, Layout(1, 2, 2, 8, "fp32", recompute=False)),
)


@dataclass(frozen=True)
class Options:
    """Hold the planner against measured memory and time."""

    rounds: int = 7
    save: str = ""
    """Also write the tables as JSON into this file."""


def measured(config: GPTConfig, layout: Layout, rounds: int) -> dict[str, float]:
    """Peak bytes of a step's tensors, seconds of a step, and FLOP/s of a GEMM, on this rank."""
    own_core()
    keep_freed_memory()
    rate = gemm_peak(torch.device("cpu"), torch.float32)
    grid = Grid(layout.tp_size, layout.dp_size, device_type="cpu")
    rng = RNGTracker(0, tp_rank=grid.tp_rank, tp_size=grid.tp_size, dp_rank=grid.dp_rank)
    model = ParallelGPT(config, group=grid.tp_group, rng=rng, recompute=layout.recompute)
    engine, optimizer = DataParallel(model, grid.dp_group), make_optimizer(model)
    shape = (layout.micro_batches, layout.micro_batch_size, config.seq_length)
    batch = torch.randint(
        config.vocab_size, (2, *shape), generator=torch.Generator().manual_seed(0)
    )
    rows = list(zip(batch[0].unbind(), batch[1].unbind(), strict=True))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        engine.backward_global_mean(rows)
        clip_grad_norm_(model, 1.0, grid.tp_group)
        optimizer.step()

    seconds = []
    for _ in range(rounds + 2):
        dist.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    state = [t for row in optimizer.state.values() for t in row.values()]
    tensors = [*model.parameters(), *(p.grad for p in model.parameters()), *state]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return {
        "bytes": sum(storages.values()) + most_held(step),
        "seconds": statistics.median(seconds[2:]),
        "rate": rate,
    }


def most_held(run: Callable[[], Any]) -> int:
    """How far the bytes held by torch's allocator rise above where they were, while it runs."""
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    blocks = [event["args"] for event in events if event["name"] == "[memory]"]
    held = highest = 0
    for block in sorted(blocks, key=lambda args: args["Ev Idx"]):
        held += block["Bytes"]
        highest = max(highest, held)
    return highest


def tables(options: Options) -> Iterator[Table]:
    rows, figures = [], {}
    for name, config, layout in CASES:
        ranks = run_ranks(
            measured, layout.tp_size * layout.dp_size, config, layout, options.rounds, timeout=600
        )
        machine = dataclasses.replace(
            MACHINES["cpu-2core"], peak={"fp32": min(row["rate"] for row in ranks)}
        )
        where = f"{layout.tp_size} x {layout.dp_size}"
        cells = [name, where]
        for kind, unit, reckoned in (
            ("bytes", 2**20, memory(config, layout, machine).peak - machine.outside),
            ("seconds", 1e-3, iteration(config, layout, machine).total),
        ):
            found = max(row[kind] for row in ranks)
            figures[f"{kind} {name} {where}"] = reckoned / found - 1
            cells += [
                f"{found / unit:.0f}",
                f"{reckoned / unit:.0f}",
                f"{reckoned / found - 1:+.0%}",
            ]
        rows.append(cells)
    yield Table(
        "The planner against real training steps on this machine",
        ["model", "tp x dp", "MiB", "planned", "off", "ms", "planned", "off"],
        rows,
        "MiB: all that torch's allocator holds at the peak of a step, on the fullest rank",
        figures,
    )


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
