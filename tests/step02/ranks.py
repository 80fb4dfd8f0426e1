"""Functions that run inside ranks. A light module: each rank imports it anew."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from step02_mlp_parallel import (
    ColumnParallelLinear,
    f,
    g,
    gather_last_dim,
    load_full_state_dict,
    split_last_dim,
)
from step02_mlp_parallel.operators import g_
from step02_mlp_parallel.wire import all_reduce_


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


class TwoArguments(Exception):
    """Pickles, but doesn't unpickle."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def half_picklable() -> Any:
    return TwoArguments("a", "b")


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
    tall = torch.arange(6.0).view(2, 3)
    good["transposed"] = torch.equal(g(tall.T, world()), 2 * tall.T)
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
    if layer == "weight":  # through the weight's gradient back to x
        module = ColumnParallelLinear(3, 4, group=group, bias=False).double()
        load_full_state_dict(module, {"weight": weight})
        loss = g((module(x) ** 3).sum(), group)
        (first,) = torch.autograd.grad(loss, module.weight, create_graph=True)
        penalty = g(first.square().sum(), group)
        penalty.backward()
        return [penalty.detach(), x.grad]  # type: ignore[list-item]
    if layer == "column":
        module = ColumnParallelLinear(3, 4, group=group, bias=False).double()
        load_full_state_dict(module, {"weight": weight})
        loss = g((module(x) ** 3).sum(), group)
    else:
        part = split_last_dim(f(x, group) @ weight.T, None)
        n = dist.get_world_size()
        part = part.view(n, -1)[rank() if n > 1 else 0]
        loss = g((part**3).sum(), group)
        if layer == "behind_g":  # the gradient that comes to g depends on x as well
            loss = loss.square()
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
