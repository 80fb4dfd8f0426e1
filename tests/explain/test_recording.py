"""A recording is of the real block: its numbers are step 1's, its wire is the ledger's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from explain import misconceptions
from explain.misconceptions import MISCONCEPTIONS, made
from explain.record import CONFIG, RANKS, inputs
from explain.steps import BACKWARD, FORWARD
from step01_single_gpu.block import Block
from step02_mlp_parallel import linear
from tests.compare import assert_close

Recording = dict[str, Any]
CUT = RANKS[1:]


def run(recording: Recording, n: int, mistake: str | None = None) -> dict[str, Any]:
    (found,) = (r for r in recording["runs"] if r["ranks"] == n and r["misconception"] == mistake)
    return found  # type: ignore[no-any-return]


def event(recording: Recording, n: int, name: str, mistake: str | None = None) -> dict[str, Any]:
    (found,) = (e for e in run(recording, n, mistake)["events"] if e["name"] == name)
    return found  # type: ignore[no-any-return]


def tensors(event: dict[str, Any], n: int) -> list[Tensor]:
    values = event["values"] * (n if event["same"] else 1)
    assert len(values) == n
    return [torch.tensor(v, dtype=torch.float64).view(event["shape"]) for v in values]


def test_one_rank_is_step_one(recording: Recording) -> None:
    """The reference itself is held against the unpartitioned block of step 1."""
    weights, x, upstream = inputs()
    block = Block(CONFIG).double()
    block.load_state_dict(weights)
    x.requires_grad_()
    y = block(x)
    y.backward(upstream)
    expected = {"y": y.detach()[0], "x.grad": x.grad, "y.grad": upstream}
    expected |= {f"{name}.grad": p.grad for name, p in block.named_parameters()}
    for name, tensor in expected.items():
        (got,) = tensors(event(recording, 1, name), 1)
        assert tensor is not None
        assert_close(got, tensor.view_as(got), 1e-12, name)


@pytest.mark.parametrize("n", CUT)
def test_the_parts_of_n_ranks_are_the_whole_of_one(recording: Recording, n: int) -> None:
    for part in run(recording, n)["events"]:
        whole = event(recording, 1, part["name"])
        (expected,) = tensors(whole, 1)
        got = tensors(part, n)
        if part["layout"] == "cut":
            got = [torch.cat(got, part["dim"])]
        if part["layout"] == "partial":
            got = [torch.stack(got).sum(0)]
        for tensor in got:
            assert_close(tensor, expected, 1e-12, part["name"])
        assert part["whole"] == whole["shape"]
        assert not part["parted"]
    assert run(recording, n)["parts_at"] is None


@pytest.mark.parametrize("n", CUT)
def test_partial_products_are_not_the_sum_yet(recording: Recording, n: int) -> None:
    """Differs before, equal after: else the page would show nothing."""
    for before, after in (
        ("attention.out", "attention.g"),
        ("mlp.down", "mlp.g"),
        ("attention.part.grad", "attention.f.grad"),
        ("mlp.part.grad", "mlp.f.grad"),
    ):
        partial, total = event(recording, n, before), event(recording, n, after)
        assert not partial["same"]
        assert total["same"], "bit for bit the same on all ranks"
        assert all(values != total["values"][0] for values in partial["values"])


@pytest.mark.parametrize("n", RANKS)
def test_four_all_reduces_and_where_they_are(recording: Recording, n: int) -> None:
    events = run(recording, n)["events"]
    names = [e["name"] for e in events]
    turn = names.index("y.grad")
    assert names[:turn] == [step.name for step in FORWARD]
    assert names[turn:] == [step.name for step in BACKWARD]
    for rank in range(n):
        sent = {e["name"]: e["sent"][rank] for e in events if e["sent"][rank]}
        one = [["all_reduce(sum)", 3 * 8, 3 * 8 * 8]]  # tokens, hidden, bytes of float64
        wired = ["attention.g", "mlp.g", "mlp.f.grad", "attention.f.grad"]
        assert sent == (dict.fromkeys(wired, one) if n > 1 else {})


@pytest.mark.parametrize("mistake", MISCONCEPTIONS, ids=lambda m: m.key)
def test_a_misconception_parts_where_it_should(
    recording: Recording, mistake: misconceptions.Misconception
) -> None:
    for n in CUT:
        wrong = run(recording, n, mistake.key)
        first = wrong["events"][wrong["parts_at"]]
        assert first["name"] == mistake.parts_at, n
        assert all(e["difference"] < 1e-12 for e in wrong["events"][: wrong["parts_at"]])
        assert first["difference"] > 0.01, "to be seen at two places"
    assert run(recording, 1, mistake.key)["parts_at"] is None, "one rank hides every mistake"


@pytest.mark.parametrize("n", CUT)
def test_mistakes_are_as_large_as_theory_says(recording: Recording, n: int) -> None:
    bias = inputs()[0]["attention.out.bias"].abs().max().item()
    off = event(recording, n, "attention.bias", "bias-every-rank")
    assert off["difference"] == pytest.approx((n - 1) * bias)

    (right,) = tensors(event(recording, 1, "mlp.g.grad"), 1)
    for got in tensors(event(recording, n, "mlp.g.grad", "g-doubled"), n):
        assert_close(got, n * right, 1e-12, "g's gradient")

    alone = event(recording, n, "mlp.down.bias.grad", "bias-one-rank")
    assert alone["values"][1:] == [None] * (n - 1)
    assert not event(recording, n, "y", "bias-one-rank")["parted"], "the output is right"

    dropped = event(recording, n, "ln2.weight.grad", "f-dropped")
    assert not dropped["same"], "another gradient on each rank"
    assert not event(recording, n, "mlp.f.grad", "f-dropped")["sent"][0]
    assert not event(recording, n, "y", "f-dropped")["parted"]


def test_what_the_ranks_hold_covers_every_matrix_once(recording: Recording) -> None:
    for n in RANKS:
        holds = run(recording, n)["holds"]
        for i, whole in enumerate(holds[0]):
            rows, columns = whole["shape"]
            counts = torch.zeros(rows, columns)
            for rank in range(n):
                held = holds[rank][i]
                counts[torch.tensor(held["rows"])[:, None], torch.tensor(held["columns"])] += 1
            replicated = whole["name"].startswith("ln") or whole["name"] in (
                "attention.out.bias", "mlp.down.bias",
            )  # fmt: skip
            assert (counts == (n if replicated else 1)).all(), whole["name"]


def test_columns_of_a_and_rows_of_b(recording: Recording) -> None:
    held = {h["name"]: h for h in run(recording, 4)["holds"][1]}
    # torch's weight is [out, in]: the paper's columns are its rows.
    assert held["mlp.up.weight"]["rows"] == list(range(8, 16))
    assert held["mlp.up.weight"]["columns"] == list(range(8))
    assert held["mlp.down.weight"]["rows"] == list(range(8))
    assert held["mlp.down.weight"]["columns"] == list(range(8, 16))
    assert held["attention.qkv.weight"]["rows"] == [2, 3, 10, 11, 18, 19]
    stacked = {h["name"]: h for h in run(recording, 2, "qkv-stacked")["holds"][0]}
    assert stacked["attention.qkv.weight"]["rows"] == list(range(12)), "all of Q, half of K"


def test_a_mistake_is_gone_after_its_run() -> None:
    right = linear.all_reduce_
    with made(misconceptions.BY_KEY["f-dropped"]):
        assert linear.all_reduce_ is not right
    assert linear.all_reduce_ is right
