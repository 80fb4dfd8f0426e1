"""`torchrun … -m step06_bert_layernorm.finetune`: fine-tune a BERT on a task (`make finetune`).

Every rank runs all of this: join, agree, read, then for each seed build, train and predict; rank 0
alone shows, plots and writes.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

from step01_single_gpu.machine import keep_freed_memory
from step01_single_gpu.optimizer import make_optimizer
from step01_single_gpu.run_folder import Metrics, new_run, write_options
from step02_mlp_parallel import load_full_state_dict
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp.agreement import Agreed, Layout, World, rank_zero, together
from step05_hybrid_dp.grid import Grid, check_world
from step05_hybrid_dp.optimizer import clip_grad_norm_
from step05_hybrid_dp.options import check_same
from step05_hybrid_dp.replicas import compare_replicas
from step05_hybrid_dp.start import join, run_ranked

from .config import BertConfig
from .finetune_open import Opened, fetch, ready
from .finetune_options import Options, check_layout, resumed
from .finetune_report import report
from .finetune_seeds import load_seed, metrics_of, save_seed, saved_seeds
from .finetune_step import Context, Place, backward_rows, linear_rate, predict
from .parallel_bert import ParallelBERT
from .task_rows import epoch_batches
from .tasks import Task, with_valid


@dataclass
class FineTuning:
    """What all seeds share; `metrics` is None on all ranks but the first."""

    options: Options
    config: BertConfig
    weights: dict[str, Tensor]
    task: Task
    look: Task  # the part of it that is scored now and then in mid-training
    place: Place
    run: Path
    metrics: Metrics | None

    @property
    def grid(self) -> Layout:
        """Who is where."""
        return self.place.grid


def main(options: Options) -> Path:
    """Fine-tune, and return the run's folder."""
    keep_freed_memory()
    began = time.perf_counter()
    device = join(options.device, options.timeout)
    everyone = World()
    if options.resume is not None:
        given = options
        options = together(everyone, lambda: resumed(given))[everyone.tp_rank]
    check_same(cast(Any, options), everyone)
    for turn in (everyone.tp_rank == 0, os.environ.get("LOCAL_RANK", "0") == "0"):
        together(everyone, partial(fetch, options, turn))  # one rank, then one of each server
    opened: list[Opened] = []

    def open_it() -> str:
        opened.append(ready(options))
        return opened[0].digest

    digests = together(everyone, open_it)
    if len(set(digests)) > 1:
        raise Agreed(f"ranks have other rows than rank 0: the hashes are {digests}")
    config, weights, task, pad_id, remarks = opened[0]
    tp, dp = together(everyone, lambda: layout(options, config, everyone.tp_size))[0]
    grid = Grid(tp, dp, device_type=device.type, timeout=options.timeout)
    context: Context = nullcontext
    if options.bf16:
        context = partial(torch.autocast, device.type, torch.bfloat16)
    place = Place(grid, pad_id, device, options.micro_batch_size, context)
    run = options.resume or rank_zero(grid, lambda: new_run(options.run, options.task))
    done = rank_zero(grid, lambda: saved_seeds(run))
    own: list[Metrics] = []
    rank_zero(grid, lambda: own.append(metrics_of(run, done)))
    rank_zero(grid, lambda: write_options(run, options))
    tuning = FineTuning(
        options, config, weights, task, with_valid(task, options.look_rows), place, run,
        own[0] if own else None,
    )  # fmt: skip
    if own:
        rows = f"{len(task.train):,} rows to learn from, {len(task.valid):,} held out"
        sizes = f"{config.num_layers} layers of {config.hidden_size}, tp {tp} × dp {dp}"
        print(*remarks, f"{options.task}: {rows}; {sizes}, run {run}", sep="\n")
    seeds = range(options.seed, options.seed + options.seeds)
    try:
        logits = [answers(tuning, seed, finished=seed in done) for seed in seeds]
    except KeyboardInterrupt:
        if own:
            print(f"stopped; finished seeds are kept, go on with: --resume {run}")
        raise
    rank_zero(
        grid,
        lambda: report(
            run, task, tuning.look, list(seeds), logits, own[0], time.perf_counter() - began
        ),
    )
    return run


