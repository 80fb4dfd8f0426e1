"""Copies of the project to plant faults in, and pytest inside of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path


def copy_tracked(root: Path, folder: Path, *, without: Collection[str] = ()) -> None:
    """Copy the files that git tracks, as they are on the disk, into `folder`.

    `without`: top-level folders to leave out. Downloaded data is linked, since nothing here changes
    it. Raises ValueError if `root` is no git checkout.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise ValueError(f"{root} is not a git checkout, whose files could be copied")
    for name in filter(None, listed.stdout.split("\0")):
        if name.split("/")[0] in without or not (root / name).is_file():
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)
    if (root / "data").is_dir() and not (folder / "data").exists():
        (folder / "data").symlink_to((root / "data").resolve())


@dataclass(frozen=True)
class Outcome:
    """How pytest ended: "green", "red", "slow" (ended by us), or "broken" (it could not run)."""

    state: str
    output: str


class Pytest:
    """Runs pytest in copies, from several threads if need be; `stop` ends all that run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def __call__(self, folder: Path, tests: Sequence[str], limit: float) -> Outcome:
        """`tests` in `folder`, until the first that fails, for `limit` seconds at most."""
        environment = {
            **os.environ,
            # Before the installed project, which is the one without the fault.
            "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # none is needed, and each takes its time
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        with self._lock:
            if self._stopped:
                return Outcome("broken", "stopped")
            process = subprocess.Popen(
                command, cwd=folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its ranks and launchers can be ended with it
            )  # fmt: skip
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process)
            output, _ = process.communicate()
            return Outcome("slow", output)
        finally:
            with self._lock:
                self._running.discard(process)
        return Outcome({0: "green", 1: "red"}.get(process.returncode, "broken"), output)

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
