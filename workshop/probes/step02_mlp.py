"""The probe of the parallel MLP's forward."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import ParallelMLP

from ..sim import Ranks, Tape
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Probe, Seen, integers, leaves, watch
from .lazy import there_and_back
from .step02_layers import crossing, scene

H, ROWS = 2, 3
ERF = Case("pairs", torch.float64, 4, 'gelu="erf"')
_PARTS = ("up.weight", "up.bias", "down.weight", "down.bias")


def _act(kind: str, case: Case, x: torch.Tensor) -> torch.Tensor:
    exact = case.variant.startswith("gelu")
    modes = ("none", "tanh") if exact else ("tanh", "none")
    if kind in ("gelu", "other gelu", "always erf", "always tanh"):
        mode = {"gelu": modes[0], "other gelu": modes[1], "always erf": "none",
                "always tanh": "tanh"}[kind]  # fmt: skip
        return F.gelu(x, approximate=mode)
    plain: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": F.relu, "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
        "none": lambda t: t,
    }  # fmt: skip
    return plain[kind](x)


def _mlp(case: Case, c: Choices) -> tuple[dict[str, Ranks], Ranks, Foreseen]:
    part = 4 * H // case.n
    scale = 0.25  # inside GeLU's bend
    given = {
        "x": integers(case, "x", ROWS, H, same=True),
        "up.weight": [w * scale for w in integers(case, "up", part, H)],
        "up.bias": [b * scale for b in integers(case, "up bias", part)],
        "down.weight": integers(case, "down", H, part),
        "down.bias": integers(case, "down bias", H, same=True),
    }
    upstream = integers(case, "upstream", ROWS, H, same=True)
    made = leaves(*given.values())
    xs, uw, ub, dw, db = made
    tape = Tape()
    inner = crossing(xs, case, c["extra in front"], tape)
    if c["place"] == "before up":
        inner = [_act(c["act"], case, t) for t in inner]
    inner = crossing(inner, case, {"layer": "f", "by hand": "nothing"}[c["up"]], tape)
    y = [F.linear(a, w, b) for a, w, b in zip(inner, uw, ub, strict=True)]
    y = crossing(y, case, c["between"], tape)
    if c["place"] not in ("behind down", "before up"):
        y = [_act(c["act"], case, t) for t in y]
        if c["place"] == "twice":
            y = [_act(c["act"], case, t) for t in y]
    y = crossing(y, case, c["behind GeLU"], tape)
    if c["down"] != "left out":
        y = [F.linear(a, w) for a, w in zip(y, dw, strict=True)]
    if c["down"] in ("bias in the product", "bias in the product, no sum"):
        y = [a + b for a, b in zip(y, db, strict=True)]
    if c["down"] in ("layer", "bias in the product"):
        y = crossing(y, case, "g", tape)
    if c["down"] in ("layer", "no sum"):
        y = [a + b for a, b in zip(y, db, strict=True)]
    if c["extra behind"] == "over n":
        y = [t / case.n for t in y]
    if c["place"] in ("behind down", "both sides"):
        y = [_act(c["act"], case, t) for t in y]
    y = crossing(y, case, "nothing" if c["extra behind"] == "over n" else c["extra behind"], tape)
    if c["residual"] == "added" and c["down"] != "left out":
        y = [a + b for a, b in zip(y, xs, strict=True)]
    wanted = dict(zip(given, made, strict=True))
    return given, upstream, there_and_back(y, upstream, wanted, tape)


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    given, upstream, _ = _mlp(case, RIGHT)
    config = GPTConfig(5, 4, H, 1, 1, gelu="erf" if case.variant else "tanh")
    layer = ParallelMLP(config, group=group).to(case.dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(given[name][rank])
    x = given["x"][rank].clone().requires_grad_()
    inputs = {"x": x, **{name: layer.get_parameter(name) for name in _PARTS}}
    return watch(lambda: types.MethodType(functions[0], layer)(x), inputs, upstream[rank], tap)


MLP_FORWARD = Probe(
    cases=(*MAIN, ERF),
    observe=_observe,
    foresee=lambda case, c: _mlp(case, c)[2],
    scene=lambda case: scene(*_mlp(case, RIGHT)[:2]),
    axes={
        "extra in front": ("nothing", "f", "g", "cut off"),
        "up": ("layer", "by hand"),
        "act": ("gelu", "none", "relu", "always erf", "always tanh", "silu", "tanh", "sigmoid"),
        "behind GeLU": ("nothing", "f", "g", "all-reduce both ways", "mean", "cut off"),
        "place": ("between", "before up", "behind down", "twice", "both sides"),
        "between": ("nothing", "f", "g", "all-reduce both ways", "mean", "cut off"),
        "down": ("layer", "bias in the product", "no sum", "bias in the product, no sum",
                 "left out"),
        "extra behind": ("nothing", "g", "f", "all-reduce both ways", "mean", "over n"),
        "residual": ("left to the block", "added"),
    },
)  # fmt: skip
RIGHT: dict[str, str] = {axis: choices[0] for axis, choices in MLP_FORWARD.axes.items()}
