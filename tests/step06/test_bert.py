"""The parallel BERT is the reference, in both norm orders; and the reference is what it says."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from step02_mlp_parallel import run_ranks
from step06_bert_layernorm import BERT, BertConfig
from tests.compare import assert_close
from tests.step06 import bert_ranks
from tests.step06.cases import CONFIG, ORIGINAL, batches, full_state

WORLDS = (1, 2, 4, 8)


@functools.cache
def ten_steps_of_the_reference() -> list[tuple[Any, ...]]:
    """(config, weights, batches, optimizer, vocab_multiple, recompute), and what the unpartitioned
    BERT makes of it: losses, first gradients, weights at the end."""
    found = []
    for seed, (norm, name, multiple, recompute) in enumerate(
        [
            ("original", "sgd", 128, True),
            ("rearranged", "sgd", 1, False),
            ("rearranged", "adamw", 1, False),
        ]
    ):
        config = dataclasses.replace(CONFIG, norm=norm, dropout=0.2)
        full, rows = full_state(config, seed), batches(10, seed)
        model, rng = bert_ranks.whole_bert(config, full)
        wanted = bert_ranks.train_steps(model, rng, rows, name), model.state_dict()
        found.append(((config, full, rows, name, multiple, recompute), wanted))
    return found


@pytest.mark.parametrize("n", WORLDS)
def test_ten_steps_of_training_equal_the_reference(n: int) -> None:
    """Both orders, dropout, recompute, padding of all lengths, ranks without words, SGD and AdamW:
    losses, every parameter's gradient, weights."""
    wanted = ten_steps_of_the_reference()
    results = run_ranks(bert_ranks.trained, n, [case for case, _ in wanted], timeout=180.0)
    for i, (case, ((seen, gradients), final)) in enumerate(wanted):
        config, _full, _rows, name, multiple, _recompute = case
        bound = 1e-12 if name == "sgd" else 1e-10
        for rank, row in enumerate(results):
            what = f"rank {rank} of {n}, {name}, {config.norm}, multiple {multiple}"
            losses, firsts, weights, replicated = row[i]
            assert firsts.keys() == gradients.keys()
            for key, gradient in gradients.items():
                assert_close(firsts[key], gradient, 1e-12, f"gradient of {key}, {what}")
            for step, (loss, wanted) in enumerate(zip(losses, seen, strict=True)):
                assert_close(loss, wanted, bound, f"loss of step {step}, {what}")
            assert weights.keys() == final.keys()
            for key, weight in final.items():
                if name == "adamw" and key.endswith("qkv.bias"):
                    # K's gradient is zero in theory; Adam divides its rounding by eps.
                    assert (weights[key] - weight).abs().max() < 1e-6 * 1e-3 * 10
                else:
                    assert_close(weights[key], weight, bound, f"{key}, {what}")
            for key, tensor in replicated.items():
                assert torch.equal(tensor, results[0][i][3][key]), f"replicas of {key}, {what}"


@pytest.mark.parametrize("n", WORLDS)
def test_outputs_losses_and_start_equal_the_reference(n: int) -> None:
    batch = batches(1)[0]
    cases = [(config, full_state(config), batch) for config in (CONFIG, ORIGINAL)]
    rows = run_ranks(bert_ranks.outputs, n, cases)
    for i, (config, full, _) in enumerate(cases):
        reference, _rng = bert_ranks.whole_bert(config, full)
        inputs = {k: batch[k] for k in ("tokens", "segments", "padding_mask")}
        hidden = reference.hidden(**inputs)
        pooled = reference.pooled(hidden)
        losses = reference.loss(**inputs, targets=batch["targets"], reduction="none")
        expected = [hidden, pooled, reference.order(pooled), losses]
        whole = torch.cat([row[i][0] for row in rows], -1)
        assert_close(whole, reference(**inputs).detach(), 1e-12, "logits")
        start = BERT(config, seed=3).double().state_dict()
        for row in rows:
            for got, wanted in zip(row[i][1:5], expected, strict=True):
                assert_close(got, wanted.detach(), 1e-12)
            assert row[i][5].keys() == start.keys()
            assert all(torch.equal(row[i][5][name], start[name]) for name in start)


