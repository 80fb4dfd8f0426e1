"""Functions that run inside ranks: collectives that can and can't take place."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from workshop.meeting import NoMeeting, meetings


def met(what: str) -> tuple[str, float]:
    """(what came of it on this rank, seconds)"""
    rank, start = dist.get_rank(), time.monotonic()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    try:
        with meetings():
            said = _one(what, rank, pairs[rank // 2])
    except NoMeeting as error:
        said = str(error)
    return said, time.monotonic() - start


def _one(what: str, rank: int, pair: dist.ProcessGroup) -> str:
    total = torch.tensor([float(rank)])
    if what == "one leaves" and rank == 1:
        return "left"
    if what == "one raises" and rank == 1:
        try:
            raise RuntimeError("mine")
        except RuntimeError:
            return "raised"
    if what == "other sizes" and rank == 3:
        total = torch.zeros(2)
    if what == "in turn" and rank < 2:
        dist.all_reduce(total, group=pair)
    if what == "late" and rank == 0:
        time.sleep(0.3)
    dist.all_reduce(total) if what == "world" else dist.all_reduce(total, group=pair)
    return str(total.tolist())
