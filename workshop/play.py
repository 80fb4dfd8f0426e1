"""`make play EX=2.4`: two ranks side by side, what each holds, does, sends and gets.

With the learner's function if it is begun, else with the real one. The first number that differs
from what it should be is marked.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .check import observe
from .comparing import same
from .exercises import exercise
from .journal import Report
from .load import look, parse
from .make_exercises import shown, work_file
from .probes.common import Case, Probe, right
from .probes.registry import probe
from .rank_side import Item
from .solutions import solution
from .wiretap import Sent

COLUMN = 46


def play(id: str) -> str:
    """The run as text. Raises ValueError for an exercise that doesn't exist."""
    found, known = exercise(id), probe(id)
    path = work_file(found.step)
    source, whose = _real(id), "the real one"
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        if look(parse(text, path.name), found).state == "ready":
            source, whose = text, "yours"
    number = next((n for n, case in enumerate(known.cases) if case.layout == "pairs"), 0)
    reports = observe([Item(id, id, source, shown(path))])[id]
    ranks = "two ranks" if len(reports) > 1 else "one rank (all do the same)"
    lines = [f"{id} {found.title}: {whose}, on {ranks}", ""]
    return "\n".join(lines + _side_by_side(known, number, reports[:2]))


def _real(id: str) -> str:
    return "from __future__ import annotations\n" + solution(exercise(id))


def _side_by_side(known: Probe, number: int, reports: list[Report]) -> list[str]:
    case = known.cases[number]
    columns = []
    marked = False
    for rank, report in enumerate(reports):
        lines, marked = _rank(known, case, number, rank, report, marked)
        columns.append(lines)
    height = max(len(column) for column in columns)
    padded = [column + [""] * (height - len(column)) for column in columns]
    if len(padded) == 1:
        return columns[0]
    return [f"{a:<{COLUMN}}│ {b}".rstrip() for a, b in zip(*padded, strict=True)]


def _rank(
    known: Probe, case: Case, number: int, rank: int, report: Report, marked: bool
) -> tuple[list[str], bool]:
    lines = [f"rank {rank} of {case.n}", "", "holds"]
    for name, ranks in known.scene(case).items():
        lines += _matrix(name, ranks[rank])
    lines += ["", "does"]
    if len(report.seen) <= number:
        trouble = report.trouble
        return [
            *lines,
            f"  (did not get there: {trouble.text if trouble else '?'})"[:COLUMN],
        ], marked
    seen = report.seen[number]
    lines += _timeline(seen.work)
    if seen.error is not None:
        lines.append(f"  raises {seen.error.text}"[:COLUMN])
    lines += ["", "ends up with"]
    expected = known.foresee(case, right(known.axes)).values[rank]
    for name, value in seen.values.items():
        wanted = expected.get(name)
        wrong = not same(value, wanted)
        lines += _matrix(name, value, wanted if wrong and not marked else None)
        if wrong:
            lines += _matrix("  should be", wanted)
            marked = True
    return lines, marked


def _timeline(work: list[Any]) -> list[str]:
    lines, phase = [], ""
    for event in work:
        now = event.phase if isinstance(event, Sent) else event[0]
        if now != phase and now != "after":
            lines.append(f"  {now}")
            phase = now
        if isinstance(event, Sent):
            values = " ".join(f"{v:g}" for v in event.values)
            lines.append(f"    ⇄ {event.op} of {event.numel}: {values}"[:COLUMN])
        elif now != "after":
            lines.append(f"    · {event[1]}")
    return lines or ["  (nothing on the wire)"]


def _matrix(name: str, value: Any, wanted: Any = None) -> list[str]:
    """The numbers in rows; the first one that isn't as wanted between ▸ and ◂."""
    if not isinstance(value, Tensor):
        return [f"  {name}: {'nothing' if value is None else value}"[:COLUMN]]
    rows = value.double().reshape(-1, value.shape[-1]) if value.dim() else value.reshape(1, 1)
    first = None
    if isinstance(wanted, Tensor) and wanted.shape == value.shape:
        off = (rows - wanted.double().reshape(rows.shape)).abs() > 1e-6
        first = tuple(off.nonzero()[0].tolist()) if off.any() else None
    lines = [f"  {name} {list(value.shape)}"]
    for r, row in enumerate(rows.tolist()):
        cells = [f"▸{v:g}◂" if (r, c) == first else f"{v:.4g}" for c, v in enumerate(row)]
        lines.append("    " + " ".join(f"{cell:>6}" for cell in cells)[: COLUMN - 4])
    return lines
