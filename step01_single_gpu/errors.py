"""How a program ends when its user asked for something that can't be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told_kindly() -> Iterator[None]:
    """A ValueError becomes one message and exit status 2; a real bug keeps its traceback."""
    try:
        yield
    except ValueError as error:
        sys.exit(_end(f"error: {error}"))
    except KeyboardInterrupt:
        sys.exit(_end("stopped", status=130))


def _end(message: str, status: int = 2) -> int:
    print(message, file=sys.stderr)
    return status
