"""From whole weights to each rank's part and back, by the table that every parallel layer carries.

A parallel layer's class says along which dimension each of its parameters is cut:

    shard_dims = {"weight": 0, "bias": 0}      # None: replicated

and keeps its `group`. What is in no table is replicated, but only in a plain torch module (a
LayerNorm); anything else is an error, so that a forgotten table can't pass for "replicated".
Tensors carry no marks of their own that anybody trusts: `deepcopy`, `to_empty` and
`load_state_dict(assign=True)` lose them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .wire import Group, all_gather, group_rank, group_size


class ParallelModule(nn.Module):
    """A module with a `group`. A deepcopy shares the group, since that can't be copied."""

    shard_dims: ClassVar[dict[str, int | None]] = {}
    group: Group
    true_sizes: Mapping[str, int] = {}  # whole size along the cut, where the parts are padded

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelModule:
        copied = type(self).__new__(type(self))
        memo[id(self)], memo[id(self.group)] = copied, self.group
        copied.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return copied


class Cut(NamedTuple):
    """How one tensor is cut: the dimension (None: replicated) and over whom.

    `size`: of the whole tensor along `shard_dim`, where the parts together are longer (step 4 pads
    the vocabulary); what lies beyond is zero on the ranks and nowhere else.
    """

    shard_dim: int | None
    group: Group
    size: int | None = None

    def full_shape(self, part: Tensor) -> tuple[int, ...]:
        """Shape of the whole tensor that `part` is a rank's part of, without padding."""
        shape = list(part.shape)
        if self.shard_dim is not None:
            shape[self.shard_dim] = self.size or shape[self.shard_dim] * group_size(self.group)
        return tuple(shape)

    def part_of(self, full: Tensor, width: int) -> Tensor:
        """This rank's part of `full`, `width` long along `shard_dim`; zero where it is padding."""
        if self.shard_dim is None or self.size is None:
            return cut(full, self.shard_dim, self.group)
        first, count = own_range(self.size, width, self.group)
        shape = list(full.shape)
        shape[self.shard_dim] = width
        part = full.new_zeros(shape)
        part.narrow(self.shard_dim, 0, count).copy_(full.narrow(self.shard_dim, first, count))
        return part


# exercise 2.6
def cut(full: Tensor, shard_dim: int | None, group: Group) -> Tensor:
    """This rank's part of `full`, in memory of its own; a copy of all of it for `None`.

    Raises ValueError if the ranks don't divide the dimension.
    """
    if shard_dim is None:
        return full.clone()
    n, size = group_size(group), full.size(shard_dim)
    check_divides(size, group, f"dimension {shard_dim} of shape {list(full.shape)}")
    part = full.narrow(shard_dim, group_rank(group) * (size // n), size // n)
    return part.clone(memory_format=torch.contiguous_format)


def own_range(size: int, width: int, group: Group) -> tuple[int, int]:
    """(first, count): which of `size` entries are this rank's, each rank having room for `width`.

    The last ranks may have fewer than `width`, or none.
    """
    first = min(group_rank(group) * width, size)
    return first, min(width, size - first)


def check_divides(size: int, group: Group, what: str) -> None:
    """Raise ValueError, naming sizes that would work, unless the group's ranks divide `size`."""
    n = group_size(group)
    if size % n:
        works = [d for d in range(1, size + 1) if size % d == 0]
        below = size // n * n
        near = f"{below} or {below + n}" if below else f"{n}"
        raise ValueError(
            f"{what}: {size} doesn't divide by the {n} ranks of the group; {near} would, or a "
            f"group of {', '.join(map(str, works))} ranks"
        )


def marked(parameter: nn.Parameter, dim: int | None, full: tuple[int, ...]) -> nn.Parameter:
    """With `shard_dim` and `full_shape` for readers; the class's table is what counts."""
    parameter.shard_dim, parameter.full_shape = dim, full  # type: ignore[attr-defined]
    return parameter


def cuts(module: nn.Module) -> dict[str, Cut]:
    """How each tensor of `module.state_dict()` is cut, by name.

    Raises ValueError for a tensor of a module that is neither torch's nor has a table.
    """
    found = {}
    for path, child in _unwrapped(module).named_modules(remove_duplicate=False):
        table = type(child).shard_dims if isinstance(child, ParallelModule) else None
        own = [name for name, _ in child.named_parameters(recurse=False)]
        own += [n for n, _ in child.named_buffers(recurse=False)]
        for name in own:
            if name in child._non_persistent_buffers_set:
                continue
            full_name = f"{path}.{name}" if path else name
            if table is not None and name in table:
                assert isinstance(child, ParallelModule)
                found[full_name] = Cut(table[name], child.group, child.true_sizes.get(name))
            elif table is None and type(child).__module__.startswith("torch."):
                found[full_name] = Cut(None, None)
            else:
                raise ValueError(
                    f"{full_name}: {type(child).__name__} doesn't say how it is cut; make it a "
                    f'ParallelModule with a table: shard_dims = {{"{name}": 0}} (None: replicated)'
                )
    return found


@torch.no_grad()
def load_full_state_dict(module: nn.Module, full_state_dict: Mapping[str, Tensor]) -> None:
    """Fill `module` from whole weights; each rank cuts its part. No communication.

    Values are cast to the module's dtype. Raises ValueError, before anything is changed, that
    lists every missing name, unknown name and wrong shape.
    """
    module = _unwrapped(module)
    table, own = cuts(module), module.state_dict()
    wrong = [f"{name} is missing" for name in own.keys() - full_state_dict.keys()]
    wrong += [f"{name} is unknown here" for name in full_state_dict.keys() - own.keys()]
    for name in own.keys() & full_state_dict.keys():
        expected, shape = table[name].full_shape(own[name]), tuple(full_state_dict[name].shape)
        if shape != expected:
            wrong.append(f"{name} has shape {list(shape)}, expected {list(expected)} (whole)")
    if wrong:
        raise ValueError("this is not a full state dict of the module: " + "; ".join(sorted(wrong)))
    for name, part in own.items():
        dim = table[name].shard_dim
        part.copy_(
            table[name].part_of(full_state_dict[name], part.size(dim) if dim is not None else 0)
        )


def gather_full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The whole weights, the same dict on every rank, in memory of its own.

    Collective: all ranks of the module's groups must call it. One all-gather for each cut tensor.
    """
    module = _unwrapped(module)
    state = module.state_dict()
    return _gather(module, lambda name: state[name])


def gather_full_gradients(module: nn.Module) -> dict[str, Tensor]:
    """The whole gradients by parameter name; those without one are left out. Collective.

    A gradient must be there on all ranks or on none.
    """
    module = _unwrapped(module)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return _gather(module, lambda name: parameters[name].grad if name in parameters else None)


def _gather(module: nn.Module, tensor: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    whole = {}
    for name, (dim, group, size) in cuts(module).items():
        part = tensor(name)
        if part is None:
            continue
        if dim is None:
            whole[name] = part.detach().clone()
        else:
            full = torch.cat(list(all_gather(part.detach(), group)), dim)
            whole[name] = full if size is None else full.narrow(dim, 0, size).clone()
    return whole


def _unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module
