"""How the page that holds the paper beside us is written: tables, and what isn't there yet."""

from __future__ import annotations

from typing import Any


def grid(columns: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown, with an empty line behind it."""
    head, *body = ("| " + " | ".join(row) + " |" for row in (columns, *rows))
    return "\n".join([head, "|---" * len(columns) + "|", *body, ""])


def table(measured: dict[str, Any], benchmark: str, start: str) -> dict[str, Any] | None:
    """The table of a benchmark whose title starts so, if it was measured."""
    found = measured.get(benchmark, {}).get("tables", [])
    return next((each for each in found if each["title"].startswith(start)), None)


def shown(found: dict[str, Any] | None, command: str) -> str:
    """A measured table as it is, or how to measure it."""
    if found is None:
        return f"Not measured yet: `{command}`.\n"
    note = f"\n{found['note']}\n" if found["note"] else ""
    return f"{found['title']} (`{command}`):\n\n" + grid(found["columns"], found["rows"]) + note


def figure(measured: dict[str, Any], benchmark: str, start: str, name: str) -> float | None:
    """One number of it."""
    found = table(measured, benchmark, start)
    value = found["figures"].get(name) if found else None
    return float(value) if value is not None else None


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
