"""The vocabulary-parallel loss is torch's on the gathered true logits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from step02_mlp_parallel import run_ranks
from step04_embeddings_loss import cross_entropy as module
from step04_embeddings_loss import vocab_parallel_cross_entropy
from tests.compare import assert_close
from tests.step04 import loss_ranks

WORLDS = (1, 2, 4, 8)
REDUCTIONS = ("mean", "sum", "none")


def case(v: int, seed: int, scale: float = 3.0, **options: Any) -> dict[str, Any]:
    """Logits of 3 x 5 tokens, targets at both ends of the vocabulary, two of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 5, v, generator=generator, dtype=torch.float64) * scale
    targets = torch.randint(v, (3, 5), generator=generator)
    targets[0, 0], targets[0, 1], targets[0, 2] = 0, v - 1, v // 2
    ignored = options.get("ignore_index", -100)
    targets[1, 1] = targets[2, 4] = ignored
    rows = 15 if options.get("reduction") == "none" else 1
    upstream = torch.randn(rows, generator=generator, dtype=torch.float64)
    return {"logits": logits, "targets": targets, "upstream": upstream, "options": options}


def expected(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """torch's loss and gradient of the whole logits, with z-loss by its formula."""
    options = dict(case["options"])
    z, reduction = options.pop("z_loss", 0.0), options.pop("reduction", "mean")
    logits = case["logits"].double().clone().requires_grad_()
    flat, targets = logits.flatten(0, 1), case["targets"].flatten()
    loss = F.cross_entropy(flat, targets, reduction="none", **options)
    valid = targets != options.get("ignore_index", -100)
    loss = loss + z * flat.logsumexp(-1).square() * valid
    if reduction != "none":
        loss = loss.sum() / (valid.sum() if reduction == "mean" else 1)
    loss.backward(case["upstream"].view(loss.shape))
    assert logits.grad is not None
    return loss.detach().view(case["targets"].shape if reduction == "none" else ()), logits.grad


def gathered(rows: list[Tensor], v: int) -> Tensor:
    """The ranks' gradients side by side; those of padded columns must be zero."""
    whole = torch.cat(rows, -1)
    assert not whole[..., v:].any(), "padding has a gradient"
    return whole[..., :v]


ALL = [
    case(v, seed, reduction=reduction, **options)
    for seed, (v, reduction, options) in enumerate(
        itertools.product(
            (50, 51, 5),  # divides by 2; divides by none; leaves whole ranks without a word
            REDUCTIONS,
            (
                {},
                {"label_smoothing": 0.1},
                {"z_loss": 0.01},
                {"label_smoothing": 1.0, "z_loss": 0.1, "ignore_index": 3},
            ),
        )
    )
]


@pytest.mark.parametrize("n", WORLDS)
def test_equals_torch_on_gathered_true_logits(n: int) -> None:
    """Pitfalls 37, 38, 45: padding, smoothing and the number of ranks make no difference."""
    results = run_ranks(loss_ranks.losses, n, ALL)
    for i, c in enumerate(ALL):
        loss, gradient = expected(c)
        what = f"{n} ranks, v {c['logits'].size(-1)}, {c['options']}"
        for rank in range(n):
            assert_close(results[rank][i][0], loss, 1e-12, f"loss, {what}")
            assert torch.equal(results[rank][i][0], results[0][i][0]), "ranks differ"
            assert results[rank][i][2], "the caller's logits were changed"
        own = gathered([results[rank][i][1] for rank in range(n)], c["logits"].size(-1))
        assert_close(own, gradient, 1e-12, f"gradient, {what}")


@pytest.mark.parametrize("n", [1, 2, 4])
def test_stable_at_extreme_logits_and_padding_never_counts(n: int) -> None:
    extreme = [
        case(51, seed, scale=scale, reduction="none") | {"multiple": multiple}
        for seed, (scale, multiple) in enumerate(itertools.product((1e4, 1e-4), (1, 16)))
    ]
    far = case(51, 9, reduction="none")
    far["logits"][..., :26] -= 1e4  # rank 0's part vanishes beside the others'
    masked = case(51, 10, reduction="none")
    masked["logits"][..., 1:20] = -torch.inf  # impossible words, a whole rank of them at n = 4
    masked["targets"].clamp_(min=-100)[masked["targets"] < 20] = 0
    cases = [*extreme, far, masked]
    results = run_ranks(loss_ranks.losses, n, cases)
    for i, c in enumerate(cases):
        loss, gradient = expected(c)
        assert_close(results[0][i][0], loss, 1e-12, f"case {i}")
        own = gathered([results[rank][i][1] for rank in range(n)], 51)
        assert_close(own, gradient, 1e-12, f"gradient, case {i}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    """The only rounding is that of the inputs and of the gradient handed back."""
    c = case(51, 3, reduction="mean")
    c["logits"] = c["logits"].to(dtype)
    for row in run_ranks(loss_ranks.losses, 2, [c]):
        assert row[0][0].dtype == torch.float32
        assert row[0][1].dtype == dtype
        assert_close(row[0][0], expected(c)[0], 1e-6)  # 51 terms in float32: 51 * 6e-8 at worst
    own = gathered([r[0][1] for r in run_ranks(loss_ranks.losses, 2, [c])], 51)
    assert_close(own.double(), expected(c)[1], max(torch.finfo(dtype).eps, 2e-6))


def test_pitfall_40_nothing_valid_is_zero_everywhere_and_nobody_waits() -> None:
    c = case(51, 0)
    c["targets"][:] = -100
    for reduction in ("mean", "sum"):
        for row in run_ranks(loss_ranks.losses, 2, [c | {"options": {"reduction": reduction}}]):
            assert row[0][0] == 0
            assert not row[0][1].any()
    ignored = torch.tensor([[1, -100, 6, -100, 0]] * 3)
    c = case(8, 1, reduction="none") | {"targets": ignored}
    losses, gradient, _ = run_ranks(loss_ranks.losses, 2, [c])[1][0]
    assert ((losses != 0) == (ignored != -100)).all()
    assert ((gradient != 0).any(-1) == (ignored != -100)).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("v", [16, 4096])
def test_three_numbers_a_token_go_over_the_wire(v: int, smoothing: float) -> None:
    """Four with smoothing; independent of v; the fused loss adds f's one all-reduce."""
    t, chunk, h, sums = 10, 4, 4, 3 if smoothing else 2
    for found in run_ranks(loss_ranks.counted, 2, t, v, smoothing, chunk):
        assert found["plain"] == [("all_reduce(max)", t), ("all_reduce(sum)", sums * t)]
        assert found["plain backward"] == []
        chunks = [("all_reduce(max)", c) for c in (4, 4, 2)]
        both = [x for m in chunks for x in (m, ("all_reduce(sum)", sums * m[1]))]
        for kind in ("fused", "fused none"):
            assert found[kind] == both
            assert found[f"{kind} backward"] == [("all_reduce(sum)", t * h)], "hidden, once"


def test_pitfall_43_without_f_the_hidden_gradient_is_a_part() -> None:
    torch.manual_seed(1)
    hidden = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    weight, targets = torch.randn(8, 5, dtype=torch.float64), torch.arange(6)
    F.cross_entropy(hidden @ weight.T, targets).backward()
    assert hidden.grad is not None
    rows = run_ranks(loss_ranks.missing_f, 2, hidden.detach(), weight, targets)
    assert not torch.allclose(rows[0][0], rows[1][0]), "differs before"
    for row in rows:
        assert_close(row[1], hidden.grad, 1e-12, "equal after")


def test_bad_input_is_refused_before_any_communication() -> None:
    for said in run_ranks(loss_ranks.messages, 2):
        assert said.pop("collectives") == "0"
        wanted = {
            "target too large": "target id 15 is outside the vocabulary: ids go from 0 to 14",
            "target negative": "target id -1 is outside",
            "whole logits": "logits 15 wide on each of 2 ranks fit a vocabulary of 16 to 30; "
            "vocab_size is 15: pass this rank's part of the logits, and not all of them",
            "whole padded logits": "pass this rank's part",
            "narrow": "some words would have no logits",
            "empty rank": "vocab_size is 8",
            "no size": "vocab_size is needed on 2 ranks",
            "reduction": "reduction is 'avg'",
            "smoothing": "label_smoothing is 1.5; it must be from 0 to 1",
            "divisor": 'divisor goes with reduction="sum"',
            "rows": "targets have shape [3], and the rows they are for [4]",
            "float targets": "they must be integers",
            "group": "group is 'tp'; it must be a ProcessGroup",
            "id": "token id 15 is outside",
            "negative id": "token id -1 is outside",
            "model id": "token id 15 is outside",
            "too long": "9 tokens are more than seq_length 8",
            "fused width": "pass this rank's part",
        }
        assert said.keys() == wanted.keys()
        for name, text in wanted.items():
            assert text in said[name], f"{name}: {said[name]}"


def test_pitfall_39_whole_logits_would_have_cost_log_2() -> None:
    """What the width rule prevents: every word counted twice makes each loss log 2 too large."""
    c = case(8, 0, reduction="none")
    c["logits"] = c["logits"].repeat(1, 1, 2)  # as if both ranks passed all eight
    loss = run_ranks(loss_ranks.losses, 2, [c])[0][0][0]
    c["logits"] = c["logits"][..., :8]
    valid = c["targets"] != -100
    off = (loss - expected(c)[0])[valid]
    assert_close(off, torch.full_like(off, 2.0).log(), 1e-12)


def test_backward_twice_with_a_kept_graph_and_no_second_derivative() -> None:
    """The buffer of the softmax becomes the gradient, but only when nobody needs it again."""
    logits = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 8, -100, 4])
    loss = vocab_parallel_cross_entropy(logits, targets)
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(loss, logits)
    assert torch.equal(first, kept)
    assert torch.equal(first, second)
    loss = vocab_parallel_cross_entropy(logits, targets)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_one_buffer_is_kept_and_becomes_the_gradient() -> None:
    logits = torch.randn(64, 512, requires_grad=True)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        loss = vocab_parallel_cross_entropy(logits, torch.arange(64))
    large = [t for t in saved if t.numel() >= logits.numel()]
    assert len(large) == 1
    address = large[0].data_ptr()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.data_ptr() == address


