"""Probe of the loss and gradients of a global batch, whose ranks have unequal numbers of tokens."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn

from step01_single_gpu.loss import reduce_losses

from ..journal import WORLD
from ..sim import Tape, follow
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Odd, Probe, Seen, describe, integers
from .step05 import DESERTED, MET, watched

WORDS, TOKENS, IGNORED = 3, 4, -100
EMPTY = Case("all", torch.float64, 4, "a rank without micro-batches")
INVALID = Case("pairs", torch.float64, 5, "no valid token")
MicroBatches = list[tuple[Tensor, Tensor]]


class Table(nn.Module):
    """A model whose loss is done by hand: a token costs its word's weight times its target."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
        divisor: float | Tensor | None = None,
    ) -> Tensor:
        """Step 1's contract."""
        valid = targets != ignore_index
        losses = self.weight[tokens] * targets.masked_fill(~valid, 0)
        return reduce_losses(losses, valid, reduction, divisor)


@functools.cache
def micro_batches(case: Case) -> list[MicroBatches]:
    """Each rank's: two of [1, 4] tokens, of which one to four are valid."""
    out = []
    for rank in range(WORLD):
        generator = torch.Generator().manual_seed(100 * case.seed + rank)
        made: MicroBatches = []
        for index in range(2):
            tokens = torch.randint(WORDS, (1, TOKENS), generator=generator)
            targets = torch.randint(1, 6, (1, TOKENS), generator=generator)
            valid = 0 if case == INVALID else 1 + (2 * rank + 3 * index + case.seed) % TOKENS
            targets[0, valid:] = IGNORED
            made.append((tokens, targets))
        out.append([] if case == EMPTY and case.shape.group(rank).index(rank) == 1 else made)
    return out


def _weights(case: Case) -> list[Tensor]:
    return integers(case, "weight", WORDS, same=True)


def _sums(weight: Tensor, batches: MicroBatches) -> list[tuple[Tensor, Tensor, int]]:
    """Of each micro-batch: the sum of losses, its gradient, how many tokens are valid."""
    found = []
    for tokens, targets in batches:
        valid = targets != IGNORED
        gradient = torch.zeros(WORDS, dtype=torch.float64)
        gradient.index_add_(0, tokens[valid], targets[valid].double())
        found.append(((weight.double() * gradient).sum(), gradient, int(valid.sum())))
    return found


@functools.cache
def _all_sums(case: Case) -> list[list[tuple[Tensor, Tensor, int]]]:
    pairs = zip(_weights(case), micro_batches(case), strict=True)
    return [_sums(weight, batches) for weight, batches in pairs]


def _divisor(choice: str, counts: list[list[int]], case: Case, rank: int, index: int) -> float:
    """What micro-batch `index` of `rank` divides by; counts[rank][index] are valid tokens."""
    group, mine = case.shape.group(rank), counts[rank]
    whole, n, m = sum(sum(counts[r]) for r in group), case.n, len(mine)
    alike = sum(counts[r][index] for r in group if len(counts[r]) > index)
    tokens = TOKENS * sum(len(counts[r]) for r in group)
    return {
        "count / n": whole / n,
        "count": whole,
        "count times n": whole * n,
        "own count": sum(mine),
        "own count times n": sum(mine) * n,
        "own count / n": sum(mine) / n,
        "own of each micro-batch": mine[index],
        "own of each micro-batch, averaged": mine[index] * m,
        "count of each micro-batch / n": alike / n,
        "count of each micro-batch / n, averaged": alike / n * m,
        "all tokens / n": tokens / n,
        "all tokens": tokens,
        "own tokens": TOKENS * m,
        "world's count / n": sum(map(sum, counts)) / n,
        "world's count / n, if there is a group": (sum(map(sum, counts)) if n > 1 else whole) / n,
        "nothing": 1,
    }[choice]


LOSS_RULES = {"of all ranks": "mean", "of all ranks, not divided": "sum", "own / n": "own/n",
              "the last micro-batch's": "mean"}  # fmt: skip


