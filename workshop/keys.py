"""A key that was pressed, without waiting for one, for `make watch-step2`. Standard library."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed() -> Iterator[Callable[[], str]]:
    """`with pressed() as key:` and key() is the key since the last call, "" if none.

    Where there is no terminal, it is always "". The terminal is left as it was.
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield lambda: ""
        return
    if sys.platform == "win32":
        import msvcrt

        yield lambda: msvcrt.getwch() if msvcrt.kbhit() else ""
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)  # keys at once, and ^C still ends the program
        yield lambda: _waiting(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _waiting(terminal: int) -> str:
    ready, _, _ = select.select([terminal], [], [], 0)
    return os.read(terminal, 1).decode(errors="ignore") if ready else ""
