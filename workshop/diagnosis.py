"""From what the ranks showed to what went wrong: right, or silent.

The checker foresees every value on every rank for each way of going wrong (sim.py), alone and two
together. An answer has a diagnosis only if *all* its values on *all* inputs and layouts are
foreseen by the fewest wrong choices, and no other equally small set of them, with another
message, foresees the same. Otherwise the learner sees the plain comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .probes.common import Case, Foreseen, Odd, Probe, Seen, right

Table = list[list[Seen]]  # [case][rank]


@dataclass
class Difference:
    """One value that isn't as it should be."""

    case: Case
    rank: int
    name: str
    text: str


@dataclass
class Verdict:
    """`keys`: the entries of the catalogue that explain it, none if nothing does for certain."""

    ok: bool
    differences: list[Difference] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    symptom: str = ""


def judge(probe: Probe, table: Table, message_of: Callable[[str], str]) -> Verdict:
    """`message_of(key)` says which entry a wrong choice belongs to (several may share one)."""
    expected = [probe.foresee(case, right(probe.axes)) for case in probe.cases]
    differences = _differences(probe, table, expected)
    flags = _flags(probe, table)
    if flags:
        key = flags[0][0]
        return Verdict(False, differences, (message_of(key),), flags[0][1])
    chatter = [] if probe.free_wire else _chatter(probe, table, expected)
    if not differences and not chatter:
        return Verdict(True)
    odd = _kinds(probe, table, expected)
    if odd:
        return Verdict(False, differences, (message_of(odd[0]),), odd[1])
    symptom = "" if differences else chatter[0]
    keys = _explained(probe, table, message_of)
    if not keys and any(not d.case.variant for d in differences):
        keys = _explained(*_without_corners(probe, table), message_of)
    if not keys and differences and only_alone(probe, [d.case for d in differences]):
        keys = tuple(filter(None, [message_of("alone")]))
    elif not keys and differences and all(d.case.variant for d in differences):
        keys = tuple(filter(None, [message_of(f"variant={differences[0].case.variant}")]))
    return Verdict(False, differences, keys, symptom)


def only_alone(probe: Probe, failing: list[Case]) -> bool:
    """Whether it goes wrong with group=None and nowhere else, though groups were tried too."""
    groups = any(case.layout != "alone" for case in probe.cases)
    return groups and all(case.layout == "alone" for case in failing)


def _explained(probe: Probe, table: Table, message_of: Callable[[str], str]) -> tuple[str, ...]:
    for choices in (_singles(probe), _pairs(probe)):
        by_values = [wrong for wrong in choices if _fits(probe, table, wrong)]
        fitting = [wrong for wrong in by_values if _speaks_alike(probe, table, wrong)]
        if by_values and not fitting:
            return ()  # something else is sent than such an answer sends
        entries = {tuple(sorted({message_of(f"{a}={c}") for a, c in w.items()})) for w in fitting}
        if len(entries) == 1 and all(next(iter(entries))):
            return entries.pop()
        if entries:
            return ()  # several explanations: none is certain
    return ()


def _without_corners(probe: Probe, table: Table) -> tuple[Probe, Table]:
    """What explains all plain cases explains the answer, whatever it does in a corner besides."""
    plain = [n for n, case in enumerate(probe.cases) if not case.variant]
    cases = tuple(probe.cases[n] for n in plain)
    return replace(probe, cases=cases), [table[n] for n in plain]


def _singles(probe: Probe) -> Iterator[dict[str, str]]:
    for axis, choices in probe.axes.items():
        yield from ({axis: choice} for choice in choices[1:])


def _pairs(probe: Probe) -> Iterator[dict[str, str]]:
    for one, other in itertools.combinations(probe.axes, 2):
        for a, b in itertools.product(probe.axes[one][1:], probe.axes[other][1:]):
            yield {one: a, other: b}


def _fits(probe: Probe, table: Table, wrong: dict[str, str]) -> bool:
    choices = {**right(probe.axes), **wrong}
    for case, row in zip(probe.cases, table, strict=True):
        try:
            foreseen = probe.foresee(case, choices)
        except RuntimeError:  # shapes that don't go together
            return False
        for rank, seen in enumerate(row):
            if seen.values.keys() != foreseen.values[rank].keys():
                return False
            if any(not same(seen.values[k], v) for k, v in foreseen.values[rank].items()):
                return False
    return True


def _speaks_alike(probe: Probe, table: Table, wrong: dict[str, str]) -> bool:
    """Whether something is sent in just the phases where such an answer sends."""
    choices = {**right(probe.axes), **wrong}
    return probe.free_wire or all(
        _phases(row[0]) == _spoken(probe.foresee(case, choices))
        for case, row in zip(probe.cases, table, strict=True)
    )


def _phases(seen: Seen) -> dict[str, bool]:
    return {p: any(s.phase == p and s.numel for s in seen.sent) for p in ("forward", "backward")}