def _mean(case: Case, c: Choices) -> Foreseen:
    tape, sums = Tape(), _all_sums(case)
    counts = [[count for _, _, count in row] for row in sums]
    grads, losses = [], []
    for rank, row in enumerate(sums):
        gradient, loss = torch.zeros(WORDS, dtype=torch.float64), torch.zeros(()).double()
        places = list(range(len(row)))
        kept = {"the last": places[-1:], "the first": places[:1]}
        for index in kept.get(c["micro-batches"], places):
            divisor = _divisor(c["divisor"], counts, case, rank, index) or 1.0
            one = row[index][0] / divisor
            loss = one if c["loss"].endswith("last micro-batch's") else loss + one
            cleared = c["micro-batches"] == "the last, in the gradients" and index != places[-1]
            if c["backward"] != "left out" and not cleared:
                gradient = gradient + row[index][1] / divisor
        grads.append(gradient)
        losses.append(loss)
    grads = _rule(c["average"], grads, case, tape)
    losses = _rule(LOSS_RULES.get(c["loss"], "own"), losses, case, tape)
    if not c["divisor"].startswith("own") and c["divisor"] != "nothing" and case.n > 1:
        tape.numel["forward"] += 1
    lockstep = c["divisor"].startswith("count of each") or c["average"].startswith("after each")
    values: list[dict[str, Any]] = []
    for gradient, loss in zip(grads, losses, strict=True):
        result = None if c["loss"] == "nothing" else loss.float()
        row_ = {"collectives": MET, "loss": result, "grad of weight": gradient.float()}
        values.append({"collectives": DESERTED} if lockstep and case == EMPTY else row_)
    return Foreseen(values, tape.numel)


def _rule(rule: str, xs: list[Tensor], case: Case, tape: Tape) -> list[Tensor]:
    if rule == "mean, divided again":
        return [x / case.n for x in _rule("mean", xs, case, tape)]
    if rule == "after each micro-batch":
        tape.add("forward", rule, torch.cat([xs[0], xs[0]]), case.shape)
        return follow("mean", xs, case.shape)
    tape.add("forward", rule, xs[0], case.shape)
    return follow(rule, xs, case.shape)


def _observe_mean(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    model, batches = Table(_weights(case)[rank]), micro_batches(case)[rank]
    given = copy.deepcopy(batches)
    flat = {f"{kind} of micro-batch {i}": t for i, pair in enumerate(given)
            for kind, t in zip(("tokens", "targets"), pair, strict=True)}  # fmt: skip

    def left(result: Any) -> dict[str, Any]:
        """In float32: a quotient of two counts, taken by torch, is no more exact."""
        grad, number = model.weight.grad, result
        if isinstance(result, int | float) or (isinstance(result, Tensor) and result.numel() == 1):
            number = torch.tensor(float(result))
        elif result is not None:
            number = Odd(describe(result))
        return {"loss": number, "grad of weight": None if grad is None else grad.detach().float()}

    return watched(lambda: functions[0](model, given, group), tap, kept=flat, values=left)


def _scene(case: Case) -> dict[str, list[Tensor]]:
    """The micro-batches of a rank below one another."""
    made = micro_batches(case)
    tokens, targets = ([torch.cat([b[i] for b in batches]) for batches in made] for i in (0, 1))
    return {"weight": _weights(case), "tokens": tokens, "targets (-100: ignored)": targets}


MEAN = Probe(
    cases=(*MAIN, EMPTY, INVALID),
    observe=_observe_mean,
    foresee=_mean,
    scene=_scene,
    axes={
        "divisor": ("count / n", "count", "count times n", "own count", "own count times n",
                    "own count / n",
                    "own of each micro-batch", "own of each micro-batch, averaged",
                    "count of each micro-batch / n", "count of each micro-batch / n, averaged",
                    "all tokens / n", "all tokens", "own tokens", "world's count / n",
                    "world's count / n, if there is a group", "nothing"),
        "average": ("mean", "own", "sum", "mean, divided again", "after each micro-batch"),
        "micro-batches": ("all", "the last", "the first", "the last, in the gradients"),
        "backward": ("each", "left out"),
        "loss": ("of all ranks", "of all ranks, not divided", "own", "own / n",
                 "the last micro-batch's", "own last micro-batch's", "nothing"),
    },
)  # fmt: skip
