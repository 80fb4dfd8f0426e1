"""Rows of a task, the batches they make, and in which order: functions of (seed, epoch) alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from step01_single_gpu.weights import generator_for

from .heads import Batch

POOL = 16  # batches that are sorted by length together


class Row(NamedTuple):
    """One row, before padding: its texts as (tokens, segments), and the right answers."""

    texts: list[tuple[list[int], list[int]]]
    labels: list[int]
    allowed: list[bool] | None = None

    @property
    def length(self) -> int:
        """Tokens of its longest text."""
        return max(len(tokens) for tokens, _ in self.texts)


def pair_text(
    first: Sequence[int], second: Sequence[int], seq_length: int, *, cls_id: int, sep_id: int
) -> tuple[list[int], list[int]]:
    """(tokens, segments) of "[CLS] first [SEP] second [SEP]", at most seq_length of them.

    Where they are too long, the longer one loses its end, token by token: a passage before its
    question. Raises ValueError for a seq_length without room for a token of each.
    """
    if seq_length < 5:
        raise ValueError(f"seq_length {seq_length} has no room for two texts; it must be above 4")
    first, second = list(first), list(second)
    while len(first) + len(second) > seq_length - 3:
        (first if len(first) > len(second) else second).pop()
    tokens = [cls_id, *first, sep_id, *second, sep_id]
    return tokens, [0] * (len(first) + 2) + [1] * (len(second) + 1)


def collate(rows: Sequence[Row], width: int, pad_id: int) -> Batch:
    """Rows as tensors, padded to `width` tokens. (The width is the global batch's, not a rank's
    own: masks of dropout have the shape of what they act on.)"""

    def padded(values: list[list[int]], filler: int) -> torch.Tensor:
        flat = torch.tensor([v + [filler] * (width - len(v)) for v in values])
        return flat.view(len(rows), -1, width)

    texts = [text for row in rows for text in row.texts]
    real = padded([[1] * len(tokens) for tokens, _ in texts], 0).bool()
    tokens = padded([tokens for tokens, _ in texts], pad_id)
    segments = padded([segments for _, segments in texts], 0)
    allowed = None
    if rows[0].allowed is not None:
        places = [[int(a) for a in row.allowed or ()] for row in rows]
        allowed = padded(places, 0).bool().squeeze(1)
    return Batch(tokens, segments, real, torch.tensor([row.labels for row in rows]), allowed)


def epoch_batches(
    lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int
) -> list[list[int]]:
    """Row numbers of each optimizer step of an epoch: every row once, the last batch may be short.

    Rows are shuffled, sorted by length within pools of 16 batches, so that little is padding, cut
    into batches, and the batches are shuffled.
    """
    generator = generator_for("fine-tuning order", int(seed), int(epoch))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = sorted(order[start : start + POOL * batch_size], key=lambda i: lengths[i])
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def own_part(indices: Sequence[int], dp_rank: int, dp_size: int) -> tuple[int, list[int]]:
    """(place of the first, row numbers) that are data-parallel rank dp_rank's of a batch: equal
    parts in order, of which the last ones may be shorter, or empty."""
    size = -(-len(indices) // dp_size)
    first = min(dp_rank * size, len(indices))
    return first, list(indices[first : first + size])
