"""The probe of scoring a text: a toy model whose losses say what was asked of it.

Token i of the text has id i. The toy's loss of a target is its id, plus 1/64 for each token of
context, plus a trace if dropout was on: so each number that comes back tells its own story.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from step01_single_gpu.scoring import token_losses

from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Odd, Probe, Seen, complains, describe, imagined, yes

LENGTH = 4
CASES = (
    Case("alone", torch.float64, 1),
    Case("alone", torch.float64, 2),
    Case("alone", torch.float64, 3, "a text shorter than a window"),
    Case("alone", torch.float64, 4, "a single token"),
)
TOKENS = {1: 13, 2: 12, 3: 3, 4: 1}
SETTINGS = ((None, 8), (1, 3), (2, 2), (3, 8))  # stride, batch_size
DROPOUT = 1 / 4096


class _Toy(nn.Module):
    """Has what token_losses asks for: config, parameters, train and eval, loss."""

    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(seq_length=LENGTH, vocab_size=64)
        self.scale = nn.Parameter(torch.ones(()))
        self.rows: list[int] = []

    def loss(
        self, tokens: Tensor, targets: Tensor, *, ignore_index: int = -100,
        reduction: str = "mean", divisor: Any = None,
    ) -> Tensor:  # fmt: skip
        if tokens.size(-1) > LENGTH or tokens.shape != targets.shape:
            raise ValueError(f"{list(tokens.shape)} tokens, {list(targets.shape)} targets")
        self.rows.append(tokens.size(0))
        context = torch.arange(1, tokens.size(1) + 1) / 64
        losses = (targets + context + DROPOUT * self.training) * self.scale
        losses = losses.masked_fill(targets == ignore_index, 0.0)
        if reduction == "none":
            return losses
        return losses.sum() if reduction == "sum" else losses.mean()


def _look(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen, (score,) = Seen(sent=tap.sent), functions
    count = TOKENS[case.seed]
    text: Any = np.arange(count, dtype=np.uint16) if case.seed != 2 else torch.arange(count)
    for stride, batch_size in SETTINGS:
        toy, where = _Toy(), f"stride={stride}, batch_size={batch_size}"
        extra = {} if stride is None else {"stride": stride}
        got = score(toy, text, batch_size=batch_size, **extra)
        if not isinstance(got, Tensor):
            seen.values[f"losses ({where})"] = Odd(describe(got))
            continue
        told = _told(got.detach(), stride or LENGTH, count)
        seen.values |= {f"{name} ({where})": value for name, value in told.items()}
        seen.values[f"needs a gradient ({where})"] = yes(got.requires_grad)
        seen.values[f"rows at a time ({where})"] = yes(max([0, *toy.rows]) <= batch_size)
        enough = 1 + -(-(count - 1) // (stride or LENGTH))  # one or two are no matter
        more = f"{sum(toy.rows)}, where {enough} are enough"
        seen.values[f"windows ({where})"] = more if sum(toy.rows) > enough else "not too many"
        seen.values[f"the model is in training mode again ({where})"] = (
            yes(toy.training) if toy.rows else "not looked at"
        )
        if stride is None:
            quiet = _Toy().eval()
            score(quiet, text, batch_size=batch_size)
            seen.values["a model in evaluation mode stays in it"] = yes(not quiet.training)
    if case.seed == 1:
        for bad in (0, LENGTH + 1):
            if not complains(partial(score, _Toy(), text, stride=bad)):
                seen.flags["no complaint"] = f"stride {bad} for windows of {LENGTH}"
    return seen


def _told(losses: Tensor, stride: int, count: int) -> dict[str, Any]:
    """What the numbers say: whose losses they are, in what context, with or without dropout."""
    if losses.dim() != 1:
        return {"shape": str(list(losses.shape))}
    losses = losses.double()
    scored = losses.floor()
    dropout = ((losses - scored) * 64 % 1 > 0).any()
    context = ((losses - scored) * 64).floor()
    wanted = torch.arange(1.0, count, dtype=torch.float64)
    enough = torch.minimum(wanted, torch.full_like(wanted, float(LENGTH - stride + 1)))
    told: dict[str, Any] = {"shape": str(list(losses.shape)), "tokens scored": scored}
    plain = torch.equal(scored, wanted)
    told["tokens of context, up to what the stride promises"] = (
        torch.minimum(context, enough) if plain else "not looked at"
    )
    told["without dropout"] = yes(not dropout) if plain else "not looked at"
    return told


def _score(c: Choices) -> Callable[..., Any]:
    """Scores as somebody would who errs so."""

    def score(model: Any, tokens: Any, *, stride: int | None = None, batch_size: int = 8) -> Any:
        if stride is not None and not 1 <= stride <= LENGTH:
            raise ValueError("stride")
        total = len(tokens) - 1
        stride = LENGTH if stride is None or "no overlap" in c["stride"] else stride
        stride = 1 if c["stride"] == "one" else stride
        width = min(stride if c["stride"].startswith("windows") else LENGTH, total)
        ends = [*range(width, total, stride), total] if total else []
        if c["tail"] == "dropped" and len(ends) > 1 and ends[-1] - ends[-2] < stride:
            ends.pop()
        ids = torch.from_numpy(np.asarray(tokens).astype(np.int64))
        was = model.training
        if c["mode"] != "left alone":
            model.eval()
        pieces, done = [], 0
        for end, row in zip(ends, _windows(model, ids, ends, width, stride, c), strict=True):
            some = min(stride, len(row))
            last = {"new ones": end - done, "all of a window": width,
                    "all of a window, the last one shorter": len(row),
                    "stride of every window": some, "the last of every window": 1,
                    "stride of every window but the first": some if done else len(row),
                    "stride of every window but the first, the last one shorter": (
                        some if done else len(row)),
                    "the first of every window": len(row)}[c["scored"]]  # fmt: skip
            piece = row[max(0, len(row) - last) :]
            front = c["scored"] == "the first of every window"
            pieces.append(piece[: end - done] if front else piece)
            done = end
        if c["mode"] in ("eval", "eval, and always train"):
            model.train(was or c["mode"] != "eval")
        losses = torch.cat(pieces) if pieces else torch.empty(0)
        if c["first"] == "a zero in front":
            losses = torch.cat([torch.zeros(1), losses])
        losses = losses if c["gradient"] == "kept" else losses.detach()
        return {"each": losses, "mean": losses.mean(), "sum": losses.sum(), "negated": -losses,
                "exp": losses.exp(), "exp of minus": (-losses).exp()}[c["returns"]]  # fmt: skip

    return score


def _windows(
    model: _Toy, ids: Tensor, ends: list[int], width: int, stride: int, c: Choices
) -> list[Tensor]:
    """The losses of each window."""
    starts = [end - width for end in ends]
    if "shorter" in c["stride"] + c["scored"] + c["last window"] and len(ends) > 1:
        starts[-1] = starts[-2] + stride
    rows = [ids[start : end + 1] for start, end in zip(starts, ends, strict=True)]
    if c["batch"] == "all at once" and ends:
        return list(_losses(model, torch.stack(rows), c))
    return [_losses(model, row.unsqueeze(0), c)[0] for row in rows]


def _losses(model: _Toy, rows: Tensor, c: Choices) -> Tensor:
    aims = {"next": rows[:, 1:], "itself": rows[:, :-1], "rolled": rows[:, :-1].roll(-1, 1)}
    return model.loss(rows[:, :-1], aims[c["target"]], reduction="none")


def _foresee(case: Case, c: Choices) -> Foreseen:
    wrong = [axis for axis, choices in SCORING.axes.items() if c[axis] != choices[0]]
    return imagined(_look, [_score(c) if wrong else token_losses], case)


SCORING = Probe(
    cases=CASES,
    observe=_look,
    foresee=_foresee,
    facts=True,
    harmless=frozenset({"last window=shorter"}),
    axes={
        "stride": ("as asked", "no overlap", "no overlap, the last one shorter", "one",
                   "windows of the stride", "windows of the stride, the last one shorter"),
        "scored": ("new ones", "all of a window", "all of a window, the last one shorter",
                   "stride of every window",
                   "stride of every window but the first",
                   "stride of every window but the first, the last one shorter",
                   "the last of every window",
                   "the first of every window"),
        "last window": ("as long", "shorter"),
        "tail": ("scored", "dropped"),
        "target": ("next", "itself", "rolled"),
        "mode": ("eval", "left alone", "eval and left so", "eval, and always train"),
        "first": ("nothing", "a zero in front"),
        "batch": ("as asked", "all at once"),
        "gradient": ("none", "kept"),
        "returns": ("each", "mean", "sum", "negated", "exp", "exp of minus"),
    },
)  # fmt: skip
