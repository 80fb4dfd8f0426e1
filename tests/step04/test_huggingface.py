"""GPT-2's weights in and out, against transformers, which only tests know."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from step01_single_gpu import GPT, GPTConfig
from step02_mlp_parallel import run_ranks
from step04_embeddings_loss import ParallelGPT, from_huggingface_gpt2, to_huggingface_gpt2
from step04_embeddings_loss.weights_file import read_gpt2, write_gpt2
from step04_embeddings_loss.write import Options, main
from tests.compare import assert_close
from tests.equivalence import random_state
from tests.huggingface import as_huggingface
from tests.step04 import model_ranks

os.environ["HF_HUB_OFFLINE"] = "1"
CONFIG = GPTConfig(41, 16, hidden_size=24, num_layers=3, num_heads=4, dropout=0.0)


def transformers_model() -> Any:
    """A GPT-2 of transformers with random weights, no zero bias, in its own key layout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=41, n_positions=16, n_embd=24, n_layer=3, n_head=4,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator) * (1 if "ln" in name else 0.5)
    return model.eval()


@pytest.mark.parametrize("n", [1, 2, 4])
def test_logits_equal_transformers_on_the_same_weights(n: int) -> None:
    theirs = transformers_model().double()
    full = from_huggingface_gpt2(theirs.state_dict())
    tokens = torch.randint(41, (3, 16))
    expected = theirs(tokens).logits.detach()
    parts = run_ranks(model_ranks.logits_of, n, CONFIG, full, tokens)
    assert_close(torch.cat(parts, -1), expected, 1e-10)


def test_round_trips_are_exact() -> None:
    model = transformers_model()
    theirs = model.state_dict()
    there_and_back = to_huggingface_gpt2(from_huggingface_gpt2(theirs))
    assert there_and_back.keys() == theirs.keys()
    assert all(torch.equal(there_and_back[name], theirs[name]) for name in theirs)
    model.load_state_dict(there_and_back)  # strict
    ours = GPT(CONFIG, seed=1).state_dict()
    again = from_huggingface_gpt2(to_huggingface_gpt2(ours))
    assert again.keys() == ours.keys()
    assert all(torch.equal(again[name], ours[name]) for name in ours)


def test_pitfall_05_every_matrix_is_transposed_the_square_one_too() -> None:
    """Against a second, independent writing-down of the names."""
    model = GPT(CONFIG, seed=1)
    model.load_state_dict(random_state(model, 3))
    expected = as_huggingface(model)
    found = to_huggingface_gpt2(model.state_dict())
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    addresses = [t.data_ptr() for t in found.values()]
    assert len(set(addresses)) == len(addresses), "safetensors refuses shared memory"
    assert all(t.is_contiguous() for t in found.values())


def test_names_as_in_older_files_and_without_a_prefix() -> None:
    theirs = transformers_model().state_dict()
    bare = {n.removeprefix("transformer."): t for n, t in theirs.items() if n != "lm_head.weight"}
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "h.2.attn.masked_bias": torch.ones(())}
    first, second = from_huggingface_gpt2(theirs), from_huggingface_gpt2(bare)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_pitfall_49_an_untied_head_and_foreign_weights_are_refused() -> None:
    theirs = transformers_model().state_dict()
    with pytest.raises(ValueError, match=r"lm_head.weight differs from wte.weight"):
        from_huggingface_gpt2(theirs | {"lm_head.weight": theirs["lm_head.weight"] + 1})
    with pytest.raises(ValueError, match=r"differs from wte.weight"):
        from_huggingface_gpt2(theirs | {"lm_head.weight": theirs["lm_head.weight"][:40]})
    del theirs["transformer.h.1.mlp.c_fc.bias"]
    with pytest.raises(ValueError, match=r"missing \['h.1.mlp.c_fc.bias'\], unknown nothing"):
        from_huggingface_gpt2(theirs)
    with pytest.raises(ValueError, match=r"0 layers found.*unknown \['encoder.x'\]"):
        from_huggingface_gpt2({"encoder.x": torch.ones(1)})
    ours: dict[str, Tensor] = GPT(CONFIG).state_dict()
    del ours["ln.bias"]
    with pytest.raises(ValueError, match=r"missing \['ln.bias'\]"):
        to_huggingface_gpt2(ours)


