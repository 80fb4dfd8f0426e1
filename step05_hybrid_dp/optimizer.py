"""Clipping by the norm of the whole model, whose parts are on several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from step02_mlp_parallel.sharding import ParallelModule, cuts
from step02_mlp_parallel.wire import Group, all_reduce_, group_size

PIECE = 1024  # numbers

Model = nn.Module | Iterable[nn.Parameter]


# exercise 5.4
def clip_grad_norm_(
    module_or_parameters: Model,
    max_norm: float,
    tp_group: Group = None,
    *,
    norm_type: float = 2.0,
) -> Tensor:
    """Scale gradients so that the whole model's norm is at most max_norm; returns it from before.

    As torch.nn.utils.clip_grad_norm_ on the unpartitioned model: each logical weight counts once,
    a cut one with the parts of all ranks, a replicated or tied one a single time. The norm is a
    float64 number, the same on all ranks of `tp_group`. (Averaged gradients are the same along the
    data-parallel group already.) A parameter without gradient is left out.
    A non-finite norm is returned and the gradients left alone: times max_norm / inf = 0 they would
    be zeros and NaNs that look like gradients. The caller skips the step.
    Give the module: its layers' tables say what is cut. Of bare parameters, each must say it in
    `shard_dim`. Wire: one all-reduce of one number, whatever gradients there are.
    Raises ValueError, before any communication, for limits that aren't positive, for a parameter
    that doesn't say how it is cut, and for a module that is cut over another group.
    """
    for what, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if not value > 0.0:
            raise ValueError(f"{what} is {value!r}; it must be above 0")
    parameters = marked(module_or_parameters, tp_group)
    gradients = [(p.grad, cut) for p, cut in parameters if p.grad is not None]
    device = parameters[0][0].device if parameters else torch.device("cpu")
    norm = _whole_norm(gradients, device, tp_group, norm_type)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # 1e-6 as in torch's
    factor = torch.where(norm.isfinite(), factor, 1.0)
    for grad, _ in gradients:
        grad.mul_(factor)
    return norm


def _whole_norm(
    gradients: list[tuple[Tensor, bool]], device: torch.device, tp_group: Group, norm_type: float
) -> Tensor:
    """The norm over all ranks' parts, in float64; a rank without gradients takes part too."""
    norms = {False: [torch.zeros(1, dtype=torch.float64, device=device)]}
    norms[True] = [*norms[False]]
    for grad, is_cut in gradients:
        norms[is_cut] += _piece_norms(grad.detach(), norm_type)
    replicated, own = torch.cat(norms[False]), torch.cat(norms[True])
    if norm_type == math.inf:
        # Whether NaN is the larger of two numbers is up to the backend; inf also says "not finite".
        largest = torch.cat([replicated, own]).nan_to_num(nan=math.inf, posinf=math.inf).max()
        all_reduce_(largest, tp_group, "max")
        return largest
    total = own.pow(norm_type).sum()
    all_reduce_(total, tp_group)
    return (total + replicated.pow(norm_type).sum()).pow(1.0 / norm_type)


def _piece_norms(grad: Tensor, norm_type: float) -> list[Tensor]:
    """Norms of 1,024 numbers at a time, as float64. On a CPU, torch adds up a whole float32 tensor
    in a few float32 numbers: at 20 million squares that was off by 0.1 %."""
    dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
    flat = grad.reshape(-1)
    whole = flat.numel() // PIECE * PIECE
    pieces = [flat[:whole].view(-1, PIECE), flat[whole:].view(1, -1)]
    return [
        torch.linalg.vector_norm(piece, norm_type, dim=1, dtype=dtype).double()
        for piece in pieces
        if piece.numel()
    ]


def marked(module_or_parameters: Model, tp_group: Group = None) -> list[tuple[nn.Parameter, bool]]:
    """Each parameter once, and whether it is cut over `tp_group`. Errors as in clip_grad_norm_."""
    if isinstance(module_or_parameters, nn.Parameter):
        module_or_parameters = [module_or_parameters]
    if not isinstance(module_or_parameters, nn.Module):
        return _marked_by_themselves(module_or_parameters, tp_group)
    module = module_or_parameters
    if isinstance(module, DistributedDataParallel):
        module = module.module
    for path, child in module.named_modules():
        if isinstance(child, ParallelModule) and group_size(child.group) > 1:
            _check_group(path, child.group, tp_group)
    if group_size(tp_group) == 1:
        return [(parameter, False) for parameter in module.parameters()]
    table = cuts(module)
    return [(p, table[name].shard_dim is not None) for name, p in module.named_parameters()]


def _check_group(path: str, group: Group, tp_group: Group) -> None:
    ranks, others = (
        [] if each is None else dist.get_process_group_ranks(each) for each in (group, tp_group)
    )
    if ranks != others:
        raise ValueError(
            f"{path or 'the module'} is cut over ranks {ranks}, and tp_group is "
            f"{others or None}: pass the group that the model was built with"
        )


def _marked_by_themselves(
    parameters: Iterable[nn.Parameter], tp_group: Group
) -> list[tuple[nn.Parameter, bool]]:
    alone = group_size(tp_group) == 1
    found: dict[int, tuple[nn.Parameter, bool]] = {}
    for index, parameter in enumerate(parameters):
        if not alone and not hasattr(parameter, "shard_dim"):
            raise ValueError(
                f"parameter {index}, of shape {list(parameter.shape)}, has no shard_dim to say "
                "whether it is cut (a copied or re-made parameter loses it, a LayerNorm never had "
                "it): pass the module instead, whose layers know"
            )
        found[id(parameter)] = parameter, getattr(parameter, "shard_dim", None) is not None
    return list(found.values())
