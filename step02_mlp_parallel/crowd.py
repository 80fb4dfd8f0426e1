"""Hundreds of ranks on one machine: how they wait without eating the processor.

Ranks that meet over a file look into it a hundred times a second each while they wait, and gloo
gives every group a thread that wakes up as often. Neither matters for eight ranks. With 512 of
them, in three groups each, a few cores would do nothing else.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

CROWD = 32


def wait_for_all(world_size: int, go: Path) -> None:
    """Beyond CROWD, hold a rank back until all have been started, which the file `go` tells."""
    while world_size > CROWD and not go.exists():
        time.sleep(0.25)


def let_others_first() -> None:
    """Give gloo's threads in this process the lowest priority, so that all of them together take
    only what the ranks' own work leaves. (Linux; elsewhere nothing happens.)"""
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            if (task / "comm").read_text().startswith("gloo"):
                os.setpriority(os.PRIO_PROCESS, int(task.name), 19)
