"""Starts the server of ranks early, so that it loads torch while this process does the same."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver

PRELOADED = (
    "torch",
    "torch.distributed",
    "numpy",
    "einops",
    "workshop.rank_side",
    "workshop.together",
    *(f"workshop.probes.{name}" for name in ("step02", "step02_layers", "step02_mlp")),
)


def busy() -> float:
    """How much slower than usual this machine is: what takes long on a busy one is no hang."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, load / (os.cpu_count() or 1))


def warm() -> None:
    """Comes back at once. Without forkserver (Windows) there is nothing to start."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
        forkserver.ensure_running()
