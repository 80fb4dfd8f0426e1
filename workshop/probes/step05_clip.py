"""Probe of clipping by the norm of the whole model."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from step02_mlp_parallel import RowParallelLinear

from ..journal import WORLD
from ..sim import Tape
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Odd, Probe, Seen, describe, integers
from .step02_layers import filled
from .step05 import MET, watched

IN, OUT = 8, 3
LOOSE = Case("pairs", torch.float64, 4)  # a limit far above the norm
LARGEST = Case("pairs", torch.float64, 5, "norm_type=inf")
LARGEST_2 = Case("all", torch.float64, 6, "norm_type=inf")
ABSOLUTE = Case("all", torch.float64, 7, "norm_type=1")
OVERFLOW = Case("all", torch.float64, 8, "not finite")
BARE = Case("pairs", torch.float64, 9, "a rank without cut gradients")


def layer(case: Case, group: Any, rank: int) -> Any:
    """A row-parallel layer with whole numbers in it: weight [3, 8/n] cut, bias [3] on each rank."""
    weight, bias = (ranks[rank] for ranks in numbers(case, ""))
    made = filled(RowParallelLinear(IN, OUT, group=group), weight, bias)
    for parameter, ranks in zip((made.weight, made.bias), numbers(case, "grad of "), strict=True):
        parameter.grad = ranks[rank].clone()
    if _bare(case, rank):
        made.weight.grad = None
    return made


@functools.cache
def numbers(case: Case, what: str) -> tuple[list[Tensor], list[Tensor]]:
    """Every rank's part of the weight, and its bias, which all ranks of a group have."""
    width = IN // case.n
    weights = integers(case, f"{what}weight", OUT, width)
    if what and case == OVERFLOW:
        weights[1][0, 0] = math.inf
    return weights, integers(case, f"{what}bias", OUT, same=True)


def _bare(case: Case, rank: int) -> bool:
    return case == BARE and case.shape.group(rank).index(rank) == 1


def _norm_type(case: Case) -> float:
    return {"norm_type=inf": math.inf, "norm_type=1": 1.0}.get(case.variant, 2.0)


@functools.cache
def whole_norm(choice: str, case: Case, rank: int, source: str = "grad of ") -> float:
    """What this rank takes for the norm of the whole model. (Alone, nothing is cut.)"""
    weights, biases = numbers(case, source)
    own = [w.double().flatten() if not _bare(case, r) else w.new_zeros(1).double()
           for r, w in enumerate(weights)]  # fmt: skip
    bias, group = biases[rank].double(), case.shape.group(rank)
    cut = [own[r] for r in group] if case.n > 1 else []
    rest = [bias] if case.n > 1 else [own[rank], bias]
    p = 2.0 if choice == "2 whatever is asked" else _norm_type(case)
    p = 1.0 if choice == "absolute values" else p

    def norm(*parts: Tensor) -> float:
        return float(torch.linalg.vector_norm(torch.cat(parts), p)) if parts else 0.0

    each = [norm(own[r], bias) for r in group]
    power = p if math.isfinite(p) else 1.0
    world = [*(own if case.n > 1 else []), *(biases if p == math.inf else rest)]
    added = sum(map(norm, cut)) + norm(*rest)
    found: dict[str, float] = {
        "own": norm(own[rank], bias),
        "replicated on every rank": norm(*cut, *(rest * case.n)),
        "replicated left out": norm(*cut),
        "cut left out": norm(*rest),
        "ranks' norms added": sum(each),
        "two norms added": norm(*cut) + norm(*rest),
        "no root": float(norm(*cut, *rest) ** power),
        "largest of the ranks": max(each),
        "mean over the ranks": float((sum(x**power for x in each) / case.n) ** (1 / power)),
        "over all ranks": norm(*world),
        "largest numbers added": added if p == math.inf else norm(*cut, *rest),
        "of the weights": 0.0 if source == "" else whole_norm("whole", case, rank, ""),
    }
    return found.get(choice, norm(*cut, *rest))


