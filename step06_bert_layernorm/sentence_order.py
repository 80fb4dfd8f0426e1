"""Two pieces of one document, as written or swapped, in one row (sentence-order prediction).

The paper takes this task from ALBERT in place of "next sentence": with a second piece out of
another document, the topic alone would give the answer away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Sentence = TypeVar("Sentence")
Ids = Sequence[int] | NDArray[Any]
AS_WRITTEN, SWAPPED = 0, 1


# exercise 6.3
def sop_pair(
    document: Sequence[Sentence], generator: torch.Generator
) -> tuple[list[Sentence], list[Sentence], int]:
    """(first, second, label): the sentences of one document in two pieces, cut anywhere.

    label 0: as written; 1: the later piece stands first. Half of all pairs each. All sentences are
    used, and none from elsewhere. Raises ValueError for fewer than two: a document of one sentence
    has no order, and borrowing a second from another document would make it another task.
    """
    if len(document) < 2:
        raise ValueError(
            f"a document of {len(document)} sentence(s) has no order to predict; it takes two, so "
            "leave such documents out"
        )
    cut = int(torch.randint(1, len(document), (), generator=generator))
    first, second = list(document[:cut]), list(document[cut:])
    if torch.rand((), generator=generator) < 0.5:
        return second, first, SWAPPED
    return first, second, AS_WRITTEN


class Row(NamedTuple):
    """One row for a BERT, [s] each."""

    tokens: Tensor
    segments: Tensor
    padding_mask: Tensor  # True = a real token


def pack_pair(
    first: Ids,
    second: Ids,
    length: int,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int,
) -> Row:
    """[CLS] first [SEP] second [SEP], then padding to `length`.

    Segment 0 up to the first [SEP], 1 for the second piece and its [SEP], 0 for padding. If both
    are too long, the longer one loses its last tokens. An empty `second` makes a row of one piece.
    Raises ValueError for an empty `first`, and a length without room for a token of each.
    """
    room = length - (3 if len(second) else 2)
    if not len(first) or room < (2 if len(second) else 1):
        raise ValueError(
            f"pieces of {len(first)} and {len(second)} tokens don't make a row of {length}: the "
            "first must not be empty, and special tokens take 2 places, 3 with a second piece"
        )
    a, b = trimmed(len(first), len(second), room)
    real = a + b + (length - room)
    tokens = np.full(length, pad_id, dtype=np.int64)
    tokens[0] = cls_id
    tokens[a + 1] = tokens[real - 1] = sep_id
    tokens[1 : a + 1] = first[:a]
    tokens[a + 2 : a + 2 + b] = second[:b]
    segments = np.zeros(length, dtype=np.int64)
    segments[a + 2 : real] = 1
    return Row(
        torch.from_numpy(tokens),
        torch.from_numpy(segments),
        torch.arange(length) < real,
    )


def trimmed(a: int, b: int, room: int) -> tuple[int, int]:
    """Lengths that fit `room` together: the longer piece gives until both are alike."""
    if a + b <= room:
        return a, b
    half = room // 2
    if a <= half:
        return a, room - a
    if b <= room - half:
        return room - b, b
    return half, room - half
