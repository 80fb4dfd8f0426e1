"""How long the ranks of a pipeline wait, beside (p - 1) / (m + p - 1).

Twice: two stages that compute, each on a core of its own; and stages that sleep instead, which
shows a schedule by itself, whatever cores there are (four stages on two cores would not wait for
each other's numbers but for each other's cores).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.machine import keep_freed_memory
from step02_mlp_parallel import run_ranks

from .layouts import ROWS
from .parallel import own_core
from .report import Table, quartiles
from .schedules import SCHEDULES, Pipeline, PipelinedGPT, bubble
from .stages import GPTStage, StageGrid

MICRO_BATCHES = (1, 2, 4, 8)
# Hardly any vocabulary: the formula is about equal stages, and the output layer makes one longer.
EVEN = GPTConfig(128, 64, hidden_size=256, num_layers=8, num_heads=4, dropout=0.0)
FORWARD, BACKWARD = 0.005, 0.010  # seconds of sleep
Times = dict[str, list[tuple[float, float]]]  # case -> (busy, whole) seconds by round
WARM_UP = 2


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(BACKWARD)
        return grad.clone()


class SleepingStage(nn.Module):
    """x -> x, after a while; its gradient takes twice as long."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))  # so that the first stage has a backward too

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = _Sleep.apply(x + self.bias)  # type: ignore[no-untyped-call]
        return output


def cases(p: int, micro_batches: tuple[int, ...]) -> list[tuple[str, int, str]]:
    """(name, m, schedule); 1F1B needs a micro-batch for each stage."""
    return [
        (f"p={p} m={m} {schedule}", m, schedule)
        for m in micro_batches
        for schedule in SCHEDULES
        if schedule == "GPipe" or m >= p
    ]


def computing(config: GPTConfig, micro_batches: tuple[int, ...], rounds: int) -> Times:
    """Two stages of a GPT-2."""
    own_core()
    keep_freed_memory()
    module = GPTStage(config, StageGrid(2, 1))
    shape = (ROWS, config.seq_length)
    pipelines: dict[str, Pipeline | None] = {
        name: PipelinedGPT(module, schedule, m, shape).pipeline
        for name, m, schedule in cases(2, micro_batches)
    }
    tokens = torch.randint(
        config.vocab_size, (max(micro_batches) * ROWS, config.seq_length),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return timed(pipelines, tokens, ROWS, rounds)


def sleeping(p_sizes: tuple[int, ...], micro_batches: tuple[int, ...], rounds: int) -> Times:
    """Stages that sleep, on the first p ranks."""
    pipelines: dict[str, Pipeline | None] = {}
    x = torch.zeros(max(micro_batches), 1)
    for p in p_sizes:
        grid = StageGrid(p, 1)
        for name, m, schedule in cases(p, micro_batches):
            pipelines[name] = None
            if grid.member:
                pipelines[name] = Pipeline(
                    SleepingStage(), grid, schedule, m, x[:1], x[:1].clone(),
                    lambda output, _: output.sum(),
                )  # fmt: skip
    return timed(pipelines, x, 1, rounds)


def timed(pipelines: dict[str, Pipeline | None], inputs: Tensor, rows: int, rounds: int) -> Times:
    """Seconds of this rank, the cases interleaved; nothing for those it has no stage in."""
    times: Times = {name: [] for name in pipelines}
    for i in range(rounds + WARM_UP):
        for name, pipeline in pipelines.items():
            dist.barrier()
            if pipeline is None:
                continue
            x = inputs[: pipeline.micro_batches * rows]
            start = time.perf_counter()
            pipeline.run(x, x)
            seconds = time.perf_counter() - start
            if i >= WARM_UP:
                times[name].append((pipeline.stage.busy, seconds))
    return times


def idle(ranks: list[Times], case: str) -> list[float]:
    """By round, the share of a step that a stage waits, averaged over the stages. The step is over
    when the last stage to end is."""
    shares = []
    for stages in zip(*(times[case] for times in ranks if times[case]), strict=True):
        whole = max(seconds for _, seconds in stages)
        shares.append(1 - sum(busy for busy, _ in stages) / len(stages) / whole)
    return shares


def tables(
    rounds: int, config: GPTConfig = EVEN, micro_batches: tuple[int, ...] = MICRO_BATCHES
) -> list[Table]:
    """The bubble of stages that compute, and of stages that sleep."""
    real = run_ranks(computing, 2, config, micro_batches, rounds, timeout=300)
    asleep = run_ranks(sleeping, 4, (2, 4), micro_batches, rounds, timeout=300)
    return [
        _table(
            f"Bubble: share of a step that a stage waits; {config.num_layers} layers of "
            f"{config.hidden_size} in 2 stages, a core each",
            real, (2,), micro_batches, "computing",
            "Beside the schedule a stage waits for numbers to arrive, and for the slower of two "
            "stages that are not quite equal.",
        ),
        _table(
            f"Bubble of the schedules alone: stages that sleep, {FORWARD * 1e3:g} ms forward and "
            f"{BACKWARD * 1e3:g} ms backward (simulated: no computing, so any number of cores will "
            "do)",
            asleep, (2, 4), micro_batches, "sleeping",
            "p: stages; m: micro-batches. 1F1B needs m ≥ p. Median and quartiles over rounds.",
        ),
    ]  # fmt: skip


def _table(
    title: str,
    ranks: list[Times],
    p_sizes: tuple[int, ...],
    micro_batches: tuple[int, ...],
    kind: str,
    note: str,
) -> Table:
    rows, figures = [], {}
    for p in p_sizes:
        names = {(m, schedule): name for name, m, schedule in cases(p, micro_batches)}
        for m in micro_batches:
            row = [f"p={p} m={m}", f"{bubble(p, m):.2f}"]
            figures[f"bubble p={p} m={m} expected"] = bubble(p, m)
            for schedule in SCHEDULES:
                if (m, schedule) in names:
                    shares = idle(ranks, names[m, schedule])
                    middle = statistics.median(shares)
                    figures[f"bubble p={p} m={m} {schedule} {kind}"] = middle
                    row.append(quartiles(shares))
                else:
                    row.append("–")
            rows.append(row)
    return Table(title, ["", "(p-1)/(m+p-1)", *SCHEDULES], rows, note, figures)
