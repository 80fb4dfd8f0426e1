"""The program on two ranks: a tiny BERT in Hugging Face's form learns tiny official files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from safetensors.torch import save_file

from step02_mlp_parallel import run_ranks
from step06_bert_layernorm import BERT, BertConfig, to_huggingface_bert
from step06_bert_layernorm.finetune_options import Options, check_layout, check_positions
from step06_bert_layernorm.finetune_report import results, table
from step06_bert_layernorm.task_examples import subset, those_that_fit
from step06_bert_layernorm.task_files import Choice, Pair, Question
from step06_bert_layernorm.task_stand_ins import Split
from step06_bert_layernorm.tasks import make_task, with_valid
from step06_bert_layernorm.wordpiece import read_wordpiece
from tests.step06 import finetune_ranks

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "is", "it", *"abcde"]
ENTRIES += ["yes", "no", "who", *"xyz."]
CONFIG = BertConfig(len(ENTRIES), 24, 16, num_layers=1, num_heads=4, norm="original")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with random weights, in the form in which pretrained ones come."""
    folder = tmp_path_factory.mktemp("bert")
    save_file(
        to_huggingface_bert(BERT(CONFIG, seed=2).state_dict(), heads=False),
        folder / "model.safetensors",
    )
    settings = {
        "model_type": "bert", "num_attention_heads": 4, "hidden_size": 16, "intermediate_size": 64
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join(ENTRIES) + "\n")
    return folder


@pytest.fixture(scope="module")
def qqp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Duplicates are those whose second text says yes: a third of them."""
    folder = tmp_path_factory.mktemp("qqp")
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 120), ("dev", 45)):
        lines = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"]
        for i in range(count):
            words = [ENTRIES[j] for j in torch.randint(7, 12, (5,), generator=generator).tolist()]
            second = [*words[:2], "yes" if i % 3 == 0 else "no", words[2]]
            fields = [str(i), "1", "2", " ".join(words), " ".join(second), str(int(i % 3 == 0))]
            lines.append("\t".join(fields))
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def options(weights: Path, qqp: Path, **changes: Any) -> Options:
    given = Options(
        task="qqp", data=qqp, weights=weights, batch_size=8, lr=3e-2, epochs=3, seeds=2, looks=3,
        look_rows=20, rng="invariant", timeout=60.0,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)


def test_it_learns_and_leaves_the_same_figures_at_every_layout(
    weights: Path, qqp: Path, tmp_path: Path
) -> None:
    layouts = {"tp": {"tp": 2}, "dp": {"dp": 2, "micro_batch_size": 2}}
    found, losses = {}, {}
    for name, layout in layouts.items():
        given = options(weights, qqp, run=tmp_path / name, **layout)
        assert run_ranks(finetune_ranks.run, 2, given) == [tmp_path / name] * 2
        found[name] = json.loads((tmp_path / name / "results.json").read_text())
        rows = [
            json.loads(line)
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        trained = [row for row in rows if "loss" in row]
        losses[name] = [row["loss"] for row in trained]
        places = [(row["seed"], row["step"]) for row in trained]
        assert places == [(seed, step + 1) for seed in (0, 1) for step in range(45)]
        looks = [(row["seed"], row["step"]) for row in rows if "look" in row]
        assert looks == [(seed, step) for seed in (0, 1) for step in (15, 30, 45)]
    run = tmp_path / "tp"
    names = ["config.json", "curve.png", "metrics.jsonl", "predictions.json", "results.json"]
    assert sorted(p.name for p in run.iterdir()) == names
    assert (run / "curve.png").read_bytes()[:4] == b"\x89PNG"
    first = found["tp"]
    assert first["rows"] == {"train": 120, "valid": 45}
    assert first["floor"] == {"accuracy": pytest.approx(2 / 3), "f1": 0.0}
    assert first["median"]["accuracy"] > 0.95
    assert first["ensemble"]["f1"] > 0.95
    assert len(json.loads((run / "predictions.json").read_text())) == 45
    assert max(abs(a - b) for a, b in zip(losses["tp"], losses["dp"], strict=True)) < 1e-3
    for result in found.values():
        del result["seconds"]
    assert found["tp"] == found["dp"]
    assert losses["tp"][:45] != losses["tp"][45:], "each seed has its own order"


def test_bad_input_is_refused_on_all_ranks_and_leaves_nothing(
    weights: Path, qqp: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes((weights / name).read_bytes())
    (other / "vocab.txt").write_text("\n".join([*ENTRIES, "more"]) + "\n")
    torn = tmp_path / "torn"
    torn.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        lines = (qqp / name).read_text().splitlines()
        (torn / name).write_text("\n".join([*lines[:2], lines[2] + "7", *lines[3:]]) + "\n")
    taken = tmp_path / "taken"
    taken.mkdir()
    good = options(weights, qqp, run=tmp_path / "run")
    many = {
        r"--seq_length 25 is longer than the model's 24 positions": {"seq_length": 25},
        r"vocabulary has 20 entries and the model was made for 19": {"weights": other},
        r"train.tsv, line 3: label '17' is out of range|'07' is out of range": {"data": torn},
        r"it must hold train.tsv, dev.tsv": {"data": tmp_path},
        r"tp_size 1 × dp_size 1 is 1 ranks, but 2 are running": {"tp": 1},
        r"tp 3 doesn't divide the 4 heads of the model; these would: 1, 2, 4": {"tp": 3},
        r"taken exists already": {"run": taken},
    }
    refused = [dataclasses.replace(good, **change) for change in many.values()]
    for said in run_ranks(finetune_ranks.refused, 2, refused):
        for message, text in zip(many, said, strict=True):
            assert any(part in text for part in message.split("|")), text
    assert not (tmp_path / "run").exists()
    assert not list(taken.iterdir())


def test_options_name_what_would_work() -> None:
    for change, message in (
        (
            {"task": "cola"},
            "there is no task 'cola'; fetched: boolq, rte, mrpc, sciq, sq",
        ),
        ({"preset": "big"}, "--preset is 'big'; it must be laptop or one of"),
        ({"batch_size": 0}, "--batch_size is 0; it must be at least 1"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"train_rows": -1}, "--train_rows is -1; it must be 0"),
        ({"task": "squad", "whole": True}, "--whole is not for spans"),
        ({"warmup": 10.0}, "--warmup is 10.0; it is a share"),
        ({"lr": 0.0}, "--lr is 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            Options(**change)  # type: ignore[arg-type]
    words = ["--task", "race", "--preset", "1.3b", "--lr", "1e-3", "--data", "."]
    given = tyro.cli(Options, args=words)
    assert given.settings[:3] == (16, 1e-3, 3)
    assert Options().settings.whole
    changed = Options(whole=False, valid_rows=7).settings
    assert (changed.whole, changed.valid_rows, changed.train_rows) == (False, 7, 0)
    assert check_positions(Options(), CONFIG, 19) == 24
    assert check_layout(Options(dp=2), CONFIG, 8) == (4, 2)


def test_every_kind_of_task_is_scored_and_an_ensemble_is_a_mean_of_probabilities(
    weights: Path,
) -> None:
    tokenizer = read_wordpiece(weights / "vocab.txt")
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


def test_spans_are_answered_out_of_the_text(weights: Path) -> None:
    """Logits that point at places of several windows become answers and the official scores."""
    tokenizer = read_wordpiece(weights / "vocab.txt")
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


def test_what_would_be_cut_can_be_left_out(weights: Path) -> None:
    """Of all options of a choice, the longest one counts."""
    tokenizer = read_wordpiece(weights / "vocab.txt")
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
