"""Probes of step 1's functions. No rank sends anything here; all four do the same."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..journal import WORLD
from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Odd, Probe, Seen, describe, note_output

PLAIN = (Case("alone", torch.float64, 1), Case("alone", torch.float32, 2))
LARGE = Case("alone", torch.float64, 3, "very low scores")
HALF = Case("alone", torch.float16, 4, "float16")
B, HEADS, S, D = 2, 2, 5, 3


def _qk(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case.seed)
    q, k = (torch.randn(B, HEADS, S, D, generator=generator, dtype=torch.float64) for _ in "qk")
    if case.variant == "very low scores":
        q, k = 300 * q.abs(), -300 * k.abs()
        k[..., 0, :] *= 10  # the first row's own score is lower than many a mask constant
    return q.to(case.dtype), k.to(case.dtype)


def _scores(case: Case, c: Choices) -> Foreseen:
    q, k = (t.double() for t in _qk(case))
    scale = {
        "root of width": math.sqrt(D),
        "none": 1.0,
        "width": D,
        "root of length": math.sqrt(S),
        "root of all heads' width": math.sqrt(HEADS * D),
        "times": 1 / math.sqrt(D),
    }
    q, k = (q, k) if c["product"] == "q kᵀ" else (k, q)
    scores = q @ k.transpose(-2, -1) / scale[c["scale"]]
    ones = torch.ones(S, S, dtype=torch.bool)
    hidden = {"future": ones.triu(1), "nothing": ~ones, "past": ones.tril(-1),
              "future and own": ones.triu(0)}[c["hidden"]]  # fmt: skip
    dim = {"over queries": -2, "over heads": 1}.get(c["softmax"], -1)
    if c["mask"] == "behind softmax":
        weights = scores.softmax(dim).masked_fill(hidden, 0.0)
    elif c["mask"] == "times the scores":
        weights = scores.masked_fill(hidden, 0.0).softmax(dim)
    elif c["mask"] == "-1e4 added":
        weights = (scores - 1e4 * hidden).softmax(dim)
    elif c["mask"] == "-1e4":
        weights = scores.masked_fill(hidden, -1e4).softmax(dim)
    else:
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim)
    if c["softmax"] == "left out":
        weights = scores.masked_fill(hidden, -math.inf)
    return Foreseen([{"weights": weights.to(case.dtype)}] * WORLD)


def _observe_scores(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    q, k = _qk(case)
    seen, before = Seen(sent=tap.sent), (q.clone(), k.clone())
    note_output(seen, functions[0](q, k), torch.empty(B, HEADS, S, S, dtype=case.dtype), "weights")
    if not (torch.equal(q, before[0]) and torch.equal(k, before[1])):
        seen.flags["input changed"] = "q or k"
    return seen


SCORES = Probe(
    cases=(*PLAIN, LARGE, HALF),
    observe=_observe_scores,
    foresee=_scores,
    axes={
        "scale": ("root of width", "none", "width", "root of length", "root of all heads' width",
                  "times"),
        "product": ("q kᵀ", "k qᵀ"),
        "hidden": ("future", "nothing", "past", "future and own"),
        "mask": ("-inf", "behind softmax", "times the scores", "-1e4", "-1e4 added"),
        "softmax": ("over keys", "over queries", "over heads", "left out"),
    },
)  # fmt: skip

STEPS = (0, 1, 3, 4, 5, 7, 10, 15, 19, 20, 25)
RATES = {"peak": 1.0, "minimum": 0.1, "warmup": 4, "total": 20}
OTHERS = {"peak": 3e-3, "minimum": 1e-4, "warmup": 5, "total": 21}


def _rates(case: Case) -> dict[str, Any]:
    return RATES if case.seed == 1 else OTHERS


def _schedule(case: Case, c: Choices) -> Foreseen:
    row = {f"step {step}": torch.tensor(_lr(step, c, **_rates(case))).double() for step in STEPS}
    return Foreseen([row] * WORLD)


def _lr(step: int, c: Choices, *, peak: float, minimum: float, warmup: int, total: int) -> float:
    if step < warmup and c["warm-up"] != "left out":
        first = 0 if c["warm-up"] == "first step is zero" else 1
        steps = warmup + 1 if c["warm-up"] == "one step more" else warmup
        low = minimum if c["warm-up"] == "from the minimum" else 0.0
        return low + (peak - low) * (step + first) / steps
    if step >= total and c["behind the end"] != "goes on":
        return {"minimum": minimum, "zero": 0.0}[c["behind the end"]]
    start = 0 if c["counts from"] == "step 0" else warmup
    start -= c["counts from"] == "one further"
    progress = (step - start) / (total - (0 if c["counts from"] == "warm-up, over all" else start))
    if c["counts from"] == "one further":
        progress = min(1.0, (step - start) / (total - warmup))
    share = {
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "line": 1.0 - progress,
        "not halved": 1.0 + math.cos(math.pi * progress),
        "whole period": 0.5 * (1.0 + math.cos(2 * math.pi * progress)),
        "quarter period": math.cos(math.pi / 2 * progress),
        "rising": 0.5 * (1.0 - math.cos(math.pi * progress)),
    }[c["shape"]]
    span = {"peak - minimum": peak - minimum, "peak": peak}[c["span"]]
    if c["floor"] == "cut off":
        return max(minimum, peak * share)
    return (0.0 if c["floor"] == "zero" else minimum) + span * share


def _observe_lr(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen = Seen(sent=tap.sent)
    for step in STEPS:
        rate = functions[0](step, **_rates(case))
        number = isinstance(rate, int | float) or (isinstance(rate, Tensor) and rate.dim() == 0)
        seen.values[f"step {step}"] = (
            torch.tensor(float(rate)).double() if number else Odd(describe(rate))
        )
    return seen


SCHEDULE = Probe(
    cases=(Case("alone", torch.float64, 1), Case("alone", torch.float64, 2)),
    observe=_observe_lr,
    foresee=_schedule,
    axes={
        "warm-up": ("first step is peak / warm-up", "first step is zero", "left out",
                    "one step more", "from the minimum"),
        "behind the end": ("minimum", "goes on", "zero"),
        "counts from": ("warm-up", "step 0", "warm-up, over all", "one further"),
        "shape": ("cosine", "line", "not halved", "whole period", "quarter period", "rising"),
        "span": ("peak - minimum", "peak"),
        "floor": ("minimum", "zero", "cut off"),
    },
)  # fmt: skip
