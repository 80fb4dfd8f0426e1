"""The page: the recording put into a template, so that one file holds everything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .record import checked

HERE = Path(__file__).parent
DIGITS = 6  # of each number on the page, which shows two places


def page(recording: dict[str, Any]) -> str:
    """The HTML: no other file and no network is needed to show it.

    Raises ValueError for what isn't a recording of this version.
    """
    data = json.dumps(shortened(checked(recording, "this")), separators=(",", ":"))
    html = (HERE / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", "draw.js", "page.js"):
        html = html.replace(f"/* {name} */", (HERE / name).read_text(encoding="utf-8"))
    # "</script>" inside the data would end it; "<" can stand in JSON as an escape.
    return html.replace("RECORDING", data.replace("<", "\\u003c"))


def shortened(recording: dict[str, Any]) -> dict[str, Any]:
    """The same with six digits a number: a third of the size."""
    runs = []
    for run in recording["runs"]:
        events = [
            {**event, "values": [None if v is None else short(v) for v in event["values"]]}
            for event in run["events"]
        ]
        runs.append({**run, "events": events})
    return {**recording, "runs": runs}


def short(values: list[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def write(path: Path, text: str) -> None:
    """The whole file or none: written beside it, then moved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
