"""What fine-tuning puts on a BERT: one linear layer, and a question put to each row.

Both heads read what every tensor-parallel rank has whole, so they are replicated, need no word to
the others, and their gradients are the same on all ranks without any.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from step01_single_gpu.dropout import Dropout, DropoutFunction
from step01_single_gpu.loss import cross_entropy
from step01_single_gpu.weights import linear


class Batch(NamedTuple):
    """Rows of a task: each is c texts of s tokens (a pair is one, a RACE question one an option).

    tokens, segments [b, c, s] ids; padding_mask [b, c, s] bool, True = a real token; labels [b, q],
    the right answer to each of the q questions put to a row; allowed [b, s] bool, where a span may
    begin or end (span tasks alone).
    """

    tokens: Tensor
    segments: Tensor
    padding_mask: Tensor
    labels: Tensor
    allowed: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """All of it on `device`."""
        return Batch(*(None if t is None else t.to(device) for t in self))  # type: ignore[arg-type]


class Classifier(nn.Module):
    """Which of several: [b, c, s] texts -> logits [b, 1, c · scores].

    The pooled first token of each text gets `scores` numbers, and the softmax goes over all of a
    row's: sentence pairs have one text and a score for each class, multiple choice has a text for
    each option and one score. `bert` is a BERT or a ParallelBERT; `dropout` as in BERT (with
    several ranks, the tracker's, since all must drop the same).
    """

    def __init__(
        self, bert: Any, scores: int, *, seed: int = 0, dropout: DropoutFunction | None = None
    ) -> None:
        super().__init__()
        self.bert = bert
        self.dropout = Dropout(bert.config.dropout, "head", dropout)
        self.head = linear(bert.config.hidden_size, scores, std=0.02, seed=seed, name="head")

    def forward(self, batch: Batch) -> Tensor:
        b = batch.tokens.size(0)
        texts = (t.flatten(0, 1) for t in batch[:3])  # [b · c, s]
        pooled = self.bert.pooled(self.bert.hidden(*texts))
        logits: Tensor = self.head(self.dropout(pooled)).view(b, 1, -1)
        return logits

    def loss(self, batch: Batch, divisor: float | None = None) -> Tensor:
        """`answer_loss` of this batch."""
        return answer_loss(self(batch), batch.labels, divisor)


class SpanReader(nn.Module):
    """Where an answer begins and ends: [b, 1, s] -> logits [b, 2, s] of first and last token.

    Places that aren't `allowed` (the question, padding, [SEP]) have -inf: a softmax over them has
    nothing to learn, and a search can't pick them. "[CLS]" is allowed and means "no answer here".
    """

    def __init__(self, bert: Any, *, seed: int = 0) -> None:
        super().__init__()
        self.bert = bert
        # Nothing reads the pooled token here. Frozen, or data parallelism would make zeros of its
        # missing gradient, and weight decay would act on it at dp > 1 alone.
        bert.pooler.requires_grad_(False)
        self.head = linear(bert.config.hidden_size, 2, std=0.02, seed=seed, name="head")

    def forward(self, batch: Batch) -> Tensor:
        if batch.allowed is None:
            raise ValueError("this batch has no allowed places: it isn't of a span task")
        hidden = self.bert.hidden(*(t.squeeze(1) for t in batch[:3]))
        logits: Tensor = self.head(hidden).transpose(1, 2)  # [b, 2, s]
        return logits.masked_fill(~batch.allowed[:, None, :], -torch.inf)

    def loss(self, batch: Batch, divisor: float | None = None) -> Tensor:
        """`answer_loss` of this batch."""
        return answer_loss(self(batch), batch.labels, divisor)


def answer_loss(logits: Tensor, labels: Tensor, divisor: float | None = None) -> Tensor:
    """Sum of cross-entropies, logits [b, q, n] and labels [b, q], over `divisor` (None: b · q).

    `divisor` is what all ranks and micro-batches together ask. Raises ValueError for a label that
    isn't among the n answers.
    """
    n = logits.size(-1)
    bad = labels[(labels < 0) | (labels >= n)]
    if bad.numel():
        raise ValueError(f"label {bad[0].item()} is out of range: the answers are 0 … {n - 1}")
    return cross_entropy(logits, labels, reduction="sum", divisor=divisor or labels.numel())
