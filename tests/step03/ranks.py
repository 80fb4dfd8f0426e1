"""Functions that run inside ranks, and factories of cut and whole modules with dropout on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu.block import Block
from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import f, load_full_state_dict, record_collectives
from step02_mlp_parallel.wire import Group, group_rank, group_size
from step03_attention_parallel import ParallelAttention, ParallelBlock, RNGTracker
from step03_attention_parallel.memory import saved_bytes

SEED, STEP, SAMPLE = 11, 3, 5
CONFIG = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=8, dropout=0.0)


def world() -> Group:
    return dist.group.WORLD if dist.get_world_size() > 1 else None


def tracker(group: Group, mode: str = "invariant", dp_rank: int = 0) -> RNGTracker:
    rng = RNGTracker(
        SEED, tp_rank=group_rank(group), tp_size=group_size(group), dp_rank=dp_rank, mode=mode
    )
    return rng.at(STEP, SAMPLE)


def whole_stack(config: GPTConfig, layers: int) -> nn.Module:
    """Step 1's blocks, with the invariant masks if there is dropout."""
    masks = tracker(None).dropout if config.dropout else None
    return nn.Sequential(*(Block(config, name=f"{i}", dropout=masks) for i in range(layers)))


def cut_stack(config: GPTConfig, layers: int, recompute: bool, *, group: Group) -> nn.Module:
    rng = tracker(group) if config.dropout else None
    return nn.Sequential(
        *(
            ParallelBlock(config, group=group, rng=rng, recompute=recompute, name=f"{i}")
            for i in range(layers)
        )
    )


class Padded(nn.Module):
    """A block with lengths: sample i has i % s + 1 real tokens, on the left."""

    def __init__(self, config: GPTConfig, causal: bool, norm: str, *, group: Group = None) -> None:
        super().__init__()
        self.inner = ParallelBlock(config, group=group, causal=causal, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        b, s = x.shape[:2]
        lengths = torch.arange(b) % s + 1
        y: Tensor = self.inner(x, torch.arange(s) < lengths[:, None])
        return y


def masks(dp_size: int) -> dict[str, list[int]]:
    """Which of 32 values each stream drops on this rank of a (dp, tp) grid, TP ranks adjacent."""
    tp_size = dist.get_world_size() // dp_size
    dp_rank, tp_rank = divmod(dist.get_rank(), tp_size)
    rng = RNGTracker(1, tp_rank=tp_rank, tp_size=tp_size, dp_rank=dp_rank)
    torch.rand(dist.get_rank())  # the global generators have parted long ago
    ones = torch.ones(1, 4, 8)
    return {
        "residual": rng.dropout(ones, 0.5, "r").flatten().bool().int().tolist(),
        "attention": rng.dropout(ones, 0.5, "a", sharded=True).flatten().bool().int().tolist(),
    }


def counted(dropout: float, recompute: bool, b: int, s: int) -> list[list[tuple[Any, ...]]]:
    """Collectives of a block's forward and backward."""
    config = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=8, dropout=dropout)
    group = world()
    layer = ParallelBlock(config, group=group, rng=tracker(group, "paper"), recompute=recompute)
    x = torch.randn(b, s, 24, requires_grad=True)
    with record_collectives() as forward:
        y = layer(x)
    with record_collectives() as backward:
        y.sum().backward()
    return [[(e.op, e.shape) for e in ledger] for ledger in (forward, backward)]


def trained(steps: int, drift: bool) -> list[Tensor]:
    """Replicated weights and gradients after training steps in the paper's mode, dropout on.

    `drift`: the global generators of the ranks are apart (they always are here), and something
    else draws from them in between.
    """
    config = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=8, dropout=0.2)
    group = world()
    rng = tracker(group, "paper")
    blocks = nn.Sequential(
        *(ParallelBlock(config, group=group, rng=rng, name=f"{i}") for i in "01")
    )
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        if drift:
            torch.rand(dist.get_rank() + 1)
        optimizer.zero_grad()
        x = torch.randn(2, 6, 24, generator=generator)
        (blocks(x) * torch.randn(2, 6, 24, generator=generator)).sum().backward()
        optimizer.step()
    replicated = [
        p
        for n, p in blocks.named_parameters()
        if "ln" in n or n.endswith(("out.bias", "down.bias"))
    ]
    return [t.detach() for p in replicated for t in (p, p.grad) if t is not None]


def recompute_twice(p: float, mode: str) -> list[list[Tensor]]:
    """Outputs and gradients without and with recompute, a stack of two, from one start."""
    config = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=8, dropout=p)
    group, results = world(), []
    for again in (False, True):
        rng = tracker(group, mode)
        blocks = nn.Sequential(
            *(
                ParallelBlock(config, group=group, rng=rng, recompute=again, name=f"{i}")
                for i in "01"
            )
        )
        torch.manual_seed(0)
        x = torch.randn(2, 6, 24, requires_grad=True)
        y = blocks(x)
        y.backward(torch.randn(2, 6, 24))
        after = rng.dropout(torch.ones(1, 8, 8), 0.5, "next")  # the streams go on alike
        results.append([y, x.grad, after, *(p.grad for p in blocks.parameters())])
    return results  # type: ignore[return-value]


def memory(p: float, recompute: bool, b: int, s: int) -> int:
    config = GPTConfig(9, s, hidden_size=64, num_layers=1, num_heads=16, dropout=p)
    group = world()
    layer = ParallelBlock(config, group=group, rng=tracker(group, "paper"), recompute=recompute)
    return saved_bytes(layer, torch.randn(b, s, 64, requires_grad=True))


def messages() -> dict[str, str]:
    group = world()
    dropping = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=8, dropout=0.2)
    odd = GPTConfig(9, 16, hidden_size=24, num_layers=2, num_heads=6)
    x = torch.zeros(2, 3, 24)
    calls = {
        "heads": lambda: ParallelAttention(odd, group=group),
        "no tracker": lambda: ParallelBlock(dropping, group=group)(x),
        "tracker of another": lambda: ParallelBlock(dropping, group=group, rng=RNGTracker(1))(x),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "no error"
        except ValueError as error:
            said[name] = str(error)
    return said


def plain_chunk_of_stacked_qkv(full: dict[str, Tensor], x: Tensor) -> Tensor:
    """Pitfall 28: [3h, h] cut in contiguous rows, as one would a plain column-parallel weight."""
    group = world()
    layer = ParallelAttention(CONFIG, group=group).double()
    load_full_state_dict(layer, full)
    stacked = full["qkv.weight"].flatten(0, 1)
    layer.qkv.weight.data = stacked.chunk(group_size(group))[group_rank(group)].view_as(
        layer.qkv.weight
    )
    return layer(f(x)).detach()
