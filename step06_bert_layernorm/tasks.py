"""The tasks: the rows that their examples make, and how they are scored.

Every task puts q questions to a row, each a choice among n: the class of a pair, the right option,
or the first and the last token of a span. A model's logits are [rows, q, n] whatever the task is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from step01_single_gpu.dropout import DropoutFunction

from . import task_files as files
from .heads import Classifier, SpanReader
from .task_examples import STAND_INS, texts_of
from .task_files import Choice, Pair, Question
from .task_metrics import accuracy_by_group, best_threshold, binary_f1, squad_scores, token_f1
from .task_rows import Row, pair_text
from .task_spans import (
    log_probabilities,
    n_best,
    no_answer_score,
    span_labels,
    span_windows,
)
from .task_stand_ins import Split
from .wordpiece import special_id

WITH_F1 = ("qqp", "mrpc")
NO_SPAN = 1e3  # how much likelier "no answer" is in an empty context


@dataclass(frozen=True)
class Choices:
    """A choice among classes (one text a row) or among options (one text for each)."""

    name: str
    train: list[Row]
    valid: list[Row]
    groups: list[str]  # of the rows of valid
    scores: int  # numbers for each text: classes, or 1 where the texts are the options
    primary = "accuracy"

    @property
    def architecture(self) -> str:
        """What Hugging Face calls a BERT with this head."""
        return "BertForMultipleChoice" if self.scores == 1 else "BertForSequenceClassification"

    def model(self, bert: Any, *, seed: int, dropout: DropoutFunction | None) -> nn.Module:
        """`bert` with this task's head."""
        return Classifier(bert, self.scores, seed=seed, dropout=dropout)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[rows of valid, 1, n] of either."""
        return logits.double().softmax(-1)

    def score(self, probabilities: Tensor) -> dict[str, float]:
        """Accuracy (of each group too, where there are several), and F1 where the task has it."""
        return self._scored(self.predictions(probabilities))

    def predictions(self, probabilities: Tensor) -> list[int]:
        """The likeliest answer to each row."""
        found: list[int] = probabilities[:, 0].argmax(-1).tolist()
        return found

    def floor(self) -> dict[str, float]:
        """Scores of the answer that is the most frequent in training, given to every row."""
        frequent = Counter(row.labels[0] for row in self.train).most_common(1)[0][0]
        return self._scored([frequent] * len(self.valid))

    def _scored(self, predicted: list[int]) -> dict[str, float]:
        labels = [row.labels[0] for row in self.valid]
        found = accuracy_by_group(predicted, labels, self.groups)
        return found | ({"f1": binary_f1(predicted, labels)} if self.name in WITH_F1 else {})


@dataclass(frozen=True)
class Spans:
    """Answers out of a text. A question has as many rows as its context has windows."""

    name: str
    train: list[Row]
    valid: list[Row]
    questions: list[Question]  # of valid
    windows: list[list[Any]]  # of each question, in the order of the rows of valid
    no_answer: bool
    primary = "f1"
    architecture = "BertForQuestionAnswering"

    def model(self, bert: Any, *, seed: int, dropout: DropoutFunction | None) -> nn.Module:
        """`bert` with this task's head. (It has no dropout of its own, as in BERT.)"""
        return SpanReader(bert, seed=seed)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[rows of valid, 2, s] of either, over all windows of a question together."""
        sizes = [len(own) for own in self.windows]
        return torch.cat([log_probabilities(part).exp() for part in torch.split(logits, sizes)])

    def score(self, probabilities: Tensor) -> dict[str, float]:
        """Official exact match and F1; for SQuAD 2.0 also with the best threshold for "no answer",
        which is searched on the scored data, as the official script does."""
        best, margins = self._best(probabilities)
        answers = {i: "" if self.no_answer and margins[i] > 0 else best[i] for i in best}
        accepted = files.accepted(self.questions)
        found = squad_scores(answers, accepted)
        if self.no_answer:
            given = {i: token_f1(best[i], accepted[i]) for i in best}
            has_answer = {i: bool(right) for i, right in accepted.items()}
            threshold, f1 = best_threshold(margins, given, has_answer)
            found |= {"best_f1": f1, "best_threshold": threshold}
        return found

    def predictions(self, probabilities: Tensor) -> dict[str, str]:
        """Answers by the question's id, in the form of the official script's input."""
        best, margins = self._best(probabilities)
        return {i: "" if self.no_answer and margins[i] > 0 else best[i] for i in best}

    def floor(self) -> dict[str, float]:
        """Scores of no answer at all: 0 where all have one."""
        accepted = files.accepted(self.questions)
        return squad_scores(dict.fromkeys(accepted, ""), accepted)

    def _best(self, probabilities: Tensor) -> tuple[dict[str, str], dict[str, float]]:
        """The best span of each question, and how much likelier "no answer" is than it."""
        best, margins = {}, {}
        # A probability that was too small for a float is not made to be impossible.
        scores = probabilities.clamp(min=1e-300).log()
        parts = torch.split(scores, [len(own) for own in self.windows])
        for question, windows, own in zip(self.questions, self.windows, parts, strict=True):
            spans = n_best(own, windows, question.context, n=1)
            best[question.id] = spans[0].text if spans else ""
            nothing = no_answer_score(own)
            margins[question.id] = nothing - spans[0].score if spans else NO_SPAN
        return best, margins


Task = Choices | Spans


def make_task(
    name: str, examples: Split, tokenizer: Tokenizer, *, seq_length: int, stride: int
) -> Task:
    """Tokenise the examples. Errors as in `pair_text` and `span_windows`."""
    if isinstance(examples.train[0], Question):
        return _spans(name, examples, tokenizer, seq_length, stride)
    train, valid = (_choice_rows(part, tokenizer, seq_length) for part in examples)
    groups = [example.group for example in examples.valid]
    if isinstance(examples.train[0], Choice):
        return Choices(name, train, valid, groups, scores=1)
    classes = STAND_INS[name][1] if name in STAND_INS else None
    if classes is None:
        classes = (files.MNLI if name == "mnli" else files.QQP).classes
    return Choices(name, train, valid, groups, scores=len(classes))


def _choice_rows(
    examples: Sequence[Pair | Choice], tokenizer: Tokenizer, seq_length: int
) -> list[Row]:
    pairs: list[tuple[str, str]] = []
    for example in examples:
        pairs += texts_of(example)
    flat = [text for pair in pairs for text in pair]
    ids = [e.ids for e in tokenizer.encode_batch(flat, add_special_tokens=False)]
    special = {f"{name}_id": special_id(tokenizer, f"[{name.upper()}]") for name in ("cls", "sep")}
    texts = iter(
        pair_text(first, second, seq_length, **special)
        for first, second in zip(ids[::2], ids[1::2], strict=True)
    )
    return [Row([next(texts) for _ in texts_of(e)], [e.label]) for e in examples]


def _spans(name: str, examples: Split, tokenizer: Tokenizer, seq_length: int, stride: int) -> Spans:
    rows: list[list[Row]] = []
    windows: list[list[Any]] = []
    for part in examples:
        windows, own = [], []
        for q in part:
            windows.append(
                span_windows(q.question, q.context, tokenizer, seq_length=seq_length, stride=stride)
            )
            text, start = q.answers[0] if q.answers else ("", 0)
            place = (start, start + len(text)) if text else None
            own += [
                Row([(w.tokens, w.segments)], span_labels(w, place), w.allowed) for w in windows[-1]
            ]
        rows.append(own)
    return Spans(name, rows[0], rows[1], list(examples.valid), windows, name == "squad2")


def with_valid(task: Task, count: int) -> Task:
    """The task with the first `count` held-out rows alone, for a quick look during training."""
    if isinstance(task, Choices):
        return replace(task, valid=task.valid[:count], groups=task.groups[:count])
    kept = task.windows[:count]
    rows = sum(len(own) for own in kept)
    return replace(task, valid=task.valid[:rows], questions=task.questions[:count], windows=kept)
