"""The probe of parallel attention: 4 heads of width 2, in small numbers."""

from __future__ import annotations

import math
import types
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from step01_single_gpu.config import GPTConfig
from step03_attention_parallel.attention import ParallelAttention, masked_softmax
from step03_attention_parallel.rng import RNGTracker

from ..sim import Ranks, Tape
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Probe, Seen, integers, leaves, watch
from .lazy import there_and_back
from .step02_layers import crossing, scene

B, S, H, HEADS, D = 2, 3, 8, 4, 2
FULL = Case("pairs", torch.float64, 4, "not causal")
PADDED = Case("pairs", torch.float64, 5, "padding")
PADDED_FULL = Case("all", torch.float64, 6, "padding, not causal")
DROPOUT = Case("pairs", torch.float64, 7, "dropout")
CASES = (*MAIN, FULL, PADDED, PADDED_FULL, DROPOUT)
REAL = torch.tensor([[True, True, True], [True, False, True]])


def _given(case: Case) -> tuple[dict[str, Ranks], Ranks]:
    part = H // case.n
    given = {
        "x": integers(case, "x", B, S, H, same=True),
        "qkv.weight": integers(case, "qkv", 3, part, H),
        "qkv.bias": integers(case, "qkv bias", 3, part),
        "out.weight": integers(case, "out", H, part),
        "out.bias": integers(case, "out bias", H, same=True),
    }
    given = {name: [t / 8 for t in ranks] for name, ranks in given.items()}
    return given, integers(case, "upstream", B, S, H, same=True)


def _tracker(case: Case, rank: int) -> RNGTracker:
    place = case.shape.group(rank).index(rank)
    return RNGTracker(case.seed, tp_rank=place, tp_size=case.n, mode="invariant")


def _keep(case: Case, c: Choices) -> Tensor | None:
    """Which keys a query may look at, by the choice; None for all."""
    causal, padded = "not causal" not in case.variant, "padding" in case.variant
    if c["by"] != "the layer's own":
        padded, causal = False, causal or c["by"].endswith("always causal")
    past = torch.ones(S, S, dtype=torch.bool).tril()
    if c["causal"] in ("always", "never"):
        causal = c["causal"] == "always"
    if c["causal"] == "not under padding" and padded:
        causal = False
    if c["causal"] == "the future":
        past = past.T
    keep = past if causal else None
    if padded and c["padding"] != "not hidden":
        real = REAL[:, None, None, :]
        if c["padding"] == "the real ones":
            real = ~real
        if c["padding"] == "queries":
            real = REAL[:, None, :, None]
        keep = real if keep is None else real & keep
        keep = ~keep if c["padding"] == "turned with the mask" else keep
    return keep


def _mixed(y: Tensor, case: Case, c: Choices, rank: int) -> Tensor:
    """[b, s, 3h/n] -> [b, s, h/n]: attention of this rank's heads."""
    own = HEADS // case.n
    if c["split"] == "a reshape":
        three = y.view(B, S, 3, own * D).unbind(2)
        q, k, v = (t.reshape(B, own, S, D) for t in three)
    else:
        orders = {"Q, K, V outermost": "three heads d", "heads outermost": "heads three d",
                  "Q, K, V innermost": "heads d three", "width outermost": "d three heads",
                  "heads innermost": "three d heads"}  # fmt: skip
        whole = f"b s ({orders[c['split']]}) -> three b heads s d"
        q, k, v = rearrange(y, whole, three=3, heads=own)
    named = {"q": q, "k": k, "v": v}
    q, k, v = (named[name] for name in c["order"])
    keep = _keep(case, c)
    scale = {"root of d": math.sqrt(D), "none": 1.0, "d": float(D),
             "root of all heads' width": math.sqrt(own * D)}[c["scale"]]  # fmt: skip
    scores = q @ k.transpose(-2, -1) / scale
    weights = masked_softmax(scores, keep)
    drops = c["dropout"] != "none" and c["by"] == "the layer's own"
    if case.variant == "dropout" and drops:
        sharded = c["dropout"] == "of the heads"
        weights = _tracker(case, rank).dropout(weights, 0.5, "attention", sharded=sharded)
    mixed = weights @ v
    if c["merge"] == "a reshape":
        return mixed.reshape(B, S, own * D)
    to = "b s (heads d)" if c["merge"] == "heads outermost" else "b s (d heads)"
    return rearrange(mixed, f"b heads s d -> {to}")


