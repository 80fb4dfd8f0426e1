"""Watches what a rank sends, whichever function of torch it used for it.

Every collective ends in torch's dispatcher as an operator of `c10d` or `_c10d_functional`; a
dispatch mode sees them all, in forward and in backward. A handle of an `async_op=True` call is
watched for its `wait()`: whether the numbers are there already is a race, and proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_QUIET = {"wait_tensor", "_wrap_tensor_autograd", "barrier", "_allgather_base_coalesced_"}
_NAMES = {
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "all_reduce_": "all-reduce",
    "allgather_": "all-gather",
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
}


@dataclass(frozen=True)
class Sent:
    """One collective of this rank."""

    phase: str  # "forward", "backward"
    op: str
    numel: int
    values: tuple[float, ...] = ()  # the first few numbers put in, for `play`


class Wiretap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with Wiretap() as tap:`, and `tap.phase = "backward"` where that begins."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.sent: list[Sent] = []
        self.open_handles = 0
        self.work: list[
            Sent | tuple[str, str]
        ] = []  # what was sent, and (phase, what was computed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; True would load torch._dynamo in each rank: a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional") and name not in _QUIET:
            self._note(name, args)
        elif func.namespace == "aten" and name in ("mm", "addmm", "bmm", "gelu"):
            label = "GeLU" if name == "gelu" else "GEMM"
            self.work.append((self.phase, label))
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        tensors = list(_tensors(args[1:] if name == "_allgather_base_" else args))
        if name == "allgather_":
            tensors = list(_tensors(args[1:2]))
        first = tensors[0] if tensors else torch.empty(0)
        op = _NAMES.get(name, name.strip("_").replace("_", "-"))
        shown = tuple(first.detach().double().flatten()[:8].tolist())
        self.sent.append(Sent(self.phase, op, first.numel(), shown))
        self.work.append(self.sent[-1])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class _Handle:
    """A Work whose `wait()` is noticed."""

    def __init__(self, work: Any, waited: Callable[[], None]) -> None:
        self._work, self._waited = work, waited

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._waited()
        self._waited = lambda: None
        return self._work.wait(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextmanager
def handles_watched(tap: Wiretap) -> Iterator[None]:
    """While open, `tap.open_handles` counts the handles that nobody has waited for."""
    works: list[Any] = []

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            work = function(*args, **kwargs)
            if not hasattr(work, "wait") or isinstance(work, Tensor):
                return work
            tap.open_handles += 1
            works.append(work)
            return _Handle(work, lambda: setattr(tap, "open_handles", tap.open_handles - 1))

        return call

    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "broadcast",
             "reduce", "reduce_scatter", "reduce_scatter_tensor", "isend", "irecv")  # fmt: skip
    before = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
    for name, function in before.items():
        setattr(dist, name, wrapped(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)
        for work in works:  # so that the next probe starts on a quiet wire
            work.wait()
