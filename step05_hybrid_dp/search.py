"""Which layouts there are, which is fastest, and what a model that fits nowhere would need."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cost_model import Layout, Memory, check, fits, memory
from .machines import GIB, MACHINES, Machine
from .time_model import Times, times, work

if TYPE_CHECKING:
    from step01_single_gpu.config import GPTConfig


@dataclass(frozen=True)
class Plan:
    """One layout, reckoned: `flops` are a GPU's operations in an iteration."""

    layout: Layout
    memory: Memory
    times: Times
    flops: float
    fits: bool


def plan_of(config: GPTConfig, layout: Layout, machine: Machine) -> Plan:
    """Memory and time of one layout. Raises ValueError for an impossible one."""
    held, done = memory(config, layout, machine), work(config, layout, machine)
    seconds = times(done, layout, machine)
    return Plan(layout, held, seconds, done.flops, fits(held, machine))


def candidates(
    config: GPTConfig,
    layout: Layout,
    machine: Machine,
    micro_batch: int | None,
    *,
    every_layout: bool = False,
) -> list[Plan]:
    """`layout` with each micro-batch that divides its share of the batch (or with the given one);
    `every_layout`: also with each (tp, dp) on the same number of GPUs, with and without recompute.
    """
    gpus = layout.tp_size * layout.dp_size
    sizes, repeats = [layout.tp_size], [layout.recompute]
    if every_layout:
        sizes, repeats = _divisors(gpus), [True, False]
    found = []
    for tp in sizes:
        dp = gpus // tp
        share = layout.global_batch_size // dp
        for micro in [micro_batch] if micro_batch else _divisors(share):
            for recompute in repeats:
                each = dataclasses.replace(
                    layout, tp_size=tp, dp_size=dp, micro_batch_size=micro, recompute=recompute
                )
                if _possible(config, each, machine):
                    found.append(plan_of(config, each, machine))
    return found


def ranked(plans: list[Plan]) -> list[Plan]:
    """Those that fit, fastest first, then the others, smallest first."""
    return sorted(
        plans, key=lambda plan: (not plan.fits, plan.times.total if plan.fits else plan.memory.peak)
    )


def comparison(mine: Plan, first: Plan, names: dict[str, str]) -> list[str]:
    """Why `first` is faster: the parts of the iteration in which the two differ, largest first."""
    slower = mine.times.total / first.times.total - 1
    parts = sorted(
        ((getattr(mine.times, name) - getattr(first.times, name), text))
        for name, text in names.items()
    )
    gains = [
        f"{text} {-seconds:+.2f} s" for seconds, text in reversed(parts) if abs(seconds) > 0.005
    ]
    return [f"Number 1 is {slower:.1%} faster. Where it differs: {', '.join(gains)}."]


def what_would_fit(config: GPTConfig, layout: Layout, machine: Machine) -> list[str]:
    """What a layout that does not fit needs, and the nearest changes that would make it fit."""
    smallest = dataclasses.replace(layout, micro_batch_size=1, recompute=True)
    least = memory(config, smallest, machine)
    lines = [
        f"It does not fit: tp {layout.tp_size} x dp {layout.dp_size} needs at least "
        f"{least.peak / GIB:.1f} GiB a GPU (micro-batch 1, recompute); {machine.name} has "
        f"{machine.memory / GIB:.0f}.",
    ]
    ways = []
    if fits(least, machine):
        micro = max(
            (
                plan.layout.micro_batch_size
                for plan in candidates(config, smallest, machine, None)
                if plan.fits
            ),
        )
        lines = [f"It does not fit so; {machine.name} has {machine.memory / GIB:.0f} GiB."]
        ways.append(f"micro-batch {micro} with recompute")
    for tp in _divisors(config.num_heads):
        each = dataclasses.replace(smallest, tp_size=tp)
        if tp > layout.tp_size and _fits(config, each, machine):
            ways.append(f"tp {tp} ({tp * layout.dp_size} GPUs with dp {layout.dp_size})")
            break
    for other in MACHINES.values():
        precision = layout.precision if layout.precision in other.peak else next(iter(other.peak))
        each = dataclasses.replace(smallest, precision=precision)
        if other.memory > machine.memory and _fits(config, each, other):
            ways.append(f"{other.name} ({other.memory / GIB:.0f} GiB, {precision})")
    return [*lines, "It would fit with: " + ("; or ".join(ways) or "nothing that is known here")]


def _fits(config: GPTConfig, layout: Layout, machine: Machine) -> bool:
    possible = _possible(config, layout, machine)
    return possible and fits(memory(config, layout, machine), machine)


def _possible(config: GPTConfig, layout: Layout, machine: Machine) -> bool:
    try:
        check(config, layout, machine)
    except ValueError:
        return False
    return True


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]
