"""A GPT-2 cut by layers is step 1's: losses, gradients, weights; and the schedules keep and send
what they say."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bubbles, pipeline
from benchmarks.layouts import ROWS
from step01_single_gpu import GPT, GPTConfig
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import RankError
from tests.benchmarks import pipeline_ranks
from tests.compare import assert_close
from tests.equivalence import random_state

CONFIG = GPTConfig(37, 9, hidden_size=24, num_layers=4, num_heads=4, dropout=0.0)
MICRO_BATCHES, LENGTH = 5, 7


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    pairs = []
    for _ in range(steps):
        shape = (MICRO_BATCHES * ROWS, LENGTH)
        tokens = torch.randint(CONFIG.vocab_size, shape, generator=generator)
        targets = tokens.roll(-1, 1)
        targets[1, 2:] = -100  # micro-batches with unequally many valid tokens
        pairs.append((tokens, targets))
    return pairs


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("layout", [(2, 1), (4, 1), (2, 2)], ids=lambda x: f"pp {x[0]} tp {x[1]}")
def test_training_equals_the_unpartitioned_model(layout: tuple[int, int], schedule: str) -> None:
    full, rows = random_state(GPT(CONFIG), 3), batches(3)
    reference = GPT(CONFIG).double()
    reference.load_state_dict(full)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    losses, gradients = [], {}
    for tokens, targets in rows:
        optimizer.zero_grad()
        loss = reference.loss(tokens, targets)
        loss.backward()
        named = reference.named_parameters()
        gradients = gradients or {n: p.grad.clone() for n, p in named if p.grad is not None}
        optimizer.step()
        losses.append(loss.detach())
    weights = reference.state_dict()

    p, n = layout
    found = run_ranks(
        pipeline_ranks.trained, p * n, CONFIG, full, rows, layout, schedule, MICRO_BATCHES
    )
    assert {name for row in found for name in row.weights} == weights.keys()
    for rank, row in enumerate(found):
        where = f"rank {rank}, stage {row.stage} of {p}, {schedule}"
        assert row.gradients.keys() == row.weights.keys()
        assert ("tokens.weight" in row.weights) == (row.stage in (0, p - 1)), where
        for name in row.weights:
            assert_close(row.gradients[name], gradients[name], 1e-12, f"gradient, {name}, {where}")
            assert_close(row.weights[name], weights[name], 1e-12, f"{name}, {where}")
        if row.stage == p - 1:
            for step, (loss, wanted) in enumerate(zip(row.losses, losses, strict=True)):
                assert loss is not None
                assert_close(loss, wanted, 1e-12, f"loss of step {step}, {where}")
        # GPipe keeps all micro-batches; 1F1B as many as stages are still to come, and itself.
        assert row.most_kept == (MICRO_BATCHES if schedule == "GPipe" else p - row.stage), where
        neighbours = (row.stage > 0) + (row.stage < p - 1)
        numbers = MICRO_BATCHES * ROWS * LENGTH * CONFIG.hidden_size
        assert row.sent == neighbours * numbers * 8, where
    ends = [row.weights["tokens.weight"] for row in found if "tokens.weight" in row.weights]
    assert all(torch.equal(end, ends[0]) for end in ends), "the embedding's copies differ"


def test_what_cannot_work_is_refused() -> None:
    for messages in run_ranks(pipeline_ranks.refusals, 2, CONFIG):
        for message, expected in zip(
            messages,
            [
                "pp_size 2 × tp_size 2 must be between 1 and the 2 ranks",
                "dropout is 0.1",
                "3 layers don't divide by 2 stages; these would work: 1, 3",
                "schedule is 'ZB'; there are GPipe, 1F1B",
                "microbatches",  # torch's own words
                "tokens are [3, 3]; expected [4, 3]",
                "targets are [3, 3]; expected [4, 3]",
            ],
            strict=True,
        ):
            assert expected in message


def test_a_strided_tensor_is_not_sent() -> None:
    with pytest.raises(RankError, match=r"strides \(1, 3\)"):
        run_ranks(pipeline_ranks.strided_send, 2)


def test_the_bubble_shrinks_with_micro_batches() -> None:
    """Lower bounds only: on a busy machine a stage may wait for its core as well."""
    asleep = bubbles.tables(3, CONFIG, (1, 4))[1]
    shares = {name: asleep.figures[f"bubble {name} GPipe sleeping"] for name in (
        "p=2 m=1", "p=2 m=4", "p=4 m=1", "p=4 m=4"
    )}  # fmt: skip
    assert bubbles.bubble(2, 1) == 1 / 2
    assert bubbles.bubble(4, 4) == 3 / 7
    for name, share in shares.items():
        assert share > 0.8 * asleep.figures[f"bubble {name} expected"], name
    assert shares["p=2 m=4"] < shares["p=2 m=1"]
    assert shares["p=4 m=4"] < shares["p=4 m=1"]


@pytest.mark.long
def test_memory_and_wire_are_what_the_shapes_say() -> None:
    """`beside` compares the losses of all layouts itself."""
    speed, held = pipeline.beside(2, CONFIG, (4, 8))
    assert speed.figures["tokens/s TP 2"] > 0
    found, m = {name: value * 2**20 for name, value in held.figures.items()}, 8
    tokens, h, layers = m * ROWS * CONFIG.seq_length, CONFIG.hidden_size, CONFIG.num_layers
    assert found["reduced one rank"] == found["passed on TP 2"] == 0
    for schedule in ("GPipe", "1F1B"):
        assert found[f"passed on {schedule} 2"] == tokens * h * 4
        assert found[f"passed on {schedule} 4"] == 2 * tokens * h * 4  # of a stage between
        assert found[f"reduced {schedule} 2"] == 128 * h * 4  # the tied gradient, padded rows too
    # 4 all-reduces a layer, the embedding's, the output layer's, and 3 numbers a token.
    wanted = tokens * ((4 * layers + 2) * h + 3) * 4
    assert found["reduced TP 2"] == wanted
    assert found["reduced TP 4"] == 1.5 * wanted
    for name in ("GPipe 2", "GPipe 4", "TP 2 × GPipe 2"):
        more = found[f"activations m=8 {name}"] / found[f"activations m=4 {name}"]
        assert 1.8 < more < 2.1, name
    for name in ("1F1B 2", "TP 2 × 1F1B 2", "TP 2"):
        more = found[f"activations m=8 {name}"] / found[f"activations m=4 {name}"]
        assert more < 1.3, name
