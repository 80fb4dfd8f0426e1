"""What runs inside a rank: each exercise's probe, with the learner's function in it.

The learner's code can do anything, so the rank keeps a journal, has its prints caught, and is
watched by a thread of its own that ends the process when a case takes too long: nothing that the
main thread does, `except BaseException: pass` included, keeps it alive.
"""

from __future__ import annotations

import builtins
import io
import os
import pdb
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from .exercises import exercise
from .journal import WORLD, Journal, Report, Trouble
from .light import light
from .load import LearnerError, functions, parse
from .probes.common import LAYOUTS, Case, Seen
from .probes.registry import probe
from .wiretap import Wiretap, handles_watched

MOST_PRINTED = 1_000_000  # characters
KEPT_PRINTED = 1_500
SLOW_LOAD = 3.0  # times the patience, on top, where modules are loaded and groups are made


@dataclass(frozen=True)
class Item:
    """One answer to look at: an exercise, and the text of the file that has it."""

    label: str  # what it is called in the journal
    id: str
    source: str
    filename: str


@dataclass(frozen=True)
class Job:
    """What the checker sends: which answers, and where to write."""

    items: tuple[Item, ...]
    folder: str
    patience: float  # seconds that one case may take


def place_of(job: Job, item: Item) -> int | None:
    """The one rank that looks at an answer whose probe knows no groups, as rank 0 would: they take
    turns, so that such answers run side by side. None: all ranks do."""
    if not probe(item.id).alone:
        return None
    before = job.items[: job.items.index(item)]
    return sum(probe(other.id).alone for other in before) % WORLD


def run_job(job: Job) -> bool:
    """Probe all exercises of the job. True if all ranks came through."""
    torch.set_warn_always(True)
    rank = dist.get_rank()
    journal, watchdog = Journal(job.folder, rank), _Watchdog(job)
    order = [item.label for item in job.items]
    with light(), _caught(watchdog) as prints:
        for item in job.items:
            watchdog.enter(item, Report(), Case("all", torch.float64, 0), SLOW_LOAD * job.patience)
            place = place_of(job, item)
            if place not in (None, rank):
                continue
            journal.stand(item.label, 0, done=False)
            known = probe(item.id)
            groups, at = (_groups(rank), rank) if place is None else ({}, 0)
            report = watchdog.report
            prints.restart()
            try:
                watchdog.enter(item, report, known.cases[0])
                tree = parse(item.source, item.filename)
                made = functions(tree, item.filename, exercise(item.id))
            except LearnerError as error:
                report.trouble = Trouble("load", str(error))
                made = []
            for number, case in enumerate(known.cases if made else ()):
                watchdog.enter(item, report, case)
                journal.stand(item.label, number, done=False)
                seen = _case(
                    item.filename, known, made, case, groups.get(case.layout), at, watchdog
                )
                report.seen.append(seen)
                journal.stand(item.label, number, done=True)
                if seen.error is not None:
                    report.trouble = report.trouble or seen.error
                    journal.write(item.label, prints.into(report))
                    together = place is None
                    if together and not journal.meet(item.label, number, order, job.patience / 4):
                        watchdog.stop()
                        os._exit(71)  # the others wait for this rank in a collective
            watchdog.enter(item, report, known.cases[-1], SLOW_LOAD * job.patience)
            journal.write(item.label, prints.into(report))
            journal.stand(item.label, len(known.cases), done=True)
    watchdog.stop()
    return True


def _case(
    filename: str,
    known: Any,
    made: list[Any],
    case: Case,
    group: Any,
    rank: int,
    watchdog: _Watchdog,
) -> Seen:
    tap = Wiretap()
    watchdog.tap = tap
    with handles_watched(tap):
        try:
            with tap:
                seen: Seen = known.observe(made, case, group, rank, tap)
            seen.work = tap.work
            return seen
        except BaseException as error:  # exit() too
            return Seen(
                error=_trouble(error, filename, tap.phase, case), sent=tap.sent, work=tap.work
            )


