from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from step01_single_gpu import GPTConfig
from step01_single_gpu.attention import Attention
from step02_mlp_parallel import run_ranks
from step03_attention_parallel import ParallelAttention, ParallelBlock
from step03_attention_parallel.attention import cut_qkv, masked_softmax
from step03_attention_parallel.memory import formula
from tests.compare import assert_close
from tests.equivalence import WORLDS, Case, prove, random_state

from . import ranks


def config(heads: int, dropout: float = 0.0) -> GPTConfig:
    return GPTConfig(9, 16, hidden_size=3 * heads, num_layers=2, num_heads=heads, dropout=dropout)


def stack_case(heads: int, layers: int, b: int, s: int, dropout: float, **options: object) -> Case:
    c, again = config(heads, dropout), bool(options.pop("recompute", False))
    return Case(
        partial(ranks.whole_stack, c, layers),
        partial(ranks.cut_stack, c, layers, again),
        (b, s, 3 * heads),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("n", WORLDS)
def test_stacks_of_blocks_equal_step_one(n: int) -> None:
    """Forward, gradients and SGD steps, float64, 1e-12; one head a rank among them, one token."""
    prove(
        [
            stack_case(8, 1, 1, 1, 0.0, steps=2),
            stack_case(n, 2, 3, 5, 0.0, seed=1),
            stack_case(8, 2, 2, 7, 0.0, recompute=True, steps=2),
        ],
        n,
    )


@pytest.mark.parametrize("n", WORLDS)
def test_with_dropout_on_too_the_layout_does_not_matter(n: int) -> None:
    """Invariant mode: the reference gets the same masks through step 1's dropout argument."""
    prove(
        [
            stack_case(8, 2, 3, 5, 0.3, steps=2),
            stack_case(8, 2, 3, 5, 0.3, recompute=True, seed=2),
        ],
        n,
    )


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("norm", ["rearranged", "original"])
def test_padded_batches_are_cut_alike(n: int, norm: str) -> None:
    cases = [
        Case(
            partial(ranks.Padded, ranks.CONFIG, causal, norm),
            partial(ranks.Padded, ranks.CONFIG, causal, norm),
            (4, 5, 24),
        )
        for causal in (True, False)
    ]
    prove(cases, n)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    # Two layers of sums over up to 4h = 96 terms, each rounded; bfloat16 keeps 8 bits.
    [(torch.float32, 4 * 96 * 2**-24), (torch.bfloat16, 4 * 96**0.5 * 2**-8)],
)
def test_lower_precision_stays_within_its_rounding(dtype: torch.dtype, bound: float) -> None:
    prove(stack_case(8, 1, 2, 5, 0.0, dtype=dtype, bound=bound), 2)


# ---- attention and its masks, against the formula