@pytest.mark.parametrize("n", WORLDS)
def test_mlm_logits_and_their_gradients(n: int) -> None:
    """Exercise 6.4: against torch's linear layer on the whole vocabulary."""
    generator = torch.Generator().manual_seed(n)
    shapes = ((3, 5, 6), (16, 6), (16,), (3, 5, 16))
    x, weight, bias, upstream = (
        torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes
    )
    rows = run_ranks(bert_ranks.head, n, x, weight, bias, upstream)
    whole = [t.requires_grad_() for t in (x, weight, bias)]
    F.linear(*whole).backward(upstream)
    assert_close(torch.cat([row[0] for row in rows], -1), F.linear(*whole).detach(), 1e-12)
    for row in rows:
        assert_close(row[1], whole[0].grad, 1e-12, "hidden's gradient")
    for i in (1, 2):
        assert_close(torch.cat([row[i + 1] for row in rows]), whole[i].grad, 1e-12)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("norm", ["rearranged", "original"])
def test_a_layer_sends_what_gpt2s_sends(norm: str, recompute: bool) -> None:
    """The whole ledger: GPT-2's, but for the loss, which is about the predicted words alone.

    With recompute the original order runs one g more again: its last norm keeps that g's result,
    where the rearranged order only adds it up.
    """
    batch = batches(1)[0]
    asked = int((batch["targets"] != -100).sum())
    config = dataclasses.replace(CONFIG, norm=norm)
    for found in run_ranks(bert_ranks.counted, 2, config, batch, recompute):
        forward, backward = found["bert"]
        stream = ("all_reduce(sum)", (4, 8, 24))
        again = 2 + recompute + (recompute and norm == "original")
        assert forward == [
            *[stream] * (1 + 2 * 2),
            ("all_reduce(max)", (asked,)),
            ("all_reduce(sum)", (2, asked)),
        ]
        assert backward == [("all_reduce(sum)", (asked, 24)), *[stream] * (2 * again)]
        assert found["gpt"][0] == [*forward[:5], *[(op, (*n[:-1], 32)) for op, n in forward[5:]]]
        if not (recompute and norm == "original"):
            assert found["gpt"][1] == [("all_reduce(sum)", (4, 8, 24)), *backward[1:]]


@pytest.mark.parametrize("config", [CONFIG, ORIGINAL])
def test_the_reference_written_out_in_the_chapters_formulas(config: BertConfig) -> None:
    """Every matrix spelled out, tokens of one row and real ones only: no code of ours in it."""
    model, _ = bert_ranks.whole_bert(config, full_state(config))
    w = model.state_dict()
    batch = batches(1)[0]
    tokens, segments = batch["tokens"][1, :5], batch["segments"][1, :5]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-12).rsqrt()
        return centred * scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))

    def attention(x: Tensor, name: str) -> Tensor:
        matrices = zip(w[f"{name}.qkv.weight"], w[f"{name}.qkv.bias"], strict=True)
        q, k, v = (x @ m.T + b for m, b in matrices)
        heads = [slice(3 * i, 3 * i + 3) for i in range(8)]
        mixed = [torch.softmax(q[:, i] @ k[:, i].T / 3**0.5, -1) @ v[:, i] for i in heads]
        return dense(torch.cat(mixed, -1), f"{name}.out")

    def mlp(x: Tensor, name: str) -> Tensor:
        return dense(gelu(dense(x, f"{name}.up")), f"{name}.down")

    x = w["tokens.weight"][tokens] + w["positions.weight"][:5] + w["segments.weight"][segments]
    x = norm(x, "ln_embedding") if config.norm == "original" else x
    for b in ("blocks.0", "blocks.1"):
        if config.norm == "original":
            x = norm(x + attention(x, f"{b}.attention"), f"{b}.ln1")
            x = norm(x + mlp(x, f"{b}.mlp"), f"{b}.ln2")
        else:
            x = x + attention(norm(x, f"{b}.ln1"), f"{b}.attention")
            x = x + mlp(norm(x, f"{b}.ln2"), f"{b}.mlp")
    x = norm(x, "ln") if config.norm == "rearranged" else x
    with torch.no_grad():
        hidden = model.hidden(batch["tokens"], batch["segments"], batch["padding_mask"])
        assert_close(hidden[1, :5], x, 1e-12, "hidden states")
        logits = norm(gelu(dense(x, "mlm_dense")), "ln_mlm") @ w["tokens.weight"].T + w["mlm_bias"]
        assert_close(model.mlm(hidden)[1, :5], logits, 1e-12, "logits")
        order = dense(torch.tanh(dense(x[0], "pooler")), "order")
        assert_close(model.order(model.pooled(hidden))[1], order, 1e-12, "order")