def _limit(case: Case) -> float:
    return 1000.0 if case == LOOSE else 2.0


def _clip(case: Case, c: Choices) -> Foreseen:
    tape, limit = Tape(), _limit(case)
    silent = c["norm"] in ("own", "cut left out")
    silent = silent or (case.n == 1 and c["norm"] != "over all ranks")
    tape.numel["forward"] = 0 if silent else 1
    values: list[dict[str, Any]] = []
    grads = dict(zip(("weight", "bias"), numbers(case, "grad of "), strict=True))
    for rank in range(WORLD):
        norm = max(whole_norm(c["norm"], case, rank), 1e-12)
        factor = {"at most one": min(1.0, limit / norm), "always": limit / norm,
                  "none": 1.0, "to one": min(1.0, 1.0 / norm), "by value": 1.0,
                  "the other way up": min(1.0, norm / limit)}[c["factor"]]  # fmt: skip
        if not math.isfinite(norm):
            factor = 1.0 if c["overflow"] == "left alone" else 0.0
        row: dict[str, Any] = {"collectives": MET}
        returned = {"from before": norm, "from behind": norm * factor, "factor": factor,
                    "nothing": None}[c["returned"]]  # fmt: skip
        row["norm"] = None if returned is None else torch.tensor(returned)
        for name, ranks in grads.items():
            kind = "cut" if name == "weight" and case.n > 1 else "replicated"
            scaled = c["scaled"] in ("all", kind)
            new = ranks[rank].double() * (factor if scaled else 1.0)
            if c["factor"] == "by value" and scaled:
                new = new.clamp(-limit, limit)
            bare = _bare(case, rank) and name == "weight"
            row[f"grad of {name}"] = None if bare else new.float()
        values.append(row)
    return Foreseen(values, tape.numel)


def _observe_clip(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    module, extra = layer(case, group, rank), {}
    if case.variant.startswith("norm_type"):
        extra = {"norm_type": _norm_type(case)}

    def left(result: Any) -> dict[str, Any]:
        """In float32: whether 1e-6 is added to the norm doesn't show then."""
        grads = {f"grad of {n}": None if p.grad is None else p.grad.detach().float().clone()
                 for n, p in module.named_parameters()}  # fmt: skip
        return {"norm": number(result), **grads}

    kept = {"weight": module.weight, "bias": module.bias}
    return watched(
        lambda: functions[0](module, _limit(case), group, **extra), tap, kept=kept, values=left
    )


def number(result: Any) -> Any:
    """One float32 number, however it was handed back."""
    if isinstance(result, bool) or result is None:
        return None if result is None else Odd(describe(result))
    if isinstance(result, int | float) or (isinstance(result, Tensor) and result.numel() == 1):
        return torch.tensor(float(result))
    return Odd(describe(result))


def _scene(case: Case) -> dict[str, list[Tensor]]:
    weight, bias = numbers(case, "grad of ")
    return {"grad of weight, a part": weight, "grad of bias, on all ranks": bias}


CLIP = Probe(
    cases=(*MAIN, LOOSE, LARGEST, LARGEST_2, ABSOLUTE, OVERFLOW, BARE),
    observe=_observe_clip,
    foresee=_clip,
    scene=_scene,
    axes={
        "norm": ("whole", "own", "replicated on every rank", "replicated left out",
                 "cut left out", "ranks' norms added", "two norms added", "no root",
                 "largest of the ranks", "mean over the ranks", "over all ranks",
                 "absolute values", "of the weights", "2 whatever is asked",
                 "largest numbers added"),
        "factor": ("at most one", "always", "none", "to one", "by value", "the other way up"),
        "scaled": ("all", "cut", "replicated"),
        "returned": ("from before", "from behind", "factor", "nothing"),
        "overflow": ("left alone", "scaled all the same"),
    },
)  # fmt: skip
