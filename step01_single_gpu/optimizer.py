"""AdamW with the paper's groups, and the learning rate of a step."""

from __future__ import annotations

import math

import torch
from torch import nn


def decays(name: str) -> bool:
    """Whether weight decay acts on the parameter called `name`: on matrices and embeddings.

    By name, not by number of dimensions: the fused [3, hidden] bias has two and must not decay.
    """
    module, _, kind = name.rpartition(".")
    return kind == "weight" and not module.rpartition(".")[2].startswith("ln")


def make_optimizer(
    model: nn.Module, *, weight_decay: float = 0.01, lr: float = 1.5e-4
) -> torch.optim.AdamW:
    """Fused AdamW: decay on weight matrices, none on biases and norms (paper, section 4)."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if decays(n)], "weight_decay": weight_decay},
        {"params": [p for n, p in named if not decays(n)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, fused=True)


# exercise 1.6
def lr_at(step: int, *, peak: float, minimum: float, warmup: int, total: int) -> float:
    """Learning rate of optimizer step `step` (0, 1, …): linear warm-up, then a cosine.

    The rate is peak after `warmup` steps and `minimum` at `total` and beyond; the first step's
    is peak / warmup, not zero. A function of the step, so there is no state to save.
    """
    if step >= total:
        return minimum
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return minimum + (peak - minimum) * 0.5 * (1.0 + math.cos(math.pi * progress))
