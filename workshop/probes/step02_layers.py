"""Probes of the two cut linear layers: small whole matrices, cut by hand."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from step02_mlp_parallel import ColumnParallelLinear, RowParallelLinear

from ..sim import Ranks, Tape, gathered, lanes
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Probe, Seen, integers, leaves, watch
from .lazy import there_and_back

ROWS, IN, OUT = 2, 3, 8  # column; the row layer has in 8, out 3
GATHER = Case("all", torch.float64, 4, "gather_output")
GATHER_2 = Case("pairs", torch.float64, 5, "gather_output")
NO_BIAS = Case("pairs", torch.float64, 6, "bias=False")


def filled(layer: torch.nn.Module, weight: Tensor, bias: Tensor | None) -> Any:
    """The real layer with these numbers in it."""
    layer.to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)  # type: ignore[operator]
        if bias is not None:
            layer.bias.copy_(bias)  # type: ignore[operator]
    return layer


def crossing(xs: Ranks, case: Case, kind: str, tape: Tape) -> Ranks:
    """What may stand at a border of the cut region."""
    rules = {
        "nothing": ("own", "own"),
        "f": ("own", "sum"),
        "g": ("sum", "own"),
        "f twice": ("own", "twice"),
        "f, averaged": ("own", "mean"),
        "f over all ranks": ("own", "world"),
        "f over any group's world": ("own", "wider"),
        "g over any group's world": ("wider", "own"),
        "all-reduce both ways": ("sum", "sum"),
        "g twice": ("twice", "own"),
        "mean": ("mean", "own"),
        "mean both ways": ("mean", "mean"),
        "max": ("max", "own"),
        "g over all ranks": ("world", "own"),
        "g of rank 0": ("first", "own"),
        "g, own / n back": ("sum", "own/n"),
        "g / n": ("mean", "own/n"),
        "f, n own": ("own", "n own"),
        "g, cut off": ("sum", "own"),
    }
    if kind == "nothing":
        return xs
    if kind == "cut off":
        return [x.detach() for x in xs]
    if kind == "g, cut off":
        xs = [x.detach() for x in xs]
    return lanes(xs, case.shape, *rules[kind], tape)


def _column(case: Case, c: Choices) -> tuple[dict[str, Ranks], Ranks, Foreseen]:
    n = case.n
    x = integers(case, "x", ROWS, IN, same=True)
    weight, bias = integers(case, "weight", OUT // n, IN), integers(case, "bias", OUT // n)
    gathers = case.variant == "gather_output"
    upstream = integers(case, "upstream", ROWS, OUT if gathers else OUT // n, same=gathers)
    given = {"x": x, "weight": weight, "bias": bias}
    xs, ws, bs = leaves(x, weight, bias)
    tape = Tape()
    inner = crossing(xs, case, c["front"], tape)
    y = [F.linear(a, w) for a, w in zip(inner, ws, strict=True)]
    early = c["behind"].removesuffix(", before the bias")
    y = crossing(y, case, early, tape) if early != c["behind"] else y
    if case.variant == "bias=False":
        given.pop("bias")
    elif c["bias"] != "left out":
        times = {"twice": 2.0, "over n": 1 / n}.get(c["bias"], 1.0)
        y = [a + times * b for a, b in zip(y, bs, strict=True)]
    y = crossing(y, case, c["behind"], tape) if early == c["behind"] else y
    if gathers and c["when asked"] != "nothing":
        dim, back = {"own slice": (-1, "slice"), "sum of slices": (-1, "sum"),
                     "along dim 0": (0, "slice")}[c["when asked"]]  # fmt: skip
        y = gathered(y, case.shape, dim, back, tape)
    if not gathers and c["unasked"] != "nothing" and case.layout != "alone":
        y = gathered(y, case.shape, -1, "slice", tape)
    made = {"x": xs, "weight": ws, "bias": bs}
    wanted = {name: made[name] for name in given}
    return given, upstream, there_and_back(y, upstream, wanted, tape)


def _row(case: Case, c: Choices) -> tuple[dict[str, Ranks], Ranks, Foreseen]:
    n = case.n
    x, weight = integers(case, "x", ROWS, OUT // n), integers(case, "weight", IN, OUT // n)
    bias = integers(case, "bias", IN, same=True)
    upstream = integers(case, "upstream", ROWS, IN, same=True)
    given = {"x": x, "weight": weight, "bias": bias}
    xs, ws, bs = leaves(x, weight, bias)
    tape = Tape()
    inner = crossing(xs, case, c["front"], tape)
    y = [F.linear(a, w) for a, w in zip(inner, ws, strict=True)]
    has_bias = case.variant != "bias=False"
    first = [case.shape.group(rank)[0] == rank for rank in range(case.shape.world)]
    if not has_bias:
        given.pop("bias")
    if has_bias and c["bias"].endswith("before"):
        only = c["bias"].startswith("rank 0")
        share = {"share, before": case.n, "share of all, before": case.shape.world}.get(
            c["bias"], 1
        )
        if c["bias"] == "rank 0 of all, before":
            first = [rank == 0 for rank in range(case.shape.world)]
        y = [a + b / share if lead or not only else a
             for a, b, lead in zip(y, bs, first, strict=True)]  # fmt: skip
    y = crossing(y, case, c["sum"], tape)
    if has_bias and (c["bias"] == "twice" or c["bias"].endswith("behind")):
        times = {"twice": 2.0, "times n, behind": float(case.n), "share, behind": 1 / case.n}.get(
            c["bias"], 1.0
        )
        only = c["bias"].startswith("rank 0")
        y = [a + times * b if lead or not only else a
             for a, b, lead in zip(y, bs, first, strict=True)]  # fmt: skip
    y = crossing(y, case, c["behind"], tape)
    made = {"x": xs, "weight": ws, "bias": bs}
    wanted = {name: made[name] for name in given}
    return given, upstream, there_and_back(y, upstream, wanted, tape)


def scene(given: dict[str, Ranks], upstream: Ranks) -> dict[str, Ranks]:
    return {**given, "gradient from above": upstream}


def _observe_column(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    given, upstream, _ = _column(case, RIGHT_COLUMN)
    mine = {name: ranks[rank] for name, ranks in given.items()}
    layer = filled(
        ColumnParallelLinear(
            IN, OUT, group=group, bias="bias" in mine, gather_output=case.variant == "gather_output"
        ),
        mine["weight"],
        mine.get("bias"),
    )
    return _run(functions[0], layer, mine, upstream[rank], tap)


def _observe_row(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    given, upstream, _ = _row(case, RIGHT_ROW)
    mine = {name: ranks[rank] for name, ranks in given.items()}
    layer = filled(
        RowParallelLinear(OUT, IN, group=group, bias="bias" in mine),
        mine["weight"],
        mine.get("bias"),
    )
    return _run(functions[0], layer, mine, upstream[rank], tap)


def _run(
    forward: Any, layer: torch.nn.Module, mine: dict[str, Tensor], upstream: Tensor, tap: Wiretap
) -> Seen:
    x = mine["x"].clone().requires_grad_()
    inputs = {"x": x, **dict(layer.named_parameters())}
    return watch(lambda: types.MethodType(forward, layer)(x), inputs, upstream, tap)


COLUMN = Probe(
    cases=(*MAIN, GATHER, GATHER_2, NO_BIAS),
    observe=_observe_column,
    foresee=lambda case, c: _column(case, c)[2],
    scene=lambda case: scene(*_column(case, RIGHT_COLUMN)[:2]),
    axes={
        "front": ("f", "nothing", "g", "f twice", "f, averaged", "f over all ranks",
                  "f over any group's world", "all-reduce both ways", "f, n own", "cut off"),
        "bias": ("once", "left out", "twice", "over n"),
        "behind": ("nothing", "f", "g", "all-reduce both ways", "mean", "max",
                   "f, before the bias", "g, before the bias"),
        "when asked": ("own slice", "nothing", "sum of slices", "along dim 0"),
        "unasked": ("nothing", "gathered"),
    },
)  # fmt: skip
ROW = Probe(
    cases=(*MAIN, NO_BIAS),
    observe=_observe_row,
    foresee=lambda case, c: _row(case, c)[2],
    scene=lambda case: scene(*_row(case, RIGHT_ROW)[:2]),
    axes={
        "front": ("nothing", "f", "g", "cut off"),
        "sum": ("g", "nothing", "f", "all-reduce both ways", "g twice", "mean", "mean both ways",
                "max", "g over all ranks", "g over any group's world",
                "g of rank 0", "g, own / n back", "g / n", "g, cut off"),
        "bias": ("once, behind", "before", "rank 0, behind", "rank 0, before", "share, before",
                 "share, behind", "share of all, before", "rank 0 of all, before",
                 "times n, behind", "left out", "twice"),
        "behind": ("nothing", "f", "g"),
    },
)  # fmt: skip
RIGHT_COLUMN: dict[str, str] = {axis: choices[0] for axis, choices in COLUMN.axes.items()}
RIGHT_ROW: dict[str, str] = {axis: choices[0] for axis, choices in ROW.axes.items()}
