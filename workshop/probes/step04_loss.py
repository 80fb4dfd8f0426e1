"""Probes of the loss over spread logits: each rank's statistics, combining them, the gradient.

Each function is given what the real others make of it, so a mistake shows where it is. Padded
columns hold a large number, which must count for nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from step04_embeddings_loss.cross_entropy import Combined, Terms, rank_statistics
from step04_embeddings_loss.vocab import Words

from ..journal import WORLD
from ..sim import Ranks, follow
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Odd, Probe, Seen, describe
from .lazy import Lazy, one_of

LARGE = Case("pairs", torch.float64, 4, "logits in thousands")
SMOOTH = Case("pairs", torch.float64, 5, "label smoothing")
SMOOTH_4 = Case("all", torch.float64, 6, "label smoothing")
EMPTY = Case("all", torch.float64, 7, "a rank without words")
LOW = Case("pairs", torch.float64, 8, "a rank with -inf alone")
CASES = (*MAIN, LARGE, SMOOTH, SMOOTH_4, EMPTY, LOW)
TOKENS, GARBAGE = 6, 20.0
SIZES = {4: (11, 3), 2: (7, 4), 1: (5, 6)}  # ranks -> words, columns of a rank
FIELDS = ("largest", "sums", "at_target", "total", "weight")


@functools.cache
def given(case: Case) -> tuple[Ranks, Ranks, list[Terms]]:
    """Logits and targets of each rank, and its terms (without a group). Not to be written into."""
    v, width = SIZES[case.n]
    v = 9 if case.variant == "a rank without words" else v
    smooth = 0.25 if case.variant == "label smoothing" else 0.0
    logits, targets, terms = [], [], []
    for rank in range(WORLD):
        group = case.shape.group(rank)
        generator = torch.Generator().manual_seed(100 * case.seed + group[0])
        whole = torch.randint(-4, 5, (TOKENS, case.n * width), generator=generator).to(case.dtype)
        if case.variant == "logits in thousands":
            whole *= 1000
        whole[:, v:] = GARBAGE
        target = torch.randint(v, (TOKENS,), generator=generator)
        target[0], target[1], target[2], target[3] = 0, v - 1, width - 1, min(width, v - 1)
        place = group.index(rank)
        part = whole[:, place * width : (place + 1) * width].clone()
        first = min(place * width, v)
        count = min(width, v - first)
        if case.variant == "a rank with -inf alone" and place == 1:
            part[:2, :count] = -torch.inf
        logits.append(part)
        targets.append(target)
        terms.append(Terms(Words(v, first, count), None, smooth))
    return logits, targets, terms


@functools.cache
def real_statistics(case: Case) -> tuple[Ranks, Ranks]:
    """(exponentials, statistics) of each rank, by the real function."""
    logits, targets, terms = given(case)
    logits = [x.clone() for x in logits]
    made = [rank_statistics(*three) for three in zip(logits, targets, terms, strict=True)]
    return logits, made


def _first(case: Case, c: Choices) -> list[dict[str, Any]]:
    """What each rank's statistics would be."""
    rows = []
    for x, target, terms in zip(*given(case), strict=True):
        words = terms.words
        own = x[:, : words.count]
        lowest = torch.finfo(x.dtype).min
        seen = x if c["largest"] == "padding too" else own
        top = seen.amax(1) if seen.size(1) else x.new_full((TOKENS,), lowest)
        top = {"own words": top, "padding too": top, "nothing": torch.zeros_like(top),
               "mean": seen.mean(1) if seen.size(1) else top}[c["largest"]]  # fmt: skip
        top = top.clamp(min=lowest)
        low = x - top.unsqueeze(1)
        powers = low.exp()
        if c["padding"] != "left":
            powers[:, words.count :] = 0.0
        total = {"of exponentials": powers.sum(1), "its log": powers.sum(1).log(),
                 "of logits": low[:, : words.count].sum(1),
                 "largest": powers.amax(1),
                 "mean": powers.sum(1) / max(words.count, 1)}[c["sum"]]  # fmt: skip
        column = words.column(target)
        if c["target"] in ("not counted from the first word", "raw column"):
            column = target.clamp(max=x.size(1) - 1)
        source = {"not shifted": x, "exponential": powers}.get(c["target"], low)
        at = source.gather(1, column.unsqueeze(1)).squeeze(1)
        has = words.has(target)
        if c["target"] == "not counted from the first word":
            has = target < x.size(1)
        if c["others"] == "zero":
            at = at.masked_fill(~has, 0.0)
        elif c["others"] == "-largest":
            at = torch.where(has, at, -top)
        stack = [top, total, at]
        if terms.label_smoothing and c["fourth"] != "left out":
            stack.append({"own words": low[:, : words.count].sum(1), "padding too": low.sum(1),
                          "not shifted": own.sum(1), "exponentials": powers.sum(1),
                          "mean": low[:, : words.count].mean(1)}[c["fourth"]])  # fmt: skip
        if c["padding"] == "left in the buffer":
            powers = low.exp()
        buffer = {"exponentials": powers, "left alone": x, "shifted": low}[c["buffer"]]
        rows.append({"statistics": torch.stack(stack), "the buffer of the logits": buffer})
    return rows


