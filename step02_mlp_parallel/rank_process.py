"""What runs inside each process that `run_ranks` starts."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch.distributed as dist

from .crowd import wait_for_all


@dataclass
class Failure:
    """What a rank sends instead of a value."""

    traceback: str
    error: BaseException | None  # None if it can't be pickled


def rank_main(
    rank: int,
    world_size: int,
    folder: str,
    job: bytes,
    environment: dict[str, str],
    timeout: float,
    pipe: Connection,
) -> None:
    """Join the group, run the job, send one answer, and wait for the caller to end us all.

    A rank that left at once would close its connections while others still read from them, and a
    rank that failed would make its peers fail too, and hide which was the first.
    """
    # What the server had loaded is shared with it until someone writes there, as a collection does.
    gc.freeze()
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    if hasattr(signal, "SIGUSR1"):
        stack = open(Path(folder) / f"stack-{rank}", "w")  # noqa: SIM115 (open until the end)
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # ranks that lean on the global seed shall differ at once
    wait_for_all(world_size, Path(folder) / "go")
    try:
        fn, args = pickle.loads(job)
        dist.init_process_group(
            "gloo",
            init_method=(Path(folder) / "rendezvous").as_uri(),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
        answer = pickle.dumps(fn(*args))
    except BaseException as error:  # exit() inside the function too
        answer = pickle.dumps(_failure(error))
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send_bytes(answer)
    threading.Event().wait()


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Failure(text, None)
    return Failure(text, error)


def _end_with_the_caller() -> None:
    """A caller that is killed can't end its ranks; each of them watches it."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
