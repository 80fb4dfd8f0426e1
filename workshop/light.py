"""What torch would load for nothing, in each rank: sympy and torch._dynamo, up to two seconds.

The steps make layers by `skip_init`, by way of the meta device, whose first use loads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from step01_single_gpu import weights


@contextmanager
def light() -> Iterator[None]:
    """While open, the steps' layers are made in plain memory, without torch's own first draw."""
    before = vars(weights)["skip_init"]
    vars(weights)["skip_init"] = _without_a_draw
    try:
        yield
    finally:
        vars(weights)["skip_init"] = before


def _without_a_draw(kind: Any, *args: Any, **kwargs: Any) -> Any:
    draw = kind.reset_parameters
    kind.reset_parameters = lambda self: None
    try:
        return kind(*args, **kwargs)
    finally:
        kind.reset_parameters = draw
