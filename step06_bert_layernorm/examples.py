"""Training examples of a BERT: sample k is a function of (seed, k) and the text, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from step01_single_gpu.weights import generator_for

from .masking import mask_for_mlm
from .sentence_order import pack_pair, sop_pair


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know of a WordPiece vocabulary.

    `continues[id]`: the token goes on with a word ("##ing"). `words`: the ids that a random word
    is drawn from, without special and unused ones.
    """

    continues: Sequence[bool]
    words: Sequence[int]
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int


class Sentences:
    """Tokenised documents, sentence by sentence, in two arrays.

    `documents`: each a list of sentences, each a list of ids. Empty sentences are dropped, and
    documents of fewer than two: they have no order to predict. Raises ValueError if none is left.
    """

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]]) -> None:
        kept = [[s for s in document if len(s)] for document in documents]
        kept = [document for document in kept if len(document) > 1]
        if not kept:
            raise ValueError(
                f"none of the {len(documents)} documents has two sentences: there is no order to "
                "predict"
            )
        sentences = [s for document in kept for s in document]
        self.ids: NDArray[np.int32] = np.concatenate(
            [np.asarray(s, dtype=np.int32) for s in sentences]
        )
        self.starts = np.cumsum([0, *(len(s) for s in sentences)])
        # For each sentence, the first one that isn't its document's.
        ends = np.cumsum([len(document) for document in kept])
        self.document_end = np.repeat(ends, [len(document) for document in kept])

    def __len__(self) -> int:
        return len(self.document_end)

    def passage(self, first: int, room: int) -> list[list[int]]:
        """Sentences of one document from `first` on: at least two, then while they fit `room`.

        (From the document's last sentence it goes back by one.)
        """
        end = int(self.document_end[first])
        first = min(first, end - 2)
        fits = int(np.searchsorted(self.starts, self.starts[first] + room, "right")) - 1
        last = min(max(fits, first + 2), end)
        return [self.ids[self.starts[i] : self.starts[i + 1]].tolist() for i in range(first, last)]


class Batch(NamedTuple):
    """What `loss` takes, [b, s] each and order [b]: `model.loss(batch.tokens, batch.targets,
    segments=batch.segments, padding_mask=batch.padding_mask, order=batch.order)`."""

    tokens: Tensor
    targets: Tensor
    segments: Tensor
    padding_mask: Tensor
    order: Tensor


def pretraining_example(
    sentences: Sentences, vocabulary: Vocabulary, sample: int, *, seq_length: int, seed: int
) -> Batch:
    """Sample `sample` ([s] each, order a number): a passage that starts at any sentence, in two
    pieces, perhaps swapped, with words masked. Special tokens and padding are never asked for."""
    generator = generator_for("bert example", int(seed), int(sample))
    start = int(torch.randint(len(sentences), (), generator=generator))
    passage = sentences.passage(start, seq_length - 3)
    first, second, label = sop_pair(passage, generator)
    row = pack_pair(
        [i for sentence in first for i in sentence],
        [i for sentence in second for i in sentence],
        seq_length,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        pad_id=vocabulary.pad_id,
    )
    inputs, targets = mask_for_mlm(
        row.tokens,
        word_ids_of(row.tokens, vocabulary),
        generator=generator,
        mask_id=vocabulary.mask_id,
        random_ids=vocabulary.words,
    )
    return Batch(inputs, targets, row.segments, row.padding_mask, torch.tensor(label))


def pretraining_batch(
    sentences: Sentences,
    vocabulary: Vocabulary,
    step: int,
    *,
    batch_size: int,
    seq_length: int,
    seed: int,
) -> Batch:
    """The global batch of optimizer step `step`: samples step · batch_size and those behind it.

    A data-parallel rank takes its rows; no state is kept, so any layout sees the same data.
    """
    rows = [
        pretraining_example(
            sentences, vocabulary, step * batch_size + i, seq_length=seq_length, seed=seed
        )
        for i in range(batch_size)
    ]
    return Batch(*(torch.stack(tensors) for tensors in zip(*rows, strict=True)))


def word_ids_of(tokens: Tensor, vocabulary: Vocabulary) -> list[int | None]:
    """For each token the number of its word, as `tokenizers` gives it; None for special ones, and
    for words that the vocabulary doesn't know: to guess "unknown" teaches nothing."""
    special = {vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id}
    continues, number = vocabulary.continues, 0
    numbers: list[int | None] = []
    for token in tokens.tolist():
        if token in special:
            numbers.append(None)
        else:
            number += not continues[token]
            numbers.append(number)
    return numbers
