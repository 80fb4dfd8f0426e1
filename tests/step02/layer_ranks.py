"""Functions that run inside ranks: layers, and what bad calls say."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import (
    ColumnParallelLinear,
    ParallelMLP,
    RowParallelLinear,
    f,
    g,
    gather_full_state_dict,
    load_full_state_dict,
    record_collectives,
    split_last_dim,
)
from step02_mlp_parallel.rejected import RejectedMLP
from step02_mlp_parallel.wire import all_gather, all_reduce_, group_size

from .ranks import rank, world

CONFIG = GPTConfig(9, 8, hidden_size=24, num_layers=2, num_heads=3)


# ---- layers


def overlap_on_and_off(dtype: torch.dtype, autocast: bool) -> list[bool]:
    """The switch changes no bit: output and all three gradients."""
    results: list[list[Tensor]] = []
    for overlap in (True, False):
        torch.manual_seed(1)
        layer = ColumnParallelLinear(12, 16, group=world(), overlap=overlap).to(dtype)
        x = torch.randn(2, 5, 12, dtype=dtype, requires_grad=True)
        with torch.no_grad():
            layer.bias.normal_()  # type: ignore[union-attr]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = layer(x)
        y.backward(torch.randn(y.shape).to(y.dtype))
        results.append([y, *(p.grad for p in (x, layer.weight, layer.bias))])  # type: ignore[union-attr, list-item]
    return [torch.equal(one, other) for one, other in zip(*results, strict=True)]


def bias_gradients(steps: int) -> list[Tensor]:
    """Pitfalls 18 and 19: the row bias after some training steps, on each rank."""
    torch.manual_seed(0)
    layer = RowParallelLinear(4, 3, group=world()).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for i in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(10 + i)  # the same upstream on all ranks, other inputs
        upstream = torch.randn(2, 3, dtype=torch.float64)
        torch.manual_seed(100 * i + rank())
        layer(torch.randn(2, 2, dtype=torch.float64)).backward(upstream)
        optimizer.step()
    return [layer.bias.detach(), layer.bias.grad]  # type: ignore[union-attr, list-item]


def fresh_weights(sizes: tuple[int, int]) -> dict[str, Tensor]:
    """Whole weights of freshly made layers: what training would start from."""
    group = world() if dist.get_world_size() > 1 else None
    column = ColumnParallelLinear(*sizes, group=group, seed=5, name="a")
    row = RowParallelLinear(*sizes, group=group, seed=5, name="b")
    return {
        "column": gather_full_state_dict(column)["weight"],
        "row": gather_full_state_dict(row)["weight"],
    }


def parts_differ() -> Tensor:
    return ColumnParallelLinear(4, 4, group=world(), seed=5, name="a").weight.detach()


def round_trip(full: dict[str, Tensor]) -> dict[str, Tensor]:
    mlp = ParallelMLP(CONFIG, group=world())
    load_full_state_dict(mlp, full)
    return gather_full_state_dict(mlp)


def counted(b: int, s: int) -> list[list[tuple[str, tuple[int, ...], tuple[int, ...]]]]:
    """What the MLP's forward and backward send."""
    mlp, x = ParallelMLP(CONFIG, group=world()), torch.randn(b, s, 24, requires_grad=True)
    with record_collectives() as forward:
        y = mlp(x)
    with record_collectives() as backward:
        y.sum().backward()
    return [[(e.op, e.shape, e.ranks) for e in ledger] for ledger in (forward, backward)]


def deep_copied() -> list[bool]:
    """Same group, same result, own weights."""
    mlp, x = ParallelMLP(CONFIG, group=world()), torch.ones(2, 3, 24)
    copied, before = copy.deepcopy(mlp), mlp(x)
    same = torch.equal(copied(x), before)
    with torch.no_grad():
        copied.up.weight.zero_()
    return [copied.up.group is mlp.up.group, same, torch.equal(mlp(x), before)]


def rejected(synchronize: bool, full: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Output, input gradient and numbers sent by the paper's rejected option."""
    mlp = RejectedMLP(CONFIG, group=world(), synchronize=synchronize).double()
    load_full_state_dict(mlp, full)
    x = x.clone().requires_grad_()
    with record_collectives() as ledger:
        y = mlp(x)
        y.backward(torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape))
    assert x.grad is not None
    return y.detach(), x.grad, sum(entry.numel for entry in ledger)


def parameters_drift_without_f() -> list[Tensor]:
    """A norm before the MLP, trained: replicas stay bit-equal. (Differs before, equal after.)"""
    torch.manual_seed(3)
    mlp = ParallelMLP(CONFIG, group=world())
    norm = nn.LayerNorm(24)
    optimizer = torch.optim.AdamW([*norm.parameters(), *mlp.parameters()], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        mlp(norm(torch.randn(2, 4, 24))).square().sum().backward()
        optimizer.step()
    return [norm.weight.detach(), norm.bias.detach(), mlp.down.bias.detach()]  # type: ignore[union-attr]


# ---- errors and torch's own habits


def messages() -> dict[str, str]:
    """What each bad call says."""
    said = {}
    calls = {
        "column": lambda: ColumnParallelLinear(3, 10, group=world()),
        "row": lambda: RowParallelLinear(6, 3, group=world()),
        "width": lambda: RowParallelLinear(8, 3, group=world())(torch.zeros(2, 8)),
        "split": lambda: split_last_dim(torch.zeros(2, 6), world()),
        "dtype": lambda: g(torch.zeros(2, dtype=torch.complex64), world()),
        "bool": lambda: g(torch.zeros(2, dtype=torch.bool), world()),
        "op": lambda: all_reduce_(torch.zeros(2), world(), "mean"),
        "group": lambda: f(torch.zeros(2), "tp"),  # type: ignore[arg-type]
    }
    for name, call in calls.items():
        try:
            call()
            said[name] = "no error"
        except ValueError as error:
            said[name] = str(error)
    group = world()
    dist.barrier()
    dist.destroy_process_group()
    for name, closed in {
        "closed g": lambda: g(torch.zeros(2), group),
        "closed size": lambda: group_size(group),
        "closed layer": lambda: ColumnParallelLinear(4, 4, group=group),
    }.items():
        try:
            closed()
            said[name] = "no error"
        except ValueError as error:
            said[name] = str(error)
    return said


def groups_of_two() -> tuple[list[int], float, Tensor]:
    """Two groups side by side: sums stay inside, and the ledger names global ranks."""
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]  # all ranks make all groups
    own = groups[rank() // 2]
    assert isinstance(own, dist.ProcessGroup)
    with record_collectives() as ledger:
        total = g(torch.tensor([float(rank())]), own)
    return list(ledger[0].ranks), total.item(), all_gather(torch.tensor(rank()), own)


def half_types() -> dict[str, float]:
    """bf16 and fp16 sums over gloo (torch 2.13 has them)."""
    return {
        str(dtype): g(torch.full((3,), rank() + 1.0, dtype=dtype), world())[0].item()
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    }
