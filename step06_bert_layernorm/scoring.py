"""How well a BERT guesses masked words and tells the order of sentences, on held-out text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from step01_single_gpu.model import in_eval_mode
from step02_mlp_parallel.wire import Group, all_gather, all_reduce_

from .examples import Batch
from .parallel_bert import ParallelBERT


class Scores(NamedTuple):
    """Means over all masked words, and over all pairs."""

    masked_loss: float
    order_loss: float
    order_accuracy: float
    words: int
    pairs: int

    @property
    def perplexity(self) -> float:
        """Of the masked words, by the vocabulary's pieces."""
        return math.exp(self.masked_loss)


@torch.no_grad()
def score(
    model: ParallelBERT,
    batches: Iterable[Batch],
    dp_group: Group = None,
    context: AbstractContextManager[object] | None = None,
) -> Scores:
    """Scores over the batches of all data-parallel ranks, without dropout.

    Wire: what forward sends, and five numbers. Raises ValueError if nothing was asked for.
    """
    device = next(model.parameters()).device
    total = torch.zeros(5, dtype=torch.float64, device=device)
    with in_eval_mode(model), context or torch.no_grad():
        for batch in batches:
            tokens, targets, segments, padding_mask, order = (t.to(device) for t in batch)
            hidden = model.hidden(tokens, segments, padding_mask)
            right = model.order(model.pooled(hidden)).argmax(-1) == order
            total += torch.stack(
                [
                    model.word_loss(hidden, targets, reduction="sum").double(),
                    model.order_loss(hidden, order, reduction="sum").double(),
                    right.sum().double(),
                    (targets >= 0).sum().double(),
                    (order >= 0).sum().double(),
                ]
            )
    all_reduce_(total, dp_group)
    masked, swapped, right, words, pairs = total.tolist()
    if not words or not pairs:
        raise ValueError(f"nothing to score: {words:.0f} masked words, {pairs:.0f} pairs")
    return Scores(masked / words, swapped / pairs, right / pairs, int(words), int(pairs))


@torch.no_grad()
def guesses(model: ParallelBERT, batch: Batch) -> Tensor:
    """The likeliest word where one is asked for: ids [t], the same on all tensor-parallel ranks.

    Wire: what forward sends, and one number and one id for each word from every rank.
    """
    device = next(model.parameters()).device
    tokens, targets, segments, padding_mask, _ = (t.to(device) for t in batch)
    words = model.tokens.words
    with in_eval_mode(model):
        hidden = model.hidden(tokens, segments, padding_mask)
        own = model.mlm(hidden[targets >= 0])[:, : words.count].double()
    if words.count:
        value, column = own.max(-1)
    else:  # a small vocabulary: this rank has none of it
        value, column = own.new_full(own.shape[:1], -math.inf), own.new_zeros(own.shape[:1])
    best = all_gather(value, model.group).argmax(0, keepdim=True)
    return all_gather(column.long() + words.first, model.group).gather(0, best)[0]