def layout(options: Options, config: BertConfig, world_size: int) -> tuple[int, int]:
    """(tp, dp), checked against model and world."""
    tp, dp = check_layout(options, config, world_size)
    check_world(world_size, tp, dp)
    return tp, dp


def built(tuning: FineTuning, seed: int) -> tuple[nn.Module, RNGTracker]:
    """The pretrained model with a new head. A function of the seed, at any layout."""
    grid, place = tuning.grid, tuning.place
    rng = RNGTracker(
        seed,
        tp_rank=grid.tp_rank,
        tp_size=grid.tp_size,
        dp_rank=grid.dp_rank,
        mode=tuning.options.rng,
    )
    with torch.device("meta"):
        bert = ParallelBERT(tuning.config, group=grid.tp_group, rng=rng, heads=False)
    bert = bert.to_empty(device=place.device)
    load_full_state_dict(bert, tuning.weights)
    with place.device:
        return tuning.task.model(bert, seed=seed, dropout=rng.dropout), rng


def answers(tuning: FineTuning, seed: int, *, finished: bool) -> Tensor:
    """Logits of the held-out rows by this seed's model, trained and saved now or before; the same
    on all ranks. Errors as `train`, `save_seed` and `load_seed`."""
    t = tuning
    torch.manual_seed(seed)
    model, rng = built(t, seed)
    if finished:
        step = load_seed(t.run, seed, model, t.grid)
    else:
        step = train(t, seed, model, rng)
        save_seed(t.run, seed, model, step, t.grid)
    logits = predict(model, t.task.valid, t.place)
    if t.metrics is not None:  # the curve's last point, of the same rows as the others
        last = looked(t.look, logits[: len(t.look.valid)])
        t.metrics.add(step=step, seed=seed, look=last)
    return logits


def train(tuning: FineTuning, seed: int, model: nn.Module, rng: RNGTracker) -> int:
    """Train this seed's model; returns how many steps that took.

    Raises ValueError for a loss that isn't finite, and RuntimeError if replicas part.
    """
    t, options, settings = tuning, tuning.options, tuning.options.settings
    optimizer = make_optimizer(model, weight_decay=options.weight_decay)
    lengths = [row.length for row in t.task.train]
    steps = [
        batch
        for epoch in range(settings.epochs)
        for batch in epoch_batches(lengths, settings.batch_size, seed=seed, epoch=epoch)
    ]
    warmup = max(1, round(options.warmup * len(steps)))
    every = max(1, len(steps) // options.looks)
    bar = tqdm(
        total=len(steps), desc=f"seed {seed}", unit=" steps", dynamic_ncols=True,
        disable=None if t.metrics is not None else True,
    )  # fmt: skip
    shown = ""
    with bar:
        for step, indices in enumerate(steps):
            lr = linear_rate(step, peak=settings.lr, warmup=warmup, total=len(steps))
            for group in optimizer.param_groups:
                group["lr"] = lr
            model.zero_grad(set_to_none=True)
            rows = [t.task.train[i] for i in indices]
            loss = float(backward_rows(model, rows, step, t.place, rng))
            norm = float(clip_grad_norm_(model, options.clip, t.grid.tp_group))
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise Agreed(
                    f"the loss is {loss}, the gradient's norm {norm} at step {step + 1} of seed "
                    f"{seed} (learning rate {lr:.2g}): try a lower --lr"
                )
            optimizer.step()
            row: dict[str, Any] = {"step": step + 1, "seed": seed, "loss": loss, "lr": lr}
            if (step + 1) % every == 0 and step + 1 < len(steps):
                row["look"] = looked(t.look, predict(model, t.look.valid, t.place))
                shown = f", {t.look.primary} {row['look']:.1%} of {options.look_rows}"
            if t.metrics is not None:
                t.metrics.add(**row)
            bar.set_postfix_str(f"loss {loss:.3f}{shown}", refresh=False)
            bar.update()
    together(t.grid, lambda: compare_replicas(model, t.grid))
    return len(steps)


def looked(look: Task, logits: Tensor) -> float:
    """The main score of the rows that are looked at in mid-training."""
    return look.score(look.probabilities(logits))[look.primary]


if __name__ == "__main__":
    run_ranked(main, Options)
