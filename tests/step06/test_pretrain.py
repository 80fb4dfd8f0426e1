"""Pretraining on step 5's program: the same run at every layout, resumed to the bit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from step02_mlp_parallel import run_ranks
from step05_hybrid_dp import train
from step05_hybrid_dp.load import load_run
from step06_bert_layernorm import PAPER_MODELS, evaluate, export, pretrain
from step06_bert_layernorm.examples import Batch
from step06_bert_layernorm.load import load_bert_run
from step06_bert_layernorm.pretrained import read_bert
from tests.compare import assert_close
from tests.step06 import bert_ranks, pretrain_ranks
from tests.step06.cases import CONFIG, batches, full_state
from tests.step06.pretrain_ranks import options

ROOT = Path(__file__).parents[2]
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)]


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAPER_MODELS, "tiny", pretrain_ranks.TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pretrain")
    pretrain_ranks.write_texts(path)
    return path


def rows(run: Path, *keys: str) -> list[list[Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [[line[key] for key in keys] for line in lines if all(key in line for key in keys)]


def all_kinds(steps: int) -> list[Batch]:
    """Rows of 8, 5, 1 and 0 real tokens; the last two, a rank's of dp 2, ask for nothing in every
    other step; one row has no order label; in the last step nothing is asked for at all."""
    found = []
    for step, batch in enumerate(batches(steps)):
        if step % 2 == 0:
            batch["targets"][2:] = -100
        if step == steps - 1:
            batch["targets"][:] = -100
        found.append(Batch(**batch))
    return found


@pytest.mark.parametrize(("norm", "layouts"), [("rearranged", LAYOUTS), ("original", [(2, 2)])])
def test_each_part_is_a_mean_over_the_global_batch_at_every_layout(
    norm: str, layouts: list[tuple[int, int]]
) -> None:
    """The engine on uneven rows, dropout on: losses, gradients, weights, float64."""
    config = dataclasses.replace(CONFIG, norm=norm, dropout=0.2)
    full, whole = full_state(config), all_kinds(3)
    reference, rng = bert_ranks.whole_bert(config, full)
    assert rng is not None
    rng.at(0, 0)
    words = reference.loss(**{**whole[0]._asdict(), "order": None}).detach()
    given = [batch._asdict() for batch in whole]
    losses, gradients = bert_ranks.train_steps(reference, rng, given, "sgd")
    final = reference.state_dict()
    for tp, dp in layouts:
        micro = 2 if dp == 1 else 1  # two micro-batches on each rank, one at dp 4
        for row in run_ranks(pretrain_ranks.engine_steps, tp * dp, tp, config, full, whole, micro):
            seen, first, weights = row
            where = f"tp {tp}, dp {dp}"
            assert_close(seen[0][0], words, 1e-12, f"masked words, {where}")
            for step, (parts, loss) in enumerate(zip(seen, losses, strict=True)):
                assert_close(parts.sum(), loss, 1e-12, f"loss of step {step}, {where}")
            assert seen[-1][0] == 0, "nothing was asked for"
            for name, gradient in gradients.items():
                assert_close(first[name], gradient, 1e-12, f"gradient of {name}, {where}")
            for name, weight in final.items():
                assert_close(weights[name], weight, 1e-12, f"{name}, {where}")


@pytest.mark.parametrize(("norm", "layouts"), [("rearranged", LAYOUTS[:4]), ("original", [(2, 1)])])
def test_the_program_trains_the_same_model_at_every_layout(
    folder: Path, norm: Any, layouts: list[tuple[int, int]]
) -> None:
    """Real rows, dropout on, AdamW and clipping; against a few lines on the whole BERT."""
    given, how = (
        options(folder, rng="invariant", norm=norm),
        {
            (2, 1): {"vocab_multiple": 1},
            (1, 2): {"micro_batch_size": 1},
            (2, 2): {"micro_batch_size": 2, "recompute": True},
        },
    )
    losses, final = pretrain_ranks.reference(given)
    assert losses[-1] < losses[0]
    scores = []
    for tp, dp in layouts:
        path = folder / f"{norm}-{tp}x{dp}"
        others: dict[str, Any] = how.get((tp, dp), {})
        case = dataclasses.replace(given, tp=tp, dp=dp, run=path, **others)
        run_ranks(pretrain_ranks.run, tp * dp, case, torch.float64)
        found = torch.tensor([row[0] for row in rows(path, "loss")])
        assert_close(found, torch.tensor(losses), 1e-10, f"tp {tp}, dp {dp}")
        for loss, words, order in rows(path, "loss", "masked_loss", "order_loss"):
            assert loss == words + order
        own = load_bert_run(path)[0].state_dict()
        for name, tensor in final.items():
            if not name.endswith("qkv.bias"):  # K's gradient is zero but for rounding: Adam
                got = own[name][: len(tensor)]  # without the vocabulary's padding
                assert_close(got, tensor, 1e-9, f"{name}, tp {tp}, dp {dp}")
        scores.append(torch.tensor(rows(path, "valid_loss", "valid_order_accuracy")))
    assert all(torch.allclose(other, scores[0], rtol=1e-9) for other in scores)


def test_resume_is_bit_exact_and_goes_on_at_other_layouts(folder: Path) -> None:
    """In the paper's mode at one layout; in invariant mode and float64 from 2 x 1 to 1 x 2."""
    straight, parts = folder / "straight", folder / "parts"
    given = options(folder, tp=2)
    run_ranks(pretrain_ranks.run, 2, dataclasses.replace(given, run=straight))
    said = run_ranks(pretrain_ranks.interrupted, 2, dataclasses.replace(given, run=parts), 2)
    assert f"stopped after step 2; go on with: --resume {parts}" in said[0]["printed"]
    run_ranks(pretrain_ranks.run, 2, pretrain.Options(resume=parts))
    first, second = (load_bert_run(run)[0].state_dict() for run in (straight, parts))
    assert all(torch.equal(second[name], first[name]) for name in first)
    keys = ("step", "loss", "masked_loss", "order_loss", "grad_norm", "lr")
    assert rows(parts, *keys) == rows(straight, *keys)

    moving, given = folder / "moving", options(folder, rng="invariant")
    losses, _ = pretrain_ranks.reference(given)
    case = dataclasses.replace(given, run=moving, tp=2)
    run_ranks(pretrain_ranks.interrupted, 2, case, 2, torch.float64)
    run_ranks(pretrain_ranks.run, 2, pretrain.Options(resume=moving, tp=1, dp=2), torch.float64)
    found = torch.tensor([row[0] for row in rows(moving, "loss")])
    assert_close(found, torch.tensor(losses), 1e-9)


