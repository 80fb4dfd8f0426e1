"""Ranks imagined in one process: what every rank would hold if the code were this or that.

A list has a tensor for each rank. `lanes` moves numbers between them by a rule for forward and a
rule for backward, so that autograd over all lists gives each rank's gradients. The checker computes
with it what a *wrong* answer would show, without starting a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Ranks = list[Tensor]

# Rules that need nothing from other ranks.
SILENT = ("own", "none", "n own", "own/n")


@dataclass
class Tape:
    """How many numbers a rank sends in each phase."""

    numel: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})

    def add(self, phase: str, rule: str, x: Tensor, layout: Layout) -> None:
        if rule not in SILENT and (rule == "world" or not layout.alone):
            self.numel[phase] += x.numel() * (2 if rule == "twice" else 1)


@dataclass(frozen=True)
class Layout:
    """Which ranks form groups."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def world(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def alone(self) -> bool:
        """Groups of one: nothing needs to be sent."""
        return len(self.groups[0]) == 1

    def group(self, rank: int) -> tuple[int, ...]:
        return next(group for group in self.groups if rank in group)


def follow(rule: str, xs: Sequence[Tensor], layout: Layout) -> Ranks:
    """What each rank has after the rule: "sum" over its group, "own" as it was, and so on."""
    return [_one(rule, rank, xs, layout).clone() for rank in range(len(xs))]


def _one(rule: str, rank: int, xs: Sequence[Tensor], layout: Layout) -> Tensor:
    x, group = xs[rank], layout.group(rank)
    n, mine = len(group), torch.stack([xs[r] for r in group])
    match rule:
        case "own":
            return x
        case "none":
            return torch.zeros_like(x)
        case "n own":
            return n * x
        case "own/n":
            return x / n
        case "sum":
            return mine.sum(0)
        case "mean":
            return mine.sum(0) / n
        case "sum on the first":
            return mine.sum(0) if rank == group[0] else x
        case "sum/world":
            return mine.sum(0) / len(xs)
        case "twice":
            return mine.sum(0) * n
        case "sum + own":
            return mine.sum(0) + x
        case "others":
            return mine.sum(0) - x
        case "max":
            return mine.amax(0)
        case "product":
            return mine.prod(0)
        case "first":
            return mine[0]
        case "wider" if layout.alone:  # takes None for a world of one, but any group for the world
            return x
        case "world" | "wider":
            return torch.stack(list(xs)).sum(0)
    raise ValueError(f"there is no rule {rule!r}")


class _Lanes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tape: Tape, layout: Layout, rule: str, back: str, *xs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.tape, ctx.layout, ctx.back = tape, layout, back
        tape.add("forward", rule, xs[0], layout)
        return tuple(follow(rule, xs, layout))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        ctx.tape.add("backward", ctx.back, grads[0], ctx.layout)
        return (None, None, None, None, *follow(ctx.back, grads, ctx.layout))


def lanes(xs: Ranks, layout: Layout, rule: str, back: str, tape: Tape) -> Ranks:
    """`rule` forward, `back` backward. f is ("own", "sum"), g is ("sum", "own")."""
    return list(_Lanes.apply(tape, layout, rule, back, *xs))  # type: ignore[no-untyped-call]


def gathered(xs: Ranks, layout: Layout, dim: int, back: str, tape: Tape) -> Ranks:
    """Every rank's slices side by side along `dim`. `back`: "slice" (own slice of the gradient),
    "sum" (own slice of the ranks' sum)."""
    tape.add("forward", "gather", xs[0], layout)
    out = []
    for rank in range(layout.world):
        group = layout.group(rank)
        parts = []
        for r in group:
            keeps = back == "sum" or r == rank
            parts.append(xs[r] if keeps else xs[r].detach())
        out.append(torch.cat(parts, dim))
    if back == "sum":
        tape.add("backward", "scatter", out[0], layout)
    return out


def gradients(ys: Ranks, upstream: Ranks, leaves: dict[str, Ranks]) -> list[dict[str, Any]]:
    """Each rank's own backward from its own upstream gradient: rank -> {name: gradient}."""
    flat = [leaf for ranks in leaves.values() for leaf in ranks]
    live = [(y * u).sum() for y, u in zip(ys, upstream, strict=True) if y.requires_grad]
    if not live:
        return [dict.fromkeys(leaves) for _ in ys]
    # Of one number: handed gradients, torch would load its symbolic shapes, a second or more.
    found = torch.autograd.grad(torch.stack(live).sum(), flat, allow_unused=True)
    step = len(ys)
    return [{name: found[i * step + rank] for i, name in enumerate(leaves)} for rank in range(step)]
