"""The training program of every model: join, agree, build, resume, loop, leave, in this order.

Every rank runs all of this; rank 0 alone shows, plots and writes metrics. What depends on the model
is a `Task`: GPT-2's is in train.py, BERT's in step 6.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from step01_single_gpu.machine import gemm_peak, keep_freed_memory
from step01_single_gpu.optimizer import make_optimizer
from step01_single_gpu.programs import StopRequest
from step01_single_gpu.run_folder import (
    Metrics,
    new_run,
    resumed_options,
    write_options,
    write_text,
)
from step03_attention_parallel.rng import RNGTracker

from .agreement import Agreed, World, rank_zero, together
from .batches import check_same_rows
from .checkpoint import load_checkpoint
from .ddp import DataParallel
from .grid import Grid, check_world, figure_8
from .loop import Training, train_loop
from .objective import Batch, Objective
from .options import MAY_CHANGE, Options, Precision, check_same, check_sizes, layout
from .precision import MixedPrecision
from .profiling import write_profile
from .start import join

RESTART = "RESTART"  # a file in the run's folder: stopped from outside, go on


class Task(Protocol):
    """A model and what it is trained on. Every rank makes one, with (options, grid)."""

    objective: Objective

    def prepare(self) -> object:
        """Make the data's files, if they aren't there. One rank of a server does it first."""

    def open(self) -> tuple[Any, ...]:
        """Open the data and try the first batch; what is returned must be alike on all ranks: the
        tokens in training and validation, the hash of the text, that of the vocabulary."""

    def model(self, rng: RNGTracker) -> Any:
        """This rank's part of the model, on the current device."""

    def own_batch(self, step: int) -> Batch:
        """This rank's rows of the global batch of step `step`, on the CPU."""

    def work(self) -> tuple[int, float]:
        """Tokens and floating-point operations of a step, all ranks together."""

    def validate(self, model: Any, precision: MixedPrecision) -> dict[str, float]:
        """Figures on held-out data, by name. Collective."""

    def plot(self, metrics: Metrics, path: Path) -> None:
        """Draw the run so far."""

    def finish(self, training: Training) -> None:
        """The last figures, files and words: by all ranks, written by the first."""


MakeTask = Callable[[Any, Grid], Task]


def run_training(options: Options, make_task: MakeTask) -> Path:
    """Train, and return the run's folder."""
    keep_freed_memory()
    device = join(options.device, options.timeout)
    everyone = World()
    options, tp, dp = agreed(options, everyone)
    grid = Grid(tp, dp, device_type=device.type, timeout=options.timeout)
    precision = rank_zero(grid, lambda: chosen(options, device))
    options = dataclasses.replace(options, precision=precision)
    task = make_task(options, grid)
    share_data(task, grid)
    training, start = built(options, task, grid, device)
    if training.metrics is not None:
        count = f"{training.model.config.num_parameters:,} parameters"
        print(f"{options.model}: {count}, {options.precision} on {device.type}, run {training.run}")
        print(figure_8(tp, dp))
    if options.profile:
        write_profile(training, start)

    with StopRequest(forwarded="LOCAL_RANK" in os.environ) as stop:
        done = train_loop(training, start, stop)
    if done == options.steps:
        task.finish(training)
    elif training.metrics is not None:
        task.plot(training.metrics, training.run / "loss.png")
        write_text(training.run / RESTART, f"stopped after step {done}\n")
        print(f"stopped after step {done}; go on with: --resume {training.run}")
    return training.run


def agreed(options: Options, everyone: World) -> tuple[Options, int, int]:
    """The options (a resumed run's own ones) and (tp, dp), the same on all ranks and possible."""
    if options.resume is not None:
        given = options
        options = together(everyone, lambda: resumed_options(given, MAY_CHANGE))[everyone.tp_rank]
    check_same(options, everyone)

    def checked() -> tuple[int, int]:
        tp, dp = layout(options, everyone.tp_size)
        check_world(everyone.tp_size, tp, dp)
        check_sizes(options, tp, dp)
        return tp, dp

    return options, *together(everyone, checked)[0]


def share_data(task: Task, grid: Grid) -> None:
    """The data: made by rank 0, then by one rank of each server without it, then opened by all."""
    for turn in (grid.rank == 0, int(os.environ.get("LOCAL_RANK", "0")) == 0):
        together(grid, partial(_if, turn, task.prepare))
    kinds = together(grid, task.open)
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise Agreed(
                f"rank {rank} has other data than rank 0: (training tokens, validation tokens, "
                f"hash of the text, hash of the vocabulary) are {kind} and {kinds[0]}"
            )


def built(options: Options, task: Task, grid: Grid, device: torch.device) -> tuple[Training, int]:
    """Model, engine and optimizer; new, or as the checkpoint has them; and the step to start at."""
    rng = RNGTracker(
        options.seed,
        tp_rank=grid.tp_rank,
        tp_size=grid.tp_size,
        dp_rank=grid.dp_rank,
        mode=options.rng,
    )
    torch.manual_seed(options.seed)
    with device:
        model = task.model(rng)
    precision = MixedPrecision(model, options.precision, tp_group=grid.tp_group)
    optimizer = make_optimizer(precision.trained, weight_decay=options.weight_decay)
    start, taken = 0, 0
    if options.resume is not None:
        found = load_checkpoint(
            options.resume / "checkpoints", precision.trained, optimizer, rng=rng, grid=grid
        )
        if precision.masters is not None:
            precision.masters.push_weights()
        start, taken = found["step"], found["extra"]["taken"]
        precision.load_state_dict(found["extra"]["scaler"])
        if start >= options.steps:
            raise Agreed(f"{options.resume} has done its {start} steps; give more with --steps")
    check_same_rows(task.own_batch(start), grid.tp_group)
    run = options.resume or rank_zero(grid, lambda: new_run(options.run, options.model))
    own: list[Metrics] = []
    rank_zero(grid, lambda: own.append(Metrics(run, until=start)))
    tokens, flops = task.work()
    training = Training(
        model=model,
        engine=DataParallel(
            model,
            grid.dp_group,
            forward_context=precision.forward_context,
            objective=task.objective,
        ),
        precision=precision,
        optimizer=optimizer,
        grid=grid,
        rng=rng,
        options=options,
        own_batch=task.own_batch,
        validate=partial(task.validate, model, precision),
        tokens=tokens,
        flops=flops,
        run=run,
        metrics=own[0] if own else None,
        taken=taken,
    )
    if options.resume is None:
        training.save(0)  # whenever it is killed, there is something to go on from
    rank_zero(grid, lambda: write_options(run, options))
    rank_zero(grid, lambda: (run / RESTART).unlink(missing_ok=True))
    return training, start


def chosen(options: Options, device: torch.device) -> Precision:
    """The precision that "auto" is here."""
    if options.precision != "auto":
        return options.precision
    if device.type == "cuda":
        return "bf16"
    half, full = (gemm_peak(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    return "bf16" if half > 1.2 * full else "fp32"


def _if(turn: bool, action: Callable[[], object]) -> None:
    if turn:
        action()
