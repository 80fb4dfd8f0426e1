"""How the tasks are scored: accuracy, F1, and SQuAD's exact match and F1. No tensors, no torch."""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
PUNCTUATION = frozenset(string.punctuation)


def accuracy(predicted: Sequence[int], labels: Sequence[int]) -> float:
    """Share of rows with predicted == label. Raises ValueError for none, or different numbers."""
    _check(predicted, labels)
    return sum(p == y for p, y in zip(predicted, labels, strict=True)) / len(labels)


def binary_f1(predicted: Sequence[int], labels: Sequence[int], positive: int = 1) -> float:
    """Harmonic mean of precision and recall of one class; 0 where it is never rightly found."""
    _check(predicted, labels)
    both = sum(p == y == positive for p, y in zip(predicted, labels, strict=True))
    found, true = (sum(v == positive for v in values) for values in (predicted, labels))
    return 2 * both / (found + true) if both else 0.0


def accuracy_by_group(
    predicted: Sequence[int], labels: Sequence[int], groups: Sequence[str]
) -> dict[str, float]:
    """Accuracy of each group of rows (RACE's middle and high, MNLI's matched and mismatched), and
    over all of them under "accuracy": the mean over rows, not over groups."""
    rows: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        rows[group].append(index)
    found = {"accuracy": accuracy(predicted, labels)}
    if len(rows) > 1:
        for group, own in sorted(rows.items()):
            found[group] = accuracy([predicted[i] for i in own], [labels[i] for i in own])
    return found


def normalise(answer: str) -> str:
    """As SQuAD's official script compares answers: lower case, without ASCII punctuation, without
    a, an and the, white space single. In this order: "The-End" is "theend", not "end"."""
    kept = "".join(ch for ch in answer.lower() if ch not in PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", kept).split())


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """1.0 if the answer is, normalised, one of those accepted; none accepted: it must be empty."""
    return max(float(normalise(answer) == normalise(one)) for one in _answers(accepted))


def token_f1(answer: str, accepted: Sequence[str]) -> float:
    """The best F1 of the answer's words against those of one accepted answer, as bags.

    If either is empty (no answer), it is 1 if both are and else 0.
    """
    return max(_f1(normalise(answer).split(), normalise(one).split()) for one in _answers(accepted))


def squad_scores(
    answers: Mapping[str, str], accepted: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """ "exact" and "f1", means over the questions, as shares of 1. `accepted`: for each question's
    id the right answers; none where there is none in the text (SQuAD 2.0). Where both kinds are
    among the questions, each also has its own means. Raises ValueError for a missing answer.
    """
    missing = accepted.keys() - answers.keys()
    if missing or not accepted:
        raise ValueError(f"{len(missing)} of {len(accepted)} questions have no answer to score")
    parts = {"": list(accepted)}
    if len({bool(right) for right in accepted.values()}) == 2:
        parts["has_answer_"] = [i for i, right in accepted.items() if right]
        parts["no_answer_"] = [i for i, right in accepted.items() if not right]
    found = {}
    for name, ids in parts.items():
        for what, score in (("exact", exact_match), ("f1", token_f1)):
            found[name + what] = sum(score(answers[i], accepted[i]) for i in ids) / len(ids)
    return found


def best_threshold(
    no_answer: Mapping[str, float], if_answered: Mapping[str, float], accepted: Mapping[str, bool]
) -> tuple[float, float]:
    """(threshold, mean score) of the best rule "no answer if no_answer[id] > threshold".

    no_answer: how much likelier no answer is than the best one, a difference of log-probabilities;
    if_answered: that one's score; accepted: whether the question has an answer (one that has none
    scores 1 when none is given). Official scripts search it on the scored data itself, so it is an
    upper bound and is reported beside the score at threshold 0.
    """
    ids = sorted(no_answer, key=lambda i: no_answer[i])
    # Below all of them, nothing is answered; each step up answers one question more.
    score = sum(0.0 if accepted[i] else 1.0 for i in ids)
    best, threshold = score, no_answer[ids[0]] - 1.0
    for index, i in enumerate(ids):
        score += if_answered[i] if accepted[i] else -1.0
        last = index == len(ids) - 1
        if score > best and (last or no_answer[ids[index + 1]] > no_answer[i]):
            best, threshold = score, no_answer[i]
    return threshold, best / len(ids)


def _answers(accepted: Sequence[str]) -> list[str]:
    """Those of which something is left, normalised; [""], no answer, if there is none."""
    return [one for one in accepted if normalise(one)] or [""]


def _f1(answer: list[str], right: list[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    same = sum((Counter(answer) & Counter(right)).values())
    return 2 * same / (len(answer) + len(right))


def _check(predicted: Sequence[int], labels: Sequence[int]) -> None:
    if len(predicted) != len(labels) or not labels:
        raise ValueError(
            f"{len(predicted)} predictions for {len(labels)} labels; there must be one for each, "
            "and at least one"
        )
