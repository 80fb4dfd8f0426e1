"""Probes of clipping by the whole model's norm, and of the step with a loss scale."""

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
from .step05 import DESERTED, MET, watched

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
    """What this rank takes for the norm of the whole model."""
    weights, biases = numbers(case, source)
    own = [w.double().flatten() if not _bare(case, r) else w.new_zeros(1).double()
           for r, w in enumerate(weights)]  # fmt: skip
    bias = biases[rank].double()
    cut = [own[r] for r in case.shape.group(rank)]
    p = 2.0 if choice == "2 whatever is asked" else _norm_type(case)
    p = 1.0 if choice == "absolute values" else p

    def norm(*parts: Tensor) -> float:
        return float(torch.linalg.vector_norm(torch.cat(parts), p))

    each = [norm(part, bias) for part in cut]
    power = p if math.isfinite(p) else 1.0
    return {
        "own": norm(own[rank], bias),
        "replicated on every rank": norm(*cut, *([bias] * case.n)),
        "replicated left out": norm(*cut),
        "cut left out": norm(bias),
        "ranks' norms added": sum(each),
        "two norms added": norm(*cut) + norm(bias),
        "no root": norm(*cut, bias) ** power,
        "largest of the ranks": max(each),
        "mean over the ranks": (sum(x**power for x in each) / case.n) ** (1 / power),
        "over all ranks": norm(*own, *(biases if p == math.inf else [bias])),
        "largest numbers added": sum(map(norm, cut)) + norm(bias) if p == math.inf
        else norm(*cut, bias),
        "of the weights": 0.0 if source == "" else whole_norm("whole", case, rank, ""),
    }.get(choice, norm(*cut, bias))  # fmt: skip


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
            scaled = c["scaled"] in ("all", name)
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
        "scaled": ("all", "weight", "bias"),
        "returned": ("from before", "from behind", "factor", "nothing"),
        "overflow": ("left alone", "scaled all the same"),
    },
)  # fmt: skip


class Descent:
    """w ← w − grad: an optimizer whose steps can be done by hand."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(module.parameters()), "lr": 1.0}]

    @torch.no_grad()
    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p -= p.grad

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad = None


INF, NAN = math.inf, math.nan
# seed -> (scale, max_norm, {rank: what its weight gradient has in it})
SCENES: dict[int, tuple[float, float, dict[int, float]]] = {
    1: (8.0, 50.0, {}),
    2: (16.0, 2.0, {}),
    3: (8.0, 1000.0, {}),
    4: (8.0, 50.0, {1: INF}),
    5: (8.0, 1000.0, {0: NAN}),
    6: (4.0, 2.0, {2: -INF}),
}
STEP_CASES = (
    *MAIN,
    Case("all", torch.float64, 4),
    Case("pairs", torch.float64, 5),
    Case("alone", torch.float64, 6),
)


def _scaled(case: Case) -> list[list[Tensor]]:
    """Every rank's two gradients, as backward of scale · loss leaves them."""
    scale, _, spoilt = SCENES[case.seed]
    weights, biases = numbers(case, "grad of ")
    rows = [[w * scale, b * scale] for w, b in zip(weights, biases, strict=True)]
    for rank, value in spoilt.items():
        rows[rank][0][0, 0] = value
    return rows


def _step(case: Case, c: Choices) -> Foreseen:
    scale, limit, _ = SCENES[case.seed]
    weights, biases = numbers(case, "")
    factor = {"before clipping": 1 / scale, "left out": 1.0, "times": scale,
              "twice": 1 / scale**2}.get(c["unscaled"], 1.0)  # fmt: skip
    grads = [[g.double() * factor for g in row] for row in _scaled(case)]
    sees = [_overflows(row, c["looks for"]) for row in _scaled(case)]
    values: list[dict[str, Any]] = []
    for rank in range(WORLD):
        group = case.shape.group(rank)
        stops = {"over the group": any(sees[r] for r in group), "alone": sees[rank],
                 "never": False, "where all have it": all(sees[r] for r in group),
                 "over all ranks": any(sees)}[c["agreed"]]  # fmt: skip
        deserted = not stops and c["agreed"] == "alone" and any(sees[r] for r in group)
        if deserted and c["clip"] == "whole":
            values.append({"collectives": DESERTED})
            continue
        new = [w.double() for w in (weights[rank], biases[rank])]
        if (not stops and c["step"] == "taken") or c["step"] == "taken in any case":
            cut = [grads[r][0].flatten() for r in (group if c["clip"] == "whole" else (rank,))]
            norm = float(torch.cat([*cut, grads[rank][1]]).norm())
            shrink = min(1.0, limit / (norm + 1e-6)) if c["clip"] != "left out" else 1.0
            shrink = shrink if math.isfinite(norm) else 1.0
            behind = 1 / scale if c["unscaled"] == "behind clipping" else 1.0
            new = [w - g * shrink * behind for w, g in zip(new, grads[rank], strict=True)]
        said = {"whether it stepped": not stops, "always True": True, "always False": False,
                "whether it overflowed": stops, "nothing": None}[c["returned"]]  # fmt: skip
        row = {"collectives": MET, "returned": str(said)}
        names = {"weight": new[0].float(), "bias": new[1].float()}
        values.append(row | names)
    first = [sees[rank] for rank in case.shape.group(0)]  # what rank 0 sends
    leaves = c["agreed"] == "alone" and any(first) and (sees[0] or c["clip"] == "whole")
    sent = (c["clip"] == "whole" and not leaves) or c["agreed"] not in ("alone", "never")
    sent = (sent and case.n > 1) or c["agreed"] == "over all ranks"
    return Foreseen(values, {"forward": 2 * sent, "backward": 0})


def _overflows(row: list[Tensor], looks_for: str) -> bool:
    test = {"inf and NaN": lambda t: ~t.isfinite(), "inf": torch.isinf, "NaN": torch.isnan,
            "+inf": lambda t: t == INF}[looks_for]  # fmt: skip
    return any(bool(test(t).any()) for t in row)


def _observe_step(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    scale, limit, _ = SCENES[case.seed]
    module = layer(case, group, rank)
    module.weight.grad, module.bias.grad = _scaled(case)[rank]
    optimizer = Descent(module)

    def left(result: Any) -> dict[str, Any]:
        said = result.item() if isinstance(result, Tensor) and result.numel() == 1 else result
        said = bool(said) if isinstance(said, int | float) else said
        after = {n: p.detach().float().clone() for n, p in module.named_parameters()}
        return {"returned": str(said)[:60], **after}

    return watched(
        lambda: functions[0](optimizer, module, scale, limit, group), tap, kept={}, values=left
    )


STEP = Probe(
    cases=STEP_CASES,
    observe=_observe_step,
    foresee=_step,
    scene=lambda case: {
        f"{name}, of {SCENES[case.seed][0]:g} · loss": [row[i] for row in _scaled(case)]
        for i, name in enumerate(("grad of weight", "grad of bias"))
    },
    axes={
        "unscaled": ("before clipping", "left out", "behind clipping", "times", "twice"),
        "agreed": ("over the group", "alone", "never", "where all have it", "over all ranks"),
        "looks for": ("inf and NaN", "inf", "NaN", "+inf"),
        "clip": ("whole", "left out", "own"),
        "step": ("taken", "left out", "taken in any case"),
        "returned": ("whether it stepped", "always True", "always False", "whether it overflowed",
                     "nothing"),
    },
)  # fmt: skip
