"""The loss fused with the output GEMM is the unfused one; and other uses of it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from step01_single_gpu import fused_loss as step1_fused
from step01_single_gpu import linear_cross_entropy
from step02_mlp_parallel import run_ranks
from step04_embeddings_loss import vocab_parallel_linear_cross_entropy as fused
from tests.compare import assert_close
from tests.step04 import loss_ranks

WORLDS = (1, 2, 4, 8)
REDUCTIONS = ("mean", "sum", "none")


def fused_case(v: int, seed: int, **options: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    rows = 10 if options["reduction"] == "none" else 1
    return {
        "hidden": torch.randn(2, 5, 6, dtype=torch.float64, generator=generator),
        "weight": torch.randn(v, 6, dtype=torch.float64, generator=generator),
        "targets": torch.tensor([[0, v - 1, -100, v // 2, 1], [2, 3, 1, -100, -100]]),
        "upstream": torch.randn(rows, dtype=torch.float64, generator=generator),
        "chunk": (1, 3, 100)[(seed + seed // 3) % 3],
        "options": options,
    }


FUSED = [
    fused_case(v, s, reduction=reduction, **options)
    for s, (v, options, reduction) in enumerate(
        itertools.product(
            (16, 11),
            ({}, {"label_smoothing": 0.2, "z_loss": 0.05}),
            REDUCTIONS,
        )
    )
]


@pytest.mark.parametrize("n", WORLDS)
def test_fused_equals_unfused_at_every_chunk_border(n: int) -> None:
    results = run_ranks(loss_ranks.fused, n, FUSED)
    for i, c in enumerate(FUSED):
        for rank in range(n):
            loss, plain, hidden, weight = results[rank][i]
            what = f"rank {rank} of {n}, {c['options']}, {c['chunk']} rows a chunk"
            assert_close(loss, plain, 1e-12, f"loss, {what}")
            assert_close(hidden[0], hidden[1], 1e-12, f"hidden, {what}")
            assert_close(weight[0], weight[1], 1e-12, f"weight, {what}")
            assert torch.equal(hidden[0], results[0][i][2][0]), "replicas of hidden's gradient"


def test_fused_takes_gradients_only_when_and_for_whom_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work: list[int] = []
    original = step1_fused.Gradients.add
    monkeypatch.setattr(step1_fused.Gradients, "add", lambda *a: (work.append(1), original(*a))[1])
    hidden, weight = torch.randn(4, 3), torch.randn(7, 3)
    targets = torch.arange(4)
    with torch.no_grad():
        fused(hidden.requires_grad_(), weight, targets)
    assert not work, "no_grad did gradient work"
    for needs in itertools.product([True, False], repeat=2):
        h, w = hidden.detach().clone(), weight.clone()
        h.requires_grad_(needs[0]), w.requires_grad_(needs[1])
        for reduction in REDUCTIONS if any(needs) else ():
            h.grad = w.grad = None
            fused(h, w, targets, reduction=reduction).sum().backward()
            assert (h.grad is not None, w.grad is not None) == needs
    loss = fused(hidden, weight.requires_grad_(), targets)
    first = torch.autograd.grad(loss, (hidden, weight), 2 * torch.ones(()), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight), 2 * torch.ones(()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(fused(hidden, weight, targets), hidden, create_graph=True)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_in_half_precision(dtype: torch.dtype, autocast: bool) -> None:
    hidden, weight = torch.randn(6, 16), torch.randn(21, 16)
    targets = torch.arange(6)
    wide = [t.clone().requires_grad_() for t in (hidden, weight)]
    expected = F.cross_entropy(wide[0] @ wide[1].T, targets)
    expected.backward()
    own = [t.clone() if autocast else t.to(dtype) for t in (hidden, weight)]
    for t in own:
        t.requires_grad_()
    with torch.autocast("cpu", dtype, enabled=autocast):
        loss = fused(own[0], own[1], targets)
    (loss * 1024.0).backward()
    assert loss.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert_close(loss, expected, 8 * eps)
    for got, reference in zip(own, wide, strict=True):
        assert got.grad is not None
        assert reference.grad is not None
        assert got.grad.dtype == got.dtype
        assert_close(got.grad.float() / 1024, reference.grad, 16 * eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_chunks_round_no_more_than_one(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weight's gradient is added up in float32: 64 chunks, one rounding."""
    monkeypatch.setattr(step1_fused, "CHUNK_NUMBERS", 16 * 50)
    hidden, weight = torch.randn(1024, 8).to(dtype), torch.randn(50, 8).to(dtype)
    targets = torch.arange(1024) % 50
    wide = [t.float().requires_grad_() for t in (hidden, weight)]
    F.cross_entropy(wide[0] @ wide[1].T, targets).backward()
    for function in (fused, linear_cross_entropy):
        own = [t.clone().requires_grad_() for t in (hidden, weight)]
        function(own[0], own[1], targets).backward()
        for got, reference in zip(own, wide, strict=True):
            assert got.grad is not None
            assert reference.grad is not None
            assert got.grad.dtype == dtype
            assert_close(got.grad.float(), reference.grad, 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("autocast", [False, True])
def test_float16_does_not_overflow_in_the_sum_over_tokens(autocast: bool) -> None:
    """8,192 tokens of one word: before the mean the sum is 81,920; float16 ends at 65,504."""
    hidden, weight = torch.full((8192, 4), 10.0), torch.zeros(256, 4)
    targets = torch.zeros(8192, dtype=torch.long)
    own = [t if autocast else t.half() for t in (hidden, weight)]
    for function in (fused, linear_cross_entropy):
        x, w = (t.clone().requires_grad_() for t in own)
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            loss = function(x, w, targets)
        (loss * 4.0).backward()
        assert w.grad is not None
        assert w.grad[0, 0].item() == pytest.approx(-4 * 10 * 255 / 256, rel=1e-3)


def test_bad_widths_and_narrow_targets() -> None:
    for function in (fused, linear_cross_entropy):
        with pytest.raises(ValueError, match="hidden states are 5 wide and the weight is"):
            function(torch.zeros(3, 5), torch.zeros(7, 4), torch.zeros(3, dtype=torch.long))
        for dtype in (torch.uint8, torch.uint16, torch.int16, torch.uint32):
            loss = function(torch.zeros(3, 4), torch.zeros(7, 4), torch.tensor([1, 2, 3]).to(dtype))
            assert loss.item() == pytest.approx(math.log(7))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_same_function_is_a_contrastive_loss(n: int) -> None:
    torch.manual_seed(2)
    queries = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(5.0 * queries @ keys.T, torch.arange(10))
    loss.backward()
    assert keys.grad is not None
    assert queries.grad is not None
    rows = run_ranks(loss_ranks.contrastive, n, queries.detach(), keys.detach())
    for row in rows:
        assert_close(row[0], loss.detach(), 1e-12)
        assert_close(row[1], queries.grad, 1e-12)
    assert_close(gathered_rows([r[2] for r in rows], 10), keys.grad, 1e-12)


def gathered_rows(rows: list[Tensor], size: int) -> Tensor:
    whole = torch.cat(rows)
    assert not whole[size:].any()
    return whole[:size]
