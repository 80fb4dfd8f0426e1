"""`torchrun … -m step05_hybrid_dp.train`: train a parallel GPT-2 on real text (`make train`).

The program is program.py's; here is what makes it a GPT-2's: its text, its rows, its model.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from step01_single_gpu.batches import global_batch
from step01_single_gpu.config import GPTConfig
from step01_single_gpu.data import Data, open_data, prepare
from step01_single_gpu.machine import training_flops
from step01_single_gpu.model import in_eval_mode
from step01_single_gpu.run_folder import Metrics, plot_loss, write_text
from step01_single_gpu.sample import sample_text
from step01_single_gpu.scoring import unigram_loss
from step01_single_gpu.train import model_config
from step01_single_gpu.vocabulary import vocabulary_hash
from step02_mlp_parallel.wire import all_reduce_
from step03_attention_parallel.rng import RNGTracker
from step04_embeddings_loss import ParallelGPT

from .batches import own_rows
from .grid import Grid
from .loop import Training
from .objective import NEXT_TOKEN, Batch
from .options import Options
from .precision import MixedPrecision
from .program import run_training
from .start import run_ranked

WINDOWS = 128  # of the validation text, for the quick loss


def main(options: Options) -> Path:
    """Train, and return the run's folder."""
    return run_training(options, GPTTask)


class GPTTask:
    """What program.py asks for (`Task`), for a GPT-2."""

    objective = NEXT_TOKEN
    data: Data
    config: GPTConfig
    unigram: float  # the loss to get below

    def __init__(self, options: Options, grid: Grid) -> None:
        self.options, self.grid = options, grid

    def prepare(self) -> Path:
        return prepare(self.options.corpus, self.options.tokenizer, self.options.root)

    def open(self) -> tuple[int, int, str, str]:
        self.data = open_data(self.prepare())
        train, valid = self.data.train, self.data.valid
        self.config = model_config(self.options, train.vocab_size)
        self.own_batch(0)  # sizes that the text can't serve are found here, before anything is made
        windows(self.data, self.config.seq_length)
        self.unigram = unigram_loss(train.ids, valid.ids, train.vocab_size)
        source = json.loads((self.data.folder / "source.json").read_text())
        kind = source["sha256"], vocabulary_hash(self.data.tokenizer)
        return len(train.ids), len(valid.ids), *kind

    def model(self, rng: RNGTracker) -> ParallelGPT:
        return ParallelGPT(
            self.config,
            group=self.grid.tp_group,
            rng=rng,
            recompute=self.options.recompute,
            seed=self.options.seed,
            vocab_multiple=self.options.vocab_multiple,
        )

    def own_batch(self, step: int) -> Batch:
        batch = global_batch(
            self.data.train.ids,
            step,
            batch_size=self.options.batch_size,
            seq_length=self.config.seq_length,
            seed=self.options.seed,
        )
        return tuple(own_rows(part, self.grid.dp_rank, self.grid.dp_size) for part in batch)

    def work(self) -> tuple[int, float]:
        tokens = self.options.batch_size * self.config.seq_length
        return tokens, training_flops(self.config, tokens, recompute=self.options.recompute)

    def validate(self, model: Any, precision: MixedPrecision) -> dict[str, float]:
        return {"valid_loss": quick_loss(model, self.data, self.grid, precision)}

    def plot(self, metrics: Metrics, path: Path) -> None:
        plot_loss(metrics, path, self.unigram)

    def finish(self, training: Training) -> None:
        t = training
        final = t.validate()["valid_loss"]
        sample = ""
        if t.grid.dp_rank == 0:  # one tensor-parallel group writes; its ranks draw alike
            tokenizer = self.data.tokenizer
            sample = sample_text(t.model, tokenizer, "Fellow citizens,", seed=t.options.seed)
        if t.metrics is None:
            return
        t.metrics.add(step=t.options.steps, valid_loss=final, unigram_loss=self.unigram)
        self.plot(t.metrics, t.run / "loss.png")
        write_text(t.run / "sample.txt", sample + "\n")
        print(
            f"validation loss {final:.3f} (perplexity {math.exp(final):.1f}) on {WINDOWS} windows "
            f"of the held-out text; word frequencies alone give {self.unigram:.3f}\n\n{sample}\n\n"
            f"in {t.run}: config.json, metrics.jsonl, loss.png, sample.txt, checkpoints/"
        )


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


if __name__ == "__main__":
    run_ranked(main, Options)