def test_a_run_learns_leaves_all_its_files_and_is_scored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "files"
    given = options(
        folder, run=run, tp=2, steps=25, norm="original", valid_every=20,
        valid_examples=16,
    )  # fmt: skip
    printed = [
        row["printed"] for row in run_ranks(pretrain_ranks.run, 2, given, torch.float32, True)
    ]
    assert "masked words: loss " in printed[0]
    assert "guessing gives 50 %" in printed[0]
    assert printed[1] == "", "only rank 0 speaks"
    assert {path.name for path in run.iterdir()} == {
        "checkpoints", "config.json", "metrics.jsonl", "loss.png", "sample.txt",
    }  # fmt: skip
    assert [row[0] for row in rows(run, "step", "masked_loss")] == list(range(1, 26))
    loss, perplexity, unigram = rows(run, "valid_loss", "valid_perplexity", "unigram_loss")[-1]
    assert 2.0 < unigram < 4.0
    assert loss < rows(run, "masked_loss")[0][0] - 1.0, "it doesn't learn"
    assert perplexity == pytest.approx(2.718281828**loss, rel=1e-6)
    assert "[CLS]" in (run / "sample.txt").read_text()
    found = evaluate.main(evaluate.Options(run=run, examples=16, batch_size=5))
    assert found["masked_loss"] == pytest.approx(loss, rel=1e-5)
    assert found["order_accuracy"] == rows(run, "valid_order_accuracy")[-1][0]
    assert json.loads((run / "evaluation.json").read_text()) == found
    assert "original order" in capsys.readouterr().out

    export.main(export.Options(to=folder / "exported", run=run))
    config, state = read_bert(folder / "exported")
    model, _, _ = load_bert_run(run)
    assert config == model.config
    own = model.state_dict()
    assert state.keys() == own.keys()
    assert all(torch.equal(t, own[name][: len(t)]) for name, t in state.items())
    assert (folder / "exported" / "vocab.txt").read_text() == (folder / "vocab.txt").read_text()
    with pytest.raises(ValueError, match="files is a run of tiny, which is no GPT-2"):
        load_run(run)  # what `make sample` opens a run with
    with pytest.raises(ValueError, match="trained tiny; with make, say MODEL= too"):
        train.main(train.Options(resume=run))
    with pytest.raises(ValueError, match="is not a BERT's run"):
        load_bert_run(folder)


