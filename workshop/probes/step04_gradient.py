"""The probe of the loss's backward: what each rank writes into its exponentials."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from step04_embeddings_loss.cross_entropy import Combined, Terms, rank_statistics

from ..journal import WORLD
from ..sim import Ranks, follow
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Odd, Probe, Seen, describe
from .step04_loss import TOKENS, given

SMOOTH = Case("pairs", torch.float64, 5, "label smoothing")
Z_LOSS = Case("all", torch.float64, 6, "z-loss")
EMPTY = Case("all", torch.float64, 7, "a rank without words")


@functools.cache
def _given(case: Case) -> tuple[Ranks, Ranks, list[Combined], Tensor, list[Terms]]:
    """(exponentials, targets, what is known, scale, terms) of each rank."""
    logits, targets, terms = given(case)
    if case.variant == "z-loss":
        terms = [t._replace(z_loss=0.125) for t in terms]
    logits = [x.clone() for x in logits]
    stats = [rank_statistics(*three) for three in zip(logits, targets, terms, strict=True)]
    largest = follow("max", [s[0] for s in stats], case.shape)
    shifts = [s[0] - top for s, top in zip(stats, largest, strict=True)]
    sums = follow("sum", [s[1] * t.exp() for s, t in zip(stats, shifts, strict=True)], case.shape)
    known = [Combined(top, total, total, None, shift.exp())
             for top, total, shift in zip(largest, sums, shifts, strict=True)]  # fmt: skip
    scale = torch.tensor([1.0, 2.0, -1.0, 0.0, 3.0, 0.5]).to(case.dtype)
    assert len(scale) == TOKENS
    return logits, targets, known, scale, terms


def _foresee(case: Case, c: Choices) -> Foreseen:
    values: list[dict[str, Any]] = []
    exponentials, targets, known, scale, terms = _given(case)
    for rank in range(WORLD):
        words, smooth, z = terms[rank].words, terms[rank].label_smoothing, terms[rank].z_loss
        x, target, (largest, sums, _, _, weight) = exponentials[rank], targets[rank], known[rank]
        log_sum = {"whole": largest + sums.log(), "without the largest": sums.log(),
                   "left out": torch.zeros_like(sums), "not doubled": (largest + sums.log()) / 2,
                   }[c["z-loss"]]  # fmt: skip
        one = torch.ones_like(scale)
        first = scale if c["scale"] in ("both", "softmax alone") else one
        second = scale if c["scale"] in ("both", "target alone") else one
        if c["scale"] == "twice":
            first = second = scale * scale
        if c["scale"] == "mean":
            first = second = scale / TOKENS
        share = {"of all words": weight / sums, "weight left out": 1 / sums,
                 "of own words": 1 / x.sum(1).clamp(min=1e-300), "not divided": weight,
                 "weight twice": weight * weight / sums, "divided by it": 1 / (weight * sums),
                 "of the ranks": weight / sums / case.n}[c["softmax"]]  # fmt: skip
        grad = x * (first * (1 + 2 * z * log_sum) * share).unsqueeze(1)
        width = {"true words": words.vocab_size, "own words": max(words.count, 1),
                 "columns": x.size(1) * case.n}.get(c["smoothing"], words.vocab_size)  # fmt: skip
        spread = smooth / width * {"added": -1, "left out": 0}.get(c["smoothing"], 1)
        to = x.size(1) if c["smoothing"] == "padding too" else words.count
        grad[:, :to] -= (second * spread).unsqueeze(1)
        size = 1.0 if c["one"] == "whole" else 1.0 - smooth
        has, column = words.has(target), words.column(target)
        if c["target"] == "raw column":
            column = target.clamp(max=x.size(1) - 1)
        if c["target"] == "not counted from the first word":
            has, column = target < x.size(1), target.clamp(max=x.size(1) - 1)
        by = {"added": second, "left out": 0 * second, "everywhere": -second}.get(
            c["target"], -second
        )
        by = by if c["target"] == "everywhere" else by.masked_fill(~has, 0.0)
        grad = grad.scatter_add(1, column.unsqueeze(1), (size * by).unsqueeze(1))
        values.append({"gradient": -grad if c["sign"] == "turned" else grad})
    if c["behind"] == "nothing":
        return Foreseen(values)
    summed = follow(c["behind"], [row["gradient"] for row in values], case.shape)
    sent = 0 if case.layout == "alone" else summed[0].numel()
    return Foreseen([{"gradient": grad} for grad in summed], {"forward": sent, "backward": 0})


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen = Seen(sent=tap.sent)
    exponentials, targets, known, scale, terms = _given(case)
    before = [targets[rank], scale, *known[rank][:3], known[rank].weight]
    given = [x.clone() for x in before]
    told = Combined(given[2], given[3], given[4], None, given[5])
    mine = terms[rank]._replace(group=group)
    got = functions[0](exponentials[rank].clone(), given[0], told, given[1], mine)
    good = isinstance(got, Tensor)
    seen.values["gradient"] = got.detach().clone() if good else Odd(describe(got))
    if not all(torch.equal(a, b) for a, b in zip(given, before, strict=True)):
        seen.flags["input changed"] = "targets, scale or what is known of the tokens"
    return seen


GRADIENT = Probe(
    cases=(*MAIN, SMOOTH, Z_LOSS, EMPTY),
    observe=_observe,
    foresee=_foresee,
    axes={
        "softmax": ("of all words", "weight left out", "of own words", "not divided",
                    "weight twice", "divided by it", "of the ranks"),
        "target": ("subtracted", "everywhere", "left out", "added",
                   "not counted from the first word", "raw column"),
        "scale": ("both", "softmax alone", "target alone", "not used", "mean", "twice"),
        "behind": ("nothing", "sum", "mean"),
        "sign": ("right", "turned"),
        "smoothing": ("true words", "own words", "columns", "padding too", "left out", "added"),
        "one": ("less smoothing", "whole"),
        "z-loss": ("whole", "without the largest", "left out", "not doubled"),
    },
    scene=lambda case: {"exponentials": _given(case)[0]},
)  # fmt: skip