def test_without_a_backward_one_block_does_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 64)
    logits, sizes = torch.randn(40, 32), []
    original = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: (sizes.append(a[0]), original(*a, **k))[1])
    loss = vocab_parallel_cross_entropy(logits, torch.arange(40) % 32)
    assert_close(loss, F.cross_entropy(logits, torch.arange(40) % 32), 1e-6)
    assert sizes == [(2, 32)]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(13, 4, reduction="none")
    results = []
    for numbers in (1, 30, 10_000):
        monkeypatch.setattr(module, "BLOCK_NUMBERS", numbers)
        logits = c["logits"].clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(logits, c["targets"], reduction="none")
        loss.backward(c["upstream"].view(loss.shape))
        results.append((loss.detach(), logits.grad))
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_empty_batches_odd_strides_and_autocast() -> None:
    logits = torch.randn(5, 9, 3, dtype=torch.float64).transpose(1, 2).requires_grad_()
    targets = torch.randint(9, (5, 3))
    loss = vocab_parallel_cross_entropy(logits, targets)
    assert_close(loss, F.cross_entropy(logits.flatten(0, 1), targets.flatten()), 1e-12)
    loss.backward()
    empty = torch.zeros(0, 9, requires_grad=True)
    vocab_parallel_cross_entropy(empty, torch.zeros(0, dtype=torch.long)).backward()
    assert empty.grad is not None
    assert empty.grad.shape == (0, 9)
    single = vocab_parallel_cross_entropy(logits[0, 0], targets[0, 0])
    assert single.shape == ()
    with torch.autocast("cpu", torch.bfloat16):
        assert vocab_parallel_cross_entropy(logits.float(), targets).dtype == torch.float32
