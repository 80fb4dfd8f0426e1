"""Whether what a rank shows is what it should, up to rounding; and how it differs, in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .probes.common import Odd


def same(got: Any, expected: Any) -> bool:
    """Equal up to rounding. No gradient and a gradient of zeros are the same thing."""
    if isinstance(expected, Tensor) and got is None:
        return bool((expected == 0).all())
    if expected is None and isinstance(got, Tensor):
        return bool((got == 0).all())
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return type(got) is type(expected) and bool(got == expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    bound = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}.get(got.dtype, 1e-10)
    return torch.allclose(got.double(), expected.double(), rtol=bound, atol=bound, equal_nan=True)


def compare(got: Any, expected: Any) -> str:
    """Shape, dtype, largest difference, where, got and expected."""
    if isinstance(got, Odd):
        return f"got {got.text}, expected a tensor {_kind(expected)}"
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return f"got {_short(got)}, expected {_short(expected)}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"got {_kind(got)}, expected {_kind(expected)}"
    error = (got.double() - expected.double()).abs()
    if not torch.isfinite(got).all():
        return f"not all numbers are finite: {_short(got)}, expected {_short(expected)}"
    at = _place(int(error.argmax()), error.shape)
    place = f"at {list(at)}" if at else ""
    return (
        f"largest difference {error.max().item():g} {place}: got {got[at].item():g}, "
        f"expected {expected[at].item():g}"
    )


def _place(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """The indices of the flat-th entry."""
    at = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        at.append(index)
    return tuple(reversed(at))


def _kind(x: Any) -> str:
    return (
        f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" if isinstance(x, Tensor) else "?"
    )


def _short(x: Any) -> str:
    if isinstance(x, Tensor):
        return str(x.tolist()) if x.numel() <= 8 else f"a tensor {_kind(x)}"
    return "nothing" if x is None else str(x)
