"""What a rank leaves on disk, so that it is known also when the rank hangs or dies."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORLD = 4  # ranks of every probe


@dataclass
class Trouble:
    """Why a rank could not go on."""

    kind: str  # "exception", "hang", "waiting", "exit", "died", "input", "prints", "load"
    text: str = ""
    line: int = 0  # in the learner's file; 0 if not there
    code: str = ""
    phase: str = ""
    layout: str = ""
    function: str = ""


@dataclass
class Report:
    """One rank's report on one exercise."""

    seen: list[Any] = field(default_factory=list)  # one Seen for each case
    trouble: Trouble | None = None
    prints: str = ""
    printed_lines: int = 0
    moments: list[Any] = field(default_factory=list)


class Journal:
    """A rank's files in a folder that all ranks and the checker share."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank

    def stand(self, label: str, case: int, done: bool) -> None:
        """Where this rank is, for the others and for whoever finds it dead."""
        _put(self.folder / f"stand-{self.rank}", f"{label}\n{case + done}".encode())

    def standing(self, rank: int) -> tuple[str, int]:
        """(answer, number of its cases done)"""
        try:
            label, case = (self.folder / f"stand-{rank}").read_text().split("\n")
        except (OSError, ValueError):
            return "", 0
        return label, int(case)

    def meet(self, label: str, case: int, order: list[str], patience: float) -> bool:
        """Wait for all ranks to be through with the case; False if some stay behind."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if all(self._through(rank, label, case, order) for rank in range(WORLD)):
                return True
            time.sleep(0.01)
        return False

    def _through(self, rank: int, label: str, case: int, order: list[str]) -> bool:
        other, done = self.standing(rank)
        if other == label:
            return done > case
        return other in order and order.index(other) > order.index(label)

    def write(self, label: str, report: Report) -> None:
        _put(self.folder / f"report-{label}-{self.rank}", pickle.dumps(report))

    def read(self, label: str, rank: int) -> Report | None:
        path = self.folder / f"report-{label}-{rank}"
        return pickle.loads(path.read_bytes()) if path.is_file() else None


def _put(path: Path, data: bytes) -> None:
    """Whole or not at all: others read it while we write."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)
