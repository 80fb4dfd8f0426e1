"""A few pages of real text in its frequent words: what the narrow models of figure 7 learn.

A BERT takes tens of thousands of steps to learn more of a large text than how frequent each word
is. The same few batches over and over it learns in a hundred, if it learns at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from .examples import Batch, Sentences, Vocabulary, pretraining_batch

Documents = Sequence[Sequence[Sequence[int]]]  # sentences of ids


def few_pages(
    documents: Documents,
    vocabulary: Vocabulary,
    *,
    vocab_size: int,
    batches: int,
    batch_size: int,
    seq_length: int,
    seed: int,
) -> list[Batch]:
    """`batches` batches of masked text in the `vocab_size` most frequent ids, renumbered.

    All rarer words become the unknown one, which is never asked for. Raises ValueError for a
    `vocab_size` that holds no word, or if the text has fewer.
    """
    kept, smaller = frequent(documents, vocabulary, vocab_size)
    new = {old: i for i, old in enumerate(kept)}
    renumbered = [
        [[new.get(i, smaller.unk_id) for i in sentence] for sentence in document]
        for document in documents
    ]
    sentences = Sentences(renumbered)
    return [
        pretraining_batch(
            sentences, smaller, i, batch_size=batch_size, seq_length=seq_length, seed=seed
        )
        for i in range(batches)
    ]


def frequent(
    documents: Documents, vocabulary: Vocabulary, vocab_size: int
) -> tuple[list[int], Vocabulary]:
    """The old ids that stay, by their new number, and the smaller vocabulary: the five special
    entries first, then words, the most frequent in front (of two alike the smaller id)."""
    v = vocabulary
    special = [v.pad_id, v.unk_id, v.cls_id, v.sep_id, v.mask_id]
    counts = Counter(i for document in documents for sentence in document for i in sentence)
    words = sorted(counts.keys() - set(special), key=lambda i: (-counts[i], i))
    if not len(special) < vocab_size <= len(special) + len(words):
        raise ValueError(
            f"vocab_size is {vocab_size}; the text has {len(words)} different words and there are "
            f"{len(special)} special entries, so {len(special) + 1} to "
            f"{len(special) + len(words)} work"
        )
    kept = special + words[: vocab_size - len(special)]
    smaller = Vocabulary(
        continues=[v.continues[i] for i in kept],
        words=range(len(special), vocab_size),
        pad_id=0,
        unk_id=1,
        cls_id=2,
        sep_id=3,
        mask_id=4,
    )
    return kept, smaller


def unigram_loss(batches: Sequence[Batch]) -> float:
    """Nats a word: the least loss of a model that knows how frequent the asked words are, and
    doesn't look at the text."""
    asked = torch.cat([batch.targets[batch.targets >= 0] for batch in batches])
    share = torch.unique(asked, return_counts=True)[1].double() / len(asked)
    return float(-(share * share.log()).sum())
