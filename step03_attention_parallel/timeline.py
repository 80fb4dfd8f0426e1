"""What each rank does when: GEMMs, attention and all-reduces of a real block (paper, figure 4).

`python -m step03_attention_parallel.timeline [folder]` runs one block on two ranks and writes
timeline.svg and timeline.json (open it in Perfetto or chrome://tracing).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel.launch import run_ranks
from step02_mlp_parallel.wire import all_gather

from .block import ParallelBlock

# What torch calls it -> what we call it, first match counts.
KINDS = (
    ("forward", "phase"),
    ("backward pass", "phase"),
    ("gloo:all_reduce", "all-reduce"),
    ("nccl:all_reduce", "all-reduce"),
    ("scaled_dot_product_flash_attention", "attention"),
    ("aten::addmm", "GEMM"),
    ("aten::mm", "GEMM"),
)
COLOURS = {"GEMM": "#4477aa", "attention": "#228833", "all-reduce": "#ee6677"}


@dataclass(frozen=True)
class Event:
    """One piece of work; times in microseconds from the start of the recording."""

    kind: str
    name: str
    start: float
    end: float


@contextmanager
def recorded() -> Iterator[list[Event]]:
    """A list that holds this rank's events, sorted by start, once the `with` is closed.

    An all-reduce lasts until its peers have come too. All times are from rank 0's start, by the
    time of day: ranks leave a barrier milliseconds apart, and would seem to send before they meet.
    """
    events: list[Event] = []
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        if dist.is_initialized():
            dist.barrier()  # behind the profiler's start, which takes some ranks longer
        seen = []
        for _ in range(5):  # the quickest look at the time of day tells it best
            with record_function("clock"):
                seen.append(time.time())
        yield events
    marks = [e.time_range for e in profiler.events() if e.name == "clock"]
    began, zero = min(zip(seen, marks, strict=True), key=lambda pair: pair[1].elapsed_us())
    world = dist.group.WORLD if dist.is_initialized() else None
    first = all_gather(torch.tensor([began], dtype=torch.float64), world)[0]
    late = 1e6 * (began - first.item()) - zero.start
    for e in profiler.events():
        kind = next((kind for part, kind in KINDS if part in e.name), None)
        if kind is not None and e.time_range.start >= zero.start:
            start, end = (t + late for t in (e.time_range.start, e.time_range.end))
            events.append(Event(kind, e.name, start, end))
    events.sort(key=lambda event: event.start)


def one_block(hidden: int, b: int, s: int) -> list[Event]:
    """Events of a block's forward and backward on this rank, after a round to warm up."""
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    config = GPTConfig(1, s, hidden, num_layers=1, num_heads=8, dropout=0.0)
    block = ParallelBlock(config, group=group)
    x = torch.randn(b, s, hidden, requires_grad=True)
    block(x).sum().backward()
    block.zero_grad(set_to_none=True)
    with recorded() as events:
        with record_function("forward"):
            y = block(x)
        with record_function("backward pass"):
            y.sum().backward()
    return events


def chrome_trace(ranks: list[list[Event]]) -> str:
    """The events as JSON for Perfetto: a process a rank, a row a kind."""
    rows = [
        {
            "name": event.name,
            "cat": event.kind,
            "ph": "X",
            "ts": event.start,
            "dur": event.end - event.start,
            "pid": f"rank {rank}",
            "tid": event.kind,
        }
        for rank, events in enumerate(ranks)
        for event in events
    ]
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"})


def draw(ranks: list[list[Event]], path: Path) -> None:
    """A lane for the work of each rank and one for its all-reduces, on one clock."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 3.6), layout="constrained")
    labels = []
    for rank, events in enumerate(ranks):
        for lane, kinds in enumerate((("GEMM", "attention"), ("all-reduce",))):
            y = -(3 * rank + lane)
            labels.append((y, f"rank {rank}" if lane == 0 else "wire"))
            for event in events:
                if event.kind in kinds:
                    width = (event.end - event.start) / 1e3
                    axes.barh(y, width, 0.8, event.start / 1e3, color=COLOURS[event.kind])
    (turn,) = (e.start for e in ranks[0] if e.name == "backward pass")
    axes.axvline(turn / 1e3, color="gray", ls="--", lw=1)
    axes.text(turn / 1e3, 0.7, " backward", va="bottom")
    axes.text(turn / 1e3, 0.7, "forward ", va="bottom", ha="right")
    axes.set_yticks([y for y, _ in labels], [text for _, text in labels])
    axes.set(xlabel="milliseconds", ylim=(-3 * len(ranks) + 1.3, 1.6))
    for kind, colour in COLOURS.items():
        axes.bar(0, 0, color=colour, label=kind)
    axes.legend(frameon=False, ncols=3, loc="upper right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ranks = run_ranks(one_block, 2, 512, 4, 128)
    draw(ranks, folder / "timeline.svg")
    (folder / "timeline.json").write_text(chrome_trace(ranks))
    print(f"in {folder}: timeline.svg, timeline.json (open it in Perfetto or chrome://tracing)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/timeline"))
