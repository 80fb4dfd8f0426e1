from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from step01_single_gpu import GPT, GPTConfig, attention_scores
from step01_single_gpu.attention import Attention
from step01_single_gpu.dropout import Dropout, dropout_mask
from tests.compare import assert_close


@pytest.mark.parametrize("s", [1, 2, 7])
def test_scores_are_the_softmax_over_past_keys(s: int, float64: None) -> None:
    q, k = torch.randn(2, 3, s, 5), torch.randn(2, 3, s, 5)
    got = attention_scores(q, k)
    for i in range(s):
        expected = F.softmax(q[:, :, i : i + 1] @ k[:, :, : i + 1].mT / math.sqrt(5), -1)
        assert_close(got[:, :, i : i + 1, : i + 1], expected, 1e-12, f"row {i}")
        assert not got[:, :, i, i + 1 :].any(), "a query saw the future"


@pytest.mark.parametrize("s", [1, 2, 11])
def test_explicit_path_equals_sdpa(tiny: GPTConfig, s: int, float64: None) -> None:
    """Forward and all gradients; a callable dropout that drops nothing takes the explicit path."""
    config = dataclasses.replace(tiny, dropout=0.5)
    fused = Attention(dataclasses.replace(tiny, dropout=0.0), seed=1)
    explicit = Attention(config, seed=1, dropout=lambda x, p, site: x)
    results = []
    x, upstream = torch.randn(2, s, 24), torch.randn(2, s, 24)
    for layer in (fused, explicit):
        with torch.no_grad():
            layer.qkv.bias.copy_(torch.linspace(-1, 1, 72).view(3, 24))
        leaf = x.clone().requires_grad_()
        output = layer(leaf)
        output.backward(upstream)
        results.append([output, leaf.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        assert_close(one, other, 1e-12)


def test_qkv_keeps_the_three_matrices_and_their_heads_apart(float64: None) -> None:
    """One head written out by hand from weight [3, h, h]."""
    config = GPTConfig(9, 4, hidden_size=6, num_layers=1, num_heads=3, dropout=0.0)
    layer, x = Attention(config, seed=2), torch.randn(1, 4, 6)
    q, k, v = (x @ layer.qkv.weight[i].T for i in range(3))
    head = slice(2, 4)  # the second of three heads of two
    weights = attention_scores(q[:, None, :, head], k[:, None, :, head])
    mixed = (weights @ v[:, None, :, head])[:, 0]
    layer.out.weight.data.zero_()
    layer.out.weight.data[0:2, 2:4] = torch.eye(2)
    assert_close(layer(x)[..., :2], mixed, 1e-12)


def test_pitfall_01_float16_holds_the_mask(tiny: GPTConfig) -> None:
    model = GPT(dataclasses.replace(tiny, dropout=0.1)).half()
    tokens = torch.randint(37, (2, 4))
    assert torch.isfinite(model(tokens)).all()  # training mode: the explicit path
    assert torch.isfinite(model.eval()(tokens)).all()
    scores = attention_scores(torch.randn(1, 1, 4, 8).half(), torch.randn(1, 1, 4, 8).half())
    assert scores.dtype == torch.float16
    assert_close(scores.sum(-1), torch.ones(1, 1, 4), 2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pitfall_02_a_score_below_any_mask_constant_still_wins(dtype: torch.dtype) -> None:
    """The past key's score is -20,000: with a mask of -1e4 the future one would take it all."""
    q = torch.tensor([[[[200.0], [200.0]]]]).to(dtype)
    k = torch.tensor([[[[-100.0], [0.0]]]]).to(dtype)
    assert attention_scores(q, k)[0, 0, 0].tolist() == [1.0, 0.0]


def test_pitfall_01_float16_scores_are_scaled_before_they_overflow() -> None:
    q = torch.full((1, 1, 2, 64), 40.0, dtype=torch.float16)  # q·k = 102,400 > 65,504
    assert attention_scores(q, q)[0, 0, 1].tolist() == [0.5, 0.5]


def test_pitfall_03_no_row_is_fully_masked_and_both_paths_agree_on_the_first() -> None:
    """A causal row keeps its own key, so NaN has no place to start from, at s = 1 either."""
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    k = torch.randn(1, 1, 3, 4, requires_grad=True)
    v = torch.randn(1, 1, 3, 4)
    explicit = attention_scores(q, k) @ v
    assert_close(explicit[:, :, 0], v[:, :, 0], 1e-6)
    assert_close(explicit, F.scaled_dot_product_attention(q, k, v, is_causal=True), 1e-6)
    explicit.sum().backward()
    assert torch.isfinite(q.grad).all()
    assert torch.isfinite(k.grad).all()


def test_pitfall_04_no_layer_scales_its_scores_differently(float64: None) -> None:
    """With equal weights every layer is the same function: no division by the layer's number."""
    config = GPTConfig(9, 4, hidden_size=6, num_layers=4, num_heads=1, dropout=0.0)
    model, x = GPT(config), torch.randn(1, 4, 6)
    blocks = list(model.blocks)
    for block in blocks[1:]:
        block.load_state_dict(blocks[0].state_dict())
        assert torch.equal(block.attention(x), blocks[0].attention(x))
    q, k, v = (x @ w.T for w in blocks[3].attention.qkv.weight)
    past = torch.ones(4, 4).tril().bool()
    scores = (q @ k.mT / math.sqrt(6)).masked_fill(~past, -math.inf)
    expected = scores.softmax(-1) @ v @ blocks[3].attention.out.weight.T
    assert_close(blocks[3].attention(x), expected, 1e-12)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-6])
def test_dropout_keeps_its_rate_and_the_mean(p: float) -> None:
    mask = dropout_mask(torch.empty(1000, 1001), p)  # not a multiple of four
    kept = mask[mask > 0]
    sigma = math.sqrt(p * (1 - p) / mask.numel())
    assert (mask == 0).double().mean().item() == pytest.approx(p, abs=5 * sigma + 2**-16)
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=2**-14 / (1 - p))


