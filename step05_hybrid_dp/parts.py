"""A model's tensors, and an optimizer's, by name and with the place of this rank's part.

The optimizer's state goes by the *name* of its parameter, not by a number as in torch's state
dict: numbers depend on the order of the groups. A tied weight has one name, its first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from step02_mlp_parallel.sharding import Cut, cuts, own_range
from step02_mlp_parallel.wire import group_size

from .dcp_storage import Part
from .tensor_index import named_dtype


def model_tensors(model: nn.Module) -> dict[str, tuple[Tensor, Cut]]:
    """Each tensor of the model's state, once, by its first name, and how it is cut."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    table, found, seen = cuts(model), {}, set()
    for name, tensor in inner.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = (tensor, table[name])
    return found


def part_of(local: Tensor, cut: Cut) -> Part:
    """What `local` holds of the whole tensor: padding, which no other layout has, left out."""
    whole, offsets = cut.full_shape(local), [0] * local.dim()
    if cut.shard_dim is not None:
        first, count = own_range(whole[cut.shard_dim], local.size(cut.shard_dim), cut.group)
        offsets[cut.shard_dim] = first
        local = local.narrow(cut.shard_dim, 0, count)
    return Part(local, tuple(offsets), whole)


def check_groups(tensors: Mapping[str, tuple[Tensor, Cut]], tp_size: int) -> None:
    """Raise ValueError unless the model is cut over as many ranks as the grid's TP group has."""
    for name, (_, cut) in tensors.items():
        if cut.shard_dim is not None and group_size(cut.group) != tp_size:
            raise ValueError(
                f"{name} is cut over {group_size(cut.group)} ranks and the grid's tp_size is "
                f"{tp_size}: pass grid=, the one whose tp_group the model was built with"
            )


def optimizer_state(
    tensors: Mapping[str, tuple[Tensor, Cut]], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, tuple[Tensor, Cut]], dict[str, Any]]:
    """The optimizer's tensors, cut like their parameters, and the rest of it as plain values.

    Tensors are called "<parameter>.<key>"; the rest is {"kind", "groups", "state"}, where
    state[parameter][key] is [dtype, value] of a number (Adam's step) and None for a tensor.
    Raises ValueError for a parameter that isn't the model's, or a state that is neither of both.
    """
    names = {id(tensor): name for name, (tensor, _) in tensors.items()}
    found: dict[str, tuple[Tensor, Cut]] = {}
    state: dict[str, Any] = {}
    for parameter, values in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None:
            raise ValueError(_foreign(parameter))
        state[name] = {}
        for key, value in values.items():
            if not isinstance(value, Tensor):
                raise ValueError(f"optimizer state {key!r} of {name} is {value!r}, not a tensor")
            if key != "step" and value.shape == parameter.shape:
                found[f"{name}.{key}"] = (value, tensors[name][1])
                state[name][key] = None
            elif value.dim() == 0:
                state[name][key] = [str(value.dtype).removeprefix("torch."), value.item()]
            else:
                raise ValueError(
                    f"optimizer state {key!r} of {name} has shape {list(value.shape)}, and nobody "
                    f"says how it is cut; it may be {list(parameter.shape)}, the parameter's, or []"
                )
    groups = [
        {"names": group_names(group, names), "options": _options(group)}
        for group in optimizer.param_groups
    ]
    return found, {"kind": type(optimizer).__name__, "groups": groups, "state": state}


def group_names(group: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    """Names of a parameter group's parameters. Raises ValueError if one isn't the model's."""
    for parameter in group["params"]:
        if id(parameter) not in names:
            raise ValueError(_foreign(parameter))
    return [names[id(parameter)] for parameter in group["params"]]


def put_optimizer_state(
    tensors: Mapping[str, tuple[Tensor, Cut]],
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    arrived: Mapping[str, Tensor],
    weight_dtypes: Mapping[str, torch.dtype],
) -> None:
    """Give the optimizer what was saved: options of its groups, and for each parameter a state.

    `arrived`: the tensors by "<parameter>.<key>". One that had its parameter's dtype gets its
    parameter's dtype now; a float32 master of a bfloat16 weight stays what it is.
    """
    names = {id(tensor): name for name, (tensor, _) in tensors.items()}
    optimizer.state.clear()
    for group, old in zip(optimizer.param_groups, saved["groups"], strict=True):
        group.update({k: tuple(v) if isinstance(v, list) else v for k, v in old["options"].items()})
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            name = names[id(parameter)]
            for key, number in saved["state"].get(name, {}).items():
                if number is None:
                    value = arrived[f"{name}.{key}"]
                    same = value.dtype == weight_dtypes[name]
                    value = value.to(parameter.device, parameter.dtype if same else value.dtype)
                else:
                    device = parameter.device if on_device else torch.device("cpu")
                    value = torch.tensor(number[1], dtype=named_dtype(number[0]), device=device)
                optimizer.state[parameter][key] = value


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in group.items() if key != "params"}
    for key, value in plain.items():
        if isinstance(value, Tensor):
            raise ValueError(f"optimizer option {key!r} is a tensor; use a plain number")
    return plain


def _foreign(parameter: Tensor) -> str:
    return (
        f"the optimizer holds a parameter of shape {list(parameter.shape)} that isn't the model's: "
        "make the optimizer from the parameters of the model that is saved"
    )
