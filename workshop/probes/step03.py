"""The probe of cutting the fused Q/K/V weight."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..journal import WORLD
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Odd, Probe, Seen, describe, integers

HIDDEN = 8
SHAPES = {"weight": (3, HIDDEN, HIDDEN), "bias": (3, HIDDEN)}


def _parts(case: Case, c: Choices) -> Foreseen:
    values: list[dict[str, Any]] = []
    for rank in range(WORLD):
        group = case.shape.group(rank)
        n = len(group)
        place = {"group": group.index(rank), "first": 0, "reversed": n - 1 - group.index(rank)}[
            c["who"]
        ]
        row = {}
        for name, shape in SHAPES.items():
            full = integers(case, name, *shape, same=True)[rank]
            row[name] = _cut(full, place, n, c["how"])
        values.append(row)
    return Foreseen(values)


def _cut(full: Tensor, place: int, n: int, how: str) -> Tensor:
    if how == "inside each":
        return full.chunk(n, 1)[place]
    if how == "inside each, joined":
        return full.chunk(n, 1)[place].flatten(0, 1)
    if how in ("stacked", "stacked, shaped back"):
        part = full.flatten(0, 1).chunk(n, 0)[place]
        return part.reshape(3, HIDDEN // n, *full.shape[2:]) if how.endswith("back") else part
    if how == "along the last dimension":
        return full.chunk(n, -1)[place]
    if how == "every nth":
        return full[:, place::n]
    return full


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    (cut_qkv,) = functions
    seen = Seen(sent=tap.sent)
    for name, shape in SHAPES.items():
        full = integers(case, name, *shape, same=True)[rank]
        before, part = full.clone(), cut_qkv(full, group)
        if not isinstance(part, Tensor):
            seen.values[name] = Odd(describe(part))
            continue
        seen.values[name] = part.detach().clone()
        if part.untyped_storage().data_ptr() == full.untyped_storage().data_ptr():
            seen.flags["shares memory"] = name
        elif not part.is_contiguous():
            seen.flags["not contiguous"] = name
        if not before.equal(full):
            seen.flags["input changed"] = "full"
    return seen


CUT_QKV = Probe(
    cases=MAIN,
    observe=_observe,
    foresee=_parts,
    axes={
        "how": ("inside each", "stacked", "stacked, shaped back", "along the last dimension",
                "every nth", "whole", "inside each, joined"),
        "who": ("group", "first", "reversed"),
    },
    scene=lambda case: {n: integers(case, n, *s, same=True) for n, s in SHAPES.items()},
)  # fmt: skip
