"""Functions that run inside ranks. A light module: each rank imports it anew."""

from __future__ import annotations

import os
import time
from typing import Any

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
    gather_last_dim,
    load_full_state_dict,
    record_collectives,
    split_last_dim,
)
from step02_mlp_parallel.operators import g_
from step02_mlp_parallel.rejected import RejectedMLP
from step02_mlp_parallel.wire import all_gather, all_reduce_, group_size

CONFIG = GPTConfig(9, 8, hidden_size=24, num_layers=2, num_heads=3)


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def rank() -> int:
    return dist.get_rank()


# ---- launching


def who(value: Any) -> tuple[int, int, Any]:
    return rank(), dist.get_world_size(), value


def summed() -> float:
    x = torch.ones(1) * (rank() + 1)
    dist.all_reduce(x)
    return x.item()


def raise_on(bad: int, error: str) -> None:
    if rank() == bad:
        raise KeyError(error)
    dist.barrier()  # the others wait in a collective


def hang_on(bad: int) -> int:
    if rank() == bad:
        time.sleep(1000)
    return rank()


def die_on(bad: int, code: int) -> None:
    if rank() == bad:
        os._exit(code) if code >= 0 else os.kill(os.getpid(), -code)
    dist.barrier()


def leave(how: str) -> None:
    if rank() == 0:
        raise SystemExit(3) if how == "exit" else KeyboardInterrupt
    dist.barrier()


def surroundings(names: list[str]) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "random": torch.rand(1).item(),
        **{name: os.environ.get(name) for name in names},
    }


def add_in_place(x: Tensor) -> Tensor:
    return x.add_(rank() + 1)


def unpicklable() -> Any:
    return lambda: None


# ---- operators


def gradient_of_replicated(use_f: bool) -> list[float]:
    """Pitfall 12: a replicated gain before a cut layer; rank r's part of the loss weighs 2(r+1)."""
    gain = torch.ones(2, requires_grad=True)
    x = f(gain, world()) if use_f else gain
    g((x * 2.0 * (rank() + 1)).sum(), world()).backward()
    return gain.grad.tolist()  # type: ignore[union-attr]


def gradient_through_g(kind: str) -> list[float]:
    """Pitfall 13: each rank holds x; y = sum over ranks, and the loss is y's, once."""
    x = torch.ones(2, requires_grad=True)
    if kind == "g":
        y = g(x, world())
    else:  # torch's own: right only if every rank had a loss of its own
        from torch.distributed._functional_collectives import all_reduce

        y = all_reduce(x, "sum", world())
    y.sum().backward()
    return x.grad.tolist()  # type: ignore[union-attr]


def g_after_sigmoid() -> tuple[float, str]:
    """Pitfall 14: sigmoid saved its output; g must not write into it, and g_ must be caught."""
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    g(x.sigmoid(), world()).sum().backward()
    try:
        g_(x.sigmoid(), world()).sum().backward()
        return x.grad.item(), "no error"  # type: ignore[union-attr]
    except RuntimeError as error:
        return x.grad.item(), str(error)  # type: ignore[union-attr]


def inputs_survive() -> dict[str, bool]:
    """Expanded and strided inputs and gradients: right sums, and the memory beside them whole."""
    good = {}
    base = torch.tensor([[1.0, 50.0], [1.0, 60.0], [1.0, 70.0]])
    column = base[:, 0]
    good["strided"] = torch.equal(g(column, world()), torch.full((3,), 2.0))
    good["neighbours"] = torch.equal(base[:, 1], torch.tensor([50.0, 60.0, 70.0]))
    buffer = torch.tensor([1.0, 50.0, 60.0, 70.0])
    good["expanded"] = torch.equal(g(buffer[:1].expand(4), world()), torch.full((4,), 2.0))
    good["expanded whole"] = torch.equal(buffer, torch.tensor([1.0, 50.0, 60.0, 70.0]))
    x = torch.zeros(4, requires_grad=True)
    f(x, world()).sum().backward()  # sum's gradient is one number, expanded
    good["expanded gradient"] = torch.equal(x.grad, torch.full((4,), 2.0))  # type: ignore[arg-type]
    upstream = torch.ones(4)
    z = f(x, world())
    z.backward(upstream)
    good["caller's gradient"] = torch.equal(upstream, torch.ones(4))
    try:
        all_reduce_(column, world())
        good["refused"] = False
    except ValueError as error:
        good["refused"] = "strides (2,)" in str(error)
    return good


def changed_in_place(operator: str) -> tuple[Tensor, Tensor, Tensor]:
    """Pitfall 26: y = f(x); y.add_(1): no error, x untouched, gradient right."""
    apply = {"f": f, "g": g, "split": split_last_dim, "gather": gather_last_dim}[operator]
    x = torch.arange(4.0).requires_grad_()
    y = apply(x, world() if dist.get_world_size() > 1 else None)
    y.add_(1.0).mul_(3.0)
    y.sum().backward()
    assert x.grad is not None
    return x.detach(), y.detach(), x.grad


