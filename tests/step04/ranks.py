"""What every function that runs in ranks needs here: the group, and this rank's part."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from step02_mlp_parallel.sharding import own_range
from step02_mlp_parallel.wire import Group, group_size
from step04_embeddings_loss import (
    padded_vocab_size,
)


def world() -> Group:
    return dist.group.WORLD if dist.get_world_size() > 1 else None


def part(whole: Tensor, dim: int, multiple: int = 1, padding: float = 1e4) -> Tensor:
    """This rank's share of `whole` along `dim`, its padding full of a number that would show."""
    group, size = world(), whole.size(dim)
    width = padded_vocab_size(size, group_size(group), multiple) // group_size(group)
    first, count = own_range(size, width, group)
    shape = list(whole.shape)
    shape[dim] = width
    mine = whole.new_full(shape, padding)
    mine.narrow(dim, 0, count).copy_(whole.narrow(dim, first, count))
    return mine
