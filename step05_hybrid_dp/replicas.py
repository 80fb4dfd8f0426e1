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
from step02_mlp_parallel.wire import Group, all_gather, group_size


def compare_replicas(module: nn.Module, tp_group: Group = None, dp_group: Group = None) -> None:
    """Raise RuntimeError, on every rank of the group, that names parameters whose copies differ.

    Over `dp_group` every parameter has a copy on each rank, over `tp_group` the replicated ones.
    Collective; on the wire: 8 bytes a parameter from each rank. Reads every weight once.
    """
    table = cuts(module)
    named = dict(module.named_parameters())
    replicated = {n: p for n, p in named.items() if table[n].shard_dim is None}
    for kind, group, parameters in (
        ("tensor", tp_group, replicated),
        ("data", dp_group, named),
    ):
        if group_size(group) == 1 or not parameters:
            continue
        device = next(iter(parameters.values())).device
        own = torch.tensor([_digest(p) for p in parameters.values()], device=device)
        rows = all_gather(own, group)
        same = (rows == rows[0]).all(0).tolist()
        differ = [name for name, equal in zip(parameters, same, strict=True) if not equal]
        if differ:
            more = f" and {len(differ) - 4} more" if len(differ) > 4 else ""
            raise RuntimeError(
                f"copies differ over the {kind}-parallel group: {', '.join(differ[:4])}{more}; "
                "do not trust checkpoints since the last comparison"
            )


def _digest(parameter: nn.Parameter) -> int:
    """56 bits of the bytes."""
    raw = parameter.detach().cpu().contiguous().view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(raw.data, digest_size=7).digest(), "big")