def test_dropout_masks_are_independent_of_their_neighbours() -> None:
    """Four masks come out of one random word; they must not be four views of one decision."""
    dropped = (dropout_mask(torch.empty(2**18), 0.25) == 0).double() - 0.25
    for lag in (1, 2, 3, 4, 8):
        correlation = (dropped[:-lag] * dropped[lag:]).mean() / (0.25 * 0.75)
        assert abs(correlation.item()) < 5 / math.sqrt(2**18), lag


def test_dropout_repeats_with_the_global_seed_and_rests_in_eval_mode() -> None:
    layer, x = Dropout(0.5, "here"), torch.ones(100)
    torch.manual_seed(5)
    one, other = layer(x), layer(x)
    torch.manual_seed(5)
    assert torch.equal(one, layer(x))
    assert not torch.equal(one, other)
    assert layer.eval()(x) is x


def test_a_callable_dropout_is_called_once_a_site_with_its_shape(tiny: GPTConfig) -> None:
    seen: dict[str, tuple[int, ...]] = {}

    def record(x: torch.Tensor, p: float, site: str) -> torch.Tensor:
        assert site not in seen
        assert p == 0.25
        seen[site] = tuple(x.shape)
        return x

    model = GPT(dataclasses.replace(tiny, dropout=0.25, num_layers=2), dropout=record)
    model(torch.randint(37, (2, 5)))
    layer = {
        "attention": (2, 3, 5, 5), "attention_residual": (2, 5, 24), "mlp_residual": (2, 5, 24),
    }  # fmt: skip
    expected = {"embedding": (2, 5, 24)}
    expected |= {f"blocks.{i}.{site}": shape for i in range(2) for site, shape in layer.items()}
    assert seen == expected
    seen.clear()
    model.eval()(torch.randint(37, (2, 5)))
    assert not seen
