"""Starting ranks: a function in n gloo processes, in a fifth of a second.

    run_ranks(fn, 4, x) -> [fn(x) of rank 0, …, fn(x) of rank 3]

Inside `fn` the default process group is open; `dist.group.WORLD` is the group of all ranks. The
processes are forked from a server that has torch loaded already (`forkserver`; spawned where the
system has none, as on Windows), and meet over a file, so there is no port to collide on. The same
functions run under torchrun: see `join_torchrun`.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .rank_process import Failure, rank_main

GRACE = 5.0  # seconds that the group's own timeout is longer than ours, which says more


class RankError(RuntimeError):
    """A rank raised, died or hung; the message says which one and where. `rank` is its number."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Run `fn(*args)` in `world_size` processes of one gloo group; returns their values by rank.

    `fn` must be a top-level function of an importable module; arguments and values are sent as
    plain pickles (nothing is shared). Each rank has one torch thread, the caller's environment
    with `env` on top, and its rank as global seed.
    Raises ValueError for a bad `world_size` or what can't be pickled. If a rank raises, RankError
    with its traceback comes within a second and the others are ended; the rank's exception is its
    `__cause__`. After `timeout` seconds RankError names the ranks that hang, and where each is.
    No process is left behind, also when the caller is killed.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size is {world_size!r}; it must be a whole number of at least 1")
    try:
        job = pickle.dumps((fn, args))
    except Exception as error:  # pickle raises several kinds
        raise ValueError(
            f"{fn!r} or its arguments can't be sent to another process: {error}. Use a function "
            "at the top level of a module (no lambda, no inner function) and plain arguments"
        ) from error
    environment = {**os.environ, **(env or {})}
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    context = _context()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        ranks = []
        try:
            for rank in range(world_size):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=rank_main,
                    args=(rank, world_size, folder, job, environment, timeout + GRACE, theirs),
                    name=f"rank {rank}",
                )
                with _main_without_a_file():
                    process.start()
                theirs.close()  # only the rank holds it now, so its death closes the pipe
                ranks.append((process, ours))
            (Path(folder) / "go").touch()
            return _collect(ranks, timeout, Path(folder))
        finally:
            for process, _ in ranks:
                process.kill()
            for process, pipe in ranks:
                process.join()
                pipe.close()


def _collect(ranks: list[tuple[Any, Connection]], timeout: float, folder: Path) -> list[Any]:
    """Every rank's value, or the first failure."""
    values: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(values) < len(ranks):
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks) if rank not in values}
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise _hung(sorted(waiting.values()), ranks, timeout, folder)
        for pipe in ready:
            rank = waiting[pipe]  # type: ignore[index]
            try:
                raw = pipe.recv_bytes()  # type: ignore[union-attr]
            except (EOFError, OSError):
                raise _died(rank, len(ranks), ranks[rank][0]) from None
            try:
                answer = pickle.loads(raw)
            except Exception as error:
                text = f"rank {rank} of {len(ranks)} returned what can't be unpickled: {error}"
                raise RankError(text, rank) from error
            if isinstance(answer, Failure):
                text = f"rank {rank} of {len(ranks)} raised\n\n{answer.traceback}"
                raise RankError(text, rank) from answer.error
            values[rank] = answer
    return [values[rank] for rank in range(len(ranks))]


def _died(rank: int, world_size: int, process: Any) -> RankError:
    process.join(5.0)
    code = process.exitcode
    how = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    return RankError(f"rank {rank} of {world_size} ended without an answer ({how})", rank)


def _hung(
    missing: list[int], ranks: list[tuple[Any, Connection]], timeout: float, folder: Path
) -> RankError:
    """Ask each missing rank where it stands (SIGUSR1, see rank_process.py), and say so."""
    if hasattr(signal, "SIGUSR1"):
        for rank in missing:
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[rank][0].pid, signal.SIGUSR1)
        time.sleep(0.2)
    lines = [
        f"after {timeout:g} s rank {', '.join(map(str, missing))} of {len(ranks)} had not come back"
    ]
    for rank in missing:
        stack = folder / f"stack-{rank}"
        where = stack.read_text() if stack.is_file() else ""
        lines.append(f"\nrank {rank} stood at (innermost first):\n{where or '  not known'}")
    return RankError("\n".join(lines), missing[0])


@contextlib.contextmanager
def _main_without_a_file() -> Iterator[None]:
    """A program that comes from standard input calls itself "<stdin>": a file that each rank would
    look for, in vain, to know the caller's `__main__`."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).is_file():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def warm_up(*modules: str) -> None:
    """Start the server that ranks are forked from now, with `modules` loaded in it too.

    Comes back at once; the first `run_ranks` waits for what is left. Worth it for
    "torch._dynamo", which every rank that makes an optimizer would else import by itself (1.4 s).
    """
    if "forkserver" in mp.get_all_start_methods():
        _context(*modules)
        forkserver.ensure_running()


def _context(*modules: str) -> Any:
    """The way to start processes: forked from a warm server where that exists."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    # torch only, never a step: whoever edits a step must not meet yesterday's version of it.
    # (No effect once the server runs.)
    context.set_forkserver_preload(["torch", "torch.distributed", "numpy", "einops", *modules])
    return context


def join_torchrun(timeout: float = 600.0, *, gpu: bool = True) -> torch.device:
    """Open the process group that torchrun describes; returns this rank's device.

    NCCL on this rank's GPU if the machine has GPUs (and `gpu`), else gloo on the CPU. Raises
    ValueError when torchrun didn't start this process, or started more ranks than there are GPUs.
    """
    if "LOCAL_RANK" not in os.environ:
        raise ValueError("LOCAL_RANK is not set: start with torchrun --nproc-per-node N -m MODULE")
    local, device = int(os.environ["LOCAL_RANK"]), torch.device("cpu")
    if gpu and torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"local rank {local} has no GPU: there are {torch.cuda.device_count()}; start "
                "at most that many with --nproc-per-node"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)  # before any group: NCCL takes the current device
    if not dist.is_initialized():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=timeout),
            device_id=device if device.type == "cuda" else None,
        )
    return device
