"""Which rows of the global batch are a rank's, and a check that they are (pitfalls 77 and 78)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from step02_mlp_parallel.wire import Group, all_gather

from .objective import Batch


def own_rows(batch: Tensor, dp_rank: int, dp_size: int) -> Tensor:
    """Rows of a global batch [B, …] that are data-parallel rank dp_rank's: [B/dp_size, …].

    Together the ranks have every row once, and a row's owner doesn't depend on tp: no sampler, no
    seed. This rank's first row is row dp_rank · B/dp_size of the batch.
    Raises ValueError if the ranks don't divide B, or for a rank that isn't there.
    """
    size = batch.size(0)
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"there is no dp_rank {dp_rank} of dp_size {dp_size}")
    if size % dp_size:
        below = size // dp_size * dp_size
        near = f"{below} or {below + dp_size}" if below else f"{dp_size}"
        raise ValueError(
            f"a global batch of {size} rows doesn't divide by dp_size {dp_size}; {near} would"
        )
    part = size // dp_size
    return batch[dp_rank * part : (dp_rank + 1) * part]


def rows_of(batch: Batch, rows: slice, device: torch.device) -> Batch:
    """The same rows of every tensor of a batch, on the device; a NamedTuple stays what it is."""
    parts = [part[rows].to(device) for part in batch]
    named = getattr(batch, "_make", None)
    return tuple(parts) if named is None else named(parts)


def check_same_rows(batch: Sequence[Tensor], tp_group: Group) -> None:
    """Raise ValueError, on every rank, unless all ranks of `tp_group` hold the same tensors.

    Tensor-parallel ranks work on one batch; given another, they would add up parts of different
    sums, without an error. Compares shapes, dtypes and values. Collective; on the wire: 8 bytes
    from each rank. For the start of a run and now and then.
    """
    digest = hashlib.blake2b(digest_size=7)  # 56 bits: fits an int64
    for tensor in batch:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    own = torch.tensor(int.from_bytes(digest.digest(), "big"), device=batch[0].device)
    first, *others = all_gather(own, tp_group).tolist()
    different = [rank for rank, other in enumerate(others, start=1) if other != first]
    if different:
        raise ValueError(
            f"rank {', '.join(map(str, different))} of the tensor-parallel group has another batch "
            "than its rank 0: all of them must see the same rows, cut by dp_rank alone (own_rows)"
        )
