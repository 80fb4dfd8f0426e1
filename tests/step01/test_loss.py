from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from step01_single_gpu import cross_entropy, fused_loss, linear_cross_entropy
from tests.compare import assert_close


@pytest.fixture(params=[1, 2, 5, 100], ids=lambda rows: f"{rows}-rows-a-chunk")
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk borders at every place: one row, an uneven last chunk, all at once."""
    monkeypatch.setattr(fused_loss, "CHUNK_NUMBERS", request.param * 13 + 5)


def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    targets = torch.tensor([[1, -100, 12], [0, 5, -100]])
    return torch.randn(2, 3, 7), torch.randn(13, 7), targets


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_plain_and_fused_equal_torch(reduction: str, chunk: None, float64: None) -> None:
    hidden, weight, targets = case()
    results = []
    for name in ("torch", "plain", "fused"):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if name == "fused":
            loss = linear_cross_entropy(h, w, targets, reduction=reduction)
        elif name == "plain":
            loss = cross_entropy(h @ w.T, targets, reduction=reduction)
        else:
            loss = F.cross_entropy((h @ w.T).flatten(0, 1), targets.flatten(), reduction=reduction)
            loss = loss.view(2, 3) if reduction == "none" else loss
        upstream = torch.linspace(-1, 2, loss.numel()).view(loss.shape)
        (loss * upstream).sum().backward()
        results.append((loss.detach(), h.grad, w.grad))
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            assert_close(got, expected, 1e-12)


def test_pitfall_09_ignored_means_not_scored_and_not_left_out_of_the_softmax() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]] * 3, requires_grad=True)
    targets = torch.tensor([1, -100, 2])
    losses = cross_entropy(logits, targets, reduction="none")
    assert (losses > 0).tolist() == [True, False, True], "two of three positions are scored"
    losses.sum().backward()
    assert logits.grad is not None
    assert not logits.grad[1].any()
    # A valid class as ignore_index: its positions do not count, its logit still does.
    pair, classes = logits.detach()[::2], torch.tensor([1, 2])
    losses = cross_entropy(pair, classes, ignore_index=2, reduction="none")
    assert losses[1] == 0
    assert_close(losses[0], -(torch.tensor(2.0) - pair[0].exp().sum().log()), 1e-6)
    assert_close(cross_entropy(pair, classes, ignore_index=2), losses[0], 1e-6)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_valid_token_is_a_zero_loss_with_zero_gradients(fused: bool, reduction: str) -> None:
    hidden, weight, targets = case()
    hidden.requires_grad_()
    targets = torch.full_like(targets, -100)
    if fused:
        loss = linear_cross_entropy(hidden, weight, targets, reduction=reduction)
    else:
        loss = cross_entropy(hidden @ weight.T, targets, reduction=reduction)
    loss.sum().backward()
    assert not loss.any()
    assert hidden.grad is not None
    assert not hidden.grad.any()


@pytest.mark.parametrize("bad", [-1, 13, 99, -101])
@pytest.mark.parametrize("fused", [False, True])
def test_a_target_outside_the_vocabulary_is_named(bad: int, fused: bool) -> None:
    hidden, weight, targets = case()
    targets[1, 1] = bad
    with pytest.raises(ValueError, match=f"target id {bad} is outside .* from 0 to 12"):
        _ = (
            linear_cross_entropy(hidden, weight, targets)
            if fused
            else cross_entropy(hidden @ weight.T, targets)
        )


def test_other_arguments_that_cannot_work_are_refused() -> None:
    hidden, weight, targets = case()
    with pytest.raises(ValueError, match='reduction is \'avg\'; it must be "mean", "sum" or'):
        linear_cross_entropy(hidden, weight, targets, reduction="avg")
    with pytest.raises(ValueError, match='divisor goes with reduction="sum"'):
        linear_cross_entropy(hidden, weight, targets, divisor=3)
    with pytest.raises(ValueError, match=r"target ids are torch\.float32"):
        cross_entropy(hidden @ weight.T, targets.float())


@pytest.mark.parametrize("divisor", [7, 2.5, torch.tensor(3)])
def test_a_divisor_divides_the_sum_and_its_gradient(divisor: float, float64: None) -> None:
    hidden, weight, targets = case()
    h = hidden.clone().requires_grad_()
    linear_cross_entropy(h, weight, targets, reduction="sum", divisor=divisor).backward()
    reference = hidden.clone().requires_grad_()
    (cross_entropy(reference @ weight.T, targets, reduction="sum") / divisor).backward()
    assert_close(h.grad, reference.grad, 1e-12)


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_extreme_logits_stay_finite_and_exact(scale: float) -> None:
    hidden = (torch.randn(5, 7) * scale).requires_grad_()
    weight, targets = torch.randn(13, 7), torch.arange(5)
    loss = linear_cross_entropy(hidden, weight, targets)
    loss.backward()
    expected = F.cross_entropy(hidden.double() @ weight.double().T, targets)
    assert_close(loss, expected, 1e-6)
    assert torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_stays_near_and_sums_in_float32(dtype: torch.dtype, autocast: bool) -> None:
    """Bound: a logit is rounded to eps relative, and each gradient is a sum of such terms."""
    hidden, weight, targets = case()
    expected = linear_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), targets)
    expected.backward()
    h, w = hidden.detach().clone(), weight.detach().clone()
    h, w = (h, w) if autocast else (h.to(dtype), w.to(dtype))
    h.requires_grad_(), w.requires_grad_()
    with torch.autocast("cpu", dtype, enabled=autocast):
        loss = linear_cross_entropy(h, w, targets)
    (loss * 1024.0).backward()  # a loss scale must reach the gradients
    assert loss.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert_close(loss, expected, 8 * eps)
    for got, reference in ((h, hidden), (w, weight)):
        assert got.grad is not None
        assert got.grad.dtype == got.dtype
        assert_close(got.grad.float() / 1024, reference.grad, 16 * eps)


def test_gradients_are_taken_only_for_whom_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = case()
    work: list[str] = []
    original = fused_loss.Gradients.add
    monkeypatch.setattr(
        fused_loss.Gradients, "add", lambda *a, **k: (work.append("x"), original(*a, **k))[1]
    )
    with torch.no_grad():
        linear_cross_entropy(hidden.requires_grad_(), weight, targets)
    assert not work, "no_grad did gradient work"
    for needs in itertools.product([True, False], repeat=2):
        h, w = hidden.detach().clone(), weight.clone()
        h.requires_grad_(needs[0]), w.requires_grad_(needs[1])
        if any(needs):
            linear_cross_entropy(h, w, targets).backward()
        assert (h.grad is not None, w.grad is not None) == needs


def test_inputs_are_left_as_they_were_and_the_loss_may_be_used_twice(float64: None) -> None:
    hidden, weight, targets = case()
    copies = [t.clone() for t in (hidden, weight, targets)]
    h = hidden.requires_grad_()
    loss = linear_cross_entropy(h, weight, targets)
    (3.0 * loss + loss).backward()
    reference = copies[0].clone().requires_grad_()
    (4.0 * cross_entropy(reference @ weight.T, targets)).backward()
    assert_close(h.grad, reference.grad, 1e-12)
    for now, before in zip((h.detach(), weight, targets), copies, strict=True):
        assert torch.equal(now, before)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_a_second_derivative_is_refused_not_zero(reduction: str) -> None:
    hidden, weight, targets = case()
    hidden.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, targets, reduction=reduction).sum()
    with pytest.raises(RuntimeError, match="no second derivative; use cross_entropy"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    plain = cross_entropy(hidden @ weight.T, targets)
    (grad,) = torch.autograd.grad(plain, hidden, create_graph=True)
    (grad**2).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.abs().max() > 0


def test_non_contiguous_hidden_states_and_targets(float64: None) -> None:
    hidden, weight, targets = case()
    got = linear_cross_entropy(
        hidden.mT.contiguous().mT, weight.T.contiguous().T, targets.T.contiguous().T
    )
    assert_close(got, cross_entropy(hidden @ weight.T, targets), 1e-12)


@pytest.mark.parametrize("shape", [(1,), (6,), (2, 2)])
def test_one_target_for_each_row(shape: tuple[int, ...]) -> None:
    hidden, weight = torch.randn(4, 7), torch.randn(13, 7)
    targets = torch.zeros(shape, dtype=torch.long)
    with pytest.raises(ValueError, match="there must be one for each"):
        linear_cross_entropy(hidden, weight, targets)
    with pytest.raises(ValueError, match="there must be one for each"):
        cross_entropy(hidden @ weight.T, targets)


def test_targets_in_narrow_types_are_compared_as_they_are() -> None:
    logits = torch.randn(2, 300)
    for dtype, ids in (
        (torch.uint8, [156, 200]),
        (torch.int16, [156, 299]),
        (torch.int8, [1, 100]),
    ):
        expected = cross_entropy(logits, torch.tensor(ids))
        assert torch.equal(cross_entropy(logits, torch.tensor(ids, dtype=dtype)), expected)


def test_a_loss_scale_above_float16_reaches_gradients_that_fit() -> None:
    """65,536 is GradScaler's first scale, and infinite in float16."""
    weight = torch.tensor([[4.0, 0], [0, 0], [-4, 0]]).half().requires_grad_()
    x = torch.tensor([[1.0, 0]]).half().requires_grad_()
    (linear_cross_entropy(x, weight, torch.tensor([0])) * 65536.0).backward()
    assert x.grad is not None
    assert x.grad[0].tolist() == pytest.approx([-4888, 0], rel=2e-2)


def test_autocast_leaves_float64_alone_and_meta_has_shapes(float64: None) -> None:
    hidden, weight, targets = case()
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets)
    assert_close(loss, cross_entropy(hidden @ weight.T, targets), 1e-12)
    assert linear_cross_entropy(hidden.to("meta"), weight.to("meta"), targets.to("meta")).is_meta
