"""`python -m step05_hybrid_dp.plan`: does a model fit, and how long will it train?

Reckoned, not measured: memory by cost_model.py, time by time_model.py, rates by machines.py.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import paper_tables
from .cost_model import Layout, check
from .machines import GIB, MACHINES, Machine, named
from .search import Plan, candidates, comparison, ranked, what_would_fit
from .sizes import paper_models

if TYPE_CHECKING:
    from step01_single_gpu.config import GPTConfig

PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations kept",
    "block": "one block's backward",
    "logits": "a chunk of logits (earlier)",
    "loss": "loss and embedding gradients",
    "outside": "CUDA, NCCL, Python",
}
TIMES = {
    "gemm": "GEMMs",
    "memory_bound": "memory-bound work",
    "tp_comm": "tensor-parallel all-reduces",
    "dp_comm": "data-parallel, not hidden",
    "waiting": "waiting for the slowest",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class Options:
    """Plan a training run. The defaults are the paper's 8.3B run on 512 V100s."""

    model: str = "gpt2-8.3b"
    """A name from PAPER_MODELS."""
    tp: int = 8
    dp: int = 64
    machine: str = "v100-32gb"
    """v100-32gb (DGX-2H, fitted to the paper), a100-80gb, h100, h200, cpu-2core."""
    global_batch: int = 512
    micro_batch: int | None = None
    """Sequences in one forward and backward; None is the fastest that fits."""
    precision: str | None = None
    """fp32, bf16 (float32 parameters, autocast) or fp16 (float32 masters); None is fp16 on V100s,
    fp32 on CPUs, else bf16."""
    recompute: bool = True
    """Keep one activation a block and compute the others again."""
    dropout: float | None = None
    """None is the model's, 0.1."""
    tokens: float = 300_000 * 512 * 1024
    """To train on; the paper's 300k iterations."""
    search: bool = False
    """Rank all layouts of tp x dp GPUs instead, with and without recompute."""
    paper: bool = False
    """Print the paper's tables beside the planner's figures instead."""


def main(options: Options) -> str:
    """The answer, as text. Raises ValueError for what can't be planned."""
    if options.paper:
        return paper_tables.report()
    models = paper_models()
    config = models[named("model", options.model, models)]
    machine = MACHINES[named("machine", options.machine, MACHINES)]
    if options.dropout is not None:
        config = dataclasses.replace(config, dropout=options.dropout)
    precision = options.precision or next(
        kind for kind in ("bf16", "fp16", "fp32") if kind in machine.peak
    )
    layout = Layout(
        options.tp, options.dp, options.micro_batch or 1, options.global_batch, precision,
        options.recompute,
    )  # fmt: skip
    check(config, layout, machine)
    mine = candidates(config, layout, machine, options.micro_batch)
    head = f"{options.model} on {options.tp * options.dp} x {machine.name} ({machine.note})"
    if options.search:
        return "\n".join([head, *search(config, layout, machine, mine)])
    plan = ranked(mine)[0]
    return "\n".join([head, *describe(config, plan, machine, options.tokens)])


def describe(config: GPTConfig, plan: Plan, machine: Machine, tokens: float) -> list[str]:
    """Memory and time of one layout, part by part, and how long `tokens` take."""
    layout, times = plan.layout, plan.times
    batch_tokens = layout.global_batch_size * config.seq_length
    gpus = layout.tp_size * layout.dp_size
    flops, peak = plan.flops / times.total, machine.peak[layout.precision]
    lines = [
        _name(layout) + f", micro-batches a step: {layout.micro_batches}, {layout.precision}",
        "",
        "memory of a GPU, GiB",
        *_rows(PARTS, plan.memory, GIB),
        f"  {'at the peak':<30}{plan.memory.peak / GIB:>9.2f}   of {machine.memory / GIB:.0f}",
        "",
        "an iteration, seconds",
        *_rows(TIMES, times, 1.0),
        f"  {'in all':<30}{times.total:>9.3f}",
        "",
        f"{batch_tokens / times.total:,.0f} tokens/s, {_flops(flops)} a GPU "
        f"({flops / peak:.0%} of its peak), {_flops(gpus * flops)} in all",
        f"{tokens / batch_tokens * times.total / 86400:,.1f} days for {tokens / 1e9:,.0f} billion "
        f"tokens ({tokens / batch_tokens:,.0f} iterations)",
    ]
    if not plan.fits:
        lines += ["", *what_would_fit(config, layout, machine)]
    return lines


def search(
    config: GPTConfig, layout: Layout, machine: Machine, mine: list[Plan], show: int = 12
) -> list[str]:
    """The fastest layouts of the same GPUs that fit; where `layout` stands among them, and why."""
    everything = ranked(candidates(config, layout, machine, None, every_layout=True))
    fitting = [plan for plan in everything if plan.fits]
    if not fitting:
        return what_would_fit(config, layout, machine)
    lines = [
        f"{len(fitting)} of {len(everything)} layouts fit; the fastest:",
        f"{'':>4}{'tp':>4}{'dp':>5}{'micro':>7}{'recompute':>11}{'tokens/s':>12}{'GiB':>7}",
    ]
    for rank, plan in enumerate(fitting[:show], 1):
        each = plan.layout
        rate = each.global_batch_size * config.seq_length / plan.times.total
        lines.append(
            f"{rank:>4}{each.tp_size:>4}{each.dp_size:>5}{each.micro_batch_size:>7}"
            f"{'yes' if each.recompute else 'no':>11}{rate:>12,.0f}{plan.memory.peak / GIB:>7.1f}"
        )
    best = ranked(mine)[0]
    if not best.fits:
        return [*lines, "", *what_would_fit(config, layout, machine)]
    rank = 1 + fitting.index(best)
    lines += ["", f"{_name(best.layout)} is number {rank}."]
    return lines if rank == 1 else [*lines, *comparison(best, fitting[0], TIMES)]


def _name(layout: Layout) -> str:
    again = "recompute" if layout.recompute else "no recompute"
    return (
        f"tp {layout.tp_size} x dp {layout.dp_size}, micro-batch {layout.micro_batch_size}, {again}"
    )


def _flops(rate: float) -> str:
    unit, name = next(each for each in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if rate >= each[0])
    return f"{rate / unit:.1f} {name}FLOP/s"


def _rows(names: dict[str, str], parts: object, unit: float) -> list[str]:
    digits = 2 if unit > 1 else 3
    return [
        f"  {text:<30}{getattr(parts, name) / unit:>9.{digits}f}" for name, text in names.items()
    ]


if __name__ == "__main__":
    import tyro

    try:
        print(main(tyro.cli(Options)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
