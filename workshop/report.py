"""Turns what was found into what the learner reads."""

from __future__ import annotations

import textwrap

from .diagnosis import Difference, Verdict, only_alone
from .journal import Report, Trouble
from .probes.common import Case, Probe
from .texts import Text, chapter

WIDTH = 88


def about_verdict(said: Text, verdict: Verdict) -> tuple[list[str], tuple[str, ...]]:
    """The symptom with numbers and rank; then the entries, if any explains it for certain."""
    lines = []
    keys = tuple(key for key in verdict.keys if key)
    shown = _worth_showing(verdict)
    for difference in shown:
        lines.append(
            f"{difference.name} on {_rank(difference.case, difference.rank)}: {difference.text}"
        )
    more = len({d.name for d in verdict.differences}) - len({d.name for d in shown})
    if more > 0:
        lines.append(f"({more} more differ)")
    if verdict.symptom and not keys:
        lines.append(verdict.symptom)
    n = shown[0].case.n if shown else 4
    for key in keys:
        message = said.messages[key]
        fill = {"n": str(n), "less": str(n - 1), "symptom": verdict.symptom}
        lines.append(_filled(message.says, fill))
        lines.append(_filled(message.invariant, fill))
        lines.append(f"Read on: {chapter(said.id, message.place)}")
    return [line for line in lines if line], keys


def _worth_showing(verdict: Verdict) -> list[Difference]:
    """The first difference of up to three values, in the simplest case that has any."""
    if not verdict.differences:
        return []
    case = verdict.differences[0].case
    found: list[Difference] = []
    names: set[str] = set()
    for d in verdict.differences:
        if d.case == case and d.name not in names and len(found) < 3:
            names.add(d.name)
            found.append(d)
    return found


def _rank(case: Case, rank: int) -> str:
    corner = f" ({case.variant})" if case.variant else ""
    if case.layout == "alone":
        return f"a single rank, group=None{corner}"
    group = case.shape.group(rank)
    return f"rank {group.index(rank)} of {len(group)}{corner}"


def _filled(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template.replace(" ()", "")


def about_trouble(
    said: Text, probe: Probe, reports: list[Report], *, plain_right: bool = False
) -> tuple[list[str], tuple[str, ...]]:
    """What stopped the ranks, told kindly; and the entry if the error is a known one.

    `plain_right`: all cases without a corner were right.
    """
    rank, first = _first(reports)
    place = _line(first)
    others = [r for r, report in enumerate(reports) if report.trouble is None]
    waiting = [r for r, p in enumerate(reports) if p.trouble and p.trouble.kind == "waiting"]
    if first.kind == "load":
        return [first.text], ()
    if first.kind == "exit":
        return [
            f"exit() was called on rank {rank}{place}; a layer hands back a tensor instead."
        ], ()
    if first.kind == "died":
        return [
            f"The process of rank {rank} ended in the middle of it: os._exit, or a crash.",
            first.text,
        ], ()
    if first.kind == "input":
        return [
            f"rank {rank} asked for the keyboard (input() or a breakpoint){place}. Ranks have "
            "none; print instead: what they print is shown here."
        ], ()
    if first.kind == "prints":
        return [f"rank {rank} printed more than a million characters{place}, and was stopped."], ()
    if first.kind == "hang":
        return [f"rank {rank} did not come back{place}: an endless loop?"], ()
    if first.kind == "waiting":
        return _waiting(reports, waiting), ()
    if first.kind == "unknown":
        return [first.text[:400]], ()
    lines = [f"rank {rank} raised{place}:", *textwrap.wrap(first.text, WIDTH)[:6]]
    if others and len(others) < len(reports):
        lines.append(f"rank {', '.join(map(str, others))} did not raise.")
    keys = _known_error(said, probe, reports, first)
    corners = {f"variant={case.variant}" for case in _failing_cases(probe, reports)}
    if not keys and plain_right and len(corners) == 1 and corners <= said.messages.keys():
        keys = tuple(corners)
    for key in keys:
        message = said.messages[key]
        fill = {"n": "4", "less": "3", "symptom": ""}
        lines += [_filled(message.says, fill), _filled(message.invariant, fill)]
        lines.append(f"Read on: {chapter(said.id, message.place)}")
    return lines, keys


def _first(reports: list[Report]) -> tuple[int, Trouble]:
    """The rank whose trouble explains the others': one that waits for a peer explains nothing."""
    order = ("load", "died", "exit", "input", "prints", "exception", "hang", "waiting", "unknown",
             "ended")  # fmt: skip
    found = [(order.index(r.trouble.kind), rank) for rank, r in enumerate(reports) if r.trouble]
    rank = min(found)[1]
    trouble = reports[rank].trouble
    assert trouble is not None
    return rank, trouble


def _line(trouble: Trouble) -> str:
    where = f" (line {trouble.line}, in {trouble.function})" if trouble.line else ""
    return f" in {trouble.phase}{where}" if trouble.phase else where


def _waiting(reports: list[Report], waiting: list[int]) -> list[str]:
    trouble = reports[waiting[0]].trouble
    assert trouble is not None
    lines = [
        f"rank {', '.join(map(str, waiting))} waits for the others in a "
        f"collective{_line(trouble)}, and they never come."
    ]
    lines.append(
        "A collective is a meeting: every rank of the group makes the same calls in the same "
        "order, or some wait for ever."
    )
    return lines


def _known_error(
    said: Text, probe: Probe, reports: list[Report], first: Trouble
) -> tuple[str, ...]:
    """An entry for an error that tells its cause by itself."""
    texts = first.text
    told = [key for key in said.messages if key.startswith("error=") and key[6:] in texts]
    if told:
        return (told[0],)
    failing = _failing_cases(probe, reports)
    if "with strides" in texts and "contiguous" in texts:
        for case in failing:
            if f"variant={case.variant}" in said.messages:
                return (f"variant={case.variant}",)
        return ("strides",)
    if "modified by an inplace operation" in texts:
        return (
            ("variant=saved by another",)
            if "variant=saved by another" in said.messages
            else ("saved",)
        )
    in_place = "is a view and is being modified inplace" in texts or "in-place operation" in texts
    if in_place and failing and all(c.variant == "changed afterwards" for c in failing):
        return ("variant=changed afterwards",)
    if failing and only_alone(probe, failing):
        return ("alone",)
    return ()


def _failing_cases(probe: Probe, reports: list[Report]) -> list[Case]:
    found = []
    for number, case in enumerate(probe.cases):
        if any(len(r.seen) > number and r.seen[number].error is not None for r in reports):
            found.append(case)
    return found
