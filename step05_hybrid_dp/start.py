"""How a rank starts, notices that it is alone, and ends: the launch checklist.

1. Environment that CUDA reads once, before CUDA is touched.
2. The device, before any process group (NCCL takes the current one): step 2's `join_torchrun`,
   with `device_id`, an explicit timeout and the backend "cpu:gloo,cuda:nccl".
3. A watch on the launcher: if it dies, nobody would end its ranks.
4. Groups, all in one order on all ranks: grid.py.
5. The same options, the same data, on all ranks.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from step01_single_gpu.programs import pick_device
from step02_mlp_parallel.launch import join_torchrun

from .agreement import Agreed


def join(device: str, timeout: float) -> torch.device:
    """Join the ranks that torchrun started, or go on alone; returns this rank's device."""
    # One queue for kernels and communication: an all-reduce that was started before a GEMM then
    # runs before it, which is what hides it behind the GEMM.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # tqdm's own lock is a semaphore of the system, which a rank that is ended leaves behind.
    tqdm.set_lock(threading.RLock())
    if "LOCAL_RANK" not in os.environ:
        return pick_device(device)
    watch_launcher()
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if device == "cuda" and gpus < ranks:
        raise Agreed(f"{ranks} ranks on a machine of {gpus} GPUs; start at most {gpus}")
    if device == "auto" and 0 < gpus < ranks and rank() == 0:
        print(f"{ranks} ranks and {gpus} GPUs on this machine: training on the CPU")
    found = join_torchrun(timeout, gpu=device != "cpu" and gpus >= ranks)
    if found.type == "cpu":  # torchrun gives each rank one thread, however many cores there are
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max(1, (cores or 1) // ranks))
    return found


def watch_launcher() -> None:
    """End this process when its parent dies (kill -9 of torchrun leaves ranks behind otherwise)."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch launcher").start()


def rank() -> int:
    """Global rank, also before the process group is open."""
    return int(os.environ.get("RANK", "0"))


def run_ranked(main: Callable[[Any], object], options: type) -> None:
    """Parse the command line, run `main` on every rank, and leave no rank waiting.

    A ValueError that all ranks have (a bad option, or `Agreed`) is said once, by rank 0, one that a
    rank has alone by that rank; exit status 2. Any other error keeps its traceback and ends the
    rank at once: its peers' collectives then fail within moments, where an orderly exit would wait.
    """
    import tyro

    status, parsed = 0, False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # also into a cluster's log
    try:
        given: Any = tyro.cli(options, console_outputs=rank() == 0)  # one rank's help is enough
        parsed = True
        main(given)
    except ValueError as error:
        alike = isinstance(error, Agreed) or not parsed
        if rank() == 0 or not alike:
            who = "" if alike else f"rank {rank()}: "
            print(f"{who}error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.stdout.flush()
        print(f"rank {rank()}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        os._exit(1)
    if dist.is_initialized():
        if status == 0:
            dist.destroy_process_group()
        else:  # destroying may wait for peers
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    sys.exit(status)
