"""The model against one that other people wrote."""

from __future__ import annotations

import os

import pytest
import torch

from step01_single_gpu import GPT, GPTConfig
from tests.compare import assert_close
from tests.huggingface import as_huggingface

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def pair(float64: None) -> tuple[GPT, torch.nn.Module]:
    """Ours with random biases and norms, and transformers' GPT-2 with the same weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPTConfig(41, 16, hidden_size=24, num_layers=3, num_heads=4)
    ours = GPT(config, seed=5).eval()
    generator = torch.Generator().manual_seed(0)
    for name, p in ours.named_parameters():  # far from symmetric, and no zero bias
        p.data += 0.3 * torch.randn(p.shape, generator=generator) * (1 if "ln" in name else 0.3)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=41, n_positions=16, n_embd=24, n_layer=3, n_head=4,
            bos_token_id=0, eos_token_id=0,
        )
    ).eval()  # fmt: skip
    theirs.load_state_dict(as_huggingface(ours), strict=False)
    return ours, theirs


def test_pitfall_05_logits_equal_transformers(pair: tuple[GPT, torch.nn.Module]) -> None:
    ours, theirs = pair
    tokens = torch.randint(41, (3, 16))
    with torch.no_grad():
        assert_close(ours(tokens), theirs(tokens).logits, 1e-10)
        # The square matrix untransposed loads without a word and gives other logits.
        state = as_huggingface(ours)
        name = "transformer.h.1.attn.c_proj.weight"
        assert state[name].shape == state[name].T.shape
        theirs.load_state_dict({name: state[name].T}, strict=False)
        with pytest.raises(AssertionError, match="off by"):
            assert_close(ours(tokens), theirs(tokens).logits, 1e-10)


def test_loss_and_gradients_equal_transformers(pair: tuple[GPT, torch.nn.Module]) -> None:
    ours, theirs = pair
    tokens = torch.randint(41, (3, 16))
    ours.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    # Their own loss is taken in float32 whatever the logits are.
    logits = theirs(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    expected = dict(theirs.named_parameters())
    grads = {n: p.grad for n, p in ours.named_parameters()}
    for p, grad in zip(ours.parameters(), grads.values(), strict=True):
        p.data = grad  # so that the same renaming maps gradients
    for name, grad in as_huggingface(ours).items():
        if name != "lm_head.weight":
            assert_close(grad, expected[name].grad, 1e-10, name)
