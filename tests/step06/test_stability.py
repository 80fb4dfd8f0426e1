"""Figure 7's study: what it says is computed from what was measured, and its fast form runs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from step06_bert_layernorm import BERT, BertConfig, stability
from step06_bert_layernorm.deep_narrow import Sizes, Trial, alike, build, look, rate_at, train
from step06_bert_layernorm.examples import Batch, Vocabulary
from step06_bert_layernorm.few_pages import few_pages, frequent, unigram_loss
from step06_bert_layernorm.stability import FAST, Options, main, read_runs, trials
from step06_bert_layernorm.stability_plot import smooth
from step06_bert_layernorm.stability_results import MARGIN, Study, final_loss, tables, trains
from step06_bert_layernorm.wordpiece import bert_wordpiece
from tests.compare import assert_close
from tests.step01.test_real_data import DOWNLOADS, fetched

SIZES = Sizes(vocab_size=50, hidden_size=16, num_heads=1, seq_length=12, steps=12)


def random_batch(seed: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, 50, (4, 12), generator=generator)
    real = torch.arange(12) < torch.tensor([[12], [9], [7], [12]])
    asked = (torch.rand(4, 12, generator=generator) < 0.3) & real
    asked[:, 1] = True
    segments = (torch.arange(12) > 5).long().expand(4, 12) * real
    targets = torch.where(asked, tokens, -100)
    return Batch(torch.where(asked, 4, tokens), targets, segments, real, torch.zeros(4).long())


@pytest.mark.parametrize("norm", ["original", "rearranged"])
def test_gradient_norms_of_the_layers_are_the_losss_own_slopes(norm: str) -> None:
    """Against the unpartitioned BERT's gradients, and against the loss a small way to both sides
    along each layer's gradient: there its slope is the norm."""
    batch = random_batch()
    model = build(SIZES, norm, depth=3, seed=1).double()
    found = look(model, batch)["layers"]
    reference = BERT(BertConfig(50, 12, 16, 3, 1, dropout=0.0, norm=norm)).double()
    state = {
        k: v[:50] if k in ("tokens.weight", "mlm_bias") else v
        for k, v in model.state_dict().items()
    }
    reference.load_state_dict(state)

    def loss() -> Tensor:
        return reference.loss(*batch[:2], segments=batch.segments, padding_mask=batch.padding_mask)

    assert len(found) == 3
    for i, got in enumerate(found):
        weights = list(reference.blocks[i].parameters())
        gradients = torch.autograd.grad(loss(), weights)
        norm_of = math.sqrt(sum(float((g * g).sum()) for g in gradients))
        assert got == pytest.approx(norm_of, rel=1e-12), f"layer {i + 1}"
        sides = []
        for distance in (1e-5, -2e-5):  # to one side, and from there to the other
            with torch.no_grad():
                for p, g in zip(weights, gradients, strict=True):
                    p += distance / norm_of * g
                sides.append(float(loss()))
        assert abs((sides[0] - sides[1]) / 2e-5 / got - 1.0) < 1e-6
        with torch.no_grad():
            for p, g in zip(weights, gradients, strict=True):
                p += 1e-5 / norm_of * g


def test_both_orders_start_from_the_same_weights_at_the_papers_scale() -> None:
    models = {norm: build(SIZES, norm, 8, 5) for norm in ("original", "rearranged")}
    first, second = (m.state_dict() for m in models.values())
    matrices = [name for name, p in first.items() if p.dim() > 1]
    assert all(torch.equal(first[name], second[name]) for name in matrices)
    gpt2 = build(dataclasses.replace(SIZES, start="gpt2"), "original", 8, 5).state_dict()
    wide = 0.02 * math.sqrt(1024 / 16)
    for name, p in first.items():
        if name.endswith("qkv.weight"):
            assert abs(float(p.std()) / 0.02 - 1) < 0.1, name
        if name.endswith(("up.weight", "out.weight", "down.weight")):
            assert abs(float(p.std()) / wide - 1) < 0.15, name
            last = name.endswith(("out.weight", "down.weight"))
            assert_close(gpt2[name] * (4.0 if last else 1.0), p, 1e-6, name)
        else:
            assert torch.equal(gpt2[name], p)
    assert not torch.equal(
        first["tokens.weight"], build(SIZES, "original", 8, 6).state_dict()["tokens.weight"]
    )


