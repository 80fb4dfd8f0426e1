"""Collectives as meetings: who comes to which, and who never will.

A rank that skips a collective makes the *others* fail: they wait for ever, or meet it at its next
one and add up different things. So before a collective each rank writes down where it goes, and
one that waits in vain knows it at once.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

LONGEST = 1.0  # seconds; a rank that is this late may be in an endless loop, for others to find
NAMES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "broadcast",
         "reduce", "reduce_scatter_tensor", "all_gather_object", "barrier")  # fmt: skip
_opened = itertools.count()  # all ranks open the same ones in the same order


class NoMeeting(BaseException):
    """In place of a collective that can't take place. Not an Exception, so that `except Exception`
    doesn't hide it."""


@contextmanager
def meetings() -> Iterator[None]:
    """While open, torch's collectives raise NoMeeting where another rank has left without coming,
    or comes with something else. To be opened by all ranks alike."""
    store = PrefixStore(f"meetings {next(_opened)}", _get_default_store())
    rank, seen = dist.get_rank(), Counter[str]()

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            groups = [x for x in given if isinstance(x, dist.ProcessGroup)]
            ranks = dist.get_process_group_ranks(groups[0] if groups else dist.group.WORLD)
            sizes = [list(x.shape) for x in given if isinstance(x, Tensor)]
            if len(ranks) > 1:
                place = f"{ranks} {seen[str(ranks)]}"
                seen[str(ranks)] += 1
                _meet(store, place, rank, ranks, f"{name} of {sizes}")
            return function(*args, **kwargs)

        return call

    before = {name: getattr(dist, name) for name in NAMES if hasattr(dist, name)}
    for name, function in before.items():
        setattr(dist, name, watched(name, function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)
        store.set(f"left {rank}", "")


def _meet(store: Store, place: str, rank: int, ranks: list[int], what: str) -> None:
    store.set(f"{place} {rank}", what)
    end = time.monotonic() + LONGEST
    for other in ranks:
        key = f"{place} {other}"
        while not store.check([key]):
            if store.check([f"left {other}"]) and not store.check([key]):
                raise NoMeeting(f"rank {other} never comes to {what}")
            if time.monotonic() > end:
                return
            time.sleep(0.0005)
        if store.get(key).decode() != what:
            raise NoMeeting(f"rank {other} comes with {store.get(key).decode()}, not {what}")