def dense(layer: ParallelAttention, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Attention head by head and query by query, in words of the definition."""
    weight, bias, d = layer.qkv.weight, layer.qkv.bias, x.size(-1) // layer.heads
    q, k, v = (x @ weight[i].T + bias[i] for i in range(3))
    out = torch.zeros_like(x)
    for b in range(x.size(0)):
        for head in range(layer.heads):
            part = slice(head * d, (head + 1) * d)
            for i in range(x.size(1)):
                seen = [j for j in range(x.size(1)) if keep[b, i, j]]
                if seen:
                    scores = torch.stack([q[b, i, part] @ k[b, j, part] for j in seen])
                    w = (scores / math.sqrt(d)).softmax(0)
                    out[b, i, part] = (w[:, None] * v[b, seen][:, part]).sum(0)
    result: torch.Tensor = layer.out(out)
    return result


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_pitfalls_03_and_94_padding_and_fully_masked_rows(
    causal: bool, explicit: bool, float64: None
) -> None:
    """Row 2 of the batch is all padding; row 1 has it on the left, so causal queries see nothing.
    Both paths: zeros there, forward and backward, and the definition elsewhere."""
    p = 1e-14 if explicit else 0.0  # dropout that drops nothing takes the explicit path
    layer = ParallelAttention(
        GPTConfig(9, 8, 12, 1, 3, dropout=p), causal=causal, rng=ranks.tracker(None)
    )
    with torch.no_grad():
        for name, tensor in random_state(layer, 0).items():
            layer.state_dict()[name].copy_(tensor)
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    keep = mask[:, None, :].expand(3, 4, 4)
    keep = keep & torch.ones(4, 4).tril().bool() if causal else keep
    x = torch.randn(3, 4, 12, requires_grad=True)
    y = layer(x, mask)
    assert_close(y, dense(layer, x, keep), 1e-12)
    y.backward(torch.randn(3, 4, 12))
    assert all(torch.isfinite(t.grad).all() for t in (x, *layer.parameters()) if t.grad is not None)
    assert torch.equal(y[2], layer.out.bias.expand(4, 12)), "nothing to look at: zeros, then bias"
    assert x.grad is not None
    assert not x.grad[2].any()


def test_masked_softmax_keeps_to_float32_and_to_zero() -> None:
    scores = torch.tensor([[-2e4, 0.0], [1.0, 2.0]], dtype=torch.float16)
    keep = torch.tensor([[True, False], [False, False]])
    got = masked_softmax(scores, keep)
    assert got.dtype == torch.float32
    assert got.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_a_mask_of_the_wrong_kind_is_named() -> None:
    layer, x = ParallelAttention(ranks.CONFIG), torch.zeros(2, 3, 24)
    for mask in (torch.ones(2, 3), torch.ones(3, 2).bool(), torch.ones(2, 3, 3).bool()):
        with pytest.raises(ValueError, match=r"padding_mask is torch\.\w+ \[.*must be torch\.bool"):
            layer(x, mask)


def test_the_sdpa_path_is_the_explicit_path_with_its_mask(float64: None) -> None:
    """SDPA shows no mask, so it is recovered: with V the identity, the result is the weights."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 4)
    torch.manual_seed(7)
    identity = torch.eye(6).expand(2, 3, 6, 6)
    dropped = F.scaled_dot_product_attention(q, k, identity, dropout_p=0.5, is_causal=True)
    weights = masked_softmax(q / 2 @ k.mT, torch.ones(6, 6).tril().bool())
    ratio = torch.where(weights > 0, dropped / weights.clamp(min=1e-300), torch.zeros(()))
    assert set(ratio.round(decimals=9).unique().tolist()) == {0.0, 2.0}
    torch.manual_seed(7)
    v = torch.randn(2, 3, 6, 4)
    torch.manual_seed(7)
    got = F.scaled_dot_product_attention(q, k, identity, dropout_p=0.5, is_causal=True) @ v
    assert_close(got, (weights * ratio) @ v, 1e-12)


# ---- cutting Q, K and V


@pytest.mark.parametrize("n", [2, 4])
def test_pitfall_28_contiguous_rows_of_a_stacked_qkv_are_wrong(n: int) -> None:
    whole = Attention(ranks.CONFIG).double()
    full = random_state(whole, 4)
    whole.load_state_dict(full)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    for got in run_ranks(ranks.plain_chunk_of_stacked_qkv, n, full, x):
        assert got.shape == x.shape, "no error, right shape"
        with pytest.raises(AssertionError, match="off by"):
            assert_close(got, whole(x), 1e-2)


def test_pitfall_28_the_rows_that_a_rank_should_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 heads of 2 at two ranks: heads 0 and 1 are rows 0-3 of each of the three matrices."""
    rows = torch.arange(24).view(3, 8)
    monkeypatch.setattr("step02_mlp_parallel.sharding.group_size", lambda g: 2)
    monkeypatch.setattr("step02_mlp_parallel.sharding.group_rank", lambda g: 0)
    assert cut_qkv(rows, None).flatten().tolist() == [*range(4), *range(8, 12), *range(16, 20)]


def test_the_fused_weight_says_how_it_is_cut() -> None:
    qkv = ParallelAttention(ranks.CONFIG).qkv
    assert (qkv.weight.shard_dim, qkv.weight.full_shape) == (1, (3, 24, 24))  # type: ignore[attr-defined]
    assert (qkv.bias.shard_dim, qkv.bias.full_shape) == (1, (3, 24))  # type: ignore[attr-defined]


def test_pitfall_29_cut_after_converting_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conv1D's [in, out] must be transposed first: its own half is another half."""
    from step02_mlp_parallel.sharding import cut

    monkeypatch.setattr("step02_mlp_parallel.sharding.group_size", lambda g: 2)
    monkeypatch.setattr("step02_mlp_parallel.sharding.group_rank", lambda g: 1)
    source = torch.arange(24.0).view(4, 6)
    assert torch.equal(cut(source.T, 0, None), source[:, 3:].T)
    assert cut(source, 0, None).T.shape != cut(source.T, 0, None).shape


# ---- counted


@pytest.mark.parametrize(
    ("dropout", "recompute", "backward"),
    [(0.0, False, 2), (0.1, False, 2), (0.1, True, 4), (0.0, True, 3)],
)
def test_figure_4_two_all_reduces_each_way(dropout: float, recompute: bool, backward: int) -> None:
    """With recompute the forward ones come again; without dropout the last isn't needed."""
    for n in (2, 4):
        for b, s in ((1, 1), (2, 7)):
            one = ("all_reduce(sum)", (b, s, 24))
            for got in run_ranks(ranks.counted, n, dropout, recompute, b, s):
                assert got == [[one] * 2, [one] * backward]


@pytest.mark.parametrize("n", WORLDS)
def test_what_a_block_keeps_is_what_the_formula_says(n: int) -> None:
    for dropout in (0.1, 0.0):
        for recompute in (False, True):
            for got in run_ranks(ranks.memory, n, dropout, recompute, 2, 16):
                expected = formula(2, 16, 64, 16, n, dropout=dropout > 0, recompute=recompute)
                assert got == expected


def test_pitfall_27_and_others_are_named() -> None:
    for said in run_ranks(ranks.messages, 4):
        assert "num_heads: 6 doesn't divide by the 4 ranks" in said["heads"]
        assert "4 or 8 would, or a group of 1, 2, 3, 6 ranks" in said["heads"]
        assert "dropout 0.2 in training on 4 ranks needs rng=RNGTracker" in said["no tracker"]
        assert "the RNGTracker is for tp_rank 0 of 1" in said["tracker of another"]
    with pytest.raises(ValueError, match="norm is 'post'"):
        ParallelBlock(ranks.CONFIG, norm="post")
