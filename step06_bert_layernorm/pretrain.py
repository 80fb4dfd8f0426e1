"""`torchrun … -m step06_bert_layernorm.pretrain`: pretrain a BERT (`make train MODEL=bert-mini`).

The program is step 5's, with its loop, checkpoints and manners; here is what makes it a BERT's.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import step05_hybrid_dp.options as step5
from step01_single_gpu.config import PAPER_MODELS as GPT2S
from step01_single_gpu.machine import training_flops
from step01_single_gpu.run_folder import Metrics, write_text
from step01_single_gpu.scoring import unigram_loss
from step03_attention_parallel.rng import RNGTracker
from step05_hybrid_dp.grid import Grid
from step05_hybrid_dp.loop import Training
from step05_hybrid_dp.precision import MixedPrecision
from step05_hybrid_dp.program import run_training
from step05_hybrid_dp.start import run_ranked

from .config import PAPER_MODELS, BertConfig
from .curves import plot_pretraining
from .examples import Batch, pretraining_rows
from .guessing import shown_guesses
from .objective import PRETRAINING
from .parallel_bert import ParallelBERT
from .scoring import Scores, score
from .text import Text, open_text, prepare_text

ROWS = 32  # scored at once
SHOWN = 3  # held-out examples with the model's guesses, in sample.txt


@dataclass(frozen=True)
class Options(step5.Options):
    """Pretrain a BERT on tp × dp ranks: under torchrun, or alone. Defaults fit a laptop."""

    models: ClassVar[Mapping[str, BertConfig]] = PAPER_MODELS

    model: str = "bert-mini"
    """A name from PAPER_MODELS; its vocabulary is the tokenizer's."""
    norm: Literal["rearranged", "original"] = "rearranged"
    """Where the layer norm stands: before each branch, or behind each sum as in the first BERT."""
    steps: int = 400
    batch_size: int = 16
    """Sentence pairs in a global batch: what one optimizer step sees."""
    seq_length: int | None = None
    """Tokens in a row, special ones among them; None is as many as the model has positions."""
    tokenizer: str = "wordpiece"  # type: ignore[assignment]
    """BERT's own vocabulary of 30,522 entries, or the path of a vocab.txt."""
    valid_examples: int = 256
    """Held-out pairs that are scored at each validation, always the same."""

    def __post_init__(self) -> None:
        if self.model not in self.models:
            raise ValueError(no_such_model(self.model, self.models))
        super().__post_init__()
        if self.norm not in ("rearranged", "original"):
            raise ValueError(f'--norm is {self.norm!r}; it must be "rearranged" or "original"')
        if self.valid_examples < 1:
            raise ValueError(f"--valid_examples is {self.valid_examples}; it must be at least 1")
        positions = self.models[self.model].seq_length
        if self.seq_length is not None and not 5 <= self.seq_length <= positions:
            raise ValueError(
                f"--seq_length is {self.seq_length}; {self.model} has {positions} positions, and "
                f"two pieces with their special tokens take 5: give 5 to {positions}"
            )


def no_such_model(name: str, models: Mapping[str, BertConfig]) -> str:
    """What to say of it: `make train` sends every name here that isn't a GPT-2's, so both kinds'
    are looked through."""
    if name in GPT2S:
        return (
            f"{name} is a GPT-2, which another program trains: make train MODEL={name}, or "
            "-m step05_hybrid_dp.train"
        )
    plain = name.lower().replace("_", "-")
    near = difflib.get_close_matches(plain, [*models, *GPT2S], cutoff=0.0)
    return f"there is no model {name!r}; near it: {', '.join(near)}"


def main(options: Options) -> Path:
    """Pretrain, and return the run's folder."""
    return run_training(options, BertTask)


def model_config(options: Options, vocab_size: int) -> BertConfig:
    """The named model in this run's norm order, with its vocabulary and dropout."""
    return dataclasses.replace(
        options.models[options.model],
        vocab_size=vocab_size,
        norm=options.norm,
        dropout=options.dropout,
    )


def held_out(text: Text, options: Options, count: int) -> Batch:
    """The first `count` examples of the validation text, the same for every run and layout."""
    length = options.seq_length or options.models[options.model].seq_length
    return pretraining_rows(text.valid, text.vocabulary, range(count), seq_length=length, seed=0)


