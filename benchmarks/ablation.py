"""What the paper's cut saves (`make bench-ablation`): the same MLP with other places to talk.

* paired: column-parallel, GeLU, row-parallel; one all-reduce forward, one backward (section 3);
* rows first: step 2's RejectedMLP, which adds partial sums up before GeLU;
* gather after each: column-parallel twice, each followed by an all-gather of its output.

Two ranks with a core each, the same weights; results are compared before anything is timed. What
is sent is counted on the wire and turned into what a ring of n ranks sends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import ParallelMLP, record_collectives, run_ranks
from step02_mlp_parallel.ledger import Collective
from step02_mlp_parallel.linear import ColumnParallelLinear
from step02_mlp_parallel.operators import gather_last_dim
from step02_mlp_parallel.rejected import RejectedMLP
from step02_mlp_parallel.sharding import ParallelModule, load_full_state_dict

from .parallel import own_core
from .report import Seconds, Table, beside, show, slower_rank

TP = 2
SIZES = ((256, 8, 128), (768, 4, 256))  # hidden, batch, sequence


@dataclass(frozen=True)
class Options:
    """Compare the paper's scheme with two that talk after every GEMM."""

    rounds: int = 21
    save: str = ""
    """Also write the tables as JSON into this file."""


class GatheringMLP(ParallelModule):
    """Both matrices cut by columns, the output of each put together on every rank."""

    def __init__(self, config: GPTConfig, *, group: Any) -> None:
        super().__init__()
        h = config.hidden_size
        self.group = group
        self.up = ColumnParallelLinear(h, 4 * h, group=group, name="mlp.up")
        self.down = ColumnParallelLinear(4 * h, h, group=group, name="mlp.down")

    def forward(self, x: Tensor) -> Tensor:
        inner = gather_last_dim(F.gelu(self.up(x), approximate="tanh"), self.group)
        return gather_last_dim(self.down(inner), self.group)


def one_step(module: nn.Module, x: Tensor, upstream: Tensor) -> None:
    module.zero_grad(set_to_none=True)
    x.grad = None
    module(x).backward(upstream)


def ring_bytes(sent: list[Collective]) -> float:
    """What a rank sends in a ring: an all-reduce passes its buffer on twice, a gather once (its
    entry is this rank's part, which goes to all others)."""
    total = 0.0
    for entry in sent:
        n = len(entry.ranks)
        total += entry.nbytes * (n - 1) * (2 / n if entry.op.startswith("all_reduce") else 1)
    return total


def versus(hidden: int, batch: int, seq: int, rounds: int) -> dict[str, Any]:
    """Seconds by scheme and round, and what each sends, on this rank."""
    own_core()
    config = GPTConfig(1, seq, hidden_size=hidden, num_layers=1, num_heads=8, dropout=0.0)
    group = dist.group.WORLD
    modules: dict[str, nn.Module] = {
        "ours": ParallelMLP(config, group=group),
        "rows first": RejectedMLP(config, group=group),
        "gather after each": GatheringMLP(config, group=group),
    }
    generator = torch.Generator().manual_seed(0)
    h = hidden
    shapes = {
        "up.weight": (4 * h, h), "up.bias": (4 * h,), "down.weight": (h, 4 * h), "down.bias": (h,)
    }  # fmt: skip
    full = {name: 0.02 * torch.randn(s, generator=generator) for name, s in shapes.items()}
    x = torch.randn(batch, seq, h, generator=generator, requires_grad=True)
    upstream = torch.randn(batch, seq, h, generator=generator)
    sent, results = {}, {}
    for name, module in modules.items():
        load_full_state_dict(module, full)
        with record_collectives() as ledger:
            one_step(module, x, upstream)
        assert x.grad is not None
        sent[name] = (len(ledger), ring_bytes(ledger))
        results[name] = (module(x).detach(), x.grad.clone())
        for got, expected in zip(results[name], results["ours"], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    seconds: Seconds = {name: [] for name in modules}
    for i in range(rounds + 2):
        for name, module in modules.items():
            dist.barrier()
            start = time.perf_counter()
            one_step(module, x, upstream)
            if i >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {"seconds": seconds, "sent": sent}


def tables(options: Options) -> Iterator[Table]:
    for hidden, batch, seq in SIZES:
        ranks = run_ranks(versus, TP, hidden, batch, seq, options.rounds, timeout=600)
        rows, figures = beside(slower_rank([rank["seconds"] for rank in ranks]))
        for row in rows:
            calls, sent = ranks[0]["sent"][row[0]]
            figures[f"{row[0]}, bytes"] = sent
            row += [str(calls), f"{sent / 2**20:.2f}"]
        yield Table(
            f"Where an MLP talks: hidden {hidden}, batch {batch} x {seq}, TP = {TP}, float32, "
            "forward + backward",
            ["", "ms", "times ours", "collectives", "MiB sent by a rank"],
            rows,
            "ours: the paper's pairing. rows first: sums before GeLU. MiB as a ring sends them.",
            figures,
        )


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
