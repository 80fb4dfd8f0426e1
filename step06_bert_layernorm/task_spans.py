"""Answers that are spans of a text: windows over long texts, labels in them, and the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .wordpiece import special_id

Characters = tuple[int, int]  # from … to before …, in the text as it was written


@dataclass(frozen=True)
class Window:
    """One row "[CLS] question [SEP] part of the context [SEP]".

    characters[i]: what token i covers in the whole context; None for what isn't context. best[i]:
    no other window of the context shows token i with more around it, so that a span which several
    windows contain is judged by one of them. A span belongs to the window of its first token.
    """

    tokens: list[int]
    segments: list[int]
    characters: list[Characters | None]
    best: list[bool]

    @property
    def allowed(self) -> list[bool]:
        """Where a span may begin or end: in the context, or at "[CLS]", which is no span."""
        return [i == 0 or c is not None for i, c in enumerate(self.characters)]


class Answer(NamedTuple):
    """A span of the context: its text, where it stands, and log p(first) + log p(last)."""

    text: str
    characters: Characters
    score: float


def span_windows(
    question: str,
    context: str,
    tokenizer: Tokenizer,
    *,
    seq_length: int,
    stride: int,
    max_question: int = 64,
) -> list[Window]:
    """Windows that show all of `context`, each with the question and at most seq_length tokens.

    A window begins `stride` tokens behind the one before it. A question keeps its first
    `max_question` tokens. Raises ValueError where that leaves the context no room.
    """
    asked = tokenizer.encode(question, add_special_tokens=False).ids[:max_question]
    text = tokenizer.encode(context, add_special_tokens=False)
    cls, sep = (special_id(tokenizer, name) for name in ("[CLS]", "[SEP]"))
    room = seq_length - len(asked) - 3
    if room < 1 or not 1 <= stride <= room:
        raise ValueError(
            f"a row of {seq_length} tokens with a question of {len(asked)} has room for {room} of "
            f"context, and the stride is {stride}: it must be from 1 to that room, or tokens would "
            "be in no window. Use a longer --seq-length or a smaller --stride"
        )
    ranges = window_ranges(len(text.ids), room, stride)
    owners = best_windows(len(text.ids), ranges)
    windows = []
    for number, part in enumerate(ranges):
        before = 2 + len(asked)
        windows.append(
            Window(
                tokens=[cls, *asked, sep, *text.ids[part.start : part.stop], sep],
                segments=[0] * before + [1] * (len(part) + 1),
                characters=[*[None] * before, *text.offsets[part.start : part.stop], None],
                best=[*[False] * before, *(owners[i] == number for i in part), False],
            )
        )
    return windows


def window_ranges(count: int, room: int, stride: int) -> list[range]:
    """Token ranges of at most `room`, `stride` apart, that together cover 0 … count - 1."""
    ranges = [range(0, min(room, count))]
    while ranges[-1].stop < count:
        start = ranges[-1].start + stride
        ranges.append(range(start, min(start + room, count)))
    return ranges


def best_windows(count: int, ranges: Sequence[range]) -> list[int]:
    """For each token the window that shows most on the poorer of its two sides; of equals, the
    longer window, then the first (BERT's rule)."""

    def around(token: int, part: range) -> float:
        return min(token - part.start, part.stop - 1 - token) + 0.01 * len(part)

    return [
        max((n for n, part in enumerate(ranges) if i in part), key=lambda n: around(i, ranges[n]))
        for i in range(count)
    ]


def span_labels(window: Window, answer: Characters | None) -> list[int]:
    """[first, last] token that the answer's characters touch; [0, 0], "[CLS]", if there is no
    answer or the window doesn't show all of it."""
    if answer is None:
        return [0, 0]
    shown = [(i, c) for i, c in enumerate(window.characters) if c is not None]
    start, stop = answer
    inside = [i for i, (a, b) in shown if b > start and a < stop]
    if not inside or shown[0][1][0] > start or shown[-1][1][1] < stop:
        return [0, 0]
    return [inside[0], inside[-1]]


def log_probabilities(logits: Tensor) -> Tensor:
    """Logits [windows, 2, s] of one question -> log-probabilities over *all* its windows' places:
    a window alone would make its best place likely, however poor."""
    flat = logits.double().transpose(0, 1).flatten(1)  # [2, windows · s]
    return flat.log_softmax(-1).view(2, *logits.shape[::2]).transpose(0, 1)


def n_best(
    scores: Tensor, windows: Sequence[Window], context: str, *, n: int = 20, max_length: int = 30
) -> list[Answer]:
    """The `n` best spans, best first: scores [windows, 2, s] log-probabilities of first and last.

    Among all spans of at most `max_length` tokens whose first token isn't behind the last, both in
    the context, judged by the first one's best window. Exact, not from a few best ends.
    """
    found = []
    for window, (first, last) in zip(windows, scores, strict=True):
        size = len(window.tokens)
        context_only = torch.tensor([c is not None for c in window.characters])
        begins = context_only & torch.tensor(window.best)
        total = first[:size, None] + last[None, :size]  # [first, last]
        band = torch.ones(size, size, dtype=torch.bool).triu().tril(max_length - 1)
        total = total.masked_fill(~(band & begins[:, None] & context_only[None, :]), -torch.inf)
        values, places = total.flatten().topk(min(n, total.numel()))
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            a, b = window.characters[place // size], window.characters[place % size]
            if value > -torch.inf and a is not None and b is not None:
                found.append(Answer(context[a[0] : b[1]], (a[0], b[1]), value))
    return sorted(found, key=lambda answer: -answer.score)[:n]


def no_answer_score(scores: Tensor) -> float:
    """Log-probability that no window has the answer: that of "[CLS]" as first and last token, in
    the window that believes it least."""
    return float(scores[:, :, 0].sum(1).min())