def test_files_open_here_and_in_transformers(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    model = GPT(CONFIG, seed=4).eval()
    write_gpt2(tmp_path, CONFIG, model.state_dict())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    config, state = read_gpt2(tmp_path)
    assert config == CONFIG
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    tokens = torch.randint(41, (2, 16))
    with torch.no_grad():
        assert_close(theirs(tokens).logits, model(tokens), 1e-5)
    transformers_model().save_pretrained(tmp_path / "theirs")
    config, state = read_gpt2(tmp_path / "theirs")
    assert (config.hidden_size, config.num_heads, config.vocab_size) == (24, 4, 41)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*model.safetensors; give a folder"):
        read_gpt2(tmp_path)
    model = GPT(CONFIG)
    write_gpt2(tmp_path, CONFIG, model.state_dict())
    weights, settings = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole, text = weights.read_bytes(), settings.read_text()
    for cut in (0, 4, 100, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="is not a whole safetensors file"):
            read_gpt2(tmp_path)
    weights.write_bytes(whole)
    for change, message in (
        ({"model_type": "bert"}, "is of a 'bert' model, not of a GPT-2"),
        ({"activation_function": "relu"}, "activation_function is 'relu'; this model has gelu_new"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False; this model has True"),
        ({"n_layer": 4}, r"blocks.3.attention.out.bias is missing"),
        ({"vocab_size": 40}, r"tokens.weight is \[41, 24\] and should be \[40, 24\]"),
        ({"attn_pdrop": 0.5}, "resid_pdrop are"),
        ({"n_inner": 7}, "n_inner is 7"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_head": 7}, "num_heads 7 does not divide hidden_size 24"),
    ):
        settings.write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(ValueError, match=message):
            read_gpt2(tmp_path)
    without = {k: v for k, v in json.loads(text).items() if k != "n_head"}
    settings.write_text(json.dumps(without))
    with pytest.raises(ValueError, match="doesn't say n_head"):
        read_gpt2(tmp_path)
    settings.write_text("[]")
    with pytest.raises(ValueError, match="is of a None model, not of a GPT-2"):
        read_gpt2(tmp_path)
    settings.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_gpt2(tmp_path)


def test_padding_and_parts_are_not_taken_for_a_whole_model(tmp_path: Path) -> None:
    """A rank's own state has padded rows, and parts of matrices, under the right names."""
    padded = ParallelGPT(CONFIG).state_dict()
    with pytest.raises(ValueError, match=r"tokens.weight is \[128, 24\] and should be \[41, 24\]"):
        write_gpt2(tmp_path, CONFIG, padded)
    assert not list(tmp_path.iterdir())


def test_every_model_that_is_written_opens_again(tmp_path: Path) -> None:
    for gelu in ("erf", "tanh"):
        config = dataclasses.replace(CONFIG, gelu=gelu, norm_eps=1e-12, dropout=0.3)
        write_gpt2(tmp_path, config, GPT(config).state_dict())
        assert read_gpt2(tmp_path)[0] == config


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gpt2(tmp_path, CONFIG, GPT(CONFIG, seed=1).state_dict())
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(*args: Any, **options: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("step04_embeddings_loss.weights_file.save_file", full)
    with pytest.raises(OSError, match="no space"):
        write_gpt2(tmp_path, CONFIG, GPT(CONFIG, seed=2).state_dict())
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_parallel_gpt2_writes_what_one_process_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    monkeypatch.setattr("step04_embeddings_loss.write.gpt2_bpe", lambda root: tokenizer)
    config = GPTConfig(256, 32, hidden_size=24, num_layers=2, num_heads=4)
    write_gpt2(tmp_path, config, GPT(config, seed=3).state_dict())
    texts = []
    for tp in (1, 2):
        main(Options(weights=tmp_path, tp=tp, prompt="Ab", tokens=6))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("Ab")
    for tp in (3, 0):
        with pytest.raises(ValueError, match=f"tp {tp} doesn't divide the model's 4 heads"):
            main(Options(weights=tmp_path, tp=tp))
    with pytest.raises(ValueError, match="prompt is empty"):
        main(Options(weights=tmp_path, prompt=""))
