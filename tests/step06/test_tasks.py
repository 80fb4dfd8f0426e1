"""What tasks make of examples, and how a model's numbers become answers and scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from step06_bert_layernorm.finetune_report import results, table
from step06_bert_layernorm.task_examples import subset, those_that_fit
from step06_bert_layernorm.task_files import Choice, Pair, Question
from step06_bert_layernorm.task_stand_ins import Split
from step06_bert_layernorm.tasks import make_task, with_valid
from step06_bert_layernorm.wordpiece import read_wordpiece
from tests.step06.cases import ENTRIES


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(ENTRIES) + "\n")
    return read_wordpiece(tmp_path / "vocab.txt")


def test_every_kind_of_task_is_scored_and_an_ensemble_is_a_mean_of_probabilities(
    tokenizer: Tokenizer,
) -> None:
    choices = [Choice("a b", "it is _ .", ("a", "b", "c", "d"), 1, g) for g in ("high", "middle")]
    task = make_task("race", Split(choices, choices), tokenizer, seq_length=24, stride=8)
    texts = [tokenizer.decode(tokens) for tokens, _ in task.train[0].texts]
    assert texts == [f"a b it is {option}." for option in "abcd"]
    # Each seed is wrong by a little on one row, and the mean is right on both.
    one = torch.tensor([[[0.0, 2.0, 0, 0]], [[0.2, 0.0, 0, 0]]])
    two = one.flip(0)
    found = results(task, [0, 1], [one, two])
    assert [s["accuracy"] for s in found["seeds"]] == [0.5, 0.5]
    assert found["median"] == {"accuracy": 0.5, "high": 0.5, "middle": 0.5}
    assert found["ensemble"] == {"accuracy": 1.0, "high": 1.0, "middle": 1.0}
    assert found["floor"]["accuracy"] == 1.0
    assert table(found).splitlines()[-1].split() == ["ensemble", "100.0", "100.0", "100.0"]
    pairs = Split([Pair("a", "b", 2)], [Pair("c", "d", 1, g) for g in ("matched", "mismatched")])
    mnli = make_task("mnli", pairs, tokenizer, seq_length=24, stride=8)
    assert mnli.floor() == {"accuracy": 0.0, "matched": 0.0, "mismatched": 0.0}
    assert with_valid(mnli, 1).score(torch.eye(3)[1].view(1, 1, 3)) == {"accuracy": 1.0}


def test_spans_are_answered_out_of_the_text(tokenizer: Tokenizer) -> None:
    """Logits that point at places of several windows become answers and the official scores."""
    context = "it is a b c d e x y z . yes no a b c d e"
    asked = [
        Question("q1", "who", context, (("x y", context.index("x y")),)),
        Question("q2", "who", context, ()),
    ]
    task = make_task("squad2", Split(asked, asked), tokenizer, seq_length=12, stride=4)
    assert len(task.valid) == 2 * 4
    # Marked in the window that shows all of it; the first one shows x alone.
    starts = [row.labels for row in task.train[:4]]
    assert starts == [[0, 0], [6, 7], [0, 0], [0, 0]]
    logits = torch.full((8, 2, 12), -torch.inf)
    for row, window in zip(logits, task.valid, strict=True):
        row[:, : window.length][:, torch.tensor(window.allowed)] = 0.0
    logits[1, 0, 6] = logits[1, 1, 7] = 9.0  # q1: "x y"
    logits[4:, :, 0] = 5.0  # q2: no answer, in any window
    probabilities = task.probabilities(logits)
    assert task.predictions(probabilities) == {"q1": "x y", "q2": ""}
    found = task.score(probabilities)
    assert (found["exact"], found["f1"], found["best_f1"]) == (1.0, 1.0, 1.0)
    assert task.floor()["exact"] == 0.5
    # Without a threshold at 0, q2 is answered and wrong; the best threshold mends that.
    logits[4:, :, 0] = -1.0
    found = task.score(task.probabilities(logits))
    assert (found["exact"], found["best_f1"]) == (0.5, 1.0)
    json.dumps(found, allow_nan=False)


def test_what_would_be_cut_can_be_left_out(tokenizer: Tokenizer) -> None:
    """Of all options of a choice, the longest one counts."""
    pairs = [Pair("a b", " ".join("abcdex"[:n]), 0) for n in range(1, 7)]
    fit = those_that_fit(Split(pairs, pairs[:3]), tokenizer, 9)
    assert fit == (pairs[:4], pairs[:3])
    task = make_task("rte", fit, tokenizer, seq_length=9, stride=1)
    assert [row.length for row in task.train] == [6, 7, 8, 9]
    choices = [Choice("a b", "it is _", ("a", "b", "c", option), 0) for option in ("d", "d e x")]
    assert those_that_fit(Split(choices, choices), tokenizer, 8).train == choices[:1]
    with pytest.raises(ValueError, match="no example fits in 5 tokens"):
        those_that_fit(Split(pairs, pairs), tokenizer, 5)


def test_a_subset_depends_on_nothing_and_a_look_is_part_of_it() -> None:
    numbers = [Pair(str(i), "", 0) for i in range(50)]
    small = subset(Split(numbers, numbers), 10, 0)
    assert small.train == subset(Split(numbers, numbers), 20, 5).train[:10]
    assert sorted(small.valid) == sorted(numbers)
    assert small.valid != numbers
