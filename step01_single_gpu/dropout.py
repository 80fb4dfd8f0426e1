"""Dropout with a place to plug in: masks of our own by default, somebody's masks for a proof."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# (x, p, site) -> x with dropout applied. `site` is the name of the place, such as
# "blocks.0.attention": later steps draw one mask per site that no layout can change.
DropoutFunction = Callable[[Tensor, float, str], Tensor]


class Dropout(nn.Module):
    """Dropout at one named site, any shape. Does nothing in eval mode or with p = 0."""

    def __init__(self, p: float, site: str, function: DropoutFunction | None = None) -> None:
        super().__init__()
        self.p, self.site, self.function = p, site, function

    @property
    def active(self) -> bool:
        """Whether a call would drop anything now."""
        return self.training and self.p > 0.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x
        if self.function is not None:
            return self.function(x, self.p, self.site)
        return dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}, site={self.site!r}"


def dropout(x: Tensor, p: float) -> Tensor:
    """x with dropout from torch's global generator: own masks on a CPU, torch's kernel on a GPU."""
    return x * dropout_mask(x, p) if x.device.type == "cpu" else F.dropout(x, p)


def dropout_mask(x: Tensor, p: float) -> Tensor:
    """0 with chance p, else 1 / (1 - p): shape and dtype of x, from torch's global generator.

    A CPU draws one 64-bit number at a time, and torch's dropout spends one on each element: a
    sixth of a training step. Here one number serves four elements, 16 bits each. p is therefore
    rounded to a multiple of 2⁻¹⁶, and the scale uses the rounded one, so the mean stays exact.
    """
    threshold = min(2**16 - 1, max(1, round(p * 2**16)))
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    mask = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.ge(bits, threshold - 2**15, out=mask)  # bits are uniform in [-2¹⁵, 2¹⁵)
    return mask.mul_(2**16 / (2**16 - threshold))
