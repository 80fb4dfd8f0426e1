"""Activation recompute that drops the same values the second time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .rng import RNGTracker


# exercise 3.5
def recompute(run: Callable[[Tensor], Tensor], x: Tensor, rng: RNGTracker | None) -> Tensor:
    """`run(x)` keeping only x; backward runs it again, with the same random numbers.

    torch's checkpoint puts back the *global* generator alone. The tracker's streams have moved on
    by the time of backward, so their state is put back too, and afterwards forward again. (torch
    would not notice: it compares shapes and dtypes, not masks.) Collectives inside run again, on
    all ranks in the same order.
    """
    if not torch.is_grad_enabled():
        return run(x)
    if rng is None:
        return _checkpoint(run, x, nullcontext)
    return _checkpoint(run, x, lambda: _Replayed(rng, rng.state_dict()))


class _Replayed:
    """`with` the tracker back in the state `start`. May be entered again: a graph that is kept
    has more than one backward."""

    def __init__(self, rng: RNGTracker, start: dict[str, Any]) -> None:
        self.rng, self.start = rng, start

    def __enter__(self) -> None:
        self.now = self.rng.state_dict()
        self.rng.load_state_dict(self.start)

    def __exit__(self, *error: object) -> None:
        self.rng.load_state_dict(self.now)


def _checkpoint(
    run: Callable[[Tensor], Tensor], x: Tensor, around: Callable[[], AbstractContextManager[None]]
) -> Tensor:
    output: Tensor = checkpoint(
        run, x, use_reentrant=False, context_fn=lambda: (nullcontext(), around())
    )
    return output