def test_a_rearranged_run_is_not_exported(folder: Path) -> None:
    run = folder / "rearranged"
    run_ranks(pretrain_ranks.run, 1, options(folder, run=run, steps=1))
    with pytest.raises(ValueError, match="the two norm orders are not convertible"):
        export.main(export.Options(to=folder / "nowhere", run=run))
    assert not (folder / "nowhere").exists()
    with pytest.raises(ValueError, match="where to"):
        export.main(export.Options(to=Path(), run=run))


@pytest.mark.parametrize(("tp", "dp"), [(1, 1), (2, 1), (2, 2)])
def test_scores_and_guesses_are_the_reference_s(tp: int, dp: int) -> None:
    """At tp 2 the second rank has none of the 37 words."""
    full, batch = full_state(CONFIG), all_kinds(2)[0]
    model, _ = bert_ranks.whole_bert(CONFIG, full)
    hidden = model.hidden(batch.tokens, batch.segments, batch.padding_mask)
    words = model.loss(*batch[:2], segments=batch.segments, padding_mask=batch.padding_mask)
    right = model.order(model.pooled(hidden)).argmax(-1) == batch.order
    likeliest = model.mlm(hidden).argmax(-1)[batch.targets >= 0]
    for found, guessed in run_ranks(pretrain_ranks.scored, tp * dp, tp, CONFIG, full, batch):
        assert found.masked_loss == pytest.approx(words.item(), rel=1e-12)
        assert found.order_accuracy == int(right.sum()) / 3
        assert (found.words, found.pairs) == (int((batch.targets >= 0).sum()), 3)
        assert torch.equal(guessed, likeliest)


def test_bad_input_is_named_on_all_ranks_and_leaves_nothing(folder: Path) -> None:
    (folder / "single").mkdir(exist_ok=True)
    for name in ("a", "b", "c"):
        (folder / "single" / f"{name}.txt").write_text("only one sentence")
    before = sorted(str(path) for path in folder.glob("*/*"))
    cases = {
        "single": options(folder, corpus=str(folder / "single")),
        "text": options(folder, corpus=str(folder / "missing.txt")),
        "vocabulary": options(folder, tokenizer=str(folder / "missing.txt")),
        "batch": options(folder, batch_size=7, tp=1, dp=2),
        "exists": options(folder, run=folder),
    }
    wanted = {
        "single": "none of the 2 documents of the train part (a.txt, b.txt) has two sentences",
        "text": "there is no text file or folder",
        "vocabulary": "there is no vocabulary",
        "batch": "--batch_size 7 doesn't divide by dp 2: 6 or 8 would",
        "exists": "exists already",
    }
    for said in run_ranks(pretrain_ranks.failing, 2, cases):
        for name, text in wanted.items():
            assert text in said[name], f"{name}: {said[name]}"
    assert sorted(str(path) for path in folder.glob("*/*")) == before
    for bad, message in (
        ({"model": "bert-336"}, r"there is no model 'bert-336'; near it: bert-336m"),
        ({"model": "bert_mini"}, r"there is no model 'bert_mini'; near it: bert-mini, "),
        ({"model": "BERT-Mini"}, r"there is no model 'BERT-Mini'; near it: bert-mini, "),
        ({"model": "brt-mini"}, r"there is no model 'brt-mini'; near it: bert-mini, "),
        ({"model": "gpt-2-mini"}, r"there is no model 'gpt-2-mini'; near it: gpt2-mini, "),
        ({"model": "gpt2-mini"}, r"gpt2-mini is a GPT-2, .* make train MODEL=gpt2-mini, "),
        ({"seq_length": 256}, r"--seq_length is 256; bert-mini has 128 positions, .*5 to 128"),
        ({"seq_length": 4}, "two pieces with their special tokens take 5"),
        ({"norm": "pre"}, "--norm is 'pre'"),
        ({"valid_examples": 0}, "--valid_examples is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain.Options(**bad)


def test_make_sends_every_name_to_a_program_that_knows_it() -> None:
    """A misspelled name of either kind to the one that knows both kinds; a run to its own."""
    gpt2, bert = "step05_hybrid_dp.train", "step06_bert_layernorm.pretrain"
    for given, program in {
        (): gpt2,
        ("MODEL=gpt2-mini",): gpt2,
        ("MODEL=gpt2-min",): gpt2,
        ("MODEL=bert-mini",): bert,
        ("MODEL=brt-mini",): bert,
        ("MODEL=GPT2_mini",): bert,
        ("RESUME=runs/bert-mini-001",): bert,
        ("RESUME=runs/bert-mini-001/",): bert,
        ("RESUME=runs/gpt2-mini-001",): gpt2,
        ("RESUME=runs/other", "MODEL=bert-mini"): bert,
    }.items():
        command = ["make", "--dry-run", "train", *given]
        shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
        assert f" -m -- {program} " in shown, given
