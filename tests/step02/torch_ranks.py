"""Functions that run inside ranks: torch's own calls, past the wire functions."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .ranks import rank, summed

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
