"""The tasks by name: where their examples come from, the rows they make, and how they are scored.

Every task puts q questions to a row, each a choice among n: the class of a pair, the right option,
or the first and the last token of a span. A model's logits are [rows, q, n] whatever the task is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from step01_single_gpu.dropout import DropoutFunction
from step01_single_gpu.weights import generator_for

from . import task_files as files
from . import task_stand_ins as stand_ins
from .heads import Classifier, SpanReader
from .task_files import Choice, Pair, Question
from .task_metrics import accuracy_by_group, best_threshold, binary_f1, squad_scores, token_f1
from .task_rows import Row, pair_text
from .task_spans import log_probabilities, n_best, no_answer_score, span_labels, span_windows

STAND_INS = {
    "boolq": (stand_ins.boolq, ("no", "yes")),
    "rte": (stand_ins.rte, ("entailment", "not_entailment")),
    "mrpc": (stand_ins.mrpc, ("not_equivalent", "equivalent")),
    "sciq": (stand_ins.sciq, None),
    "squad-sample": (stand_ins.squad_sample, None),
}
OFFICIAL = {  # task -> what is expected in --data
    "mnli": ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"),
    "qqp": ("train.tsv", "dev.tsv"),
    "race": ("train", "dev"),
    "squad": ("train-v1.1.json", "dev-v1.1.json"),
    "squad2": ("train-v2.0.json", "dev-v2.0.json"),
}
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

    def model(self, bert: Any, *, seed: int, dropout: DropoutFunction | None) -> nn.Module:
        """`bert` with this task's head. (It has no dropout of its own, as in BERT.)"""
        return SpanReader(bert, seed=seed)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[rows of valid, 2, s] of either, over all windows of a question together."""
        sizes = [len(own) for own in self.windows]
        return torch.cat([log_probabilities(part).exp() for part in logits.split(sizes)])

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
        parts = scores.split([len(own) for own in self.windows])
        for question, windows, own in zip(self.questions, self.windows, parts, strict=True):
            spans = n_best(own, windows, question.context, n=1)
            best[question.id] = spans[0].text if spans else ""
            nothing = no_answer_score(own)
            margins[question.id] = nothing - spans[0].score if spans else NO_SPAN
        return best, margins


Task = Choices | Spans


def read_examples(
    name: str, data: Path | None, downloads: Path, *, skip_malformed: bool = False
) -> tuple[stand_ins.Split, list[str]]:
    """Examples of the task called `name`, and remarks for the user.

    A stand-in comes from its package; one of the paper's from its official files in `data`. Raises
    ValueError for an unknown task, and for files that are missing or malformed.
    """
    if name in STAND_INS:
        if data is not None:
            raise ValueError(f"task {name} comes from a package; leave --data out")
        return STAND_INS[name][0](downloads), []
    if name not in OFFICIAL:
        known = ", ".join([*STAND_INS, *OFFICIAL])
        raise ValueError(f"there is no task {name!r}; these are known: {known}")
    expected = OFFICIAL[name]
    if data is None or not all((data / one).exists() for one in expected):
        raise ValueError(
            f"task {name} is in no package that could be fetched: get its official files and give "
            f"their folder with --data; it must hold {', '.join(expected)}"
        )
    paths = [data / one for one in expected]
    if name == "race":
        return stand_ins.Split(*(files.read_race(path) for path in paths)), []
    if name in ("squad", "squad2"):
        read = [files.read_squad(path, no_answer=name == "squad2") for path in paths]
        return stand_ins.Split(*read), []
    columns = files.MNLI if name == "mnli" else files.QQP
    found, remarks = [], []
    for path, group in zip(paths, ("", "matched", "mismatched"), strict=False):
        pairs, bad = files.read_tsv(path, columns, group, skip_malformed=skip_malformed)
        found.append(pairs)
        if bad:
            remarks.append(f"{path}: {len(bad)} malformed lines left out, line {bad[0]} first")
    return stand_ins.Split(found[0], [pair for pairs in found[1:] for pair in pairs]), remarks


def make_task(
    name: str, examples: stand_ins.Split, tokenizer: Tokenizer, *, seq_length: int, stride: int
) -> Task:
    """Tokenise the examples. Errors as in `pair_text` and `span_windows`."""
    if isinstance(examples.train[0], Question):
        return _spans(name, examples, tokenizer, seq_length, stride)
    parts = [_choice_rows(part, tokenizer, seq_length) for part in examples]
    groups = [example.group for example in examples.valid]
    if isinstance(examples.train[0], Choice):
        return Choices(name, *parts, groups, scores=1)
    classes = STAND_INS[name][1] if name in STAND_INS else None
    if classes is None:
        classes = (files.MNLI if name == "mnli" else files.QQP).classes
    return Choices(name, *parts, groups, scores=len(classes))


def _choice_rows(
    examples: Sequence[Pair | Choice], tokenizer: Tokenizer, seq_length: int
) -> list[Row]:
    pairs: list[tuple[str, str]] = []
    for example in examples:
        pairs += _texts(example)
    flat = [text for pair in pairs for text in pair]
    ids = [e.ids for e in tokenizer.encode_batch(flat, add_special_tokens=False)]
    special = {f"{name}_id": tokenizer.token_to_id(f"[{name.upper()}]") for name in ("cls", "sep")}
    texts = iter(
        pair_text(first, second, seq_length, **special)
        for first, second in zip(ids[::2], ids[1::2], strict=True)
    )
    return [Row([next(texts) for _ in _texts(e)], [e.label]) for e in examples]


def _texts(example: Pair | Choice) -> list[tuple[str, str]]:
    """The texts of a row, each (first, second). An option stands where the question has its gap,
    "_", or behind it."""
    if isinstance(example, Pair):
        return [(example.first, example.second)]
    question = example.question
    gap = "_" in question
    filled = [question.replace("_", o, 1) if gap else f"{question} {o}" for o in example.options]
    return [(example.context, text) for text in filled]


def _spans(
    name: str, examples: stand_ins.Split, tokenizer: Tokenizer, seq_length: int, stride: int
) -> Spans:
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


def those_that_fit(
    examples: stand_ins.Split, tokenizer: Tokenizer, seq_length: int
) -> stand_ins.Split:
    """The pairs, or choices, whose texts are rows of at most seq_length tokens without a cut."""

    def kept(part: list[Any]) -> list[Any]:
        pairs = [_texts(example) for example in part]
        flat = [pair for own in pairs for pair in own]
        lengths = iter([len(e.ids) for e in tokenizer.encode_batch(flat)])
        fits = [max([next(lengths) for _ in own]) <= seq_length for own in pairs]
        return [example for example, fit in zip(part, fits, strict=True) if fit]

    found = stand_ins.Split(*(kept(part) for part in examples))
    if not found.train or not found.valid:
        raise ValueError(f"no example fits in {seq_length} tokens; use a longer --seq-length")
    return found


def subset(examples: stand_ins.Split, train: int, valid: int) -> stand_ins.Split:
    """So many of each, drawn in an order that depends on nothing; 0 is all of them. (The held-out
    ones are put in that order in any case: the first few are then a fair look.)"""

    def drawn(part: list[Any], count: int) -> list[Any]:
        order = torch.randperm(len(part), generator=generator_for("fine-tuning subset"))
        return [part[i] for i in order[: count or len(part)].tolist()]

    return stand_ins.Split(drawn(examples.train, train), drawn(examples.valid, valid))


def with_valid(task: Task, count: int) -> Task:
    """The task with the first `count` held-out rows alone, for a quick look during training."""
    if isinstance(task, Choices):
        return replace(task, valid=task.valid[:count], groups=task.groups[:count])
    kept = task.windows[:count]
    rows = sum(len(own) for own in kept)
    return replace(task, valid=task.valid[:rows], questions=task.questions[:count], windows=kept)
