"""Checks a learner's file: runs each finished exercise's probe in real ranks, and judges it."""

from __future__ import annotations

import ast
import tempfile
from dataclasses import replace

from step02_mlp_parallel.launch import RankError, run_ranks

from .diagnosis import Verdict, judge
from .exercises import Exercise
from .journal import WORLD, Journal, Report, Trouble
from .load import look
from .probes.registry import PLACES, probe
from .rank_side import Item, Job, run_job
from .report import about_trouble, about_verdict
from .standing import Outcome
from .texts import text
from .warm import busy, warm

BATCH = 30  # answers in one start of the ranks: each opens connections that stay until its end
PATIENCE = 4.0  # seconds for one case of a probe; it needs milliseconds


def check(
    source: str, filename: str, exercises: list[Exercise], *, patience: float = PATIENCE
) -> list[Outcome]:
    """One outcome for each exercise, in order. `source` must parse (load.parse says if it does)."""
    tree = ast.parse(source, filename)
    outcomes, ready = {}, []
    for exercise in exercises:
        found = look(tree, exercise)
        if exercise.id not in PLACES:
            outcomes[exercise.id] = Outcome(exercise.id, "todo", ["has no checker yet"])
        elif found.state == "ready":
            ready.append(exercise.id)
        else:
            outcomes[exercise.id] = Outcome(exercise.id, found.state, [found.note])
    items = [Item(id, id, source, filename) for id in ready]
    for id, reports in observe(items, patience).items():
        outcomes[id] = outcome(id, reports)
    return [outcomes[exercise.id] for exercise in exercises]


def observe(items: list[Item], patience: float = PATIENCE) -> dict[str, list[Report]]:
    """Each rank's report on each answer. All run in one start of the ranks; if one of them takes
    the ranks down, the rest gets a new start."""
    found: dict[str, list[Report]] = {}
    left = list(items)
    warm()
    patience *= busy()
    while left:
        with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
            batch = left[:BATCH]
            job = Job(tuple(batch), folder, patience)
            error: RankError | None = None
            try:
                run_ranks(run_job, WORLD, job, timeout=patience * (10 + len(batch)))
            except RankError as raised:
                error = raised
            journals = [Journal(folder, rank) for rank in range(WORLD)]
            for item in batch:
                reports = [journal.read(item.label, journal.rank) for journal in journals]
                left.remove(item)
                if all(r is not None and _through(item.id, r) for r in reports):
                    found[item.label] = [r for r in reports if r is not None]
                    continue
                if error is None:
                    raise RuntimeError(f"the ranks came back without a report on {item.label}")
                found[item.label] = _completed(reports, journals, item, error)
                break
    return found


def _through(id: str, report: Report) -> bool:
    return len(report.seen) == len(probe(id).cases) or (
        report.trouble is not None and report.trouble.kind == "load"
    )


def _completed(
    reports: list[Report | None], journals: list[Journal], item: Item, error: RankError
) -> list[Report]:
    """Reports of ranks that were taken down: whoever has none was ended with the others, unless
    it is the one that ended first."""
    made = []
    for rank, report in enumerate(reports):
        if report is None:
            kind = "ended"
            if error.rank == rank and "without an answer" in str(error):
                kind = "died"
            report = Report(trouble=Trouble(kind, str(error)))
            standing, case = journals[rank].standing(rank)
            if standing == item.label:
                cases = probe(item.id).cases
                report.trouble.layout = cases[min(case, len(cases) - 1)].layout  # type: ignore[union-attr]
        made.append(report)
    if all(r.trouble is None or r.trouble.kind == "ended" for r in made):
        made[0].trouble = Trouble("unknown", str(error))
    return made


def outcome(id: str, reports: list[Report]) -> Outcome:
    """The judgement on one exercise."""
    prints = {
        rank: report.prints + _more(report) for rank, report in enumerate(reports) if report.prints
    }
    said = text(id)
    if any(report.trouble is not None for report in reports):
        main = _plain_cases(id, reports)
        if main is not None and not main.ok and any(main.keys):
            lines, keys = about_verdict(said, main)
            return Outcome(id, "red", lines, keys, prints)
        right = main is not None and main.ok
        lines, keys = about_trouble(said, probe(id), reports, plain_right=right)
        return Outcome(id, "red", lines, keys, prints)
    cases = range(len(probe(id).cases))
    table = [[report.seen[case] for report in reports] for case in cases]
    verdict = judge(probe(id), table, said.key_of)
    if verdict.ok:
        return Outcome(id, "green", prints=prints)
    lines, keys = about_verdict(said, verdict)
    return Outcome(id, "red", lines, keys, prints)


def _plain_cases(id: str, reports: list[Report]) -> Verdict | None:
    """The judgement on the cases without corners, if no rank had trouble in one of those: what
    goes wrong there explains what fails in a corner."""
    known = probe(id)
    if any(len(report.seen) != len(known.cases) for report in reports):
        return None
    main = [number for number, case in enumerate(known.cases) if not case.variant]
    table = [[report.seen[number] for report in reports] for number in main]
    if any(seen.error is not None for row in table for seen in row):
        return None
    cases = tuple(known.cases[number] for number in main)
    return judge(replace(known, cases=cases), table, text(id).key_of)


def _more(report: Report) -> str:
    lines = report.prints.count("\n")
    more = report.printed_lines - lines
    return f"\n… and {more} lines more" if more > 0 else ""