def _groups(rank: int) -> dict[str, Any]:
    """Fresh groups, so that a message left over from another exercise can't be taken for ours."""
    made: dict[str, Any] = {"alone": None}
    for layout in ("all", "pairs"):
        for ranks in LAYOUTS[layout].groups:
            group = dist.new_group(list(ranks))
            if rank in ranks:
                made[layout] = group
    return made


class Mishap(BaseException):
    """Raised where the learner's code asks for what a rank can't do. Not an Exception, so that
    `except Exception` doesn't hide it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def _trouble(error: BaseException, filename: str, phase: str, case: Case) -> Trouble:
    kind = "exception"
    if isinstance(error, Mishap):
        kind = error.kind
    elif isinstance(error, SystemExit):
        kind = "exit"
    elif type(error).__name__ == "BdbQuit":
        kind = "input"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    found = Trouble(kind, text[:600], phase=phase, layout=case.layout)
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == filename:
            found.line, found.function = frame.lineno or 0, frame.name
    return found


class _Prints(io.TextIOBase):
    """Keeps the beginning of what is printed and counts the rest."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.kept, self.lines, self.characters = "", 0, 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        self.characters += len(text)
        if len(self.kept) < KEPT_PRINTED:
            self.kept += text[: KEPT_PRINTED - len(self.kept)]
        if self.characters > MOST_PRINTED:
            raise Mishap("prints")
        return len(text)

    def into(self, report: Report) -> Report:
        report.prints, report.printed_lines = self.kept, self.lines
        return report


class _caught:
    """Prints go into the report; what asks a person for something raises."""

    def __init__(self, watchdog: _Watchdog) -> None:
        self.prints, self.watchdog = _Prints(), watchdog
        watchdog.prints = self.prints

    def __enter__(self) -> _Prints:
        def ask(*args: object, **kwargs: object) -> Any:
            raise Mishap("input")

        self.before = (sys.stdout, sys.stderr)
        sys.stdout = sys.stderr = self.prints
        builtins.input = sys.breakpointhook = pdb.set_trace = ask
        return self.prints

    def __exit__(self, *error: object) -> None:
        sys.stdout, sys.stderr = self.before


class _Watchdog(threading.Thread):
    """Ends this process when a case takes too long, and says where it stood."""

    def __init__(self, job: Job) -> None:
        super().__init__(daemon=True)
        self.job, self.main = job, threading.main_thread().ident
        self.journal = Journal(job.folder, dist.get_rank())
        self.item, self.report, self.end = job.items[0], Report(), float("inf")
        self.case: Case | None = None
        self.tap: Wiretap | None = None
        self.prints: _Prints | None = None
        self.start()

    def enter(self, item: Item, report: Report, case: Case, extra: float = 0.0) -> None:
        self.item, self.report, self.case = item, report, case
        self.end = time.monotonic() + self.job.patience + extra

    def stop(self) -> None:
        self.end = float("inf")

    def run(self) -> None:
        while True:
            time.sleep(0.05)
            if time.monotonic() > self.end:
                self._bite()

    def _bite(self) -> None:
        trouble = _where(sys._current_frames().get(self.main or 0), self.item.filename)
        trouble.phase = self.tap.phase if self.tap else ""
        trouble.layout = self.case.layout if self.case else ""
        self.report.trouble = self.report.trouble or trouble
        if self.prints:
            self.prints.into(self.report)
        self.journal.write(self.item.label, self.report)
        time.sleep(0.5)  # the others get to say where they stand
        os._exit(70)


def _where(frame: FrameType | None, filename: str) -> Trouble:
    """Innermost line of the learner's, and whether it waits for other ranks there."""
    inside = frame is not None and "distributed" in frame.f_code.co_filename
    found = Trouble("waiting" if inside else "hang")
    if frame is not None:
        found.text = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    while frame is not None:
        inside_learner = frame.f_code.co_filename == filename
        if (
            "distributed" in frame.f_code.co_filename
            or "step02_mlp_parallel/wire" in frame.f_code.co_filename
        ):
            found.kind = "waiting"
        if inside_learner:
            found.line, found.function = frame.f_lineno, frame.f_code.co_name
            break
        frame = frame.f_back
    return found