class BertTask:
    """What step 5's program.py asks for (`Task`), for a BERT."""

    objective = PRETRAINING
    text: Text
    config: BertConfig
    valid: Batch
    unigram: float  # the loss of the masked words to get below

    def __init__(self, options: Options, grid: Grid) -> None:
        self.options, self.grid = options, grid

    def prepare(self) -> Path:
        return prepare_text(self.options.corpus, self.options.tokenizer, self.options.root)

    def open(self) -> tuple[int, int, str, str]:
        self.text = text = open_text(self.prepare())
        size = text.tokenizer.get_vocab_size()
        self.config = model_config(self.options, size)
        self.valid = held_out(text, self.options, self.options.valid_examples)
        asked = self.valid.targets[self.valid.targets >= 0]
        self.unigram = unigram_loss(text.train.ids, asked.numpy(), size)
        return text.kind

    def model(self, rng: RNGTracker) -> ParallelBERT:
        return ParallelBERT(
            self.config,
            group=self.grid.tp_group,
            rng=rng,
            recompute=self.options.recompute,
            seed=self.options.seed,
            vocab_multiple=self.options.vocab_multiple,
        )

    def own_batch(self, step: int) -> Batch:
        """Only this rank's rows are made: an example is a function of its number."""
        rows = self.options.batch_size // self.grid.dp_size
        first = step * self.options.batch_size + self.grid.dp_rank * rows
        return pretraining_rows(
            self.text.train,
            self.text.vocabulary,
            range(first, first + rows),
            seq_length=self.options.seq_length or self.config.seq_length,
            seed=self.options.seed,
        )

    def work(self) -> tuple[int, float]:
        length = self.options.seq_length or self.config.seq_length
        config = dataclasses.replace(self.config, seq_length=length)
        tokens = self.options.batch_size * length
        flops = training_flops(config, tokens, recompute=self.options.recompute, predicted=0.15)
        return tokens, flops

    def scores(self, model: Any, precision: MixedPrecision) -> Scores:
        own = range(self.grid.dp_rank, len(self.valid.order), self.grid.dp_size)
        starts = range(0, len(own), ROWS)
        batches = [Batch(*(t[list(own[i : i + ROWS])] for t in self.valid)) for i in starts]
        return score(model, batches, self.grid.dp_group, precision.forward_context())

    def validate(self, model: Any, precision: MixedPrecision) -> dict[str, float]:
        return by_name(self.scores(model, precision))

    def plot(self, metrics: Metrics, path: Path) -> None:
        plot_pretraining(metrics, path, self.unigram)

    def finish(self, training: Training) -> None:
        t = training
        found = self.scores(t.model, t.precision)
        shown = shown_guesses(t.model, self.valid, self.text.tokenizer, SHOWN)
        if t.metrics is None:
            return
        t.metrics.add(step=t.options.steps, **by_name(found), unigram_loss=self.unigram)
        self.plot(t.metrics, t.run / "loss.png")
        write_text(t.run / "sample.txt", shown + "\n")
        print(
            f"{report(found, self.unigram)}\n\n{shown}\n\n"
            f"in {t.run}: config.json, metrics.jsonl, loss.png, sample.txt, checkpoints/"
        )


def by_name(found: Scores) -> dict[str, float]:
    """As they stand in metrics.jsonl."""
    return {
        "valid_loss": found.masked_loss,
        "valid_perplexity": found.perplexity,
        "valid_order_loss": found.order_loss,
        "valid_order_accuracy": found.order_accuracy,
    }


def report(found: Scores, unigram: float) -> str:
    """The figures in words, each beside what one gets without having learned anything."""
    return (
        f"masked words: loss {found.masked_loss:.3f} (perplexity {found.perplexity:.1f}) over "
        f"{found.words:,} of the held-out text; word frequencies alone give {unigram:.3f} "
        f"({math.exp(unigram):.1f})\n"
        f"sentence order: {found.order_accuracy:.1%} of {found.pairs:,} held-out pairs are right "
        f"(loss {found.order_loss:.3f}); guessing gives 50 % ({math.log(2):.3f})"
    )


if __name__ == "__main__":
    run_ranked(main, Options)