def _foresee(case: Case, c: Choices) -> Foreseen:
    given, upstream = _given(case)
    made = dict(zip(given, leaves(*given.values()), strict=True))
    tape = Tape()
    x = crossing(made["x"], case, c["front"], tape)
    if c["qkv"] == "with f":
        x = crossing(x, case, "f", tape)
    y = [F.linear(a, w.flatten(0, 1), b.flatten()) for a, w, b in
         zip(x, made["qkv.weight"], made["qkv.bias"], strict=True)]  # fmt: skip
    y = [_mixed(t, case, c, rank) for rank, t in enumerate(y)]
    y = crossing(y, case, c["between"], tape)
    if c["out"] != "left out":
        y = [F.linear(a, w) for a, w in zip(y, made["out.weight"], strict=True)]
        early, late = c["out"] == "bias before g", c["out"] in ("with g", "without g")
        bias = made["out.bias"]
        y = [a + b for a, b in zip(y, bias, strict=True)] if early else y
        y = y if c["out"] == "without g" else crossing(y, case, "g", tape)
        y = [a + b for a, b in zip(y, bias, strict=True)] if late else y
    y = crossing(y, case, c["behind"], tape)
    y = [t / case.n for t in y] if c["divided"] == "by the ranks" else y
    if c["residual"] == "added":
        y = [a + b for a, b in zip(y, made["x"], strict=True)]
    return there_and_back(y, upstream, made, tape)


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    given, upstream = _given(case)
    drops = case.variant == "dropout"
    config = GPTConfig(9, S, hidden_size=H, num_layers=1, num_heads=HEADS, dropout=0.5 * drops)
    layer = ParallelAttention(
        config,
        group=group,
        rng=_tracker(case, rank) if drops else None,
        causal="not causal" not in case.variant,
    ).to(case.dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(given[name][rank])
    x = given["x"][rank].clone().requires_grad_()
    forward = types.MethodType(functions[0], layer)
    mask = REAL.clone() if "padding" in case.variant else None
    kept = {} if mask is None else {"padding_mask": mask}
    inputs = {"x": x, **dict(layer.named_parameters())}
    return watch(
        lambda: forward(x) if mask is None else forward(x, mask),
        inputs,
        upstream[rank],
        tap,
        kept=kept,
    )


ATTENTION = Probe(
    cases=CASES,
    observe=_observe,
    foresee=_foresee,
    axes={
        "split": ("Q, K, V outermost", "heads outermost", "Q, K, V innermost", "heads innermost",
                  "width outermost", "a reshape"),
        "order": ("qkv", "kqv", "vkq", "qvk", "kvq", "vqk"),
        "merge": ("heads outermost", "heads innermost", "a reshape"),
        "causal": ("as asked", "always", "never", "not under padding", "the future"),
        "padding": ("keys", "not hidden", "the real ones", "queries", "turned with the mask"),
        "scale": ("root of d", "none", "d", "root of all heads' width"),
        "dropout": ("of the heads", "none", "replicated"),
        "by": ("the layer's own", "SDPA alone", "SDPA alone, always causal"),
        "divided": ("by nothing", "by the ranks"),
        "front": ("nothing", "f", "g", "cut off"),
        "qkv": ("with f", "without f"),
        "between": ("nothing", "f", "g", "mean", "max"),
        "out": ("with g", "left out", "without g", "bias before g", "without bias"),
        "behind": ("nothing", "g", "f", "all-reduce both ways"),
        "residual": ("none", "added"),
    },
    scene=lambda case: scene(*_given(case)),
)  # fmt: skip
