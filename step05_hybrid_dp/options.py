"""The training program's options: step 1's, and how the work is spread."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import step01_single_gpu.train as single

from .agreement import Agreed, Layout, together

Precision = Literal["auto", "fp32", "bf16", "bf16-params", "fp16"]
# A resumed run may have these otherwise; all else would make it another run.
MAY_CHANGE = (
    "steps", "tp", "dp", "micro_batch_size", "recompute", "keep", "compare_every", "timeout",
    "profile", "device", "root",
)  # fmt: skip


@dataclass(frozen=True)
class Options(single.Options):
    """Train a GPT-2 on tp × dp ranks: under torchrun, or alone. Defaults fit a laptop."""

    steps: int = 200
    tp: int | None = None
    """Tensor-parallel ranks; None is all ranks of a server (8 × 64 on 64 servers of 8)."""
    dp: int | None = None
    """Data-parallel ranks; None is what is left of the world."""
    precision: Precision = "auto"  # type: ignore[assignment]
    """auto: bf16 on a GPU, or where this CPU multiplies bfloat16 faster; else fp32. bf16 and fp16
    keep float32 weights (autocast); bf16-params has bfloat16 weights and float32 masters."""
    rng: Literal["paper", "invariant"] = "paper"
    """How dropout is drawn; invariant is slower, and the same at every layout."""
    vocab_multiple: int = 128
    keep: int = 3
    """Checkpoints that stay; the older ones are deleted."""
    compare_every: int = 100
    """Compare what ranks hold twice, weights above all, every so many steps."""
    timeout: float = 600.0
    """Seconds that a rank waits for another before it gives up."""
    profile: bool = False
    """Write timeline.json, for Perfetto, of one step: every rank's GEMMs and all-reduces, as its
    CPU sees them (of a GPU only when work was handed to it)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tp", "dp", "vocab_multiple", "keep", "compare_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} is {value}; it must be at least 1")
        if not self.timeout > 0:
            raise ValueError(f"--timeout is {self.timeout}; it must be above 0 seconds")


def layout(options: Options, world_size: int) -> tuple[int, int]:
    """(tp, dp) as given, or as they come to be: one server is one tensor-parallel group."""
    server = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if options.tp is not None:
        tp = options.tp
    elif options.dp is not None and world_size % options.dp == 0:
        tp = world_size // options.dp
    else:
        tp = server
    return tp, options.dp or max(1, world_size // tp)


def check_sizes(options: Options, tp: int, dp: int) -> None:
    """Raise ValueError unless batch and model divide by the layout. (The grid checks the world.)"""
    config = options.models[options.model]
    if options.batch_size % dp:
        below = options.batch_size // dp * dp
        raise ValueError(
            f"--batch_size {options.batch_size} doesn't divide by dp {dp}: "
            f"{f'{below} or ' if below else ''}{below + dp} would"
        )
    rows = options.batch_size // dp
    if rows % (options.micro_batch_size or rows):
        raise ValueError(
            f"--micro_batch_size {options.micro_batch_size} doesn't divide the {rows} rows that "
            f"each of dp {dp} ranks has of a batch of {options.batch_size}"
        )
    if config.num_heads % tp:
        works = [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0]
        raise ValueError(
            f"tp {tp} doesn't divide the {config.num_heads} heads of {options.model}; "
            f"these would: {', '.join(map(str, works))}"
        )


def check_same(options: Options, grid: Layout) -> None:
    """Raise Agreed, on all ranks, that names the options in which a rank differs from rank 0.

    Ranks with other options would run other collectives, or train another model in silence.
    """
    rows = together(grid, lambda: json.dumps(plain(options), sort_keys=True))
    first = json.loads(rows[0])
    for rank, row in enumerate(rows):
        own = json.loads(row)
        differ = [f"--{k} is {first[k]} on rank 0 and {own[k]}" for k in own if own[k] != first[k]]
        if differ:
            raise Agreed(f"rank {rank} was started with other options: {'; '.join(differ)}")


def plain(options: Options) -> dict[str, object]:
    """The options as JSON holds them."""
    values = dataclasses.asdict(options)
    return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
