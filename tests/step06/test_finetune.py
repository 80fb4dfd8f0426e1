"""The program on two ranks: a tiny BERT in Hugging Face's form learns tiny official files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from safetensors.torch import load_file, save_file

from step02_mlp_parallel import run_ranks
from step05_hybrid_dp.load import load_run
from step06_bert_layernorm import BERT, BertConfig, evaluate, export, to_huggingface_bert
from step06_bert_layernorm.finetune_load import finetuned_model, open_finetuned
from step06_bert_layernorm.finetune_options import (
    Options,
    check_layout,
    check_positions,
    resumed,
)
from step06_bert_layernorm.finetune_seeds import saved_seeds
from tests.step06 import finetune_ranks
from tests.step06.cases import ENTRIES

FILES = [
    "config.json", "curve.png", "metrics.jsonl", "predictions.json", "results.json", "seed-0",
    "seed-1",
]  # fmt: skip
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
        task="qqp", data=qqp, weights=weights, batch_size=8, lr=5e-2, epochs=2, seeds=2, looks=2,
        look_rows=20, rng="invariant", timeout=60.0,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)


def lines(run: Path, key: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if key in row]


@pytest.fixture(scope="module")
def run(weights: Path, qqp: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds on two tensor-parallel ranks, from beginning to end."""
    folder = tmp_path_factory.mktemp("runs") / "tp"
    assert run_ranks(finetune_ranks.run, 2, options(weights, qqp, run=folder, tp=2)) == [folder] * 2
    return folder


def test_it_learns_and_leaves_its_figures(run: Path) -> None:
    trained = lines(run, "loss")
    places = [(row["seed"], row["step"]) for row in trained]
    assert places == [(seed, step + 1) for seed in (0, 1) for step in range(30)]
    looks = [(row["seed"], row["step"]) for row in lines(run, "look")]
    assert looks == [(seed, step) for seed in (0, 1) for step in (15, 30)]
    assert sorted(p.name for p in run.iterdir()) == FILES
    assert (run / "curve.png").read_bytes()[:4] == b"\x89PNG"
    found = json.loads((run / "results.json").read_text())
    assert found["rows"] == {"train": 120, "valid": 45}
    assert found["floor"] == {"accuracy": pytest.approx(2 / 3), "f1": 0.0}
    assert found["median"]["accuracy"] > 0.95
    assert found["ensemble"]["f1"] > 0.95
    assert len(json.loads((run / "predictions.json").read_text())) == 45
    losses = [row["loss"] for row in trained]
    assert losses[:30] != losses[30:], "each seed has its own order"


def test_a_run_that_was_stopped_goes_on_at_another_layout_to_the_same_figures(
    weights: Path, qqp: Path, tmp_path: Path, run: Path
) -> None:
    """By Ctrl-C in seed 0, and again while the weights of seed 1 are written. What is finished is
    not trained again, what isn't starts again, and nothing is half there."""
    folder = tmp_path / "dp"
    given = options(weights, qqp, run=folder, dp=2, micro_batch_size=2)
    assert run_ranks(finetune_ranks.stopped, 2, given, 3) == [3, 3]
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "metrics.jsonl"]
    assert len(lines(folder, "loss")) == 3
    again = Options(resume=folder, tp=1, dp=2)
    assert run_ranks(finetune_ranks.stopped, 2, again, -1) == [60, 60]
    assert saved_seeds(folder) == [0]
    assert not [*folder.glob("results.json"), *folder.glob("*.tmp"), *folder.glob("*/.*")]
    assert json.loads((folder / "config.json").read_text())["dp"] == 2
    other = Options(resume=folder, tp=2, dp=1)
    assert run_ranks(finetune_ranks.counted, 2, other) == [30, 30], "seed 1 alone"
    left = {p.name for p in folder.iterdir()}
    assert left == set(FILES) - {"curve.png"}, "(which is not drawn here)"
    for key in ("loss", "look"):
        one, two = lines(run, key), lines(folder, key)
        assert [(r["seed"], r["step"]) for r in two] == [(r["seed"], r["step"]) for r in one]
        assert max(abs(a[key] - b[key]) for a, b in zip(one, two, strict=True)) < 1e-3
    found = [json.loads((path / "results.json").read_text()) for path in (run, folder)]
    for result in found:
        del result["seconds"]
    assert found[0] == found[1]


def test_finished_seeds_are_scored_again_and_exported(
    weights: Path, qqp: Path, tmp_path: Path, run: Path
) -> None:
    expected = json.loads((run / "results.json").read_text())
    del expected["seconds"]
    assert evaluate.main(evaluate.Options(run=run)) == expected
    assert json.loads((run / "evaluation.json").read_text()) == expected
    (run / "evaluation.json").unlink()
    for seed in (None, 1):
        to = tmp_path / f"seed {seed}"
        export.main(export.Options(to=to, run=run, seed=seed))
        assert (to / "vocab.txt").read_text() == (weights / "vocab.txt").read_text()
        tuning, seeds = open_finetuned(run)
        assert seeds == [0, 1]
        own = finetuned_model(tuning, seed or 0).state_dict()
        written = load_file(to / "model.safetensors")
        assert torch.equal(written["classifier.weight"], own["head.weight"])
        assert not torch.equal(own["bert.pooler.weight"], tuning.weights["pooler.weight"])
        assert torch.equal(written["bert.pooler.dense.weight"], own["bert.pooler.weight"])
        settings = json.loads((to / "config.json").read_text())
        assert settings["architectures"] == ["BertForSequenceClassification"]
    with pytest.raises(ValueError, match=r"--seed is 7; the finished ones of .* are 0, 1"):
        export.main(export.Options(to=tmp_path / "none", run=run, seed=7))
    with pytest.raises(ValueError, match="where to"):
        export.main(export.Options(to=Path(), run=run))
    with pytest.raises(ValueError, match="is a run of qqp, which is no GPT-2"):
        load_run(run)  # what `make sample` opens a run with
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(ValueError, match=r"no seed of .*begun is finished, .* RESUME="):
        evaluate.main(evaluate.Options(run=begun))
    with pytest.raises(ValueError, match=r"--lr is 0\.5 but the run has 0\.05"):
        resumed(Options(resume=run, lr=0.5))
    more = resumed(Options(resume=run, seeds=5))
    assert (more.seeds, more.data, more.weights) == (5, qqp, weights)


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
