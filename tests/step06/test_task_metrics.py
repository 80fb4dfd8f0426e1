"""The tasks' scores, each against numbers worked out by hand."""

from __future__ import annotations

import pytest

from step06_bert_layernorm.task_examples import OFFICIAL, STAND_INS
from step06_bert_layernorm.task_metrics import (
    accuracy,
    accuracy_by_group,
    best_threshold,
    binary_f1,
    exact_match,
    normalise,
    squad_scores,
    token_f1,
)
from step06_bert_layernorm.task_presets import LAPTOP, STANDS_IN_FOR, TABLE_6, preset


def test_accuracy_counts_rows() -> None:
    assert accuracy([1, 0, 2, 2], [1, 1, 2, 0]) == 0.5
    for predicted, labels in (([1], [1, 0]), ([], [])):
        with pytest.raises(ValueError, match=r"predictions for \d labels; there must be one"):
            accuracy(predicted, labels)


def test_f1_is_of_the_positive_class() -> None:
    """Found 3 times, there 4 times, both 2 times: precision 2/3, recall 1/2, F1 4/7."""
    predicted, labels = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]
    assert binary_f1(predicted, labels) == pytest.approx(4 / 7)
    assert binary_f1(predicted, labels, positive=0) == pytest.approx(2 / 5)
    assert binary_f1([0, 0], [1, 1]) == 0.0, "never found: no division by zero"
    assert binary_f1([0, 0], [0, 0]) == 0.0


def test_race_has_middle_high_and_all_rows_together() -> None:
    """Middle 1 of 1, high 1 of 3: all is 2 of 4, not the mean of the groups (2/3)."""
    predicted, labels = [0, 1, 2, 3], [0, 1, 0, 0]
    groups = ["middle", "high", "high", "high"]
    found = accuracy_by_group(predicted, labels, groups)
    assert found == {"accuracy": 0.5, "middle": 1.0, "high": pytest.approx(1 / 3)}
    assert accuracy_by_group([0], [0], [""]) == {"accuracy": 1.0}, "one group is no group"


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Cat's  Hat!", "cats hat"),
        ("an apple a day", "apple day"),
        ("THEATRE", "theatre"),
        ("The-End", "theend"),  # punctuation goes before articles
        ("a.b. the\tc\n", "ab c"),
        ("théâtre « à la »", "théâtre « à la »"),  # only ASCII punctuation, accents stay
        ("the", ""),
        ("$1,000.50", "100050"),
    ],
)
def test_answers_are_normalised_as_the_official_script_does(answer: str, normal: str) -> None:
    assert normalise(answer) == normal


def test_exact_match_and_f1_take_the_best_of_several_answers() -> None:
    assert exact_match("the Denver Broncos.", ["Carolina", "Denver Broncos"]) == 1.0
    assert exact_match("Denver", ["Denver Broncos"]) == 0.0
    assert token_f1("Denver", ["Denver Broncos"]) == pytest.approx(2 / 3)
    # 3 of 4 words found, 3 of 3 true: 2 * 3 / (4 + 3). A repeated word counts as often as it
    # is in both.
    assert token_f1("red red blue green", ["x", "red blue green"]) == pytest.approx(6 / 7)
    assert token_f1("red red", ["red"]) == pytest.approx(2 / 3)
    assert token_f1("nothing", ["in common"]) == 0.0


def test_no_answer_is_right_only_where_there_is_none() -> None:
    assert (exact_match("", []), token_f1("", [])) == (1.0, 1.0)
    assert (exact_match("Denver", []), token_f1("Denver", [])) == (0.0, 0.0)
    assert (exact_match("", ["Denver"]), token_f1("", ["Denver"])) == (0.0, 0.0)
    # An answer that is nothing but an article is none, as in the official script.
    assert (exact_match("", ["The", "Denver"]), token_f1("", ["the"])) == (0.0, 1.0)


def test_squad_scores_are_means_over_questions_and_over_both_kinds() -> None:
    answers = {"1": "Denver", "2": "", "3": "x", "4": "surplus"}
    accepted = {"1": ["Denver Broncos"], "2": [], "3": []}
    found = squad_scores(answers, accepted)
    assert found["exact"] == pytest.approx(1 / 3)
    assert found["f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert (found["has_answer_exact"], found["no_answer_exact"]) == (0.0, 0.5)
    assert squad_scores({"1": "a"}, {"1": ["a b"]}).keys() == {"exact", "f1"}
    for given, right in (({}, {"1": ["a"]}), ({}, {})):
        with pytest.raises(ValueError, match="questions have no answer to score"):
            squad_scores(given, right)


def test_the_best_threshold_is_the_best_of_all() -> None:
    """By hand: answering only those at or below 0.5 gives 1 + 0.5 + 1 (c left alone) of 3."""
    margins = {"a": -2.0, "b": 0.5, "c": 3.0}
    score = {"a": 1.0, "b": 0.5, "c": 0.0}
    has_answer = {"a": True, "b": True, "c": False}
    threshold, best = best_threshold(margins, score, has_answer)
    assert threshold == 0.5
    assert best == pytest.approx(2.5 / 3)
    none = dict.fromkeys(has_answer, False)
    threshold, best = best_threshold(margins, score, none)
    assert best == 1.0
    assert threshold < -2.0, "nothing is answered"
    # Equal margins can't be told apart by any threshold.
    equal = dict.fromkeys(margins, 1.0)
    assert best_threshold(equal, score, has_answer)[1] == pytest.approx(1.5 / 3)


def test_presets_are_those_of_table_6() -> None:
    assert TABLE_6.keys() == OFFICIAL.keys()
    assert {**STANDS_IN_FOR}.keys() == STAND_INS.keys() == LAPTOP.keys()
    for task, name, expected in (
        ("mnli", "336m", (128, 1e-5, 10)),
        ("qqp", "3.9b", (256, 4e-5, 12)),
        ("squad", "1.3b", (48, 3e-5, 2)),
        ("squad2", "1.3b", (64, 3e-5, 2)),
        ("race", "1.3b", (16, 1e-5, 3)),
        ("sciq", "3.9b", (32, 2e-5, 3)),  # stands in for RACE
    ):
        assert preset(task, name)[:3] == expected
    assert preset("race", "laptop") == preset("race", "336m")
    with pytest.raises(ValueError, match=r"preset is '8.3b'; it must be one of \('laptop', '336m'"):
        preset("boolq", "8.3b")
