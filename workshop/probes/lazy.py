"""Foreseen values of which the dear ones are computed only when somebody asks for them.

Most wrong choices are ruled out by the output; their gradients are never needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, ItemsView, Iterator
from typing import Any

from ..sim import Ranks, Tape, gradients
from .common import Foreseen


class Lazy(dict[str, Any]):
    """`now`, and under the names `later` what `rest()` returns for them."""

    def __init__(
        self, now: dict[str, Any], later: list[str], rest: Callable[[], dict[str, Any]]
    ) -> None:
        super().__init__(now)
        self.update(dict.fromkeys(later))
        self._waiting, self._rest = set(later), rest

    def __getitem__(self, name: str) -> Any:
        if name in self._waiting:
            self.update(self._rest())
            self._waiting = set()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return _Items(self)


class _Items(ItemsView[str, Any]):
    def __init__(self, mapping: Lazy) -> None:
        super().__init__(mapping)
        self._all = mapping

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name in list(self._all):
            yield name, self._all[name]


def one_of(found: Callable[[], list[dict[str, Any]]], rank: int) -> dict[str, Any]:
    return found()[rank]


def there_and_back(y: Ranks, upstream: Ranks, leaves: dict[str, Ranks], tape: Tape) -> Foreseen:
    """Each rank's output, and the gradients of its leaves; without them where the output has
    another shape than it should, so that there is no way back."""
    if any(t.shape != u.shape for t, u in zip(y, upstream, strict=True)):
        return Foreseen([{"output": t.detach()} for t in y], tape.numel)

    @functools.cache
    def grads() -> list[dict[str, Any]]:
        found = gradients(y, upstream, leaves)
        return [{f"grad of {name}": value for name, value in row.items()} for row in found]

    later = [f"grad of {name}" for name in leaves]
    values: list[dict[str, Any]] = [
        Lazy({"output": t.detach()}, later, functools.partial(one_of, grads, rank))
        for rank, t in enumerate(y)
    ]

    def sent() -> dict[str, Any]:
        grads()  # what backward sends is known once it has run
        return dict(tape.numel)

    return Foreseen(values, Lazy({}, ["forward", "backward"], sent))
