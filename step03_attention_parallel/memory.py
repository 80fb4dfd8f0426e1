"""What a block keeps for its backward: counted, and as a formula.

`python -m step03_attention_parallel.memory` prints both at 1, 2, 4 and 8 ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel.launch import run_ranks
from step02_mlp_parallel.wire import group_rank, group_size

from .block import ParallelBlock
from .rng import RNGTracker


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps while module(x) waits for its backward.

    Each memory once, however many views of it are saved; weights are not counted.
    """
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        output = module(x)
    del output
    return sum(kept.values())


def formula(b: int, s: int, h: int, heads: int, n: int, *, dropout: bool, recompute: bool) -> int:
    """The same by reckoning, in float32, for one rank of n, on a CPU.

    Replicated, so not divided by n: the input and output of both norms (4 bsh numbers, and for
    each norm 2 a token), and two residual dropout masks (2 bsh).
    Divided by n: Q, K, V (3 bsh), the mixed values (1 bsh), both sides of GeLU (8 bsh); with
    dropout also three times the [s, s] weights of each head: as they were, their mask, and what
    is left of them (and once a causal mask of a byte each). SDPA keeps one number a head and query
    instead. With recompute, x alone. (With dropout and a single head on a rank, K and V need no
    copies of their own but keep all of Q, K, V: one bsh/n more.)
    """
    tokens, h_tokens = b * s, b * s * h
    if recompute:
        return 4 * h_tokens
    if dropout:
        cut = 12 * h_tokens + 3 * b * heads * s * s
        return 4 * (6 * h_tokens + 4 * tokens + cut // n) + s * s
    return 4 * (4 * h_tokens + 4 * tokens + (12 * h_tokens + b * heads * s) // n)


def _measured(b: int, s: int, h: int, heads: int) -> list[int]:
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    found = []
    for dropout in (0.1, 0.0):
        for recompute in (False, True):
            config = GPTConfig(1, s, h, num_layers=1, num_heads=heads, dropout=dropout)
            rng = RNGTracker(0, tp_rank=group_rank(group), tp_size=group_size(group))
            block = ParallelBlock(config, group=group, rng=rng, recompute=recompute)
            found.append(saved_bytes(block, torch.randn(b, s, h, requires_grad=True)))
    return found


def table(b: int = 4, s: int = 128, h: int = 256, heads: int = 16) -> str:
    """MiB of float32 that each rank keeps for one block, measured / reckoned."""
    lines = [
        f"batch {b} x {s}, hidden {h}, {heads} heads: MiB kept by a rank for a block's backward",
        f"{'ranks':>5}{'dropout 0.1':>16}{'no dropout':>16}{'recompute':>16}",
    ]
    for n in (1, 2, 4, 8):
        measured = run_ranks(_measured, n, b, s, h, heads)[0]
        cells = []
        for value, (dropout, again) in zip(
            (measured[0], measured[2], measured[1]),
            ((True, False), (False, False), (True, True)),
            strict=True,
        ):
            reckoned = formula(b, s, h, heads, n, dropout=dropout, recompute=again)
            cells.append(f"{value / 2**20:.2f} / {reckoned / 2**20:.2f}")
        lines.append(f"{n:>5}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
