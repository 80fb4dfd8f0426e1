"""Where ranks come from: from a server that loads torch while this process does the same, or, for
a command that wants them soon, from this process itself."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Collection
from multiprocessing import forkserver
from pathlib import Path

from .exercises import exercises_of

PRELOADED = ("torch", "torch.distributed", "numpy", "einops", "workshop.rank_side",
             "workshop.together")  # fmt: skip
# torch's checkpoint asks torch._dynamo: two seconds, once and not in each rank
ALSO = {3: ("torch._dynamo",)}
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd")
_from_here = False


def busy() -> float:
    """How much slower than usual this machine is: what takes long on a busy one is no hang."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, load / (os.cpu_count() or 1))


def ranks_from_here() -> None:
    """From now on `run_ranks` forks this process. It has loaded torch anyway, for a command that
    checks: a server beside it would load it once more, which two cores feel.

    Only where it is safe: on Linux, and without an accelerator, since autograd keeps a thread for
    each of those, and a process with threads must not be forked.
    """
    global _from_here
    _from_here = sys.platform == "linux" and not any(map(os.path.exists, _ACCELERATORS))


def warm(steps: Collection[int] = ()) -> None:
    """Have what ranks need for these steps loaded once, not in each of them. With a server this
    comes back at once. (Without either, on Windows, there is nothing to be done.)"""
    wanted = [*PRELOADED, *(name for step in sorted(steps) for name in _modules(step))]
    if _from_here:
        _load(wanted)
    elif "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.get_context("forkserver").set_forkserver_preload(wanted)
        forkserver.ensure_running()


def _load(wanted: list[str]) -> None:
    import importlib

    for name in wanted:
        importlib.import_module(name)
    torch, launch = (sys.modules[name] for name in ("torch", "step02_mlp_parallel.launch"))
    torch.set_num_threads(1)  # forked ranks could wait for ever for threads that they don't have
    vars(launch)["_context"] = lambda *modules: multiprocessing.get_context("fork")


def _modules(step: int) -> list[str]:
    """The step's probes, and where its exercises stand."""
    probes = sorted(Path(__file__).with_name("probes").glob(f"step{step:02d}*.py"))
    homes = sorted({part.module for each in exercises_of(step) for part in each.parts})
    return [*ALSO.get(step, ()), *(f"workshop.probes.{path.stem}" for path in probes), *homes]
