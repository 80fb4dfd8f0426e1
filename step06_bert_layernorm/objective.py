"""What BERT is pretrained to do, as step 5's training loop takes it: two parts, two counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from step05_hybrid_dp.objective import Objective

from .examples import Batch
from .parallel_bert import ParallelBERT


def _losses(model: ParallelBERT, batch: Batch, divisors: Sequence[float]) -> Tensor:
    words, pairs = divisors
    hidden = model.hidden(batch.tokens, batch.segments, batch.padding_mask)
    masked = model.word_loss(hidden, batch.targets, reduction="sum", divisor=words)
    order = model.order_loss(hidden, batch.order, reduction="sum", divisor=pairs)
    return torch.stack([masked, order])


# Masked words: the mean over those of the global batch. Sentence order: over its rows.
PRETRAINING = Objective(
    ("masked_loss", "order_loss"), lambda batch: [batch.targets, batch.order], _losses
)
