"""`python -m step01_single_gpu.train`: train the unpartitioned GPT-2 on real text.

The whole program, in the order in which it runs: options, set-up, the loop, what it leaves.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from tqdm import tqdm

from . import checkpoint
from .batches import global_batch
from .config import PAPER_MODELS, GPTConfig
from .data import Data, TokenizerName, open_data, prepare
from .machine import gemm_peak, keep_freed_memory, training_flops
from .model import GPT, in_eval_mode
from .optimizer import lr_at, make_optimizer
from .programs import StopRequest, pick_device, run_program
from .run_folder import Metrics, new_run, plot_loss, resumed_options, write_options, write_text
from .sample import sample_text
from .scoring import token_losses, unigram_loss


@dataclass(frozen=True)
class Options:
    """Train a GPT-2 on one device. Defaults fit a laptop; the paper's recipe is in the README."""

    models: ClassVar[Mapping[str, GPTConfig]] = PAPER_MODELS

    model: str = "gpt2-mini"
    """A name from PAPER_MODELS; its vocabulary is the tokenizer's."""
    steps: int = 300
    batch_size: int = 16
    """Sequences in a global batch: what one optimizer step sees."""
    micro_batch_size: int | None = None
    """Sequences in one forward and backward; None is the whole batch at once."""
    seq_length: int | None = None
    """Tokens in a sequence; None is the model's."""
    lr: float = 1.5e-3
    min_lr: float = 1e-4
    warmup: int = 30
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of the whole gradient."""
    dropout: float = 0.1
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: float32 weights, GEMMs in bfloat16 (autocast)."""
    recompute: bool = False
    """Keep one activation a layer and compute the others again: less memory, more time."""
    seed: int = 1234
    corpus: str = "presidents"
    """"presidents", or a text file or folder of your own."""
    tokenizer: TokenizerName = "bpe8192"
    root: Path = Path("data")
    """Where data is kept."""
    run: Path | None = None
    """Folder of this run; None is the next free runs/<model>-NNN."""
    resume: Path | None = None
    """Go on with the run in this folder, with its options."""
    valid_every: int = 100
    checkpoint_every: int = 100
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "valid_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; it must be at least 1")
        if self.model not in self.models:
            near = difflib.get_close_matches(self.model, self.models, cutoff=0.0)
            raise ValueError(f"there is no model {self.model!r}; near it: {', '.join(near)}")
        if self.batch_size % (self.micro_batch_size or self.batch_size):
            raise ValueError(
                f"--batch_size {self.batch_size} is not a multiple of --micro_batch_size "
                f"{self.micro_batch_size}"
            )


def main(options: Options) -> Path:
    """Train, and return the run's folder."""
    keep_freed_memory()
    if options.resume is not None:
        options = resumed_options(options)
    device = pick_device(options.device)
    data = open_data(prepare(options.corpus, options.tokenizer, options.root))
    config = model_config(options, data.train.vocab_size)
    torch.manual_seed(options.seed)
    with device:
        model = GPT(config, seed=options.seed, recompute=options.recompute)
    optimizer = make_optimizer(model, weight_decay=options.weight_decay)

    start = 0
    if options.resume is not None:
        state = checkpoint.read(options.resume / "checkpoint.pt")
        checkpoint.restore(state, model, optimizer)
        run, start = options.resume, int(state["step"])
        if start >= options.steps:
            raise ValueError(f"{run} has done its {start} steps; give more with --steps")
    else:
        # The first batch and window are tried before a folder is made: bad sizes leave nothing.
        one_batch(data, options, config, 0)
        run = new_run(options.run, options.model)
    write_options(run, options)
    metrics = Metrics(run, until=start)
    unigram = unigram_loss(data.train.ids, data.valid.ids, config.vocab_size)
    print(
        f"{options.model}: {config.num_parameters:,} parameters on {device.type}, run folder {run}"
    )

    with StopRequest() as stop:
        done = train_loop(model, optimizer, data, options, config, metrics, run, start, stop)
    if stop.requested:
        plot_loss(metrics, run / "loss.png", unigram)
        print(f"stopped after step {done}; go on with: --resume {run}")
        return run
    final = mean_loss(model, data)
    metrics.add(step=done, valid_loss=final, unigram_loss=unigram)
    plot_loss(metrics, run / "loss.png", unigram)
    sample = sample_text(model, data.tokenizer, "Fellow citizens,", seed=options.seed)
    write_text(run / "sample.txt", sample + "\n")
    print(
        f"validation loss {final:.3f} (perplexity {math.exp(final):.1f}) over "
        f"{len(data.valid.ids):,} tokens; word frequencies alone give {unigram:.3f}\n\n{sample}\n\n"
        f"in {run}: config.json, metrics.jsonl, loss.png, sample.txt, checkpoint.pt"
    )
    return run