def _second(case: Case, c: Choices) -> list[dict[str, Any]]:
    """What each rank would make of all ranks' statistics."""
    _, targets, terms = given(case)
    _, stats = real_statistics(case)
    tops = [s[0] for s in stats]
    rule = c["maximum"]
    largest = [torch.stack(tops).amax(0)] * WORLD if rule == "max of all ranks" else (
        [t if case.layout == "alone" else torch.stack(tops).amax(0) for t in tops]
        if rule == "max of any group's world" else follow(rule, tops, case.shape)
    )  # fmt: skip
    parts, weights = [], []
    for rank, own in enumerate(stats):
        shift = own[0] - largest[rank]
        shift = shift if c["shift"] == "own - largest" else -shift
        words, has = terms[rank].words, terms[rank].words.has(targets[rank])
        power = {"own - largest": shift.exp(), "left out": torch.ones_like(shift),
                 "the wrong way": (-shift).exp(), "not exp": shift}[c["sums' shift"]]  # fmt: skip
        at = {"where it is": shift.masked_fill(~has, 0.0), "on every rank": shift,
              "left out": torch.zeros_like(shift),
              "the wrong way": -shift.masked_fill(~has, 0.0)}[c["target's shift"]]  # fmt: skip
        rows = [own[1] * power, own[2] + at]
        if terms[rank].label_smoothing:
            times = {"a word": words.count, "once": 1, "left out": 0,
                     "a column": SIZES[case.n][1]}[c["fourth's shift"]]  # fmt: skip
            rows.append(own[3] + times * shift)
        parts.append(torch.stack(rows))
        weight = {"exp": shift.exp(), "one": torch.ones_like(shift), "not exp": shift,
                  "inverse": (-shift).exp()}[c["weight"]]  # fmt: skip
        weights.append(weight)
    sums = follow(c["added"], parts, case.shape)
    sums = [torch.stack([a[0], b[1], *a[2:]]) if c["added to"] == "sums alone" else a
            for a, b in zip(sums, parts, strict=True)]  # fmt: skip
    sums = [torch.stack([b[0], *a[1:]]) if c["added to"] == "targets alone" else a
            for a, b in zip(sums, parts, strict=True)]  # fmt: skip
    found = []
    for rank in range(WORLD):
        row = dict(zip(FIELDS, (largest[rank], sums[rank][0], sums[rank][1], None, weights[rank]),
                       strict=True))  # fmt: skip
        if terms[rank].label_smoothing:
            row["total"] = sums[rank][2]
        found.append(row)
    return found


def _foresee(case: Case, c: Choices) -> Foreseen:
    second = functools.cache(lambda: _second(case, c))
    values: list[dict[str, Any]] = [
        Lazy(row, list(FIELDS), functools.partial(one_of, second, rank))
        for rank, row in enumerate(_first(case, c))
    ]
    rows = 4 if case.variant == "label smoothing" else 3
    silent = c["maximum"] == "own" and c["added"] == "own"
    alone = case.layout == "alone" and "world" not in (c["added"], c["maximum"])
    alone = alone and c["maximum"] != "max of all ranks"
    sent = 0 if silent or alone else rows * TOKENS
    return Foreseen(values, {"forward": sent, "backward": 0})


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    statistics, combine = functions
    seen = Seen(sent=tap.sent)
    logits, targets, terms = given(case)
    mine, target = terms[rank]._replace(group=group), targets[rank]
    buffer, ids = logits[rank].clone(), target.clone()
    got = statistics(buffer, ids, mine)
    good = isinstance(got, Tensor)
    seen.values["statistics"] = got.detach().clone() if good else Odd(describe(got))
    seen.values["the buffer of the logits"] = buffer.detach().clone()
    own = real_statistics(case)[1][rank]
    before, own = own, own.clone()
    known = combine(own, ids, mine)
    if isinstance(known, Combined):
        for name, value in zip(FIELDS, known, strict=True):
            seen.values[name] = value.detach().clone() if isinstance(value, Tensor) else value
    else:
        seen.values["largest"] = Odd(describe(known))
    if not torch.equal(own, before):
        seen.flags["input changed"] = "the rank's own statistics"
    if not torch.equal(ids, target):
        seen.flags["input changed"] = "the targets"
    return seen


STATISTICS = Probe(
    cases=CASES,
    observe=_observe,
    foresee=_foresee,
    axes={
        "largest": ("own words", "padding too", "nothing", "mean"),
        "sum": ("of exponentials", "its log", "of logits", "mean", "largest"),
        "padding": ("zero", "left", "left in the buffer"),
        "target": ("its logit - largest", "not shifted", "exponential",
                   "not counted from the first word", "raw column"),
        "others": ("zero", "as they are", "-largest"),
        "buffer": ("exponentials", "left alone", "shifted"),
        "fourth": ("own words", "padding too", "not shifted", "exponentials", "mean", "left out"),
        "maximum": ("max", "sum", "own", "mean", "first", "max of all ranks",
                    "max of any group's world"),
        "added": ("sum", "own", "mean", "twice", "max", "first", "world", "wider"),
        "added to": ("both", "sums alone", "targets alone"),
        "shift": ("own - largest", "largest - own"),
        "sums' shift": ("own - largest", "left out", "the wrong way", "not exp"),
        "target's shift": ("where it is", "on every rank", "left out", "the wrong way"),
        "fourth's shift": ("a word", "once", "left out", "a column"),
        "weight": ("exp", "one", "inverse", "not exp"),
    },
    scene=lambda case: {"logits": given(case)[0], "statistics": real_statistics(case)[1]},
)  # fmt: skip
