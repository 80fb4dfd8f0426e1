"""`make explain`, or `python -m explain`: record a block at 1, 2, 4, 8 ranks and write the page."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from .page import page, write
from .record import RANKS, read, record


@dataclass
class Options:
    """Where the page goes, and what it replays."""

    out: Path = Path("runs/explain/index.html")
    """The page. A recording that is made now is kept beside it, as recording.json."""
    recording: Path | None = None
    """Show this recording; without it a new one is made (half a minute)."""


def main(options: Options) -> int:
    try:
        if options.recording is None:
            print(f"recording a block at {', '.join(map(str, RANKS))} ranks …", flush=True)
            recording = record()
            write(options.out.with_name("recording.json"), json.dumps(recording))
        else:
            recording = read(options.recording)
        write(options.out, page(recording))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"open in a browser: {options.out.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
