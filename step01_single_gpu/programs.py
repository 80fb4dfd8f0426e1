"""How a program starts, is stopped, and ends when its user asked for something that can't be."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tqdm import tqdm


def run_program(main: Callable[[Any], Any], options: type) -> None:
    """Parse the command line into the dataclass `options` and run `main` with it."""
    import tyro

    with told_kindly():
        main(tyro.cli(options))


@contextmanager
def told_kindly() -> Iterator[None]:
    """A ValueError becomes one message and exit status 2; a real bug keeps its traceback."""
    try:
        yield
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def pick_device(name: str) -> torch.device:
    """ "auto" is CUDA where torch sees a GPU, else the CPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA GPU here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class StopRequest:
    """Ctrl-C (or SIGTERM) inside the `with` only asks; the loop ends after its step.

    A second Ctrl-C stops at once. `forwarded`: this process has a launcher that passes on every
    signal that the terminal gave already, so what follows within two seconds is the same one.
    """

    requested = False

    def __init__(self, *, forwarded: bool = False) -> None:
        self._deaf = 2.0 if forwarded else 0.0  # seconds
        self._asked = 0.0

    def __enter__(self) -> StopRequest:
        self._before: dict[int, Any] = {}
        for name in (signal.SIGINT, signal.SIGTERM):
            self._before[name] = signal.signal(name, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        if self.requested and time.monotonic() - self._asked < self._deaf:
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested, self._asked = True, time.monotonic()
        if int(os.environ.get("RANK", "0")) > 0:
            return
        tqdm.write("stopping after this step (Ctrl-C again to stop at once) ...")

    def __exit__(self, *error: object) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)
