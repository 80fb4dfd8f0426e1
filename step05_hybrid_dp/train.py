"""`torchrun … -m step05_hybrid_dp.train`: train a parallel GPT-2 on real text (`make train`).

Every rank runs all of this, in this order: join, agree, build, resume, loop, leave. Rank 0 alone
shows, plots and writes metrics.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

import step01_single_gpu.train as single
from step01_single_gpu.batches import global_batch
from step01_single_gpu.data import Data, open_data, prepare
from step01_single_gpu.machine import gemm_peak, keep_freed_memory, training_flops
from step01_single_gpu.model import in_eval_mode
from step01_single_gpu.optimizer import make_optimizer
from step01_single_gpu.programs import StopRequest
from step01_single_gpu.run_folder import (
    Metrics,
    new_run,
    plot_loss,
    resumed_options,
    write_options,
    write_text,
)
from step01_single_gpu.sample import sample_text
from step01_single_gpu.scoring import unigram_loss
from step01_single_gpu.vocabulary import vocabulary_hash
from step02_mlp_parallel.wire import all_reduce_
from step03_attention_parallel.rng import RNGTracker
from step04_embeddings_loss import ParallelGPT

from .agreement import Agreed, World, rank_zero, together
from .batches import check_same_rows, own_rows
from .checkpoint import load_checkpoint
from .ddp import DataParallel
from .grid import Grid, check_world, figure_8
from .loop import Rows, Training, train_loop
from .options import MAY_CHANGE, Options, Precision, check_same, check_sizes, layout
from .precision import MixedPrecision
from .profiling import write_profile
from .start import join, run_ranked

WINDOWS = 128  # of the validation text, for the quick loss
RESTART = "RESTART"  # a file in the run's folder: stopped from outside, go on


def main(options: Options) -> Path:
    """Train, and return the run's folder."""
    keep_freed_memory()
    device = join(options.device, options.timeout)
    everyone = World()
    options, tp, dp = agreed(options, everyone)
    grid = Grid(tp, dp, device_type=device.type, timeout=options.timeout)
    precision = rank_zero(grid, lambda: chosen(options, device))
    options = dataclasses.replace(options, precision=precision)
    data = shared_data(options, grid)
    training, start = built(options, data, grid, device)
    unigram = unigram_loss(data.train.ids, data.valid.ids, data.train.vocab_size)
    if training.metrics is not None:
        count = f"{training.model.config.num_parameters:,} parameters"
        print(f"{options.model}: {count}, {options.precision} on {device.type}, run {training.run}")
        print(figure_8(tp, dp))
    if options.profile:
        write_profile(training, start)

    with StopRequest(forwarded="LOCAL_RANK" in os.environ) as stop:
        done = train_loop(training, start, stop)
    if done < options.steps:
        if training.metrics is not None:
            plot_loss(training.metrics, training.run / "loss.png", unigram)
            write_text(training.run / RESTART, f"stopped after step {done}\n")
            print(f"stopped after step {done}; go on with: --resume {training.run}")
        return training.run
    finish(training, data, unigram)
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


def built(options: Options, data: Data, grid: Grid, device: torch.device) -> tuple[Training, int]:
    """Model, engine and optimizer; new, or as the checkpoint has them; and the step to start at."""
    config = single.model_config(options, data.train.vocab_size)
    rng = RNGTracker(
        options.seed,
        tp_rank=grid.tp_rank,
        tp_size=grid.tp_size,
        dp_rank=grid.dp_rank,
        mode=options.rng,
    )
    torch.manual_seed(options.seed)
    with device:
        model = ParallelGPT(
            config,
            group=grid.tp_group,
            rng=rng,
            recompute=options.recompute,
            seed=options.seed,
            vocab_multiple=options.vocab_multiple,
        )
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
    own_batch = partial(batch_rows, data, options, config.seq_length, grid)
    together(grid, lambda: own_batch(start))  # bad sizes leave no folder behind
    together(grid, lambda: windows(data, config.seq_length))
    check_same_rows(own_batch(start), grid.tp_group)
    run = options.resume or rank_zero(grid, lambda: new_run(options.run, options.model))
    own: list[Metrics] = []
    rank_zero(grid, lambda: own.append(Metrics(run, until=start)))
    tokens = options.batch_size * config.seq_length
    training = Training(
        model=model,
        engine=DataParallel(model, grid.dp_group, forward_context=precision.forward_context),
        precision=precision,
        optimizer=optimizer,
        grid=grid,
        rng=rng,
        options=options,
        own_batch=own_batch,
        validate=partial(quick_loss, model, data, grid, precision),
        tokens=tokens,
        flops=training_flops(config, tokens, recompute=options.recompute),
        run=run,
        metrics=own[0] if own else None,
        taken=taken,
    )
    if options.resume is None:
        training.save(0)  # whenever it is killed, there is something to go on from
    rank_zero(grid, lambda: write_options(run, options))
    rank_zero(grid, lambda: (run / RESTART).unlink(missing_ok=True))
    return training, start


