from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from step01_single_gpu import GPT, GPTConfig, cross_entropy
from tests.compare import assert_close


def test_loss_is_the_cross_entropy_of_the_logits(tiny: GPTConfig, float64: None) -> None:
    model, tokens = GPT(tiny), torch.randint(37, (2, 11))
    targets = torch.randint(37, (2, 11))
    targets[0, 3] = -100
    logits = model(tokens)
    assert logits.shape == (2, 11, 37)
    for reduction in ("mean", "sum", "none"):
        got = model.loss(tokens, targets, reduction=reduction)
        assert_close(got, cross_entropy(logits, targets, reduction=reduction), 1e-12)


def test_an_untrained_model_knows_nothing(tiny: GPTConfig) -> None:
    loss = GPT(tiny).loss(torch.randint(37, (8, 11)), torch.randint(37, (8, 11)))
    assert loss.item() == pytest.approx(torch.tensor(37.0).log().item(), abs=0.05)


def test_logits_never_depend_on_later_tokens(tiny: GPTConfig, float64: None) -> None:
    model, tokens = GPT(tiny), torch.randint(37, (1, 11))
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 37
    assert torch.equal(model(tokens)[:, :6], model(changed)[:, :6])
    assert not torch.equal(model(tokens)[:, 6:], model(changed)[:, 6:])


def test_recompute_changes_nothing_dropout_on(tiny: GPTConfig) -> None:
    config = dataclasses.replace(tiny, dropout=0.3)
    tokens = torch.randint(37, (2, 11))
    results = []
    for recompute in (False, True):
        model = GPT(config, recompute=recompute)
        torch.manual_seed(1)
        loss = model.loss(tokens, tokens)
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    for plain, recomputed in zip(*results, strict=True):
        assert torch.equal(plain, recomputed)


def test_recompute_saves_activations(tiny: GPTConfig) -> None:
    saved = []
    for recompute in (False, True):
        model, total = GPT(dataclasses.replace(tiny, num_layers=6), recompute=recompute), [0]

        def count(x: torch.Tensor, total: list[int] = total) -> torch.Tensor:
            total[0] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            model.hidden(torch.randint(37, (2, 11)))
        saved.append(total[0])
    assert saved[1] < saved[0] / 4


def test_pitfall_06_too_long_or_unknown_tokens_are_named(tiny: GPTConfig) -> None:
    model = GPT(tiny)
    with pytest.raises(ValueError, match="12 tokens are more than seq_length 11"):
        model(torch.zeros(1, 12, dtype=torch.long))
    for bad in (37, -1):
        with pytest.raises(ValueError, match=f"token id {bad} is outside the vocabulary.* to 36"):
            model(torch.tensor([[1, bad]]))
    with pytest.raises(ValueError, match=r"shape \[3\]; they must be \[b, s\]"):
        model(torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"torch.float32; they must be integers"):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="differ in shape"):
        model.loss(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))


def test_pitfall_11_tied_through_meta_casts_copies_and_loads(tiny: GPTConfig) -> None:
    with torch.device("meta"):
        model = GPT(tiny)
    assert all(p.is_meta for p in model.parameters())
    model = model.to_empty(device="cpu")
    model.load_state_dict(GPT(tiny, seed=4).state_dict(), assign=True)
    for version in (model, copy.deepcopy(model), model.double(), model.half().float()):
        vocabulary = [n for n, p in version.named_parameters() if p.shape == (37, 24)]
        assert vocabulary == ["tokens.weight"], "one tensor at both ends"
        before = version(torch.tensor([[3]])).detach().clone()
        version.tokens.weight.data[5, 0] += 1.0  # a word the input does not hold
        changed = (version(torch.tensor([[3]])) != before)[0, 0]
        assert changed.nonzero().tolist() == [[5]], "the output layer uses the embedding"