def used_twice() -> list[float]:
    """One input into two cut branches, and one result in two places."""
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    r = rank() + 1.0
    y = g(f(x, world()) * r, world()) * g(f(x, world()) ** 2 * r, world())  # 3x · 3x²
    (y + y).sum().backward()
    with torch.no_grad():
        assert not g(x, world()).requires_grad
    return [y.item(), x.grad.item()]  # type: ignore[union-attr]


def second_derivative(layer: str) -> list[Tensor]:
    """Gradient of (d loss/dx)² for a cut cubic; the same as without any cut."""
    group = world() if dist.get_world_size() > 1 else None
    torch.manual_seed(0)
    weight, x = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    x.requires_grad_()
    if layer == "column":
        module = ColumnParallelLinear(3, 4, group=group, bias=False).double()
        load_full_state_dict(module, {"weight": weight})
        loss = g((module(x) ** 3).sum(), group)
    else:
        part = split_last_dim(f(x, group) @ weight.T, None)
        n = dist.get_world_size()
        part = part.view(n, -1)[rank() if n > 1 else 0]
        loss = g((part**3).sum(), group)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (first**2).sum().backward()
    return [first.detach(), x.grad]  # type: ignore[list-item]


def gather_then(what: str) -> tuple[Tensor, Tensor]:
    """Pitfall 25: a gathered output into replicated work, or into another cut layer."""
    group = world() if dist.get_world_size() > 1 else None
    torch.manual_seed(0)
    weights = [torch.randn(4, 3, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)]
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    first = ColumnParallelLinear(3, 4, group=group, bias=False, gather_output=True).double()
    load_full_state_dict(first, {"weight": weights[0]})
    y = first(x)
    if what == "column":
        second = ColumnParallelLinear(4, 8, group=group, bias=False).double()
        load_full_state_dict(second, {"weight": weights[1]})
        loss = g((second(y) ** 3).sum(), group)
    else:
        loss = ((y @ weights[1].T) ** 3).sum()
    loss.backward()
    assert x.grad is not None
    return loss.detach(), x.grad


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
        "group": lambda: f(torch.zeros(2, requires_grad=True), "tp").sum().backward(),  # type: ignore[arg-type]
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


# ---- what torch itself does (pinned, because the code leans on it or guards against it)


def raw_gloo() -> dict[str, Any]:
    """Calls past the wire functions."""
    found: dict[str, Any] = {}
    column = torch.tensor([[1.0, 50.0], [1.0, 60.0]])
    dist.all_reduce(column[:, 0])
    found["strided"] = column.tolist()
    mixed = torch.ones(2) if rank() == 0 else torch.ones(2, dtype=torch.int32)
    dist.all_reduce(mixed)
    found["mixed dtypes"] = mixed[0].item()
    first, second = torch.full((1,), 1.0), torch.full((1,), 100.0)
    for buffer in (first, second) if rank() == 0 else (second, first):
        dist.all_reduce(buffer)
    found["swapped order"] = (first.item(), second.item())
    return found


def average(dtype: torch.dtype) -> Any:
    x = torch.tensor([1, 2, 3], dtype=dtype) * (rank() + 1)
    try:
        dist.all_reduce(x, dist.ReduceOp.AVG)
        return x.tolist()
    except RuntimeError as error:
        return str(error)


def source_is_global() -> Any:
    own = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank() // 2]
    x = torch.tensor([float(rank())])
    try:
        dist.broadcast(x, 0, group=own)
        return x.item()
    except ValueError as error:
        return str(error)


def ddp_gradients(own_group: bool) -> tuple[float, float]:
    """Pitfall 68: a cut weight (1 on TP rank 0, 2 on rank 1) wrapped by DDP, dp = 2, tp = 2."""
    from torch.nn.parallel import DistributedDataParallel

    dp_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(1.0 + rank() % 2)
    wrapped = DistributedDataParallel(
        module, process_group=dp_groups[rank() % 2] if own_group else None
    )
    wrapped(torch.full((1, 1), 1.0 + rank() % 2)).sum().backward()
    assert module.weight.grad is not None
    return module.weight.item(), module.weight.grad.item()


def plain_all_reduce_under_autograd() -> tuple[list[str], float]:
    import warnings

    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = x * 1.0
        dist.all_reduce(y)
        y.sum().backward()
    return [str(w.message) for w in caught], x.grad.item()  # type: ignore[union-attr]


def late_to_the_barrier() -> str:
    """monitored_barrier names who is missing."""
    from datetime import timedelta

    if rank() == 1:
        time.sleep(1.0)
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=0.3), wait_all_ranks=True)
        return "no error"
    except RuntimeError as error:
        return str(error)


def a_second_group_in_one_process(folder: str) -> list[float]:
    """Destroy and open again: works over a fresh file (over the old one it can hang)."""
    n, me, sums = dist.get_world_size(), rank(), [summed()]
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=me, world_size=n)
    return [*sums, summed()]


class NaiveG(torch.autograd.Function):
    """g as one writes it first: sums in its input's memory and doesn't say so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def naive_g_after_sigmoid() -> float:
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    NaiveG.apply(x.sigmoid()).sum().backward()
    return x.grad.item()  # type: ignore[union-attr]
