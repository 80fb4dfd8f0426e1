"""Activation recompute that drops the same values the second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .rng import RNGTracker


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
    start = rng.state_dict()

    @contextmanager
    def replayed() -> Iterator[None]:
        now = rng.state_dict()
        rng.load_state_dict(start)
        try:
            yield
        finally:
            rng.load_state_dict(now)

    return _checkpoint(run, x, replayed)


def _checkpoint(
    run: Callable[[Tensor], Tensor], x: Tensor, around: Callable[[], AbstractContextManager[None]]
) -> Tensor:
    output: Tensor = checkpoint(
        run, x, use_reentrant=False, context_fn=lambda: (nullcontext(), around())
    )
    return output
