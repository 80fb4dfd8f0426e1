"""`make demo-step3`: dropout on replicas, with each rank's own masks and with shared ones.

A block is trained on two ranks for a few steps. What every rank should hold alike (the norms and
the biases behind a sum over ranks) is compared between them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import all_gather

from .block import ParallelBlock
from .rng import RNGTracker

STEPS = (1, 5, 20)


def drift(own_masks: bool) -> list[float]:
    """Largest difference between two ranks' copies of a weight, after 1, 5 and 20 steps."""
    group, rank = dist.group.WORLD, dist.get_rank()
    config = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=4, dropout=0.1)
    # As a data-parallel rank of its own, each one draws residual masks that the other doesn't.
    rng = RNGTracker(0, tp_rank=rank, tp_size=2, dp_rank=rank if own_masks else 0)
    block = ParallelBlock(config, group=group, rng=rng)
    replicated = [n for n, cut in cuts(block).items() if cut.shard_dim is None]
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    found = []
    for step in range(1, STEPS[-1] + 1):
        x, wanted = (torch.randn(4, 8, 24, generator=generator) for _ in range(2))
        optimizer.zero_grad()
        nn.functional.mse_loss(block(x), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step in STEPS:
            found.append(max(_apart(block.get_parameter(name), group) for name in replicated))
    return found


def _apart(weight: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    copies = all_gather(weight.detach(), group)
    return float((copies[0] - copies[1]).abs().max())


if __name__ == "__main__":
    print(f"replicated weights of two ranks differ, after {', '.join(map(str, STEPS))} steps, by")
    for own_masks, said in ((True, "each rank its own masks"), (False, "residual masks shared")):
        row = run_ranks(drift, 2, own_masks)[0]
        print(f"  {said:26}" + "".join(f"{value:>10.1e}" for value in row))
