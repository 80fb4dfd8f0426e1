"""Checks a learner's file: runs each finished exercise's probe in real ranks, and judges it."""

from __future__ import annotations

import ast
import tempfile
from dataclasses import replace

from step02_mlp_parallel.launch import RankError, run_ranks

from .diagnosis import Verdict, judge
from .exercises import Exercise, exercise
from .journal import WORLD, Journal, Report, Trouble
from .load import look
from .probes.registry import PLACES, probe
from .rank_side import Item, Job, place_of, run_job
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
    for each in exercises:
        found = look(tree, each)
        if each.id not in PLACES:
            outcomes[each.id] = Outcome(each.id, "todo", ["has no checker yet"])
        elif found.state == "ready":
            ready.append(each.id)
        else:
            outcomes[each.id] = Outcome(each.id, found.state, [found.note])
    items = [Item(id, id, source, filename) for id in ready]
    for id, reports in observe(items, patience).items():
        outcomes[id] = outcome(id, reports)
    return [outcomes[each.id] for each in exercises]


def observe(items: list[Item], patience: float = PATIENCE) -> dict[str, list[Report]]:
    """Each rank's report on each answer; one report, rank 0's, on those that need no groups.

    All run in one start of the ranks; if one of them takes the ranks down, the rest gets a new
    start. What needs no groups comes last: there the ranks look at different answers, and none
    waits for another.
    """
    found: dict[str, list[Report]] = {}
    left = sorted(items, key=lambda item: probe(item.id).alone)
    warm({exercise(item.id).step for item in items})
    patience *= busy()
    while left:
        with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
            job = Job(tuple(left[:BATCH]), folder, patience)
            error: RankError | None = None
            try:
                run_ranks(run_job, WORLD, job, timeout=patience * (10 + len(job.items)))
            except RankError as raised:
                error = raised
            known = _reported(job, error)
            if not known:
                raise RuntimeError(f"the ranks came back without a report on {left[0].label}")
            found |= known
            left = [item for item in left if item.label not in found]
    return found


def _reported(job: Job, error: RankError | None) -> dict[str, list[Report]]:
    """What the ranks have said of the answers that they came through, and of the one that took
    them down."""
    journals = [Journal(job.folder, rank) for rank in range(WORLD)]
    stood = journals[error.rank].standing(error.rank)[0] if error else ""
    fallen = next((item for item in job.items if item.label == stood), job.items[0])
    blamed = error is None
    found = {}
    for item in job.items:
        place = place_of(job, item)
        turn = list(range(WORLD)) if place is None else [place]
        reports = [journals[rank].read(item.label, rank) for rank in turn]
        if not all(r is not None and _through(item.id, r) for r in reports):
            # Together the ranks go one answer after the other, so the first is the one.
            first = place is None and not probe(fallen.id).alone
            if error is None or blamed or not (first or item == fallen):
                continue
            blamed = True
            reports = _completed(reports, journals, item, error, turn)
        found[item.label] = [report for report in reports if report is not None]
    return found


def _through(id: str, report: Report) -> bool:
    return len(report.seen) == len(probe(id).cases) or (
        report.trouble is not None and report.trouble.kind == "load"
    )


def _completed(
    reports: list[Report | None],
    journals: list[Journal],
    item: Item,
    error: RankError,
    turn: list[int],
) -> list[Report | None]:
    """Reports of ranks that were taken down: whoever has none was ended with the others, unless
    it is the one that ended first. `turn`: whose reports they are."""
    made: list[Report | None] = []
    for rank, report in zip(turn, reports, strict=True):
        if report is None:
            kind = "ended"
            if error.rank == rank and "without an answer" in str(error):
                kind = "died"
            trouble = Trouble(kind, str(error))
            standing, case = journals[rank].standing(rank)
            if standing == item.label:
                cases = probe(item.id).cases
                trouble.layout = cases[min(case, len(cases) - 1)].layout
            report = Report(trouble=trouble)
        made.append(report)
    troubles = [report.trouble for report in made if report is not None]
    if made[0] is not None and all(t is None or t.kind == "ended" for t in troubles):
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
