"""The probe of the loss over the tokens that count: a table of logits, four reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..wiretap import Wiretap
from .common import Case, Choices, Probe, Seen, complains, imagined, watch

B, S, V = 2, 4, 5
IGNORED = {2: 3}  # case 2 ignores a class that exists, the others -100
PLAIN = (Case("alone", torch.float64, 1), Case("alone", torch.float32, 2))
CORNERS = (
    Case("alone", torch.float64, 3, "logits in thousands"),
    Case("alone", torch.float16, 4, "float16"),
    Case("alone", torch.float64, 5, "no valid token"),
)
SETTINGS: dict[str, dict[str, Any]] = {
    'reduction="none"': {"reduction": "none"},
    'reduction="sum"': {"reduction": "sum"},
    'reduction="sum", divisor=8': {"reduction": "sum", "divisor": 8.0},
    "the mean": {},
}


def _given(case: Case) -> tuple[Tensor, Tensor, int]:
    generator = torch.Generator().manual_seed(case.seed)
    logits = torch.randint(-3, 4, (B, S, V), generator=generator).to(case.dtype)
    if case.variant == "logits in thousands":
        logits = 1500 * logits
    if case.variant == "float16":
        logits = logits / 8 + 6  # Σ exp is beyond what float16 has digits for
    ignore = IGNORED.get(case.seed, -100)
    targets = torch.randint(0, 3, (B, S), generator=generator)
    targets[0, 1], targets[0, 2], targets[1, 3], targets[1, 0] = 4, ignore, ignore, 0
    targets[0, 3] = ignore
    if case.variant == "no valid token":
        targets = torch.full_like(targets, ignore)
    return logits, targets, ignore


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    logits, targets, ignore = _given(case)
    extra = {} if ignore == -100 else {"ignore_index": ignore}
    seen = Seen(sent=tap.sent)
    wide = torch.float32 if case.dtype == torch.float16 else case.dtype
    for name, setting in SETTINGS.items():
        leaf = logits.clone().requires_grad_()
        above = torch.arange(1.0, B * S + 1).view(B, S) if "none" in name else torch.tensor(2.0)
        one = watch(
            partial(functions[0], leaf, targets, **setting, **extra),
            {"logits": leaf},
            above.to(wide),
            tap,
            kept={"targets": targets},
        )
        seen.values |= {f"{key} ({name})": value for key, value in one.values.items()}
        seen.flags |= {
            k: v for k, v in one.flags.items() if k != "detached" or targets.ne(ignore).any()
        }
    if case.seed == 1:
        for bad in (V, -1):
            wrong = targets.clone()
            wrong[1, 2] = bad
            if not complains(partial(functions[0], logits, wrong)):
                seen.flags["no complaint"] = f"target {bad} of {V} words"
    return seen


def _stand_in(c: Choices) -> Callable[..., Tensor]:
    def cross_entropy(
        logits: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        divisor: Any = None,
    ) -> Tensor:
        if c["shift"] == "once more":
            logits, targets = logits[:, :-1], targets[:, 1:]
        wide = logits.float() if logits.dtype == torch.float16 else logits
        ignored = -100 if c["ignored"] == "-100 alone" else ignore_index
        counts = targets.long() != ignored
        if c["ignored"] == "class 0 too":
            counts = counts & (targets != 0)
        own_class = c["ignored"].startswith("their class's")
        column = targets.long() if own_class else targets.long().masked_fill(~counts, 0)
        column = column.clamp(min=0)
        wide, log_sum = _normalised(wide, c, ignore_index)
        picked = wide.gather(-1, column.unsqueeze(-1)).squeeze(-1)
        losses = {
            "logit and sum": log_sum - picked,
            "logit alone": -picked,
            "sum alone": log_sum,
            "log p": picked - log_sum,
            "p": -(picked - log_sum).exp(),
            "1 - p": 1 - (picked - log_sum).exp(),
            "largest not put back": log_sum - wide.amax(-1) - picked,
            "base 2": (log_sum - picked) / math.log(2),
        }[c["of a token"]]
        if "loss" not in c["ignored"]:
            losses = losses.masked_fill(~counts, 0.0)
        elif "valid" not in c["ignored"]:
            counts = torch.ones_like(counts)
        return _reduced(losses, counts, reduction, divisor, c)

    return cross_entropy


def _normalised(wide: Tensor, c: Choices, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(logits, log of the sum of their exponentials), over what the choice has it."""
    if c["softmax"] == "over positions":
        return wide.log_softmax(-2), torch.zeros_like(wide[..., 0])
    if c["softmax"] == "twice":
        wide = wide.softmax(-1)
    if c["softmax"] == "without the ignored class" and 0 <= ignore_index < V:
        hidden = torch.arange(V) == ignore_index
        return wide, wide.masked_fill(hidden, -math.inf).logsumexp(-1)
    return wide, wide.logsumexp(-1)


def _reduced(losses: Tensor, counts: Tensor, reduction: str, divisor: Any, c: Choices) -> Tensor:
    valid = counts.sum().clamp(min=0 if c["none valid"] == "NaN" else 1)
    reduction = {"as asked": reduction, "always the mean": "mean", "always the sum": "sum"}[
        c["reduction"]
    ]
    if reduction == "none":
        mean = losses.sum() / valid
        return {"as targets": losses, "flattened": losses.flatten(), "their sum": losses.sum(),
                "valid ones alone": losses[counts], "their mean": mean}[c["none"]]  # fmt: skip
    if reduction == "mean":
        if c["mean"] == "of the sequences' means":
            return (losses.sum(-1) / counts.sum(-1).clamp(min=1)).mean()
        by: dict[str, Any] = {
            "over valid": valid, "over all": losses.numel(), "over b": B, "over s": S,
            "not divided": 1, "one more": counts.sum() + 1,
        }  # fmt: skip
        found: Tensor = losses.sum() / by[c["mean"]]
        return found
    total = losses.sum()
    if c["sum"] == "the mean":
        total = total / valid
    if divisor is None or c["divisor"] == "not used":
        return total
    if c["divisor"] == "of the mean":
        total = total / valid
    scaled: Tensor = total * divisor if c["divisor"] == "multiplied" else total / divisor
    return scaled


LOSS = Probe(
    cases=(*PLAIN, *CORNERS),
    observe=_observe,
    foresee=lambda case, c: imagined(_observe, [_stand_in(c)], case),
    axes={
        "of a token": ("logit and sum", "logit alone", "sum alone", "log p", "p", "1 - p", "base 2",
                       "largest not put back"),
        "ignored": ("have none", "class 0's loss", "class 0's loss, mean over valid",
                    "their class's loss", "their class's loss, mean over valid", "-100 alone",
                    "class 0 too"),
        "softmax": ("over words", "over positions", "twice", "without the ignored class"),
        "mean": ("over valid", "over all", "over b", "over s", "not divided", "one more",
                 "of the sequences' means"),
        "none": ("as targets", "flattened", "valid ones alone", "their sum", "their mean"),
        "sum": ("as it is", "the mean"),
        "divisor": ("divides", "not used", "of the mean", "multiplied"),
        "reduction": ("as asked", "always the mean", "always the sum"),
        "none valid": ("zero", "NaN"),
        "shift": ("as given", "once more"),
    },
)  # fmt: skip
