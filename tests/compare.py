"""How two tensors are compared everywhere: largest error over largest value."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(got: Tensor, expected: Tensor, bound: float, what: str = "tensor") -> None:
    """Fail with where and by how much, unless max|got - expected| <= bound * max|expected|."""
    assert got.shape == expected.shape, f"{what}: got {got.shape}, expected {expected.shape}"
    assert torch.isfinite(got).all(), f"{what}: not all values are finite"
    error = (got.double() - expected.double()).abs()
    scale = expected.double().abs().max().item() if expected.numel() else 0.0
    worst = error.max().item() if error.numel() else 0.0
    if worst > bound * max(scale, 1e-300) and worst > 0.0:
        where = tuple(i.item() for i in torch.unravel_index(error.argmax(), error.shape))
        raise AssertionError(
            f"{what}: off by {worst:.3g} ({worst / max(scale, 1e-300):.3g} relative, bound "
            f"{bound:g}) at {where}: got {got[where].item():.17g}, "
            f"expected {expected[where].item():.17g}"
        )
