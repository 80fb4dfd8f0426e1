"""Probes of f, g and cut."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ..journal import WORLD
from ..sim import Tape, gathered, gradients, lanes
from ..wiretap import Wiretap
from .common import (
    MAIN,
    Case,
    Choices,
    Foreseen,
    Odd,
    Probe,
    Seen,
    describe,
    integers,
    leaves,
    note_refusal,
    watch,
)

EXPANDED = Case("all", torch.float64, 4, "expanded")
STRIDED = Case("pairs", torch.float64, 5, "strided")
INPLACE = Case("pairs", torch.float64, 6, "changed afterwards")
SAVED = Case("pairs", torch.float64, 7, "saved by another")


def _shaped(x: Tensor, variant: str) -> Tensor:
    """The same numbers in other memory: expanded from one row, or transposed."""
    if variant == "expanded":
        return x[:1].expand_as(x)
    return x.T.contiguous().T if variant == "strided" else x


def _operator(
    case: Case, forward: str, back: str, f: bool
) -> tuple[list[Tensor], list[Tensor], Foreseen]:
    x = integers(case, "x", 2, 3, same=f)
    upstream = integers(case, "upstream", 2, 3, same=not f)
    tape = Tape()
    if case.variant in ("expanded", "strided"):
        x, upstream = ([_shaped(t, case.variant) for t in ts] for ts in (x, upstream))
    (own,) = leaves(x)
    joins = forward == "gathered"
    y = lanes(own, case.shape, "own" if joins else forward, back, tape)
    if joins and case.n > 1:
        given = [t.sigmoid() for t in own] if case.variant == "saved by another" else own
        y = gathered(given, case.shape, 0, "slice", tape)
        return x, upstream, Foreseen([{"output": t.detach()} for t in y], tape.numel)
    if case.variant == "changed afterwards":
        y = [t * 3 for t in y]
    if case.variant == "saved by another":
        y = lanes([t.sigmoid() for t in own], case.shape, forward, back, tape)
    grads = gradients(y, upstream, {"x": own})
    values = [
        {"output": t.detach(), "grad of x": grad["x"]} for t, grad in zip(y, grads, strict=True)
    ]
    return x, upstream, Foreseen(values, tape.numel)


def _observe_operator(f: bool) -> Any:
    def observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
        (function,) = functions
        xs, ups, _ = _operator(case, "own", "sum", f)
        x, upstream = copy.deepcopy(xs[rank]).requires_grad_(), ups[rank]

        def call() -> Any:
            if case.variant == "changed afterwards":
                y = function(x, group)
                return y.mul_(3) if isinstance(y, Tensor) else y
            if case.variant == "saved by another":  # by sigmoid, which keeps its result
                return function(x.sigmoid(), group)
            return function(x, group)

        return watch(call, {"x": x}, upstream, tap)

    return observe


def _scene(case: Case, f: bool) -> dict[str, list[Tensor]]:
    x, upstream, _ = _operator(case, "own", "own", f)
    return {"x": x, "gradient from above": upstream}


F = Probe(
    cases=(*MAIN, EXPANDED, STRIDED, INPLACE),
    observe=_observe_operator(True),
    foresee=lambda case, c: _operator(case, c["forward"], c["backward"], True)[2],
    scene=lambda case: _scene(case, True),
    axes={
        "forward": ("own", "sum", "mean", "world", "wider", "n own", "own/n", "none"),
        "backward": ("sum", "own", "mean", "twice", "world", "wider", "first", "none", "n own",
                     "own/n", "max", "product", "sum + own", "others", "sum/world",
                     "sum on the first"),
    },
)  # fmt: skip
G = Probe(
    cases=(*MAIN, EXPANDED, STRIDED, SAVED),
    observe=_observe_operator(False),
    foresee=lambda case, c: _operator(case, c["forward"], c["backward"], False)[2],
    scene=lambda case: _scene(case, False),
    axes={
        "forward": ("sum", "own", "mean", "max", "twice", "world", "wider", "first", "n own",
                    "own/n", "product", "none", "sum + own", "others", "sum/world",
                    "sum on the first", "gathered"),
        "backward": ("own", "sum", "mean", "own/n", "world", "wider", "twice", "none"),
    },
)  # fmt: skip


CUT_CASES = tuple(
    Case(layout, dtype, seed)
    for layout, dtype, seed in (
        ("all", torch.float64, 1),
        ("pairs", torch.float32, 2),
        ("alone", torch.float64, 3),
    )
)
_SHAPES = {
    "cut along dim 0": ((8, 4), 0),
    "cut along dim 1 of 3": ((4, 8, 4), 1),
    "cut along dim 1 of 2": ((4, 8), 1),
    "cut along None": ((4, 8), None),
}


def _parts(case: Case, choices: Choices) -> Foreseen:
    values: list[dict[str, Any]] = []
    for rank in range(WORLD):
        group = case.shape.group(rank)
        place = {"group": group.index(rank), "world": rank, "first": 0,
                 "world, if there is a group": 0 if case.layout == "alone" else rank,
                 "reversed": len(group) - 1 - group.index(rank)}[choices["who"]]  # fmt: skip
        row: dict[str, Any] = {}
        for name, (shape, dim) in _SHAPES.items():
            full = integers(case, name, *shape, same=True)[rank]
            if dim is None:
                cut = choices["replicated"] != "copied"
                row[name] = full.chunk(len(group), 0)[place % len(group)] if cut else full
                continue
            dim = {"asked": dim, "0": 0, "last": full.dim() - 1}[choices["dim"]]
            n, blocks = len(group), choices["kind"] == "block"
            if choices["kind"] == "block of all ranks":
                n, place, blocks = WORLD, rank, True
            if blocks:
                width = full.size(dim) // n
                start = min(place * width, full.size(dim))
                row[name] = full.narrow(dim, start, min(width, full.size(dim) - start))
            elif choices["kind"] == "every nth":
                index = torch.arange(place, full.size(dim), n)
                row[name] = full.index_select(dim, index)
            else:
                row[name] = full
        values.append(row)
    return Foreseen(values, {"forward": 0, "backward": 0})


def _observe_cut(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    (cut,) = functions
    seen = Seen(sent=tap.sent)
    for name, (shape, dim) in _SHAPES.items():
        full = integers(case, name, *shape, same=True)[rank]
        before = full.clone()
        part = cut(full, dim, group)
        if not isinstance(part, Tensor):
            seen.values[name] = Odd(describe(part))
            continue
        seen.values[name] = part.detach().clone()
        if part.untyped_storage().data_ptr() == full.untyped_storage().data_ptr():
            seen.flags["shares memory"] = name
        elif not part.is_contiguous():
            seen.flags["not contiguous"] = name
        if not torch.equal(full, before):
            seen.flags["input changed"] = "full"
    if case.layout != "alone":
        rows = 2 * case.n + 1
        note_refusal(
            seen, lambda: cut(torch.ones(rows, 2), 0, group), f"{rows} rows on {case.n} ranks"
        )
    return seen


CUT = Probe(
    cases=CUT_CASES,
    observe=_observe_cut,
    foresee=_parts,
    scene=lambda case: {n: integers(case, n, *s, same=True) for n, (s, _) in _SHAPES.items()},
    axes={
        "kind": ("block", "every nth", "whole", "block of all ranks"),
        "who": ("group", "first", "reversed", "world", "world, if there is a group"),
        "dim": ("asked", "0", "last"),
        "replicated": ("copied", "cut along 0"),
    },
)
