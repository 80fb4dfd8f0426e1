"""Padding, labels, the two parts of the loss, bad input, and sizes, of both models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from step02_mlp_parallel import run_ranks
from step06_bert_layernorm import BERT, PAPER_MODELS, BertConfig, ParallelBERT
from tests.compare import assert_close
from tests.step06 import bert_ranks
from tests.step06.cases import CONFIG, ORIGINAL, batches


@pytest.mark.parametrize("model", [BERT, ParallelBERT])
@pytest.mark.parametrize("norm", ["rearranged", "original"])
def test_pitfall_94_padding_makes_no_nan_and_is_never_looked_at(model: Any, norm: str) -> None:
    """One real token and three of padding; and a row that is padding alone. With dropout, and so
    on the explicit path, and without, on SDPA's."""
    for p in (0.0, 0.2):
        config = dataclasses.replace(CONFIG, norm=norm, dropout=p)
        bert = model(config, seed=1)
        tokens = torch.tensor([[5, 1, 1, 1], [1, 1, 1, 1]])
        real = torch.tensor([[True, False, False, False], [False] * 4])
        targets = torch.where(real, 7, -100)
        bert.loss(tokens, targets, padding_mask=real, order=torch.tensor([1, -100])).backward()
        assert all(torch.isfinite(q.grad).all() for q in bert.parameters())
        bert.eval()
        other = torch.tensor([[5, 9, 8, 30], [1, 2, 3, 4]])
        with torch.no_grad():
            hidden = bert.hidden(tokens, padding_mask=real)
            assert torch.isfinite(hidden).all()
            assert torch.equal(hidden[0, 0], bert.hidden(other, padding_mask=real)[0, 0])
            assert not torch.equal(hidden[0, 0], bert.hidden(other)[0, 0]), "it can look, unmasked"
            assert_close(hidden[0, 0], bert.hidden(tokens[:1, :1])[0, 0], 1e-5, "the token alone")


@pytest.mark.parametrize("model", [BERT, ParallelBERT])
def test_pitfall_93_a_label_that_is_not_asked_for_has_no_loss(model: Any) -> None:
    """And one that is asked for has; another `ignore_index` is minded too; no label, no loss."""
    bert, batch = model(CONFIG, seed=1), batches(1)[0]
    inputs = {k: batch[k] for k in ("tokens", "segments", "padding_mask")}
    targets = batch["targets"]
    loss = bert.loss(**inputs, targets=targets)
    losses = bert.loss(**inputs, targets=targets, reduction="none")
    assert losses.shape == targets.shape
    assert torch.equal(losses != 0, targets != -100)
    assert_close(losses.sum() / (targets != -100).sum(), loss, 1e-6)
    total = bert.loss(**inputs, targets=targets, reduction="sum", divisor=torch.tensor(5.0))
    assert_close(total, losses.sum() / 5, 1e-6)
    real = targets.masked_fill(targets == 36, 35)
    renamed = bert.loss(**inputs, targets=real.masked_fill(real == -100, 36), ignore_index=36)
    assert torch.equal(renamed, bert.loss(**inputs, targets=real))
    changed = targets.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 37
    assert not torch.isclose(bert.loss(**inputs, targets=changed), loss)
    nothing = bert.loss(
        **inputs, targets=torch.full_like(targets, -100), order=torch.full((4,), -100)
    )
    nothing.backward()
    assert nothing == 0
    assert all((p.grad == 0).all() for p in bert.parameters()), "zero, and there: DDP waits for it"


def test_both_parts_of_the_loss_and_their_divisors() -> None:
    bert, batch = BERT(CONFIG, seed=1), batches(1)[0]
    inputs = {k: batch[k] for k in ("tokens", "segments", "padding_mask", "targets")}
    order = batch["order"]
    logits = bert.order(
        bert.pooled(bert.hidden(*(batch[k] for k in ("tokens", "segments", "padding_mask"))))
    )
    swapped = F.cross_entropy(logits[:3], order[:3])
    assert_close(bert.loss(**inputs, order=order), bert.loss(**inputs) + swapped, 1e-6)
    for model in (bert, ParallelBERT(CONFIG, seed=1)):
        total = model.loss(**inputs, order=order, reduction="sum", divisor=5, order_divisor=2)
        words = model.loss(**inputs, reduction="sum", divisor=5)
        assert_close(total - words, 3 * swapped / 2, 1e-5)


def test_bad_input_is_named_before_anything_is_sent() -> None:
    said = run_ranks(bert_ranks.messages, 2, CONFIG, batches(1)[0])[1]
    assert said.pop("collectives") == "0"
    expected = {
        "too long": "10 tokens are more than seq_length 9",
        "id": "is outside the vocabulary: ids go from 0 to 36",
        "segment": "segment 2 isn't among 0 … 1",
        "segments": "segments have shape [1, 8], the tokens [4, 8]",
        "float mask": "padding_mask is torch.float32 [4, 8]; it must be torch.bool [4, 8]",
        "mask": "padding_mask is torch.bool [4, 1]; it must be torch.bool [4, 8]",
        "target": "is outside the vocabulary: ids go from 0 to 36",
        "targets": "targets [1, 8] and tokens [4, 8] differ in shape",
        "order": "order label 2 isn't among 0 … 1",
        "bool order": "order labels are torch.bool; they must be integers",
        "orders": "order has shape [1]; it must be [4], one label a row",
        "none": "leave order out",
        "reduction": "reduction is 'avg'",
        "divisor": 'divisor goes with reduction="sum"',
        "order divisor": 'divisor goes with reduction="sum"',
    }
    assert said.keys() == expected.keys()
    for name, words in expected.items():
        assert words in said[name], f"{name}: {said[name]}"


def test_the_papers_sizes() -> None:
    assert [round(PAPER_MODELS[f"bert-{n}"].num_parameters / 1e6) for n in ("336m",)] == [336]
    assert round(PAPER_MODELS["bert-1.3b"].num_parameters / 1e9, 1) == 1.3
    assert round(PAPER_MODELS["bert-3.9b"].num_parameters / 1e9, 1) == 3.9
    for config in (CONFIG, ORIGINAL):
        assert sum(p.numel() for p in BERT(config).parameters()) == config.num_parameters
        encoder = {n for n, _ in BERT(config, heads=False).named_parameters()}
        assert not [n for n in encoder if "mlm" in n or "order" in n]
    with pytest.raises(ValueError, match='norm is \'pre\'; it must be "rearranged" or "original"'):
        BertConfig(37, 9, 24, 2, 8, norm="pre")
    with pytest.raises(ValueError, match="num_segments is 0"):
        BertConfig(37, 9, 24, 2, 8, num_segments=0)
