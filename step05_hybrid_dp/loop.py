"""The training loop, for any model and objective: every rank runs it, rank 0 shows and writes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from step01_single_gpu.machine import gemm_peak
from step01_single_gpu.optimizer import lr_at
from step01_single_gpu.programs import StopRequest
from step01_single_gpu.run_folder import Metrics
from step02_mlp_parallel.wire import all_reduce_
from step03_attention_parallel.rng import RNGTracker

from .agreement import Agreed, together
from .batches import rows_of
from .checkpoint import save_checkpoint
from .ddp import DataParallel
from .grid import Grid
from .objective import Batch
from .options import Options
from .precision import MixedPrecision
from .replicas import compare_replicas


@dataclass
class Training:
    """Everything that takes part; `metrics` is None on all ranks but the first."""

    model: Any  # nn.Module with .config, and a loss that the engine's objective calls
    engine: DataParallel
    precision: MixedPrecision
    optimizer: torch.optim.Optimizer
    grid: Grid
    rng: RNGTracker
    options: Options
    own_batch: Callable[[int], Batch]  # this rank's rows of step k's global batch, on the CPU
    validate: Callable[[], dict[str, float]]  # on held-out data, by name, the same on all ranks
    tokens: int  # in a global batch
    flops: float  # of a step, all ranks together
    run: Path
    metrics: Metrics | None
    taken: int = 0  # optimizer steps that were not skipped: what the learning rate goes by

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps. Collective."""
        extra = {"taken": self.taken, "scaler": self.precision.state_dict()}
        return save_checkpoint(
            self.run / "checkpoints",
            self.precision.trained,
            self.optimizer,
            step=step,
            rng=self.rng,
            extra=extra,
            grid=self.grid,
            keep=self.options.keep,
        )


class Step(NamedTuple):
    """What came of an optimizer step, the same on all ranks."""

    losses: dict[str, float]  # the mean of each part of the objective
    norm: float  # of the whole gradient, before clipping
    stepped: bool
    lr: float

    @property
    def loss(self) -> float:
        return sum(self.losses.values())


def train_loop(training: Training, start: int, stop: StopRequest) -> int:
    """Steps `start` to options.steps, or until some rank is asked to stop; returns the steps done.

    Raises ValueError for a loss that isn't finite, on all ranks, and RuntimeError if replicas part.
    """
    t, options = training, training.options
    device = t.engine.device
    dtype = torch.float32 if options.precision == "fp32" else torch.bfloat16
    peak = gemm_peak(device, dtype) * t.grid.tp_size * t.grid.dp_size
    done, shown = start, t.metrics is not None
    t.engine.settle(micro_batches(t, min(start, options.steps - 1))[0], t.rng)
    bar = tqdm(
        total=options.steps, initial=start, unit=" steps", dynamic_ncols=True,
        disable=None if shown else True,
    )  # fmt: skip
    with bar:
        for step in range(start, options.steps):
            began = time.perf_counter()
            result = train_step(t, step)
            done, seconds = step + 1, time.perf_counter() - began
            _check_finite(t, result, done)
            speed = t.tokens / seconds
            if t.metrics is not None:
                row: dict[str, Any] = {"step": done, "loss": result.loss, **result.losses}
                row |= {"lr": result.lr, "grad_norm": result.norm, "skipped": not result.stepped}
                t.metrics.add(**row, tokens_per_second=speed)
            share = f"{t.flops / seconds / peak:.0%} of peak"
            bar.update()
            skipped = "" if result.stepped else ", step skipped"
            bar.set_postfix_str(
                f"loss {result.loss:.3f}, {speed:,.0f} tokens/s, {share}{skipped}", refresh=False
            )
            last = done == options.steps
            if done % options.compare_every == 0 or last:
                together(t.grid, lambda: compare_replicas(t.precision.trained, t.grid))
            stopping = asked_to_stop(stop, t.grid)
            if done % options.checkpoint_every == 0 or last or stopping:
                t.save(done)
            if done % options.valid_every == 0 and not last:
                found = t.validate()
                if t.metrics is not None:
                    t.metrics.add(step=done, **found)
                    told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
                    tqdm.write(f"step {done}: {told}")
            if stopping:
                break
    return done


def train_step(training: Training, step: int) -> Step:
    """One optimizer step on step k's global batch."""
    t, options = training, training.options
    lr = lr_at(
        t.taken,
        peak=options.lr,
        minimum=options.min_lr,
        warmup=options.warmup,
        total=options.steps,
    )
    for group in t.optimizer.param_groups:
        group["lr"] = lr
    t.model.zero_grad(set_to_none=True)
    rows = options.batch_size // t.grid.dp_size
    first = t.grid.dp_rank * rows
    means = t.engine.backward_global_mean(
        micro_batches(t, step),
        scale=t.precision.scale,
        before=lambda row: t.rng.at(step, first + row),
    )
    stepped, norm = t.precision.step(t.optimizer, options.clip)
    t.taken += stepped
    losses = dict(zip(t.engine.objective.parts, means.view(-1).tolist(), strict=True))
    return Step(losses, float(norm), stepped, lr)


def micro_batches(training: Training, step: int) -> list[Batch]:
    """This rank's rows of the step, cut into micro-batches, on its device."""
    batch = training.own_batch(step)
    size = training.options.micro_batch_size or len(batch[0])
    return [
        rows_of(batch, slice(i, i + size), training.engine.device)
        for i in range(0, len(batch[0]), size)
    ]


def asked_to_stop(stop: StopRequest, grid: Grid) -> bool:
    """Whether any rank has been asked; the same answer on all, so that all leave at one step."""
    asked = torch.tensor(int(stop.requested), device=grid.device_type)
    all_reduce_(asked, grid.world_group, "max")
    return bool(asked)


def _check_finite(t: Training, result: Step, done: int) -> None:
    """fp16 steps may overflow (and are skipped, until the scale has come down to 1); anything else
    that isn't finite ends the run."""
    overflow = t.options.precision == "fp16" and t.precision.scale >= 1.0
    if math.isfinite(result.loss) and (result.stepped or overflow):
        return
    what = f"the gradient's norm is {result.norm}"
    if not math.isfinite(result.loss):
        what = f"the loss is {result.loss}"
    raise Agreed(
        f"{what} at step {done} (learning rate {result.lr:.2g}); the last good checkpoint is in "
        f"{t.run / 'checkpoints'}: try a lower --lr"
    )