def test_in_a_deep_original_the_lower_layers_go_silent_and_in_a_rearranged_one_not() -> None:
    """The mechanism, measured: a few steps at a high rate, 24 layers."""
    batches, shares = [random_batch(seed) for seed in range(1, 9)], {}
    for norm in ("original", "rearranged"):
        start, later = train(SIZES, Trial(norm, 24, 3e-3, 0, 0), batches)["looks"]
        shares[norm] = [row["layers"][0] / row["layers"][-1] for row in (start, later)]
        assert later["alike"] > start["alike"]
    assert shares["original"][0] > 0.2
    assert shares["original"][1] < 5e-2, "the first layer still hears of the loss"
    assert shares["rearranged"][1] > 0.3


def test_training_is_a_function_of_its_arguments_and_ends_when_it_breaks() -> None:
    batches = [random_batch(1), random_batch(2)]
    trial = Trial("rearranged", 2, 1e-2, 4, 0)
    found = train(SIZES, trial, batches)
    assert found == train(SIZES, trial, batches)
    assert len(found["losses"]) == len(found["norms"]) == 12
    assert found["losses"][-1] < found["losses"][0] < 1.1 * math.log(50)
    assert found != train(SIZES, dataclasses.replace(trial, seed=1), batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "step06_bert_layernorm.deep_narrow.rate_at", lambda step, *_: math.nan if step else 0.1
        )
        broken = train(SIZES, trial, batches)
    assert len(broken["losses"]) == 3
    assert final_loss(broken["losses"], 12) == math.inf
    rates = [rate_at(step, 0.8, 4, 12) for step in range(12)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[4:] == pytest.approx([0.1 * n for n in range(8, 0, -1)])


@pytest.mark.parametrize(
    ("losses", "learned"),
    [
        ([5.0] * 18 + [3.7, 3.7], True),
        ([5.0] * 18 + [3.9, 3.9], False),  # the frequencies, and little more
        ([3.0] * 18 + [3.0, 6.0], False),  # had learned, and fell apart
        ([3.0] * 19 + [math.nan], False),
        ([3.0] * 19 + [math.inf], False),
        ([3.0] * 19, False),  # ended before its time
    ],
)
def test_what_counts_as_training(losses: list[float], learned: bool) -> None:
    assert MARGIN == 0.25
    assert trains(losses, 20, 4.0) is learned


def study(good: dict[tuple[str, float, int], bool]) -> Study:
    """Runs of 10 steps at 2 layers that end at 3 or at 4, where the unigram loss is 4."""
    runs = []
    for (norm, rate, seed), learned in good.items():
        layers = [10.0 ** (-4 * seed), 1.0] if learned else [1e-9, 1.0]
        runs.append(
            {
                "norm": norm, "depth": 2, "rate": rate, "warmup": 0, "seed": seed,
                "losses": [5.0] * 9 + [3.0 if learned else 4.0], "norms": [1.0] * 10,
                "looks": [{"layers": layers, "alike": 0.5}] * 2,
            }
        )  # fmt: skip
    return Study(runs, unigram=4.0, steps=10, start="bert", probe=5, vocab_size=50)


def test_the_largest_rate_is_one_at_which_all_starts_train() -> None:
    rows = {("original", 0.1, 0): True, ("original", 0.1, 1): True, ("original", 0.2, 0): True}
    rows |= {("original", 0.2, 1): False, ("original", 0.4, 0): False, ("original", 0.4, 1): False}
    rows |= {("rearranged", rate, seed): rate > 0.1 for rate in (0.1, 0.2, 0.4) for seed in (0, 1)}
    found = study(rows)
    assert found.largest_rate(norm="original") == 0.1
    assert found.largest_rate(norm="rearranged") == 0.4
    assert found.largest_rate(norm="rearranged", rate=0.1) is None
    assert found.best_rate(norm="original") == 0.1
    assert found.final(norm="original", rate=0.2) == 3.5
    assert found.layers(1, norm="original", rate=0.1) == pytest.approx([1e-2, 1.0])
    found.runs[0]["looks"] = found.runs[0]["looks"][:1]
    assert found.layers(1, norm="original", rate=0.1) == [], "one broke down before the look"
    text = tables(found)
    assert "original     3.00*   3.50    4.00    0.1" in text
    assert "rearranged   4.00    3.00*   3.00*   0.4" in text


def test_tokens_that_are_alike() -> None:
    row = torch.tensor([1.0, -2.0, 4.0, 0.5])
    assert alike(torch.stack([row, 3 * row + 1, row])) == pytest.approx(1.0)
    apart = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])
    assert alike(apart) == pytest.approx(0.5)  # each with itself
    assert smooth([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]


def test_few_pages_keep_the_frequent_words() -> None:
    vocabulary = Vocabulary([False] * 8 + [True] + [False] * 11, range(5, 20), 0, 1, 2, 3, 4)
    documents = [[[7, 8, 9], [7, 8, 10], [7, 1, 11]], [[9, 9, 12], [7, 8, 8]]]
    kept, smaller = frequent(documents, vocabulary, 8)
    assert kept == [0, 1, 2, 3, 4, 7, 8, 9]
    assert smaller.continues == [False] * 6 + [True, False]
    assert list(smaller.words) == [5, 6, 7]
    options: dict[str, Any] = {"batches": 3, "batch_size": 4, "seq_length": 9, "seed": 0}
    batches = few_pages(documents, vocabulary, vocab_size=8, **options)
    asked = torch.cat([b.targets[b.targets >= 0] for b in batches]).tolist()
    assert len(batches) == 3
    assert set(asked) <= {5, 6, 7}, "unknown words are not asked for"
    assert max(int(b.tokens.max()) for b in batches) < 8
    shares = [asked.count(word) / len(asked) for word in (5, 6, 7)]
    assert unigram_loss(batches) == pytest.approx(-sum(p * math.log(p) for p in shares if p))
    for wrong in (5, 20):
        with pytest.raises(ValueError, match=rf"vocab_size is {wrong}; .* so 6 to 11 work"):
            few_pages(documents, vocabulary, vocab_size=wrong, **options)


def test_the_fast_form_and_how_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched(bert_wordpiece)
    text = tmp_path / "text.txt"
    nouns = ("law", "war", "bank", "road", "land", "king")
    words = [noun + ending for noun in nouns for ending in ("", "s")]
    text.write_text(
        "\n".join(
            " ".join(words[(i * j * j) % 12] for j in range(1, 9)) + f" in {i}." for i in range(600)
        )
    )
    options = Options(fast=True, corpus=str(text), root=DOWNLOADS.parent, run=tmp_path / "run")
    found = main(options)
    wanted = trials(dataclasses.replace(options, **FAST))
    assert len(found.runs) == len(wanted) == 8
    assert (tmp_path / "run" / "figure7.png").stat().st_size > 20_000
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert result["runs"] == found.runs
    assert all(run["losses"][-1] < run["losses"][0] for run in found.runs)
    with pytest.raises(ValueError, match="exists already"):
        main(options)
    # Half a line, as a stopped process leaves it: that run alone is made again.
    path = tmp_path / "run" / "runs-0.jsonl"
    whole = path.read_text()
    path.write_text(whole[: len(whole.rstrip()) - 9])
    assert len(read_runs(tmp_path / "run")) == 7
    monkeypatch.setattr(stability, "draw", lambda *_: None)  # once is enough, it takes a second
    again = main(Options(resume=tmp_path / "run"))
    for one, other in zip(again.runs, found.runs, strict=True):
        assert one["losses"] == other["losses"]
    assert len(read_runs(tmp_path / "run")) == 8
    assert not list((tmp_path / "run").glob("*tmp*"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"depths": ()}, r"--depths is \(\); give values, each once"),
        ({"rates": (0.1, 0.1)}, r"--rates is \(0.1, 0.1\); give values, each once"),
        ({"depths": (0, 2)}, r"depths \(0, 2\) and rates .* must be above 0"),
        ({"rates": (math.nan,)}, r"rates \(nan,\) must be above 0"),
        ({"warmups": (5,)}, r"--warmups is \(5,\); 0 must be among them"),
        ({"warmups": (0, 12), "steps": 12}, r"the others below 12 steps"),
        ({"seeds": 0}, "--seeds is 0; it must be at least 1"),
        ({"processes": 0}, "--processes is 0; it must be at least 1"),
        ({"hidden_size": 24}, "--hidden-size is 24; heads are of 16 each"),
    ],
)
def test_bad_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(**wrong)
