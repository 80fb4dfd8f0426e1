"""BERT's weights in and out, against transformers, which only tests know; and a real BERT."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from step02_mlp_parallel import load_full_state_dict, run_ranks
from step06_bert_layernorm import (
    BERT,
    BertConfig,
    ParallelBERT,
    from_huggingface_bert,
    to_huggingface_bert,
)
from step06_bert_layernorm.heads import Batch, Classifier, SpanReader
from step06_bert_layernorm.huggingface import bert_config
from step06_bert_layernorm.pretrained import minilm, read_bert, write_bert, write_finetuned
from step06_bert_layernorm.wordpiece import bert_wordpiece
from tests.compare import assert_close
from tests.equivalence import random_state
from tests.step01.test_real_data import fetched
from tests.step06 import bert_ranks

os.environ["HF_HUB_OFFLINE"] = "1"
CONFIG = BertConfig(41, 16, 24, num_layers=3, num_heads=4, dropout=0.0, norm="original")
SENTENCES = [
    "The President spoke to Congress.",
    "The President addressed Congress.",
    "Add two eggs and a cup of milk, then stir.",
]


def theirs_like(config: BertConfig, kind: str = "BertForPreTraining") -> Any:
    """A BERT of transformers with random weights, no zero bias, in its own key layout."""
    import transformers

    model = getattr(transformers, kind)(
        transformers.BertConfig(
            vocab_size=config.vocab_size, hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
            intermediate_size=4 * config.hidden_size, max_position_embeddings=config.seq_length,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return model.eval()


def rows(config: BertConfig) -> dict[str, Tensor]:
    real = torch.arange(16) < torch.tensor([[16], [7], [1]])
    segments = (torch.arange(16) > 4).long().expand(3, 16) * real
    tokens = torch.randint(config.vocab_size, (3, 16))
    return {"tokens": tokens, "segments": segments, "padding_mask": real}


def test_both_heads_equal_transformers_on_the_same_weights() -> None:
    """Hidden states, words, order ("next sentence" there) and the loss, in float64."""
    theirs = theirs_like(CONFIG).double()
    model = BERT(CONFIG).double().eval()
    model.load_state_dict(from_huggingface_bert(theirs.state_dict()))
    inputs = rows(CONFIG)
    real = inputs["padding_mask"]
    targets = torch.where(real, inputs["tokens"].roll(1, 1), -100)
    order = torch.tensor([0, 1, 1])
    expected = theirs(
        input_ids=inputs["tokens"],
        token_type_ids=inputs["segments"],
        attention_mask=real.long(),
        labels=targets,
        next_sentence_label=order,
    )
    logits = model(**inputs)
    assert_close(logits[real], expected.prediction_logits[real].detach(), 1e-10)
    found = model.order(model.pooled(model.hidden(**inputs)))
    assert_close(found, expected.seq_relationship_logits.detach(), 1e-10)
    assert_close(model.loss(**inputs, targets=targets, order=order), expected.loss, 1e-10)


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertModel", "BertForMaskedLM"])
def test_round_trips_are_exact(kind: str) -> None:
    theirs = theirs_like(CONFIG, kind)
    state = theirs.state_dict()
    ours = from_huggingface_bert(state)
    again = to_huggingface_bert(ours, heads=kind != "BertModel")
    assert all(torch.equal(again[name], state[name]) for name in state)
    if kind == "BertForPreTraining":
        assert again.keys() == state.keys()
        addresses = [t.data_ptr() for t in again.values()]
        assert len(set(addresses)) == len(addresses), "safetensors refuses shared memory"
    if kind == "BertModel":
        theirs.load_state_dict(again)  # strict
    # What a file lacks starts as in a fresh model, so the state is whole.
    fresh = BERT(CONFIG).state_dict()
    assert ours.keys() == fresh.keys()
    if kind != "BertForPreTraining":
        assert torch.equal(ours["order.weight"], fresh["order.weight"])
        load_full_state_dict(ParallelBERT(CONFIG), ours)
    random = BERT(CONFIG, seed=5).state_dict()
    out = to_huggingface_bert(random)
    assert not {t.data_ptr() for t in out.values()} & {t.data_ptr() for t in random.values()}
    back = from_huggingface_bert(out)
    assert back.keys() == random.keys()
    assert all(torch.equal(back[name], random[name]) for name in random)
    encoder = from_huggingface_bert(state, heads=False)
    assert encoder.keys() == BERT(CONFIG, heads=False).state_dict().keys()
    assert bert_config(encoder, 4, dropout=0.0) == CONFIG


def test_pitfall_95_the_two_orders_are_not_convertible() -> None:
    """Out, in, and into a model of the other order; and loading the matrices by force shows why."""
    rearranged = BertConfig(41, 16, 24, num_layers=3, num_heads=4, dropout=0.0)
    state = BERT(rearranged, seed=1).state_dict()
    with pytest.raises(ValueError, match="rearranged order, and the two norm orders are not conv"):
        to_huggingface_bert(state)
    from transformers import MegatronBertConfig, MegatronBertModel

    sizes = {"vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    megatron = MegatronBertModel(MegatronBertConfig(**sizes, intermediate_size=96))
    with pytest.raises(ValueError, match="not convertible"):
        from_huggingface_bert(megatron.state_dict())
    original = from_huggingface_bert(theirs_like(CONFIG).state_dict())
    with pytest.raises(ValueError, match=r"ln\.weight is missing.*ln_embedding\.weight is unknown"):
        load_full_state_dict(ParallelBERT(rearranged), original)
    forced = {n.replace("ln_embedding", "ln"): t for n, t in original.items()}
    models = BERT(CONFIG).eval(), BERT(rearranged).eval()
    models[0].load_state_dict(original)
    models[1].load_state_dict(forced)
    inputs = rows(CONFIG)
    a, b = (model.hidden(**inputs) for model in models)
    assert (a - b).abs().mean() > 0.5, "all shapes fit, and it is another function"


def test_what_is_not_a_berts_state_is_refused() -> None:
    theirs = theirs_like(CONFIG).state_dict()
    for change, message in (
        ({"bert.encoder.layer.1.output.dense.bias": None}, r"missing \['encoder.layer.1.output.de"),
        ({"cls.predictions.bias": None, "cls.predictions.decoder.bias": None}, "predictions.bias"),
        ({"classifier.weight": torch.zeros(2)}, r"unknown \['classifier.weight'\]"),
        ({"cls.predictions.decoder.weight": torch.zeros(41, 24)}, "untied output layer"),
        ({"cls.predictions.decoder.weight": torch.zeros(42, 24)}, "untied output layer"),
        ({"cls.predictions.decoder.bias": torch.ones(41)}, "untied output layer"),
    ):
        state = {n: t for n, t in (theirs | change).items() if t is not None}
        with pytest.raises(ValueError, match=message):
            from_huggingface_bert(state)
    with pytest.raises(ValueError, match="0 layers found"):
        from_huggingface_bert({})
    state = BERT(CONFIG).state_dict()
    del state["blocks.0.ln1.bias"]
    with pytest.raises(ValueError, match=r"missing \['blocks.0.ln1.bias'\]"):
        to_huggingface_bert(state)
    older = theirs | {"bert.embeddings.position_ids": torch.arange(16)}
    assert from_huggingface_bert(older).keys() == BERT(CONFIG).state_dict().keys()


def test_what_is_written_opens_in_transformers(tmp_path: Path) -> None:
    from transformers import BertForPreTraining

    state = random_state(BERT(CONFIG), 3)
    write_bert(tmp_path / "out", CONFIG, state)
    theirs = BertForPreTraining.from_pretrained(tmp_path / "out")
    found = from_huggingface_bert(theirs.state_dict())
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert (theirs.config.layer_norm_eps, theirs.config.hidden_act) == (1e-12, "gelu")
    with pytest.raises(ValueError, match="not convertible"):
        write_bert(tmp_path / "no", CONFIG, BERT(BertConfig(41, 16, 24, 3, 4)).state_dict())
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("kind", "scores", "texts"),
    [
        ("BertForSequenceClassification", 3, 1),
        ("BertForMultipleChoice", 1, 3),
        ("BertForQuestionAnswering", 2, 1),
    ],
)
def test_a_fine_tuned_model_opens_in_transformers(
    kind: str, scores: int, texts: int, tmp_path: Path
) -> None:
    """Encoder and head: the same logits. (Of a span, at places where it may be.)"""
    import transformers

    spans, bert = kind == "BertForQuestionAnswering", BERT(CONFIG, heads=False)
    ours: Any = SpanReader(bert) if spans else Classifier(bert, scores)
    ours.load_state_dict(random_state(ours, 4))
    assert write_finetuned(tmp_path, CONFIG, ours.state_dict(), kind) == kind
    theirs = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    flat = rows(CONFIG)
    real = flat["padding_mask"]
    rows_of_texts = [t.unflatten(0, (-1, texts)) for t in flat.values()]
    with torch.no_grad():
        found = ours.eval()(Batch(*rows_of_texts, torch.zeros(3, 1), real if spans else None))
        names = ("input_ids", "token_type_ids", "attention_mask")
        given = flat.values() if texts == 1 else rows_of_texts
        out = theirs(**{name: t.long() for name, t in zip(names, given, strict=True)})
    if spans:
        assert_close(found[:, 0][real], out.start_logits[real], 1e-5)
        assert_close(found[:, 1][real], out.end_logits[real], 1e-5)
    else:
        assert_close(found[:, 0], out.logits, 1e-5)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*model.safetensors; give a folder"):
        read_bert(tmp_path)
    theirs_like(CONFIG).save_pretrained(tmp_path)
    config, state = read_bert(tmp_path)
    assert config == BertConfig(41, 16, 24, 3, 4, dropout=0.1, norm="original")
    assert state.keys() == BERT(CONFIG).state_dict().keys()
    settings = tmp_path / "config.json"
    text = settings.read_text()
    for change, message in (
        ({"model_type": "gpt2"}, "is of a 'gpt2' model, not of a BERT"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"intermediate_size": 7}, "intermediate_size is 7; this model has 96"),
        ({"num_attention_heads": 7}, "num_heads 7 does not divide hidden_size 24"),
    ):
        settings.write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(ValueError, match=message):
            read_bert(tmp_path)
    settings.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_bert(tmp_path)
    settings.write_text(text)
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        read_bert(tmp_path)


def test_minilm_in_parallel_is_transformers_minilm() -> None:
    """Three sentences of several lengths; one test, so that one process loads it all once."""
    from transformers import BertConfig as TheirConfig
    from transformers import BertModel

    folder, tokenizer = fetched(minilm), fetched(bert_wordpiece)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    encoded = tokenizer.encode_batch(SENTENCES)
    inputs = {
        "tokens": torch.tensor([e.ids for e in encoded]),
        "segments": torch.tensor([e.type_ids for e in encoded]),
        "padding_mask": torch.tensor([e.attention_mask for e in encoded]).bool(),
    }
    real = inputs["padding_mask"]
    assert not real.all()
    theirs = BertModel(TheirConfig(**json.loads((folder / "config.json").read_text())))
    file = load_file(folder / "model.safetensors")
    theirs.load_state_dict({n: t for n, t in file.items() if "position_ids" not in n})
    bounds = {torch.float32: 1e-4, torch.float64: 1e-10}
    sizes = [(2, torch.float32), *((n, torch.float64) for n in (1, 2, 3, 4, 6))]
    found = run_ranks(bert_ranks.pretrained, 6, folder, inputs, sizes)
    expected = {}
    with torch.no_grad():
        for dtype in bounds:
            expected[dtype] = theirs.to(dtype).eval()(
                input_ids=inputs["tokens"],
                token_type_ids=inputs["segments"],
                attention_mask=real.long(),
            )
    for i, (n, dtype) in enumerate(sizes):
        wanted, bound, what = expected[dtype], bounds[dtype], f"{n} ranks, {dtype}"
        assert [row[i] is not None for row in found] == [rank < n for rank in range(6)]
        for row in found[:n]:
            hidden, pooled = row[i]
            assert_close(hidden[real], wanted.last_hidden_state[real], bound, what)
            assert_close(pooled, wanted.pooler_output, bound, what)
    # The mean of the real tokens says which sentences mean the same.
    hidden, weights = found[1][0][0], real.unsqueeze(-1)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    same, other = torch.cosine_similarity(mean[:1], mean[1:]).tolist()
    assert abs(same - 0.873) < 5e-4
    assert other < 0.3


def test_minilm_goes_out_as_it_came_in() -> None:
    """Against the file itself, and not against what we have written."""
    folder = fetched(minilm)
    file = load_file(folder / "model.safetensors")
    config, state = read_bert(folder)
    assert config == BertConfig(30522, 512, 384, 6, 12, norm="original")
    again = to_huggingface_bert(state, heads=False)
    assert again.keys() == file.keys() - {"embeddings.position_ids"}
    assert all(torch.equal(again[name], file[name]) for name in again)
