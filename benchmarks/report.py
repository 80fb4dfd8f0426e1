"""What a benchmark found: tables for people, named figures for the plots and `make paper`."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from step01_single_gpu.machine import gemm_peak
from step01_single_gpu.run_folder import write_text

Step = Callable[[], float]
Seconds = dict[str, list[float]]  # by implementation, one a round


@dataclass(frozen=True)
class Table:
    """One table. The first column is text, the others are right-aligned."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    """The numbers behind the rows, by names such as "block 768/DTensor"."""

    def text(self) -> str:
        """For the terminal."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        body = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        ]
        body.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
        return "\n".join([self.title, *(f"  {line}" for line in body), *filter(None, [self.note])])

    def markdown(self) -> str:
        """For a file."""
        head = [
            "| " + " | ".join(self.columns) + " |",
            "|---" + "|---:" * len(self.columns[1:]) + "|",
        ]
        rows = ["| " + " | ".join(row) + " |" for row in self.rows]
        note = ["", self.note] if self.note else []
        return "\n".join([f"### {self.title}", "", *head, *rows, *note, ""])


def show(tables: Iterable[Table], save: str) -> None:
    """Print each table as soon as it is there; at the end write all to `save`, if given."""
    found = []
    for table in tables:
        print(f"\n{table.text()}", flush=True)
        found.append(asdict(table))
    if save:
        write_text(Path(save), json.dumps(found, indent=1))


def opened(path: Path) -> Iterator[Table]:
    """The tables of a file that `show` wrote."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        yield Table(**row)


def quartiles(values: list[float]) -> str:
    """Median and quartiles: "1.15 (1.10 to 1.21)"."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def ratios(slow: list[float], fast: list[float]) -> list[float]:
    """Round by round, so that a machine whose speed drifts changes both parts of a ratio."""
    return [a / b for a, b in zip(slow, fast, strict=True)]


def beside(
    seconds: Seconds, missing: dict[str, str] | None = None
) -> tuple[list[list[str]], dict[str, float]]:
    """Rows (name, milliseconds, times ours) and the ratios; the missing are named, not dropped."""
    rows, figures = [], {}
    for name, row in seconds.items():
        by = ratios(row, seconds["ours"])
        figures[name] = statistics.median(by)
        times = "1" if name == "ours" else quartiles(by)
        rows.append([name, f"{statistics.median(row) * 1e3:.2f}", times])
    rows += [[name, "-", f"not here: {reason}"] for name, reason in (missing or {}).items()]
    return rows, figures


def interleaved(steps: dict[str, Step], rounds: int) -> Seconds:
    """Seconds of each step in each round, after two rounds that are not counted."""
    seconds: Seconds = {name: [] for name in steps}
    for i in range(rounds + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if i >= 2:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def slower_rank(ranks: list[Seconds]) -> Seconds:
    """A step is over when the slower rank is."""
    return {
        name: [max(pair) for pair in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in ranks[0]
    }


def machine() -> str:
    """This machine in a line, with what its cores can do at this moment."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    rates = {kind: gemm_peak(torch.device("cpu"), kind) for kind in (torch.float32, torch.bfloat16)}
    return (
        f"{os.cpu_count()} cores of {name} ({torch.backends.cpu.get_cpu_capability()}), "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}; "
        f"GEMMs of 1024 at {rates[torch.float32] / 1e9:.0f} GFLOP/s in float32, "
        f"{rates[torch.bfloat16] / 1e9:.0f} in bfloat16"
    )
