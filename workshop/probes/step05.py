"""Probes of the grid and of averaged gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..journal import WORLD
from ..meeting import NoMeeting, meetings
from ..sim import Ranks, Tape, follow
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Probe, Seen, integers

GRIDS = {1: ((2, 3), (4, 2), (2, 2)), 2: ((8, 64), (1, 5), (5, 1), (3, 4))}  # (tp, dp)
BAD = {1: ((6, 2, 3), (8, 2, 3), (-1, 2, 3)), 2: ((512, 8, 64), (99, 3, 4), (-4, 3, 4))}


def _ranks(tp: int, dp: int) -> list[int]:
    return list(range(tp * dp)) if tp * dp <= 12 else [0, 1, 7, 8, 63, 64, 65, 200, 511]


def _coordinates(case: Case, c: Choices) -> Foreseen:
    row: dict[str, Any] = {}
    for tp, dp in GRIDS[case.seed]:
        for rank in _ranks(tp, dp):
            row[_asked(rank, tp, dp)] = str(_place(rank, tp, dp, c))
    for rank, tp, dp in BAD[case.seed]:
        passes = c["checked"] in ("nothing", "from below alone" if rank > 0 else "from above alone")
        passes |= c["checked"] == "one too many" and rank == tp * dp
        error = "another error" if c["checked"] == "by another error" else "ValueError"
        row[_asked(rank, tp, dp)] = "no complaint" if passes else error
    return Foreseen([row] * WORLD)


def _asked(rank: int, tp: int, dp: int) -> str:
    return f"rank {rank} of tp_size {tp}, dp_size {dp}"


def _place(rank: int, tp: int, dp: int, c: Choices) -> tuple[Any, Any]:
    first = {"zero": 0, "ranks from one": -1}.get(c["counts from"], 0)
    rank += first
    a: Any = {"quotient": rank // tp, "remainder by dp": rank % dp, "fraction": rank / tp,
              "the rank": rank, "quotient by dp": rank // dp}[c["dp_rank"]]  # fmt: skip
    b: Any = {"remainder": rank % tp, "quotient by dp": rank // dp, "the rank": rank,
              "remainder by dp": rank % dp}[c["tp_rank"]]  # fmt: skip
    if c["neighbours"] != "tp":
        a, b = {"dp": (rank % dp, rank // dp), "rows of dp_size": divmod(rank, dp)}[c["neighbours"]]
    if c["counts from"] == "coordinates from one":
        a, b = a + 1, b + 1
    return (a, b) if c["order"] == "dp, tp" else (b, a)


def _observe_coordinates(
    functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap
) -> Seen:
    seen = Seen(sent=tap.sent)
    for tp, dp in GRIDS[case.seed]:
        for r in _ranks(tp, dp):
            found = functions[0](r, tp, dp)
            if isinstance(found, list):
                found = tuple(found)
            seen.values[_asked(r, tp, dp)] = str(found)[:60]
    for bad in BAD[case.seed]:
        try:
            functions[0](*bad)
            seen.values[_asked(*bad)] = "no complaint"
        except Exception as error:
            refused = isinstance(error, ValueError)
            seen.values[_asked(*bad)] = "ValueError" if refused else "another error"
    return seen


COORDINATES = Probe(
    cases=(Case("alone", torch.float64, 1), Case("alone", torch.float64, 2)),
    observe=_observe_coordinates,
    foresee=_coordinates,
    axes={
        "neighbours": ("tp", "dp", "rows of dp_size"),
        "order": ("dp, tp", "tp, dp"),
        "dp_rank": ("quotient", "remainder by dp", "fraction", "the rank", "quotient by dp"),
        "tp_rank": ("remainder", "quotient by dp", "the rank", "remainder by dp"),
        "counts from": ("zero", "ranks from one", "coordinates from one"),
        "checked": (
            "both ends",
            "nothing",
            "from below alone",
            "from above alone",
            "one too many",
            "by another error",
        ),
    },
)

MET, DESERTED = "all ranks meet", "waits for a rank that doesn't come"


def watched(
    call: Callable[[], Any],
    tap: Wiretap,
    *,
    kept: Mapping[str, Tensor],
    values: Callable[[Any], dict[str, Any]],
) -> Seen:
    """Run `call`, whose work is in what it leaves behind: `values(its result)`. What is `kept`
    must not change."""
    seen = Seen(sent=tap.sent)
    before = {name: x.detach().clone() for name, x in kept.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with meetings():
                result = call()
        except NoMeeting:
            seen.values = {"collectives": DESERTED}
            return seen
    seen.values = {"collectives": MET, **values(result)}
    if tap.open_handles:
        seen.flags["not waited"] = str(tap.open_handles)
    for name, old in before.items():
        if not torch.equal(kept[name], old):
            seen.flags["input changed"] = name
    return seen


SHAPES = {"weight": (2, 3), "bias": (3,)}
MISSING = Case("all", torch.float64, 4, "a gradient is missing")
MISSING_2 = Case("pairs", torch.float64, 5, "a gradient is missing")
HALF = Case("pairs", torch.float16, 6, "half precision")
STRIDED = Case("pairs", torch.float64, 7, "not dense")


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Where one is missing, all have one shape: who skips it adds up two different ones."""
    return dict.fromkeys("abc", (2,)) if case.variant == MISSING.variant else SHAPES


