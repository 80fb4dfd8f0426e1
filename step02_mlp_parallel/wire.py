"""The one place that talks to the wire: every collective of the layers goes through here.

gloo reads and writes `numel` numbers from a tensor's first address, whatever its strides say: a
column of a matrix gives wrong sums *and* overwrites its neighbours, without an error. It doesn't
compare dtypes either. So both are checked here, and a ledger can watch (ledger.py).

`group=None` is a world of one here and makes no collective call. (In torch's own functions None
means all ranks.)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .ledger import note

Group = dist.ProcessGroup | None

_REDUCIBLE = {
    torch.float64, torch.float32, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int8, torch.uint8,
}  # fmt: skip


def group_size(group: Group) -> int:
    """Ranks in the group; 1 for None. Raises ValueError for a group that is closed or not ours."""
    return 1 if group is None else len(_members(group))


def group_rank(group: Group) -> int:
    """This process's number in the group, 0 for None."""
    if group is None:
        return 0
    _members(group)
    return dist.get_rank(group)


def all_reduce_(
    buffer: Tensor, group: Group, op: str = "sum", *, async_op: bool = False
) -> dist.Work | None:
    """Add up `buffer` over the group ("max": take the largest), in place.

    In place, so the buffer must be the caller's own: never an input of a layer and never a
    gradient that autograd handed over. With `async_op` the result is there after `wait()` of
    what is returned, and the buffer must live until then. On the wire: buffer.numel() numbers.
    """
    if op not in ("sum", "max"):
        raise ValueError(f'op is {op!r}; it must be "sum" or "max"')
    if group is None or group_size(group) == 1:
        return None
    _check(buffer, group, f"all_reduce({op})")
    reduce_op = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
    with note(f"all_reduce({op})", buffer, _members(group)):
        work: dist.Work | None = dist.all_reduce(buffer, reduce_op, group, async_op=async_op)
    return work


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Every rank's `x`, stacked in rank order: [n, *x.shape]. All must have the same shape.

    On the wire: x.numel() numbers from each rank.
    """
    n = group_size(group)
    x = x.contiguous()
    if group is None or n == 1:
        return x.unsqueeze(0).clone()
    _check(x, group, "all_gather")
    out = x.new_empty((n * x.size(0), *x.shape[1:]) if x.dim() else (n,))
    with note("all_gather", x, _members(group)):
        dist.all_gather_single(out, x if x.dim() else x.view(1), group)
    return out.view(n, *x.shape)


def _members(group: dist.ProcessGroup) -> list[int]:
    """Global ranks of the group."""
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(
            f"group is {group!r}; it must be a ProcessGroup that this rank belongs to, or None"
        )
    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(
            "the process group is closed: destroy_process_group() ran before this call"
        ) from error


def _check(x: Tensor, group: dist.ProcessGroup | None, what: str) -> None:
    backend = dist.get_backend(group)
    if not x.is_contiguous():
        raise ValueError(
            f"{what} of a tensor with strides {x.stride()} for shape {list(x.shape)}: {backend} "
            "would read and overwrite memory beside it; pass a contiguous tensor of your own"
        )
    if x.dtype not in _REDUCIBLE:
        names = ", ".join(sorted(str(dtype) for dtype in _REDUCIBLE))
        raise ValueError(f"{what} of {x.dtype}: {backend} can't be relied on for it; use {names}")
    if backend == "nccl" and x.device.type != "cuda":
        raise ValueError(f"{what} of a tensor on {x.device}: the group is NCCL's; move it to a GPU")
    if x.dtype == torch.float16 and backend == "mpi":
        raise ValueError(f"{what} of torch.float16: MPI has no such type; use float32 or bfloat16")
