"""Masked words: which spans a BERT must guess, and what stands in their place.

All chance comes from the `generator` that is given. Made from (seed, sample), it gives the same
example in any worker, on any rank, at any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

MASKED, RANDOM = 0.8, 0.1  # of the spans; the rest stay as they are
NOT_ASKED = -100

Span = tuple[int, int]  # tokens first … end - 1


def mask_for_mlm(
    ids: Tensor,
    word_ids: Sequence[int | None],
    *,
    generator: torch.Generator,
    mask_id: int,
    random_ids: Sequence[int] | Tensor,
    probability: float = 0.15,
    max_ngram: int = 3,
) -> tuple[Tensor, Tensor]:
    """(inputs, labels) of one example, both [s] and in memory of their own.

    ids [s] int64; `word_ids[i]` says which word token i belongs to, None for a special token or
    padding, which are never touched. Runs of 1 to `max_ngram` whole words are chosen, n of them
    with chance ∝ 1/n, until `probability` of the word tokens are covered: on average exactly, but
    one token at the least. Of the spans 80 % become `mask_id` throughout, 10 % ids drawn from
    `random_ids`, and 10 % stay. Labels are the ids that stood there, -100 elsewhere.
    Raises ValueError for lengths that differ and numbers out of range.
    """
    if ids.dim() != 1 or len(word_ids) != len(ids):
        raise ValueError(f"ids have shape {list(ids.shape)} for {len(word_ids)} word_ids")
    if not 0.0 < probability < 1.0 or max_ngram < 1:
        raise ValueError(
            f"probability is {probability!r}, it must be above 0 and below 1; "
            f"max_ngram is {max_ngram!r}, it must be at least 1"
        )
    if len(random_ids) == 0:
        raise ValueError("random_ids is empty: give the ids that a random word is drawn from")
    spans = choose_spans(word_ids, generator, probability, max_ngram)
    return replace_spans(ids, spans, generator, mask_id, random_ids)


# exercise 6.1
def choose_spans(
    word_ids: Sequence[int | None],
    generator: torch.Generator,
    probability: float = 0.15,
    max_ngram: int = 3,
) -> list[Span]:
    """Spans of whole words, none overlapping another, that cover `probability` of the word tokens.

    The length is drawn first and a place that fits is found for it then: were places drawn first,
    and spans that don't fit dropped, long ones would be too rare. The last span, which would go
    beyond the share, is taken with the chance that makes the average right.
    """
    words, room = words_and_room(word_ids, max_ngram)
    places = torch.randperm(len(words), generator=generator).tolist()
    last, *chances = torch.rand(len(words) + 1, generator=generator).tolist()
    budget = probability * (len(word_ids) - word_ids.count(None))
    spans: list[Span] = []
    while budget > 0 and any(room):
        place, n = first_fit(places, room, ngram_length(chances.pop(), max_ngram))
        size = words[place + n - 1][1] - words[place][0]
        if size > budget and last * size >= budget:
            if spans:
                break
            n = 1  # an example without a question would be of no use
        spans.append((words[place][0], words[place + n - 1][1]))
        budget -= size
        occupy(room, place, n)
    return spans


# exercise 6.1
def replace_spans(
    ids: Tensor,
    spans: Sequence[Span],
    generator: torch.Generator,
    mask_id: int,
    random_ids: Sequence[int] | Tensor,
) -> tuple[Tensor, Tensor]:
    """(inputs, labels): one decision a span, by one number that is drawn once. Asking a second
    time among what the first draw left would need other chances, half and half."""
    chances = torch.rand(len(spans), generator=generator).tolist()
    inputs, labels = ids.clone(), torch.full_like(ids, NOT_ASKED)
    # The same memory as numpy sees it: small writes cost a tenth of what they do through torch.
    old, new, asked = ids.numpy(), inputs.numpy(), labels.numpy()
    for (first, end), chance in zip(spans, chances, strict=True):
        asked[first:end] = old[first:end]
        if chance < MASKED:
            new[first:end] = mask_id
        elif chance < MASKED + RANDOM:
            drawn = torch.randint(len(random_ids), (end - first,), generator=generator)
            new[first:end] = [int(random_ids[i]) for i in drawn.tolist()]
    return inputs, labels


def ngram_length(chance: float, max_ngram: int) -> int:
    """1 … max_ngram with chance ∝ 1/n, from a number in [0, 1)."""
    return 1 + bisect_right(_borders(max_ngram), chance)


@cache
def _borders(max_ngram: int) -> list[float]:
    """Where [0, 1) is cut between lengths n and n + 1."""
    *sums, total = accumulate(1.0 / n for n in range(1, max_ngram + 1))
    return [one / total for one in sums]


def words_and_room(word_ids: Sequence[int | None], max_ngram: int) -> tuple[list[Span], list[int]]:
    """The words as spans of tokens, and how many words from each on, up to `max_ngram`, are in one
    piece: a special token between them ends it."""
    words: list[Span] = []
    room: list[int] = []
    first, before = 0, None
    for i, word in enumerate((*word_ids, None)):
        if word == before:
            continue
        if before is not None:
            words.append((first, i))
        if word is None:  # the end of a piece
            room += [max_ngram] * (len(words) - len(room))
            occupy(room, len(room), 0)
        first, before = i, word
    return words, room


def first_fit(places: list[int], room: list[int], n: int) -> tuple[int, int]:
    """The last of `places` with room for n words, or, if there is none, for fewer."""
    while room[places[-1]] == 0:
        places.pop()
    for size in range(n, 0, -1):
        for place in reversed(places):
            if room[place] >= size:
                return place, size
    raise ValueError("all words are taken")


def occupy(room: list[int], place: int, n: int) -> None:
    """Words place … place + n - 1 are taken: no room there, and less in front of them."""
    room[place : place + n] = [0] * n
    for i in range(1, place + 1):
        if room[place - i] <= i:
            break
        room[place - i] = i
