"""All finished functions of step 2 at once: the parallel MLP against the whole one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from step01_single_gpu.block import MLP
from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import ParallelMLP, load_full_state_dict, run_ranks
from step02_mlp_parallel.launch import RankError

from .mine import Mine, WithMine

WORLDS = (2, 4)
BOUND = 1e-12


def mlp_error() -> float:
    """In a rank: the largest relative error of output, input gradient and second bias gradient."""
    group = dist.group.WORLD
    config = GPTConfig(9, 8, hidden_size=8, num_layers=1, num_heads=2)
    generator = torch.Generator().manual_seed(0)
    whole, parallel = MLP(config).double(), ParallelMLP(config, group=group).double()
    state = {
        name: torch.randn(t.shape, generator=generator, dtype=torch.float64)
        for name, t in whole.state_dict().items()
    }
    whole.load_state_dict(state)
    load_full_state_dict(parallel, state)
    x, up = (torch.randn(2, 3, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    pairs: list[tuple[Any, Any]] = []
    runs = []
    for mlp in (parallel, whole):
        leaf = x.clone().requires_grad_()
        y = mlp(leaf)
        (y * up).sum().backward()  # (backward(up) would load torch's symbolic shapes first)
        runs.append([y.detach(), leaf.grad, mlp.get_parameter("down.bias").grad])
    pairs = list(zip(*runs, strict=True))
    if any(got is None for got, _ in pairs):
        return float("inf")
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def together(source: str, filename: str, ids: list[str]) -> str:
    """A line on whether the finished functions work with one another, "" if none is finished."""
    if not ids:
        return ""
    mine = Mine(source, filename, tuple(ids))
    for n in WORLDS:
        try:
            errors = run_ranks(WithMine(mine, mlp_error), n, timeout=30.0)
        except RankError as error:
            lines = str(error).strip().splitlines()
            return f"together ({', '.join(ids)}): on {n} ranks {lines[-1]}"
        if max(errors) > BOUND:
            worst = max(range(n), key=lambda rank: errors[rank])
            return (
                f"together ({', '.join(ids)}): on {n} ranks the MLP is off by "
                f"{errors[worst]:.1g} on rank {worst}, though each function passes alone"
            )
    return (
        f"together ({', '.join(ids)}): the parallel MLP made of them equals the whole one to "
        f"{BOUND:g}, on {' and '.join(map(str, WORLDS))} ranks"
    )