def finish(training: Training, data: Data, unigram: float) -> None:
    """The last figures, the plot and a sample: by all ranks, written by the first."""
    t = training
    final = t.validate()
    sample = ""
    if t.grid.dp_rank == 0:  # one tensor-parallel group writes; its ranks draw alike
        sample = sample_text(t.model, data.tokenizer, "Fellow citizens,", seed=t.options.seed)
    if t.metrics is None:
        return
    t.metrics.add(step=t.options.steps, valid_loss=final, unigram_loss=unigram)
    plot_loss(t.metrics, t.run / "loss.png", unigram)
    write_text(t.run / "sample.txt", sample + "\n")
    print(
        f"validation loss {final:.3f} (perplexity {math.exp(final):.1f}) on {WINDOWS} windows of "
        f"the held-out text; word frequencies alone give {unigram:.3f}\n\n{sample}\n\n"
        f"in {t.run}: config.json, metrics.jsonl, loss.png, sample.txt, checkpoints/"
    )


def batch_rows(data: Data, options: Options, seq_length: int, grid: Grid, step: int) -> Rows:
    """This rank's rows of step k's global batch."""
    batch = global_batch(
        data.train.ids,
        step,
        batch_size=options.batch_size,
        seq_length=seq_length,
        seed=options.seed,
    )
    tokens, targets = (own_rows(part, grid.dp_rank, grid.dp_size) for part in batch)
    return tokens, targets


@torch.no_grad()
def quick_loss(model: Any, data: Data, grid: Grid, precision: MixedPrecision) -> float:
    """Mean loss over windows of the validation text, always the same; each DP rank has some."""
    width = model.config.seq_length
    count = windows(data, width)
    inputs, targets = global_batch(data.valid.ids, 0, batch_size=count, seq_length=width, seed=0)
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    own = range(grid.dp_rank, count, grid.dp_size)
    with in_eval_mode(model), precision.forward_context():
        for i in range(0, len(own), 16):
            rows = list(own[i : i + 16])
            x, y = inputs[rows].to(device), targets[rows].to(device)
            total += model.loss(x, y, reduction="sum")
    all_reduce_(total, grid.dp_group)
    return float(total.item() / (count * width))


def windows(data: Data, width: int) -> int:
    """How many windows of the validation text are scored; ValueError if there isn't one."""
    count = min(WINDOWS, (len(data.valid.ids) - 1) // width)
    if count < 1:
        raise ValueError(
            f"the validation text has {len(data.valid.ids)} tokens, and a window of seq_length "
            f"{width} needs {width + 1}: use more text or a smaller --seq-length"
        )
    return count


def shared_data(options: Options, grid: Grid) -> Data:
    """The corpus: made by rank 0, then by one rank of each server without it, then opened."""

    def made(turn: bool) -> Path | None:
        return prepare(options.corpus, options.tokenizer, options.root) if turn else None

    for turn in (grid.rank == 0, int(os.environ.get("LOCAL_RANK", "0")) == 0):
        together(grid, partial(made, turn))
    opened: list[Data] = []

    def open_it() -> tuple[int, int, str, str]:
        data = open_data(prepare(options.corpus, options.tokenizer, options.root))
        opened.append(data)
        source = json.loads((data.folder / "source.json").read_text())
        sizes = len(data.train.ids), len(data.valid.ids)
        return *sizes, source["sha256"], vocabulary_hash(data.tokenizer)

    kinds = together(grid, open_it)
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise Agreed(
                f"rank {rank} has other data than rank 0: (training tokens, validation tokens, "
                f"hash of the text, hash of the vocabulary) are {kind} and {kinds[0]}"
            )
    return opened[0]


def chosen(options: Options, device: torch.device) -> Precision:
    """The precision that "auto" is here."""
    if options.precision != "auto":
        return options.precision
    if device.type == "cuda":
        return "bf16"
    half, full = (gemm_peak(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    return "bf16" if half > 1.2 * full else "fp32"


if __name__ == "__main__":
    run_ranked(main, Options)
