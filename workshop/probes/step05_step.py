"""Probe of the step with a loss scale: unscale, agree, clip, step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..journal import WORLD
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Probe, Seen
from .step05 import DESERTED, MET, watched
from .step05_clip import layer, numbers


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
    flat = torch.cat([t.flatten() for t in row])
    found = {"inf and NaN": ~flat.isfinite(), "inf": flat.isinf(), "NaN": flat.isnan(),
             "+inf": flat == INF}[looks_for]  # fmt: skip
    return bool(found.any())


def _observe_step(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    scale, limit, _ = SCENES[case.seed]
    module = layer(case, group, rank)
    module.weight.grad, module.bias.grad = _scaled(case)[rank]
    optimizer = Descent(module)

    def left(result: Any) -> dict[str, Any]:
        said = result.item() if isinstance(result, Tensor) and result.numel() == 1 else result
        said = bool(said) if said in (0, 1) else said
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