def test_gradient_of_the_tied_embedding_has_both_parts(tiny: GPTConfig, float64: None) -> None:
    model, tokens = GPT(tiny), torch.tensor([[3, 4]])
    model.loss(tokens, torch.tensor([[5, 6]])).backward()
    grad = model.tokens.weight.grad
    assert grad is not None
    assert grad[20].abs().max() > 0, "every row is pushed down by the softmax"
    h = 1e-6
    with torch.no_grad():
        for row in (3, 5, 20):
            model.tokens.weight[row, 2] += h
            up = model.loss(tokens, torch.tensor([[5, 6]]))
            model.tokens.weight[row, 2] -= 2 * h
            down = model.loss(tokens, torch.tensor([[5, 6]]))
            model.tokens.weight[row, 2] += h
            assert grad[row, 2].item() == pytest.approx((up - down).item() / (2 * h), rel=1e-5)


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_gelu_is_the_named_one(tiny: GPTConfig, gelu: str, float64: None) -> None:
    mlp, x = GPT(dataclasses.replace(tiny, gelu=gelu)).blocks[0].mlp, torch.randn(1, 1, 24) * 50
    inner = mlp.up(x)
    exact = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
    assert torch.allclose(mlp(x), mlp.down(exact), rtol=0, atol=1e-12) == (gelu == "erf")


def test_generate_is_deterministic_and_keeps_the_mode(tiny: GPTConfig) -> None:
    model = GPT(dataclasses.replace(tiny, dropout=0.5))
    prompt = torch.tensor([[1, 2], [3, 4]])
    state = torch.get_rng_state()
    one, other = (
        model.generate(prompt, 20, top_k=5, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(one, other)
    assert one.shape == (2, 22)
    assert torch.equal(one[:, :2], prompt)
    assert model.training
    assert torch.equal(state, torch.get_rng_state()), "the global generator was not needed"


def test_generate_crops_to_the_last_window(tiny: GPTConfig) -> None:
    """Past seq_length each token is the greedy choice after the last 11 before it."""
    model = GPT(tiny).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(20)  # far from a tie, and sensitive to the context
    written = model.generate(torch.tensor([[7]]), 30, temperature=0)
    assert written.shape == (1, 31)
    assert written.unique().numel() > 2
    for i in range(1, 31):
        window = written[:, max(0, i - 11) : i]
        assert model(window)[0, -1].argmax() == written[0, i]


def test_top_k_and_temperature_choose_among_the_likely(tiny: GPTConfig) -> None:
    model, prompt = GPT(tiny).eval(), torch.tensor([[1, 2, 3]]).repeat(400, 1)
    best = model(prompt[:1])[0, -1].topk(4).indices.tolist()
    generator = torch.Generator().manual_seed(0)
    drawn = model.generate(prompt, 1, top_k=4, generator=generator)[:, -1]
    assert set(drawn.tolist()) == set(best)
    cold = model.generate(prompt, 1, temperature=1e-9, generator=generator)[:, -1]
    assert set(cold.tolist()) == {best[0]}
    shares = model(prompt[:1])[0, -1].softmax(-1)
    drawn = model.generate(prompt.repeat(50, 1), 1, generator=generator)[:, -1]
    counts = torch.bincount(drawn, minlength=37) / 20000
    assert (counts - shares).abs().max() < 0.01
    assert model.generate(prompt, 0).shape == prompt.shape
    assert model.generate(prompt, 1, top_k=1000, generator=generator).shape == (400, 4)


def test_generate_refuses_what_cannot_be_drawn(tiny: GPTConfig) -> None:
    model, prompt = GPT(tiny), torch.tensor([[1]])
    with pytest.raises(ValueError, match=r"prompt has shape \[1, 0\]"):
        model.generate(prompt[:, :0], 1)
    with pytest.raises(ValueError, match=r"temperature is -0\.5"):
        model.generate(prompt, 1, temperature=-0.5)
    for never in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="and finite"):
            model.generate(prompt, 1, temperature=never)
    with pytest.raises(ValueError, match="top_k is 0"):
        model.generate(prompt, 1, top_k=0)
    with pytest.raises(ValueError, match="max_new_tokens is -1"):
        model.generate(prompt, -1)


def test_generate_puts_back_the_mode_of_every_part_and_takes_tiny_temperatures(
    tiny: GPTConfig,
) -> None:
    model = GPT(tiny)
    model.blocks[0].eval()
    model.generate(torch.tensor([[1]]), 1, temperature=1e-300)
    assert [m.training for m in (model, *model.blocks)] == [True, False, True, True]