def train_loop(
    model: GPT,
    optimizer: torch.optim.AdamW,
    data: Data,
    options: Options,
    config: GPTConfig,
    metrics: Metrics,
    run: Path,
    start: int,
    stop: StopRequest,
) -> int:
    """Steps `start` to `options.steps`, or until asked to stop; returns the steps done."""
    device = next(model.parameters()).device
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    peak = gemm_peak(device, dtype)
    tokens = options.batch_size * config.seq_length
    flops = training_flops(config, tokens, recompute=options.recompute)
    done = start
    bar = tqdm(
        total=options.steps, initial=start, unit=" steps", dynamic_ncols=True, disable=None
    )  # a terminal gets the bar, a log file a line at each validation
    with bar:
        for step in range(start, options.steps):
            began = time.perf_counter()
            lr = lr_at(
                step,
                peak=options.lr,
                minimum=options.min_lr,
                warmup=options.warmup,
                total=options.steps,
            )
            loss, norm = train_step(
                model, optimizer, one_batch(data, options, config, step), options, lr
            )
            done, seconds = step + 1, time.perf_counter() - began
            if not math.isfinite(loss):
                raise ValueError(
                    f"the loss is {loss} at step {done} (learning rate {lr:.2g}); the last good "
                    f"checkpoint is in {run}: try a lower --lr"
                )
            row: dict[str, Any] = {"step": done, "loss": loss, "lr": lr, "grad_norm": norm}
            metrics.add(**row, tokens_per_second=tokens / seconds)
            bar.update()
            share = f"{flops / seconds / peak:.0%} of peak"
            bar.set_postfix_str(
                f"loss {loss:.3f}, {tokens / seconds:,.0f} tokens/s, {share}", refresh=False
            )
            if done % options.valid_every == 0 and done < options.steps:
                valid_loss = quick_loss(model, data)
                metrics.add(step=done, valid_loss=valid_loss)
                tqdm.write(f"step {done}: validation loss {valid_loss:.3f}")
            if done % options.checkpoint_every == 0 or done == options.steps or stop.requested:
                checkpoint.save(run / "checkpoint.pt", model, optimizer, step=done)
            if stop.requested:
                break
    return done


def train_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    options: Options,
    lr: float,
) -> tuple[float, float]:
    """One optimizer step on a global batch, in micro-batches; returns (loss, gradient norm).

    Each micro-batch's sum of losses is divided by the tokens of the whole batch, so the gradient
    does not depend on how it was cut.
    """
    device = next(model.parameters()).device
    inputs, targets = (part.to(device) for part in batch)
    size = options.micro_batch_size or len(inputs)
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=device)
    for i in range(0, len(inputs), size):
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model.loss(
                inputs[i : i + size],
                targets[i : i + size],
                reduction="sum",
                divisor=targets.numel(),
            )
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return total.item(), norm.item()


def one_batch(
    data: Data, options: Options, config: GPTConfig, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step."""
    return global_batch(
        data.train.ids,
        step,
        batch_size=options.batch_size,
        seq_length=config.seq_length,
        seed=options.seed,
    )


def mean_loss(model: GPT, data: Data) -> float:
    """Mean loss over the validation text."""
    return token_losses(model, data.valid.ids, batch_size=16).mean().item()


@torch.no_grad()
def quick_loss(model: GPT, data: Data) -> float:
    """Mean loss over 128 windows of the validation text, always the same: a second, not ten."""
    width, device = model.config.seq_length, next(model.parameters()).device
    if len(data.valid.ids) <= 128 * width:
        return mean_loss(model, data)
    inputs, targets = global_batch(data.valid.ids, 0, batch_size=128, seq_length=width, seed=0)
    with in_eval_mode(model):
        parts = [
            (inputs[i : i + 16].to(device), targets[i : i + 16].to(device))
            for i in range(0, 128, 16)
        ]
        return statistics.fmean(model.loss(x, y).item() for x, y in parts)


def model_config(options: Options, vocab_size: int) -> GPTConfig:
    """The named model with this run's vocabulary, sequence length and dropout."""
    config = options.models[options.model]
    return dataclasses.replace(
        config,
        vocab_size=vocab_size,
        seq_length=options.seq_length or config.seq_length,
        dropout=options.dropout,
    )


if __name__ == "__main__":
    run_program(main, Options)
