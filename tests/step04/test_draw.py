"""A token drawn over the ranks is the token that one process draws."""

from __future__ import annotations

import pytest
import torch

from step01_single_gpu.generate import draw_token
from step02_mlp_parallel import run_ranks
from tests.step04 import loss_ranks

WORLDS = (1, 2, 4, 8)
REDUCTIONS = ("mean", "sum", "none")


@pytest.mark.parametrize("n", WORLDS)
def test_a_draw_does_not_depend_on_the_ranks_and_sends_k_candidates(n: int) -> None:
    torch.manual_seed(3)
    logits = 3 * torch.randn(40, 21, dtype=torch.float64)
    logits[:20, 4] = logits[:20, 15] = 9.0  # ties, on different ranks
    options = [
        (1e300, None),
        (1.0, None),
        (0.7, 5),
        (0.0, None),
        (1.3, 21),
        (1.0, 1),
        (1e-300, 3),
        (2.0, 400),
    ]
    expected = [draw_token(logits, t, k, torch.Generator().manual_seed(5)) for t, k in options]
    width = -(-21 // n)
    for tokens, wire in run_ranks(loss_ranks.drawn, n, logits, options):
        for got, wanted in zip(tokens, expected, strict=True):
            assert torch.equal(got, wanted)
        offer = ("all_gather", 2 * 40)
        if n > 1:
            assert wire[0] == wire[1] == wire[3] == wire[4] == wire[7] == [offer]
            assert wire[2] == [("all_gather", 40 * min(5, width)), offer]


def test_draws_follow_the_softmax_of_the_best() -> None:
    """10,000 draws against the probabilities: chi-squared within its bounds."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 1.5]]).double()
    for temperature, top_k in ((1.0, None), (0.5, 3), (2.0, 2)):
        generator = torch.Generator().manual_seed(1)
        drawn = draw_token(logits.expand(10_000, -1), temperature, top_k, generator)
        counts = torch.bincount(drawn.flatten(), minlength=5).double()
        kept = logits[0].topk(top_k or 5).indices
        wanted = torch.zeros(5).double()
        wanted[kept] = 10_000 * (logits[0][kept] / temperature).softmax(0)
        assert not counts[wanted == 0].any()
        chi = ((counts - wanted).square() / wanted.clamp(min=1e-9)).sum()
        assert chi < 18.5  # 4 degrees of freedom: one run in a thousand is above