def _spoken(foreseen: Foreseen) -> dict[str, bool]:
    return {phase: bool(numel) for phase, numel in foreseen.numel.items()}


def same(got: Any, expected: Any) -> bool:
    """Equal up to rounding. No gradient and a gradient of zeros are the same thing."""
    if isinstance(expected, Tensor) and got is None:
        return bool((expected == 0).all())
    if expected is None and isinstance(got, Tensor):
        return bool((got == 0).all())
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return type(got) is type(expected) and bool(got == expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    bound = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}.get(got.dtype, 1e-10)
    return torch.allclose(got.double(), expected.double(), rtol=bound, atol=bound, equal_nan=True)


def _differences(probe: Probe, table: Table, expected: list[Foreseen]) -> list[Difference]:
    found = []
    for case, row, wanted in zip(probe.cases, table, expected, strict=True):
        for rank, seen in enumerate(row):
            for name, value in wanted.values[rank].items():
                if name not in seen.values:
                    continue
                if not same(seen.values[name], value):
                    text = compare(seen.values[name], value)
                    found.append(Difference(case, rank, name, text))
    return found


def compare(got: Any, expected: Any) -> str:
    """Shape, dtype, largest difference, where, got and expected."""
    if isinstance(got, Odd):
        return f"got {got.text}, expected a tensor {_kind(expected)}"
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return f"got {_short(got)}, expected {_short(expected)}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"got {_kind(got)}, expected {_kind(expected)}"
    error = (got.double() - expected.double()).abs()
    if not torch.isfinite(got).all():
        return f"not all numbers are finite: {_short(got)}, expected {_short(expected)}"
    at = _place(int(error.argmax()), error.shape)
    place = f"at {list(at)}" if at else ""
    return (
        f"largest difference {error.max().item():g} {place}: got {got[at].item():g}, "
        f"expected {expected[at].item():g}"
    )


def _place(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """The indices of the flat-th entry."""
    at = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        at.append(index)
    return tuple(reversed(at))


def _kind(x: Any) -> str:
    return (
        f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" if isinstance(x, Tensor) else "?"
    )


def _short(x: Any) -> str:
    if isinstance(x, Tensor):
        return str(x.tolist()) if x.numel() <= 8 else f"a tensor {_kind(x)}"
    return "nothing" if x is None else str(x)


def _flags(probe: Probe, table: Table) -> list[tuple[str, str]]:
    """Facts that are wrong whatever the numbers: what shows in the plain cases first."""
    order = ("input changed", "upstream changed", "not waited", "no derivative", "detached",
             "shares memory", "not contiguous", "no complaint")  # fmt: skip
    found = []
    for corner in (False, True):
        rows = [r for c, r in zip(probe.cases, table, strict=True) if bool(c.variant) == corner]
        for flag in order:
            for row in rows:
                for rank, seen in enumerate(row):
                    if flag in seen.flags:
                        found.append((f"flag={flag}", f"rank {rank}: {seen.flags[flag]}"))
    return found


def _kinds(probe: Probe, table: Table, expected: list[Foreseen]) -> tuple[str, str] | None:
    """No tensor, or the right numbers in another dtype."""
    for row, wanted in zip(table, expected, strict=True):
        for rank, seen in enumerate(row):
            for name, value in wanted.values[rank].items():
                got = seen.values.get(name)
                if isinstance(got, Odd):
                    kind = "None" if got.text == "None" else got.text.split()[0]
                    kind = {"a": "other", "None": "None"}.get(kind, "other")
                    return f"flag=returned {kind}", f"rank {rank}: {name} is {got.text}"
                if not isinstance(got, Tensor) or not isinstance(value, Tensor):
                    continue
                cast = got.dtype != value.dtype and got.shape == value.shape
                if cast and same(got.to(value.dtype), value):
                    return "flag=dtype", f"rank {rank}: {name}: {compare(got, value)}"
    return None


def _cost(seen: Seen, phase: str) -> int:
    """Numbers on the wire, where an all-reduce counts as what it is made of: two passes."""
    mine = [s for s in seen.sent if s.phase == phase]
    return sum(s.numel * (2 if s.op == "all-reduce" else 1) for s in mine)


def _chatter(probe: Probe, table: Table, expected: list[Foreseen]) -> list[str]:
    """What was sent where nothing, or much less, needs to be."""
    found = []
    for row, wanted in zip(table, expected, strict=True):
        for phase, allowed in wanted.numel.items():
            for rank, seen in enumerate(row):
                sent = sum(s.numel for s in seen.sent if s.phase == phase)
                if _cost(seen, phase) > 2 * allowed:
                    ops = ", ".join(s.op for s in seen.sent if s.phase == phase)
                    found.append(
                        f"rank {rank} sends {sent} numbers in {phase} ({ops}), where {allowed} "
                        "are needed; the values are right"
                    )
    return found
