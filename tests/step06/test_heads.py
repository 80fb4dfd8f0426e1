"""Heads on a parallel BERT are heads on a whole one: losses, gradients, training, predictions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from step02_mlp_parallel import run_ranks
from step06_bert_layernorm import BERT, BertConfig
from step06_bert_layernorm.finetune_step import Place, linear_rate, predict
from step06_bert_layernorm.heads import Batch, Classifier, SpanReader, answer_loss
from step06_bert_layernorm.task_rows import Row, collate, epoch_batches, own_part, pair_text
from tests.compare import assert_close
from tests.equivalence import random_state
from tests.step06 import finetune_ranks

CONFIG = BertConfig(37, 12, hidden_size=24, num_layers=2, num_heads=8, dropout=0.2)
ORIGINAL = dataclasses.replace(CONFIG, norm="original", dropout=0.0)
# What is added to all options, or to all places, alike changes no softmax: rounding noise of zero.
ZERO = {"pairs": (), "choices": ("head.bias",), "spans": ("head.bias", "bert.blocks.1.ln2.bias")}
SIZES = (5, 2, 1)  # rows of each batch: dp 2 and 4 don't divide them, or leave a rank without


def rows(kind: str, count: int, generator: torch.Generator) -> list[Row]:
    """Random rows of 5 to 12 tokens."""

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    found = []
    for _ in range(count):
        texts = []
        for _ in range(3 if kind == "choices" else 1):
            length, cut = number(5, 13), number(2, 4)
            tokens = torch.randint(37, (length,), generator=generator).tolist()
            texts.append((tokens, [0] * cut + [1] * (length - cut)))
        labels, allowed = [number(0, 3)], None
        if kind == "spans":
            segments = texts[0][1]
            allowed = [i == 0 or (s == 1 and i < len(segments) - 1) for i, s in enumerate(segments)]
            last = len(segments) - 2
            labels = [number(last - 1, last + 1), last] if number(0, 2) else [0, 0]
        found.append(Row(texts, labels, allowed))
    return found


def cases(micro: int | None) -> list[finetune_ranks.Case]:
    found = []
    for kind, config in (("pairs", CONFIG), ("choices", CONFIG), ("spans", ORIGINAL)):
        generator = torch.Generator().manual_seed(len(kind))
        batches = [rows(kind, size, generator) for size in SIZES]
        scores = {"pairs": 3, "choices": 1}.get(kind)
        bert = BERT(config, heads=False)
        model = SpanReader(bert) if scores is None else Classifier(bert, scores)
        found.append((kind, config, random_state(model, 1), batches, micro))
    return found


@pytest.fixture(scope="module")
def whole() -> list[finetune_ranks.Result]:
    """The reference of each case."""
    return [finetune_ranks.whole(case) for case in cases(None)]


@pytest.mark.parametrize(("tp", "dp", "micro"), [(1, 1, 2), (2, 1, None), (4, 1, 2), (2, 2, 1)])
def test_any_layout_trains_as_the_whole_model(
    tp: int, dp: int, micro: int | None, whole: list[finetune_ranks.Result]
) -> None:
    """Dropout on, batches that dp doesn't divide, micro-batches, clipping: to 1e-12."""
    many = cases(micro)
    results = run_ranks(finetune_ranks.trained, tp * dp, many, tp, dp)
    for index, case in enumerate(many):
        losses, gradients, _, weights, logits = whole[index]
        assert gradients["head.weight"].abs().max() > 1e-3
        for rank, found in enumerate(results):
            where = f"{case[0]}, rank {rank} of tp {tp} x dp {dp}"
            got_losses, got_gradients, own, got_weights, got_logits = found[index]
            assert_close(torch.stack(got_losses), torch.stack(losses), 1e-12, f"{where}: losses")
            assert got_gradients.keys() == gradients.keys(), where
            for name in gradients:
                if name in ZERO[case[0]]:
                    assert got_gradients[name].abs().max() < 1e-14
                    continue
                assert_close(got_gradients[name], gradients[name], 1e-12, f"{where}: {name}")
            for name in weights:
                assert_close(got_weights[name], weights[name], 1e-12, f"{where}: {name}")
            finite = logits.isfinite()
            assert torch.equal(got_logits.isfinite(), finite), where
            assert_close(got_logits[finite], logits[finite], 1e-12, f"{where}: predictions")
            # The head is replicated: its own gradient is whole and bit-equal on every rank.
            assert {"head.weight", "head.bias"} <= own.keys()
            for name, gradient in own.items():
                assert torch.equal(gradient, results[0][index][2][name]), f"{where}: {name}"


def test_predictions_come_back_in_the_order_of_the_rows() -> None:
    """They are computed shortest first; each must be what its row gives alone."""
    generator = torch.Generator().manual_seed(0)
    model = Classifier(BERT(dataclasses.replace(CONFIG, dropout=0.0), heads=False), 3).double()
    many = sorted(rows("pairs", 5, generator), key=lambda row: -row.length)
    assert many[0].length > many[-1].length
    place = Place(finetune_ranks.Alone(), 0, torch.device("cpu"))
    alone = torch.cat([predict(model, [row], place) for row in many])
    assert_close(predict(model, many, place, batch_size=2), alone, 1e-12)


