"""What several ranks hold is the same on all of them: compared now and then, to the bit.

Drifting replicas are the quietest fault of parallel training: the loss goes on falling, and the
checkpoint is a mixture. Its causes (a missing f, a dropout mask of one's own, a broken GPU) are
found days later, unless somebody looks.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import all_gather

from .agreement import Layout


def compare_replicas(module: nn.Module, grid: Layout) -> None:
    """Raise RuntimeError that names parameters whose copies differ, on the ranks that see it.

    Over the data-parallel group every parameter has a copy on each rank, over the tensor-parallel
    one the replicated ones. Collective; on the wire: 8 bytes a parameter from each rank, twice.
    Run it in `together`, so that ranks of other groups end too. Reads every weight once.
    """
    table = cuts(module)
    named = dict(module.named_parameters())
    digests = {name: _digest(p) for name, p in named.items()}
    device = next(iter(named.values())).device
    found = []
    for kind, group in (("tensor", grid.tp_group), ("data", grid.dp_group)):
        names = [n for n in named if kind == "data" or table[n].shard_dim is None]
        rows = all_gather(torch.tensor([digests[n] for n in names], device=device), group)
        same = (rows == rows[0]).all(0).tolist()
        differ = [name for name, equal in zip(names, same, strict=True) if not equal]
        if differ:
            more = f" and {len(differ) - 4} more" if len(differ) > 4 else ""
            found.append(f"over the {kind}-parallel group: {', '.join(differ[:4])}{more}")
    if found:  # not before both have been compared: a peer may be waiting in the second
        raise RuntimeError(
            f"copies differ {'; '.join(found)}. Do not trust checkpoints since the last comparison"
        )


def _digest(parameter: nn.Parameter) -> int:
    """56 bits of the bytes."""
    raw = parameter.detach().cpu().contiguous().view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(raw.data, digest_size=7).digest(), "big")
