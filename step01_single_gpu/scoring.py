"""How well a model predicts a text: every token scored once, with context before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .model import in_eval_mode


# exercise 1.5
@torch.no_grad()
def token_losses(
    model: Any,
    tokens: Any,
    *,
    stride: int | None = None,
    batch_size: int = 8,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Tensor:
    """-log p of tokens[1:], each once and in order: float [len(tokens) - 1], on the CPU.

    A window of `seq_length` slides over the text by `stride` and scores only what is new in it,
    so a token has at least seq_length - stride tokens of context (paper, appendix E.1; windows
    after the first). `stride` None means no overlap: fastest, and the loss as in training.
    `progress` wraps the loop over batches (a progress bar). Asks only for `model.config` and
    `model.loss(reduction="none")`, so it scores parallel models too. Raises ValueError for an
    empty text, a stride outside [1, seq_length], a batch below 1.
    """
    length, total = model.config.seq_length, len(tokens) - 1
    stride = length if stride is None else stride
    if total < 0 or not 1 <= stride <= length or batch_size < 1:
        raise ValueError(
            f"{len(tokens)} tokens, stride {stride}, batch_size {batch_size}: there must be a "
            f"token, a stride from 1 to seq_length {length} and a batch of at least 1"
        )
    width, device = min(length, total), next(model.parameters()).device
    ends = [*range(width, total, stride), total] if total else []
    pieces, done = [], 0
    for i in progress(range(0, len(ends), batch_size)):
        batch = ends[i : i + batch_size]
        rows = _rows(tokens, [end - width for end in batch], width + 1).to(device)
        with in_eval_mode(model):
            losses = model.loss(rows[:, :-1], rows[:, 1:], reduction="none").cpu()
        for end, row in zip(batch, losses, strict=True):
            pieces.append(row[width - (end - done) :])
            done = end
    return torch.cat(pieces) if pieces else torch.empty(0)


def _rows(tokens: Any, starts: Sequence[int], width: int) -> Tensor:
    rows = np.stack([np.asarray(tokens[start : start + width]) for start in starts])
    return torch.from_numpy(rows.astype(np.int64))


def perplexity(losses: Tensor, count: int) -> float:
    """exp(sum of losses / count). The count is a choice that must be said: tokens of this
    vocabulary, or words of the original text, which makes different vocabularies comparable
    (paper, appendix E.1)."""
    return math.exp(losses.double().sum().item() / count)


def unigram_loss(train: np.ndarray, valid: np.ndarray, vocab_size: int) -> float:
    """Mean -log p of the ids `valid` when each is predicted by its frequency in `train` alone
    (one added to every count): what a model reaches that has not learned to use context."""
    counts = np.bincount(train, minlength=vocab_size).astype(np.float64) + 1.0
    return float(-np.log(counts / counts.sum())[valid].mean())
