"""float32 masters of half-precision weights.

bfloat16 keeps 8 bits: a weight of 1 can't move by less than 1/256, and most updates are smaller.
So the optimizer works on float32 copies, and the model gets them rounded.
"""

from __future__ import annotations

import copy

import torch
from torch import nn


class Masters:
    """The masters of `model`'s weights: a float32 twin, `float32`, of the same names and cuts.

    Whatever is done to weights by name is done to the twin: make the optimizer for it, clip it,
    save it, load into it (then `push_weights`). The model runs forward and backward.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.float32 = copy.deepcopy(model).float()
        self.pairs = list(zip(model.parameters(), self.float32.parameters(), strict=True))

    @torch.no_grad()
    def pull(self) -> None:
        """Before the step: the model's gradients move to the masters; overwritten weights follow.

        Where a parameter is no longer its master rounded, somebody loaded another weight into the
        model, and the master takes it: else the first step would bring the old weights back.
        Masters whose rounding stands keep their bits.
        """
        for parameter, master in self.pairs:
            stands = master.to(parameter.dtype) == parameter
            master.copy_(torch.where(stands, master, parameter.float()))
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None

    @torch.no_grad()
    def push_weights(self) -> None:
        """After the step, and after loading into the twin: the model gets the masters, rounded."""
        for parameter, master in self.pairs:
            parameter.copy_(master)
