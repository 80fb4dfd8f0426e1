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

from torch import Tensor

from .comparing import compare, same
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
    odd_ops = not differences and any(s.op != "all-reduce" for row in table for s in row[0].sent)
    keys = () if odd_ops else _explained(probe, table, message_of)
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
    for choices in (_singles(probe), _pairs(probe, table)):
        by_values = [wrong for wrong in choices if _fits(probe, table, wrong)]
        fitting = [wrong for wrong in by_values if _speaks_alike(probe, table, wrong)]
        if by_values and not fitting:
            # Something else is sent than such an answer sends: perhaps for nothing.
            idle = [wrong for wrong in by_values if _for_nothing(probe, table, wrong)]
            found = {_entries(probe, wrong, message_of) for wrong in idle}
            unused = message_of("flag=unused")
            whole = len(found) == 1 and len(idle) == len(by_values) and all((*min(found), unused))
            return tuple(sorted((*found.pop(), unused))) if whole else ()
        entries = {_entries(probe, wrong, message_of) for wrong in fitting}
        if len(entries) == 1 and all(next(iter(entries))):
            return entries.pop()
        if entries:
            return ()  # several explanations: none is certain
    return ()


def _entries(
    probe: Probe, wrong: dict[str, str], message_of: Callable[[str], str]
) -> tuple[str, ...]:
    names = {f"{axis}={choice}" for axis, choice in wrong.items()} - probe.harmless
    return tuple(sorted({message_of(name) for name in names}))


def _without_corners(probe: Probe, table: Table) -> tuple[Probe, Table]:
    """What explains all plain cases explains the answer, whatever it does in a corner besides."""
    plain = [n for n, case in enumerate(probe.cases) if not case.variant]
    cases = tuple(probe.cases[n] for n in plain)
    return replace(probe, cases=cases), [table[n] for n in plain]


def _singles(probe: Probe) -> Iterator[dict[str, str]]:
    for axis, choices in probe.axes.items():
        yield from ({axis: choice} for choice in choices[1:])


def _pairs(probe: Probe, table: Table) -> Iterator[dict[str, str]]:
    expected = [probe.foresee(case, right(probe.axes)) for case in probe.cases]
    axes = {axis: choices[1:] for axis, choices in probe.axes.items()}
    if probe.facts:
        axes = {axis: tuple(c for c in choices if _touches(probe, table, expected, {axis: c}))
                for axis, choices in axes.items()}  # fmt: skip
    for one, other in itertools.combinations(axes, 2):
        for a, b in itertools.product(axes[one], axes[other]):
            yield {one: a, other: b}


def _touches(probe: Probe, table: Table, expected: list[Foreseen], wrong: dict[str, str]) -> bool:
    """Whether a wrong choice alone foresees one of the facts that are not as they should be."""
    if probe.harmless & {f"{axis}={choice}" for axis, choice in wrong.items()}:
        return True
    choices = {**right(probe.axes), **wrong}
    for case, row, wanted in zip(probe.cases, table, expected, strict=True):
        foreseen = probe.foresee(case, choices).values[0]
        for name, value in row[0].values.items():
            good = wanted.values[0].get(name)
            if not same(value, good) and same(value, foreseen.get(name)):
                return True
    return False


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


def _for_nothing(probe: Probe, table: Table, wrong: dict[str, str]) -> bool:
    """Whether it sends just where the right answer does, though with the values of one that
    doesn't: then what was received isn't used."""
    choices, good = {**right(probe.axes), **wrong}, right(probe.axes)
    for case, row in zip(probe.cases, table, strict=True):
        sent, needed = _phases(row[0]), _spoken(probe.foresee(case, good))
        less = _spoken(probe.foresee(case, choices))
        if sent != needed or any(less[phase] and not needed[phase] for phase in less):
            return False
    return True


def _phases(seen: Seen) -> dict[str, bool]:
    return {p: any(s.phase == p and s.numel for s in seen.sent) for p in ("forward", "backward")}


def _spoken(foreseen: Foreseen) -> dict[str, bool]:
    return {phase: bool(numel) for phase, numel in foreseen.numel.items()}


def _differences(probe: Probe, table: Table, expected: list[Foreseen]) -> list[Difference]:
    found = []
    for case, row, wanted in zip(probe.cases, table, expected, strict=True):
        for rank, seen in enumerate(row):
            odd = {n: v for n, v in seen.values.items() if isinstance(v, Odd)}
            for name in odd.keys() - wanted.values[rank].keys():  # what stopped the look
                found.append(Difference(case, rank, name, f"got {odd[name].text}"))
            for name, value in wanted.values[rank].items():
                if name not in seen.values:
                    continue
                if not same(seen.values[name], value):
                    text = compare(seen.values[name], value)
                    found.append(Difference(case, rank, name, text))
    return found


def _flags(probe: Probe, table: Table) -> list[tuple[str, str]]:
    """Facts that are wrong whatever the numbers: what shows in the plain cases first."""
    order = ("input changed", "upstream changed", "not waited", "no derivative", "detached",
             "shares memory", "not contiguous", "no complaint", "other error")  # fmt: skip
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
            names = [*wanted.values[rank], *(seen.values.keys() - wanted.values[rank].keys())]
            for name in names:
                got, value = seen.values.get(name), wanted.values[rank].get(name)
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
