"""fp16's loss scale on one page: unscale, agree on overflow, clip, step or skip.

fp16 has no numbers below 6e-8, and gradients have. So the loss is multiplied by a scale before
backward and the gradients are divided by it before anything looks at them. Too large a scale gives
inf in some gradient, perhaps on one rank only; then *all* ranks skip the step, or their replicas
part for good, and the scale is halved.

This is the readable version of what precision.py runs with torch's ShardedGradScaler.
"""

from __future__ import annotations

import torch
from torch import nn

from step02_mlp_parallel.wire import Group, all_reduce_

from .optimizer import Model, clip_grad_norm_, marked


# exercise 5.5
@torch.no_grad()
def scaled_step(
    optimizer: torch.optim.Optimizer,
    parameters: Model,
    scale: float,
    max_norm: float,
    tp_group: Group = None,
) -> bool:
    """One optimizer step with gradients of scale · loss; returns whether it was taken.

    The order is the point. Unscaled by the scale that backward had; the overflow agreed on over
    `tp_group` (the averaged gradients of data-parallel ranks are the same, inf and NaN included);
    clipped as true gradients; and then the step, or none. A skipped step must not count for the
    learning rate's schedule either. `parameters`: a module, or parameters that say how they are
    cut, as in clip_grad_norm_. Wire: one number for the overflow, one for the norm if there is
    none. Raises ValueError for a scale that isn't positive and finite.
    """
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"scale is {scale!r}; it must be above 0 and finite")
    if not isinstance(parameters, nn.Module):
        parameters = list(parameters)  # model.parameters() can be walked only once
    found = [p for p, _ in marked(parameters, tp_group)]
    gradients = [p.grad for p in found if p.grad is not None]
    overflow = torch.zeros((), device=found[0].device if found else "cpu")
    for grad in gradients:
        grad.mul_(1.0 / scale)
        overflow += (~grad.isfinite()).any()
    all_reduce_(overflow, tp_group, "max")
    if overflow:
        return False
    clip_grad_norm_(parameters, max_norm, tp_group)
    optimizer.step()
    return True


def next_scale(
    scale: float, good_steps: int, stepped: bool, *, growth_interval: int = 2000
) -> tuple[float, int]:
    """(scale, good steps in a row) after a step: halved by an overflow, doubled by a long calm."""
    if not stepped:
        return scale / 2.0, 0
    if good_steps + 1 == growth_interval:
        return scale * 2.0, 0
    return scale, good_steps + 1
