"""Whether this machine can hold so many processes, before they are started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MEMORY_OF_A_RANK = 20 * 2**20  # bytes of its own; measured 17 MiB beside what is shared
MEMORY_OF_ALL = 2**30
FILES_OF_A_RANK = 4  # in the process that starts it: pipe, sentinel, and their other ends


def check_machine(ranks: int) -> None:
    """Raise ValueError that names each limit which `ranks` processes would hit, and the number
    that would fit."""
    wrong = []
    memory = available_memory()
    if ranks * MEMORY_OF_A_RANK + MEMORY_OF_ALL > memory:
        fits = max(1, (memory - MEMORY_OF_ALL) // MEMORY_OF_A_RANK)
        wrong.append(f"{memory / 2**30:.1f} GiB of free memory are enough for about {fits}")
    for what, limit, needed in _limits(ranks):
        if limit is not None and needed > limit:
            fits = max(1, limit * ranks // needed)
            wrong.append(f"the limit of {limit} {what} is enough for about {fits}")
    if wrong:
        raise ValueError(f"{ranks} ranks don't fit this machine: {'; '.join(wrong)}")


def available_memory() -> int:
    """Bytes that can still be taken without swapping, by the system's or the container's account;
    a very large number where neither tells."""
    found = [2**50]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        found.append(int(rows["MemAvailable"].split()[0]) * 1024)
    elif sys.platform == "darwin":
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    limit, used = (_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit is not None and used is not None:
        found.append(limit - used)
    return min(found)


def _limits(ranks: int) -> list[tuple[str, int | None, int]]:
    """(what, how many are allowed, how many are needed)."""
    threads = 6 * ranks  # a rank's own, the one that watches its parent, gloo's
    rows = [("tasks in this container (pids.max)", _number("/sys/fs/cgroup/pids.max"), threads)]
    if sys.platform != "win32":
        import resource

        files, processes = (
            resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
        )
        rows.append(("open files (ulimit -n)", _known(files), FILES_OF_A_RANK * ranks + 64))
        if os.getuid() != 0:  # no limit for the administrator
            rows.append(("processes (ulimit -u)", _known(processes), threads))
    return rows


def _known(limit: int) -> int | None:
    return limit if 0 <= limit < 2**60 else None  # RLIM_INFINITY is -1 or huge


def _number(path: str) -> int | None:
    """What a file of the kernel says; None for "max" or no such file."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
