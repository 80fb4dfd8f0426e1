"""Training examples of a BERT: sample k is a function of (seed, k) and the text, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

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

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """Of each id, whether it belongs to no word: nobody is asked to guess it."""
        special = {self.pad_id, self.unk_id, self.cls_id, self.sep_id}
        return np.isin(np.arange(len(self.continues)), list(special))

    @cached_property
    def begins(self) -> NDArray[np.bool_]:
        """Of each id, whether a word begins with it."""
        return ~(np.array(self.continues) | self.special)


class Sentences:
    """Tokenised documents, sentence by sentence, in flat arrays.

    `documents`: each a list of sentences, each a list of ids. Empty sentences are dropped, and
    documents of fewer than two: they have no order to predict. Raises ValueError if none is left.
    """

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]]) -> None:
        kept = [d for d in map(with_an_order, documents) if d]
        if not kept:
            raise ValueError(
                f"none of the {len(documents)} documents has two sentences: there is no order to "
                "predict"
            )
        sentences = [np.asarray(s, dtype=np.int32) for document in kept for s in document]
        lengths, counts = ([len(part) for part in parts] for parts in (sentences, kept))
        self._hold(np.concatenate(sentences), np.array(lengths), np.array(counts))

    @classmethod
    def of_arrays(cls, ids: NDArray[Any], lengths: NDArray[Any], counts: NDArray[Any]) -> Sentences:
        """The same from ids [tokens] (a memory map, say), tokens in each sentence, and sentences in
        each document. Raises ValueError unless they add up, with two or more in each."""
        fits = lengths.sum() == len(ids) and counts.sum() == len(lengths)
        if not fits or len(counts) == 0 or counts.min() < 2:
            raise ValueError("ids, lengths of sentences and sentences of documents don't fit")
        made = cls.__new__(cls)
        made._hold(ids, lengths, counts)
        return made

    def _hold(self, ids: NDArray[Any], lengths: NDArray[Any], counts: NDArray[Any]) -> None:
        self.ids = np.asarray(ids)  # a memory map's slices are slow to make, an array's are not
        self.starts = np.concatenate([[0], np.cumsum(lengths)])
        # For each sentence, the first one that isn't its document's.
        self.document_end = np.repeat(np.cumsum(counts), counts)

    def __len__(self) -> int:
        return len(self.document_end)

    def passage(self, first: int, room: int) -> list[NDArray[Any]]:
        """Sentences of one document from `first` on: at least two, then while they fit `room`.

        (From the document's last sentence it goes back by one.) Parts of `ids`, to be read only.
        """
        end = int(self.document_end[first])
        first = min(first, end - 2)
        fits = int(np.searchsorted(self.starts, self.starts[first] + room, "right")) - 1
        last = min(max(fits, first + 2), end)
        bounds = self.starts[first : last + 1].tolist()
        return [self.ids[begin:stop] for begin, stop in pairwise(bounds)]


def with_an_order(document: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The document's sentences that aren't empty; none at all if that leaves fewer than two."""
    kept = [sentence for sentence in document if len(sentence)]
    return kept if len(kept) > 1 else []


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
        np.concatenate(first),
        np.concatenate(second),
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
    samples = range(step * batch_size, (step + 1) * batch_size)
    return pretraining_rows(sentences, vocabulary, samples, seq_length=seq_length, seed=seed)


def pretraining_rows(
    sentences: Sentences,
    vocabulary: Vocabulary,
    samples: Iterable[int],
    *,
    seq_length: int,
    seed: int,
) -> Batch:
    """The samples of these numbers as one batch; what a rank needs of a global one."""
    rows = [
        pretraining_example(sentences, vocabulary, sample, seq_length=seq_length, seed=seed)
        for sample in samples
    ]
    return Batch(*(torch.stack(tensors) for tensors in zip(*rows, strict=True)))


def word_ids_of(tokens: Tensor, vocabulary: Vocabulary) -> list[int | None]:
    """For each token the number of its word, as `tokenizers` gives it; None for special ones, and
    for words that the vocabulary doesn't know: to guess "unknown" teaches nothing."""
    ids = tokens.numpy()
    numbers: list[int | None] = np.cumsum(vocabulary.begins[ids]).tolist()
    for place in np.flatnonzero(vocabulary.special[ids]).tolist():
        numbers[place] = None
    return numbers
