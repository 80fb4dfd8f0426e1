"""Probes of the padded vocabulary and of the embedding that is spread over the ranks."""

from __future__ import annotations

import math
import types
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from step04_embeddings_loss.embedding import VocabParallelEmbedding

from ..journal import WORLD
from ..sim import Ranks, Tape, gradients
from ..wiretap import Wiretap
from .common import (
    MAIN,
    Case,
    Choices,
    Foreseen,
    Odd,
    Probe,
    Seen,
    describe,
    integers,
    leaves,
    note_refusal,
    watch,
)
from .step02_layers import crossing, scene

SIZES = ((50257, 8, 128), (51, 4, 1), (51, 2, 8), (48, 4, 4), (7, 1, 5), (1000, 3, 10), (64, 4, 16))
ALONE = (Case("alone", torch.float64, 1), Case("alone", torch.float64, 2))


def _padded(case: Case, c: Choices) -> Foreseen:
    row: dict[str, Any] = {
        f"padded_vocab_size({v}, {n}, {m})": _size(v, n, m, c) for v, n, m in SIZES
    }
    row["padded_vocab_size(50257, 8)"] = _size(50257, 8, 128, c)
    return Foreseen([row] * WORLD)


def _size(v: int, n: int, m: int, c: Choices) -> int:
    unit = {
        "of a rank": m * n,
        "of the whole": m,
        "ranks alone": n,
        "power of two": 1,
        "the larger": max(m, n),
        "least common multiple": math.lcm(m, n),
    }[c["unit"]]
    size = {"up": -(-v // unit), "down": v // unit, "always one more": v // unit + 1,
            "nearest": round(v / unit)}[c["rounding"]] * unit  # fmt: skip
    if c["unit"] == "power of two":
        size = 1 << (v - 1).bit_length()
    return {"size": size, "size of a rank": size // n, "padding alone": size - v,
            "number of units": size // unit}[c["returns"]]  # fmt: skip


def _observe_padded(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    (padded,) = functions
    seen = Seen(sent=tap.sent)
    for v, n, m in SIZES:
        seen.values[f"padded_vocab_size({v}, {n}, {m})"] = _number(padded(v, n, m))
    seen.values["padded_vocab_size(50257, 8)"] = _number(padded(50257, 8))
    for bad in ((0, 1, 1), (5, 0, 1), (5, 1, -2)):
        note_refusal(seen, partial(padded, *bad), f"vocab_size, tp_size, multiple = {bad}")
    return seen


def _number(value: Any) -> Any:
    return value if type(value) is int else Odd(describe(value))


PADDED = Probe(
    cases=ALONE,
    observe=_observe_padded,
    foresee=_padded,
    axes={
        "unit": (
            "of a rank",
            "of the whole",
            "ranks alone",
            "power of two",
            "the larger",
            "least common multiple",
        ),
        "rounding": ("up", "down", "always one more", "nearest"),
        "returns": ("size", "size of a rank", "padding alone", "number of units"),
    },
)

H = 2
VOCAB = {4: 11, 2: 7, 1: 5}  # true words; the last rank has padding where they don't divide


def _embedding(case: Case, c: Choices) -> tuple[dict[str, Ranks], Ranks, Foreseen]:
    n, v = case.n, VOCAB[case.n]
    width = -(-v // n)
    weights, ids = integers(case, "weight", width, H), []
    upstream = integers(case, "upstream", 2, 5, H, same=True)
    for rank in range(WORLD):
        key = case.shape.group(rank)[0]
        generator = torch.Generator().manual_seed(100 * case.seed + key)
        drawn = torch.randint(v, (10,), generator=generator)
        drawn[0], drawn[1], drawn[2], drawn[3] = 0, v - 1, width - 1, min(width, v - 1)
        ids.append(drawn.view(2, 5))
        group = case.shape.group(rank)
        first = min(group.index(rank) * width, v)
        weights[rank][min(width, v - first) :] = 0
    (ws,) = leaves(weights)
    tape, y = Tape(), []
    for rank in range(WORLD):
        place = case.shape.group(rank).index(rank)
        first, count = min(place * width, v), min(width, v - min(place * width, v))
        if c["offset"] == "forgotten":
            first = 0
        elif c["offset"] == "one too far":
            first += 1
        own = (ids[rank] >= first) & (ids[rank] < first + count)
        if c["range"] == "one row too many":
            own = (ids[rank] >= first) & (ids[rank] <= first + count)
        shifted = ids[rank] - (0 if c["offset"] == "forgotten in the row" else first)
        column = {"zero": shifted.masked_fill(~own, 0), "clamped": shifted.clamp(0, width - 1),
                  "wrapped": shifted % width}[c["stand-in"]].clamp(0, width - 1)  # fmt: skip
        rows = F.embedding(column, ws[rank])
        if c["others"] != "left as they are":
            rows = rows.masked_fill((own == (c["others"] == "kept alone")).unsqueeze(-1), 0.0)
        y.append(rows)
    y = crossing(y, case, c["sum"], tape)
    grads = gradients(y, upstream, {"weight": ws})
    values: list[dict[str, Any]] = [
        {"output": t.detach(), "grad of weight": grad["weight"]}
        for t, grad in zip(y, grads, strict=True)
    ]
    return {"ids": ids, "weight": weights}, upstream, Foreseen(values, tape.numel)


def _observe_embedding(
    functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap
) -> Seen:
    given, upstream, _ = _embedding(case, RIGHT)
    layer = VocabParallelEmbedding(VOCAB[case.n], H, group=group).to(case.dtype)
    with torch.no_grad():
        layer.weight.copy_(given["weight"][rank])
    forward, ids = types.MethodType(functions[0], layer), given["ids"][rank]
    seen = watch(
        lambda: forward(ids), {"weight": layer.weight}, upstream[rank], tap, kept={"ids": ids}
    )
    alone = types.MethodType(functions[0], VocabParallelEmbedding(VOCAB[case.n], H))
    for bad in (-1, VOCAB[case.n]):
        try:
            alone(torch.tensor([[0, bad]]))
        except (ValueError, IndexError):
            continue
        seen.flags.setdefault("no complaint", f"id {bad} of {VOCAB[case.n]} words")
    return seen


EMBEDDING = Probe(
    cases=MAIN,
    observe=_observe_embedding,
    foresee=lambda case, c: _embedding(case, c)[2],
    axes={
        "sum": ("g", "nothing", "f", "all-reduce both ways", "mean", "max", "g over all ranks",
                "g over any group's world", "g twice", "g of rank 0", "g, cut off", "g / n"),
        "offset": ("first word", "forgotten", "one too far", "forgotten in the row"),
        "others": ("zero", "left as they are", "kept alone"),
        "stand-in": ("zero", "clamped", "wrapped"),
        "range": ("own words", "one row too many"),
    },
    scene=lambda case: scene(*_embedding(case, RIGHT)[:2]),
)  # fmt: skip
RIGHT: dict[str, str] = {axis: choices[0] for axis, choices in EMBEDDING.axes.items()}