def test_heads_against_torch_written_out() -> None:
    """On the same hidden states: cross-entropy of one choice, and the mean of first and last."""
    generator = torch.Generator().manual_seed(0)
    config = dataclasses.replace(CONFIG, dropout=0.0)
    bert = BERT(config, heads=False).double()
    for kind in ("pairs", "choices", "spans"):
        batch = collate(rows(kind, 4, generator), 12, 0)
        flat = [t.flatten(0, 1) for t in batch[:3]]
        hidden = bert.hidden(*flat)
        if kind == "spans":
            model: SpanReader | Classifier = SpanReader(bert).double()
            logits = hidden @ model.head.weight.T + model.head.bias  # [b, s, 2]
            assert batch.allowed is not None
            logits = logits.masked_fill(~batch.allowed[:, :, None], -torch.inf)
            both = [
                torch.nn.functional.cross_entropy(logits[..., i], batch.labels[:, i])
                for i in range(2)
            ]
            expected = (both[0] + both[1]) / 2
        else:
            model = Classifier(bert, 3 if kind == "pairs" else 1).double()
            pooled = torch.tanh(bert.pooler(hidden[:, 0]))
            logits = (pooled @ model.head.weight.T + model.head.bias).reshape(4, 3)
            expected = torch.nn.functional.cross_entropy(logits, batch.labels[:, 0])
        assert_close(model.loss(batch), expected.detach(), 1e-12, kind)


def test_a_label_that_is_no_answer_is_refused() -> None:
    for label in (-1, 3):
        with pytest.raises(
            ValueError, match=rf"label {label} is out of range: the answers are 0 … "
        ):
            answer_loss(torch.zeros(2, 1, 3), torch.tensor([[0], [label]]))
    batch = collate(rows("pairs", 2, torch.Generator().manual_seed(0)), 12, 0)
    with pytest.raises(ValueError, match="no allowed places"):
        SpanReader(BERT(ORIGINAL, heads=False))(batch)
    with pytest.raises(ValueError, match="12 tokens"):
        Classifier(BERT(dataclasses.replace(CONFIG, seq_length=5), heads=False), 3)(batch)


def test_padding_changes_nothing_and_is_marked() -> None:
    (row,) = rows("spans", 1, torch.Generator().manual_seed(0))
    model = SpanReader(BERT(ORIGINAL, heads=False)).double().eval()
    narrow, wide = (collate([row], width, 0) for width in (row.length, 12))
    assert wide.padding_mask.sum() == row.length
    a, b = (model(batch) for batch in (narrow, wide))
    real = torch.tensor(row.allowed)
    assert_close(a[0, :, real], b[0, :, : row.length][:, real], 1e-12)
    assert (b[0, :, row.length - 1 :] == -torch.inf).all(), "[SEP] and padding are never picked"
    assert isinstance(narrow, Batch)


def test_an_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    lengths = [(7 * i) % 40 for i in range(103)]
    epochs = [epoch_batches(lengths, 4, seed=s, epoch=e) for s, e in ((0, 0), (0, 1), (1, 0))]
    assert epochs[0] == epoch_batches(lengths, 4, seed=0, epoch=0)
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(103))
        assert sorted(map(len, batches)) == [3] + [4] * 25
        spread = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in batches]
        assert sum(spread) / len(spread) < 5, "rows of like length stand together"
    assert epochs[0] != epochs[1] != epochs[2]
    for dp in (1, 2, 3, 8):
        parts = [own_part(epochs[0][0], rank, dp) for rank in range(dp)]
        assert [i for _, part in parts for i in part] == epochs[0][0]
        assert all(part == epochs[0][0][at : at + len(part)] for at, part in parts)


def test_the_longer_text_of_a_pair_loses_its_end() -> None:
    long = list(range(10, 20))
    tokens, segments = pair_text([5, 6], long, 10, cls_id=1, sep_id=2)
    assert tokens == [1, 5, 6, 2, 10, 11, 12, 13, 14, 2]
    assert segments == [0] * 4 + [1] * 6
    assert pair_text(long, [5], 8, cls_id=1, sep_id=2)[0] == [1, 10, 11, 12, 13, 2, 5, 2]
    assert pair_text([5], [6], 128, cls_id=1, sep_id=2) == ([1, 5, 2, 6, 2], [0, 0, 0, 1, 1])
    assert long == list(range(10, 20)), "the caller's list is left alone"
    with pytest.raises(ValueError, match="seq_length 4 has no room"):
        pair_text([5], [6], 4, cls_id=1, sep_id=2)


def test_the_rate_goes_up_and_then_in_a_line_to_nothing() -> None:
    rates = [linear_rate(step, peak=8.0, warmup=2, total=6) for step in range(7)]
    assert rates == [4.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0]