def _drawn(case: Case) -> dict[str, Ranks]:
    return {name: integers(case, f"grad of {name}", *s) for name, s in _shapes(case).items()}


def _gradients(case: Case) -> list[dict[str, Tensor | None]]:
    """For each rank what each parameter has for a gradient."""
    drawn = _drawn(case)
    rows: list[dict[str, Tensor | None]] = []
    for rank in range(WORLD):
        row: dict[str, Tensor | None] = {name: ranks[rank] for name, ranks in drawn.items()}
        if case.variant == HALF.variant:  # the sum of two is beyond float16, their mean is not
            row = {name: 40_000.0 + 1_000.0 * ranks[rank] for name, ranks in drawn.items()}
        if case.variant == MISSING.variant:
            names = list(row)
            row[names[case.shape.group(rank).index(rank) % len(names)]] = None
        if case.variant == STRIDED.variant and row["weight"] is not None:
            row["weight"] = row["weight"].T.contiguous().T
        rows.append(row)
    return rows


def _weights(case: Case) -> list[dict[str, Tensor]]:
    """Unlike on each rank, though replicas are equal: or averaged weights would look right."""
    drawn = {n: integers(case, n, *s) for n, s in _shapes(case).items()}
    return [{n: ranks[rank] for n, ranks in drawn.items()} for rank in range(WORLD)]


def _combined(rule: str, xs: Ranks, case: Case, tape: Tape) -> Ranks:
    """What each rank has after the rule; those of sim.py and some that divide by another number."""
    n = case.n
    factor = {"mean, divided again": 1 / n, "sum over all ranks' number": n / WORLD,
              "sum over one fewer": n / max(n - 1, 1)}.get(rule)  # fmt: skip
    if factor is not None:
        return [x * factor for x in _combined("mean", xs, case, tape)]
    if rule in ("world's mean", "world's sum over n"):
        divisor = WORLD if rule == "world's mean" else n
        return [x / divisor for x in _combined("world", xs, case, tape)]
    tape.add("forward", rule, xs[0], case.shape)
    return follow(rule, xs, case.shape)


def _average(case: Case, c: Choices) -> Foreseen:
    grads, weights, tape = _gradients(case), _weights(case), Tape()
    values: list[dict[str, Any]] = [{"collectives": MET} for _ in range(WORLD)]
    for row, g, w in zip(values, grads, weights, strict=True):
        row |= {f"grad of {name}": grad for name, grad in g.items()} | w
    skips = c["missing"] == "skipped" and c["of what"] != "parameters"
    queues = [[name for name, g in row.items() if not (skips and g is None)] for row in grads]
    if c["of what"] == "the first alone":
        queues = [queue[:1] for queue in queues]
    for names in zip(*queues, strict=True):
        if c["of what"] in ("parameters", "both"):
            old = [weights[rank][name] for rank, name in enumerate(names)]
            for rank, new in enumerate(_combined(c["rule"], [x.double() for x in old], case, tape)):
                values[rank][names[rank]] = new.to(case.dtype)
        if c["of what"] != "parameters":
            had = [grads[rank][name] for rank, name in enumerate(names)]
            for rank, new in enumerate(_new_gradients(had, case, c, tape)):
                stays = c["missing"] == "counted, but not kept" and had[rank] is None
                values[rank][f"grad of {names[rank]}"] = None if stays else new.to(case.dtype)
    return Foreseen(values, tape.numel)


def _new_gradients(had: list[Tensor | None], case: Case, c: Choices, tape: Tape) -> Ranks:
    shape = next(g for g in had if g is not None).shape
    xs = [torch.zeros(shape).double() if g is None else g.double() for g in had]
    new = _combined(c["rule"], xs, case, tape)
    if case.variant == HALF.variant and c["half types"] != "summed in float32":
        total = follow("sum", xs, case.shape)  # 36,000 and 36,000 are infinite in float16
        new = [torch.full_like(x, torch.inf) if t.max() > 65_504 else x for x, t in
               zip(new, total, strict=True)]  # fmt: skip
    if c["missing"] == "mean of those that have one":
        for rank, x in enumerate(new):
            there = sum(had[r] is not None for r in case.shape.group(rank))
            new[rank] = x * case.n / max(there, 1)
    return new


def _observe_average(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    parameters = {name: nn.Parameter(w) for name, w in _weights(case)[rank].items()}
    for name, grad in _gradients(case)[rank].items():
        parameters[name].grad = grad

    def left(result: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, p in parameters.items():
            values[f"grad of {name}"] = None if p.grad is None else p.grad.detach().clone()
            values[name] = p.detach().clone()
        return values

    return watched(
        lambda: functions[0](iter(parameters.values()), group), tap, kept={}, values=left
    )


AVERAGE = Probe(
    cases=(*MAIN, MISSING, MISSING_2, HALF, STRIDED),
    observe=_observe_average,
    foresee=_average,
    axes={
        "rule": ("mean", "own", "sum", "own/n", "n own", "mean, divided again",
                 "sum over all ranks' number", "sum over one fewer", "world's mean",
                 "world's sum over n", "world", "max", "first", "others", "sum + own", "none"),
        "of what": ("gradients", "parameters", "both", "the first alone"),
        "missing": ("zero", "skipped", "counted, but not kept", "mean of those that have one"),
        "half types": ("summed in float32", "summed in float16"),
    },
    scene=lambda case: {
        f"grad of {name}": ranks for name, ranks in _drawn(case).items()
    },
)  # fmt: skip
