"""The whole parallel GPT-2 is step 1's: losses, gradients, training, scoring, writing, starting."""

from __future__ import annotations

import copy
import dataclasses
import time

import pytest
import torch
from torch import Tensor

from step01_single_gpu import GPT, GPTConfig
from step01_single_gpu.config import PAPER_MODELS
from step01_single_gpu.scoring import token_losses
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import RankError
from step04_embeddings_loss import ParallelGPT, padded_vocab_size
from tests.compare import assert_close
from tests.equivalence import random_state
from tests.step04 import model_ranks

WORLDS = (1, 2, 4, 8)
CONFIG = GPTConfig(37, 9, hidden_size=24, num_layers=2, num_heads=8, dropout=0.0)


def batches(config: GPTConfig, steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    rows = torch.randint(config.vocab_size, (steps, 3, 8), generator=generator)
    pairs = []
    for row in rows:
        targets = row.roll(-1, 1)
        targets[1, 2:] = -100  # a row with few valid tokens
        pairs.append((row, targets))
    return pairs


def full_state(config: GPTConfig, seed: int = 0) -> dict[str, Tensor]:
    return random_state(GPT(config), seed)


@pytest.mark.parametrize("n", WORLDS)
def test_ten_steps_of_training_equal_the_reference(n: int) -> None:
    """Vocabularies that don't divide, whole ranks without words, dropout on, recompute, SGD and
    AdamW: losses, gradients and weights."""
    dropping = dataclasses.replace(CONFIG, dropout=0.2)
    cases = [
        (config, full_state(config, seed), batches(config, 10), name, multiple, recompute)
        for seed, (config, name, multiple, recompute) in enumerate(
            [
                (CONFIG, "sgd", 1, False),
                (dropping, "sgd", 128, True),
                (dropping, "adamw", 1, False),
            ]
        )
    ]
    results = run_ranks(model_ranks.trained, n, cases)
    for i, (config, full, rows, name, multiple, _recompute) in enumerate(cases):
        reference, rng = model_ranks.whole_gpt(config, full)
        seen, gradients = model_ranks.train_steps(reference, rng, rows, name)
        final = reference.state_dict()
        bound = 1e-12 if name == "sgd" else 1e-10
        for rank, row in enumerate(results):
            what = f"rank {rank} of {n}, {name}, dropout {config.dropout}, multiple {multiple}"
            losses, firsts, weights, replicated = row[i]
            for step, (loss, wanted) in enumerate(zip(losses, seen, strict=True)):
                assert_close(loss, wanted, bound, f"loss of step {step}, {what}")
            assert firsts.keys() == gradients.keys()
            for key, gradient in gradients.items():
                assert_close(firsts[key], gradient, 1e-12, f"gradient of {key}, {what}")
            assert weights.keys() == final.keys()
            for key, weight in final.items():
                if name == "adamw" and key.endswith("qkv.bias"):
                    # K's gradient is zero in theory; Adam divides its rounding by eps. Judged
                    # against the learning rate, as a step of Adam is.
                    error = (weights[key] - weight).abs().max()
                    assert error < 1e-6 * 1e-3 * 10
                else:
                    assert_close(weights[key], weight, bound, f"{key}, {what}")
            for key, tensor in replicated.items():
                assert torch.equal(tensor, results[0][i][3][key]), f"replicas of {key}, {what}"


@pytest.mark.parametrize("n", WORLDS)
def test_writes_the_same_tokens_as_one_process(n: int) -> None:
    full = full_state(CONFIG)
    prompt = torch.tensor([[3, 1], [36, 0]])
    options = [
        {"seed": 1},
        {"seed": 2, "top_k": 3, "temperature": 0.7},
        {"temperature": 0.0},
    ]
    reference, _ = model_ranks.whole_gpt(CONFIG, full)
    rows = run_ranks(model_ranks.written, n, CONFIG, full, prompt, [*options, {}])
    for i, option in enumerate(options):
        wanted = dict(option)
        seed = wanted.pop("seed", None)
        generator = None if seed is None else torch.Generator().manual_seed(int(seed))
        text = reference.generate(prompt, 9, generator=generator, **wanted)  # type: ignore[arg-type]
        for rank in range(n):
            assert torch.equal(rows[rank][i], text), f"rank {rank}, {option}"
    for rank in range(n):  # without a generator: not step 1's, but the same on all ranks
        assert torch.equal(rows[rank][-1], rows[0][-1])


@pytest.mark.parametrize("n", WORLDS)
def test_starts_loads_and_moves_as_the_reference(n: int) -> None:
    """Pitfalls 11 and 49: any number of ranks, any padding, through meta, deepcopy, half and
    `assign`: whole weights come back bit by bit, and the output layer stays the embedding."""
    full = {name: t.float() for name, t in full_state(CONFIG).items()}
    start = GPT(CONFIG, seed=3).state_dict()
    for multiple in (1, 128):
        for found in run_ranks(model_ranks.whole_states, n, CONFIG, multiple, full):
            assert found["start"].keys() == start.keys()
            for name, tensor in start.items():
                assert torch.equal(found["start"][name], tensor), f"{name} starts elsewhere"
                assert torch.equal(found["again"][name], full[name])
            assert found["copied"]["tokens.weight"].shape == (37, 24)
            assert found["tied"] == ["tokens.weight"]
            assert found["both ends"]
            assert found["padding"]
            assert found["fresh padding"]


def test_the_8_3b_model_on_meta_has_the_papers_size() -> None:
    config = PAPER_MODELS["gpt2-8.3b"]
    run_ranks(model_ranks.on_meta, 1, "gpt2-355m")  # imports
    began = time.perf_counter()
    shapes = run_ranks(model_ranks.on_meta, 8, "gpt2-8.3b")
    assert time.perf_counter() - began < 15, "whole weights were drawn"
    assert all(s == shapes[0] for s in shapes)
    own, h = shapes[0], config.hidden_size
    assert own["tokens.weight"] == (51_200 // 8, h)
    assert own["positions.weight"] == (1024, h)
    assert own["blocks.71.attention.qkv.weight"] == (3, h // 8, h)
    assert own["blocks.71.attention.out.weight"] == (h, h // 8)
    assert own["blocks.0.mlp.up.weight"] == (4 * h // 8, h)
    assert own["blocks.0.mlp.down.weight"] == (h, 4 * h // 8)
    whole = {n: torch.Size(s).numel() for n, s in own.items()}
    for name in whole:
        if not name.startswith(("positions", "ln")) and ".ln" not in name:
            whole[name] *= 1 if name.endswith(("out.bias", "down.bias")) else 8
    total = sum(whole.values()) - (51_200 - 50_257) * h
    assert total == config.num_parameters
    assert round(total / 1e9, 1) == 8.3


def test_padded_sizes() -> None:
    assert padded_vocab_size(50_257, 8) == 51_200, "the paper's"
    assert padded_vocab_size(50_257, 1) == 50_304
    assert padded_vocab_size(30_522, 1) == 30_592
    assert padded_vocab_size(51_200, 8) == 51_200
    assert padded_vocab_size(7, 4, 1) == 8
    for v, n, m in ((1, 1, 1), (129, 3, 128), (1000, 7, 5)):
        padded = padded_vocab_size(v, n, m)
        assert padded >= v > padded - n * m
        assert padded % (n * m) == 0
    for bad in ((0, 1, 1), (5, 0, 1), (5, 1, 0), (5.0, 1, 1), (True, 1, 1)):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            padded_vocab_size(*bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2])
def test_scoring_takes_a_parallel_model(n: int) -> None:
    full, tokens = full_state(CONFIG), torch.arange(23) % 37
    reference, _ = model_ranks.whole_gpt(CONFIG, full)
    expected = token_losses(reference, tokens, stride=3)
    for row in run_ranks(model_ranks.scored, n, CONFIG, full, tokens):
        assert_close(row, expected, 1e-12)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_second_head_may_share_the_matrix(n: int) -> None:
    full, tokens = full_state(CONFIG), batches(CONFIG, 1)[0][0]
    reference, _ = model_ranks.whole_gpt(CONFIG, full)
    hidden = reference.hidden(tokens[:, :-1])
    logits = (hidden @ reference.tokens.weight.T).flatten(0, 1)
    loss = sum(
        torch.nn.functional.cross_entropy(logits, t.flatten())
        for t in (tokens[:, 1:], tokens[:, :-1])
    )
    assert isinstance(loss, Tensor)
    loss.backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}
    for row in run_ranks(model_ranks.second_head, n, CONFIG, full, tokens):
        assert_close(row[0], loss.detach(), 1e-12)
        for got, (name, wanted) in zip(row[1:], expected.items(), strict=True):
            assert wanted is not None
            assert_close(got, wanted, 1e-12, name)


def test_pitfall_44_a_bare_all_reduce_under_autograd_is_an_error_here() -> None:
    with pytest.raises(RankError, match="autograd kernel was not registered"):
        run_ranks(model_ranks.bare_all_reduce, 2)


def test_pitfall_50_the_optimizer_state_has_one_name_for_the_tied_matrix() -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.manual_seed(0)
    models = [ParallelGPT(CONFIG, seed=s) for s in (1, 2)]
    optimizers = [model_ranks.optimizer_of(model, "adamw") for model in models]
    tokens = batches(CONFIG, 1)[0][0]
    models[0].loss(tokens, tokens).backward()
    optimizers[0].step()
    weights, moments = copy.deepcopy(get_state_dict(models[0], optimizers[0]))
    assert [n for n in moments["state"] if "head" in n or "tokens" in n] == ["tokens.weight"]
    set_state_dict(models[1], optimizers[1], model_state_dict=weights, optim_state_dict=moments)
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.zero_grad()
        model.loss(tokens, tokens).backward()
        optimizer.step()
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b), name


def test_bfloat16_training_stays_near_the_reference() -> None:
    """Under autocast, the first loss differs by bf16's rounding of hidden states and logits."""
    model, reference = ParallelGPT(CONFIG, seed=1), GPT(CONFIG, seed=1)
    tokens = batches(CONFIG, 1)[0][0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens, tokens)
    loss.backward()
    expected = reference.loss(tokens, tokens)
    expected.backward()
    assert_close(loss, expected, 2**-8)
    for (name, p), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        # A sum of gradients each off by at most some bf16 roundings (2**-9) on its way back; the
        # K part of qkv.bias has no gradient but rounding.
        assert p.grad is not None
        assert other.grad is not None
        if not name.endswith("qkv.bias"):
            got = p.grad[:37] if name == "tokens.weight" else p.grad
            assert_close(got, other.grad, 32 * 2**-9, name)
