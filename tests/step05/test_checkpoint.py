"""A checkpoint brings everything back: bit for bit at the same layout, exactly at any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import run_ranks
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss.gpt import ParallelGPT
from step05_hybrid_dp.checkpoint import (
    keep_newest,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from tests.compare import assert_close

from .checkpoint_fault_ranks import little, values, writers
from .checkpoint_ranks import (
    CONFIG,
    Place,
    Run,
    Tables,
    loaded_and_trained,
    straight_and_resumed,
    streams,
    tables_saved,
    trained_and_saved,
)

ALONE = Place(1, 1)


def test_a_resumed_run_is_the_same_run_bit_for_bit(tmp_path: Path) -> None:
    """Pitfalls 60 and 61: dropout on, learning rate from the step, all streams restored."""
    for rank, found in enumerate(run_ranks(straight_and_resumed, 2, str(tmp_path), 2, 1)):
        assert found["resumed"], f"rank {rank}: 5 + 5 steps are not 10 steps"
        assert not found["without streams"], "dropout didn't matter here: nothing was proved"
        assert found["noise"], f"rank {rank}: torch's global stream was not restored"
        assert (found["told"]["step"], found["told"]["extra"]) == (5, {"tokens": 160})
        assert found["told"]["rng"] == "continued"
        assert [g["weight_decay"] for g in found["options"]] == [0.01, 0.0]
        assert found["options"][0]["betas"] == (0.9, 0.999)


def test_opens_at_any_layout_with_adams_moments(tmp_path: Path) -> None:
    """Pitfall 62: tp = 2, dp = 2 for five steps, then five more at other layouts, in float64 and
    with dropout that is the same everywhere. Loading moves numbers and computes nothing, so the
    state must arrive with the same bits."""
    expected = run_ranks(trained_and_saved, 4, str(tmp_path), 2, 2, 5)[0]
    run = Run(ALONE)
    run.train(range(10))
    straight = run.whole()
    for tp_size, dp_size in ((1, 1), (4, 1), (1, 2)):
        if tp_size * dp_size == 1:
            results = [loaded_and_trained(str(tmp_path), 1, 1, 10)]  # without a process group
        else:
            ranks = tp_size * dp_size
            results = run_ranks(loaded_and_trained, ranks, str(tmp_path), tp_size, dp_size, 10)
        for rank, (told, after, later) in enumerate(results):
            where = f"tp {tp_size}, dp {dp_size}, rank {rank}"
            assert told["layout"] == {"tp_size": 2, "dp_size": 2}
            assert told["rng"] == "continued"  # masks of mode "invariant" need no stream
            assert after.keys() == expected.keys()
            for name, tensor in after.items():
                assert torch.equal(tensor, expected[name]), f"{where}: {name} arrived changed"
            for name, tensor in later.items():
                wanted = straight[name]
                if "qkv.bias" in name and tensor.dim():
                    # K's has no gradient but rounding noise, which Adam scales up.
                    tensor, wanted = tensor[::2], wanted[::2]
                assert_close(tensor, wanted, 1e-10, f"{where}: {name} after five more steps")


def test_a_vocabulary_that_does_not_divide(tmp_path: Path) -> None:
    """Saved at 8 ranks (the last has 2 of its 7 rows; three ranks have none of 5): opens alone."""
    results = run_ranks(tables_saved, 8, str(tmp_path))
    whole, _ = results[0]
    assert [results[r][1]["words.weight"] for r in (0, 7)] == [[7, 3], [7, 3]]
    alone = Tables()
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.1)
    alone.step(optimizer)
    moments = [s["exp_avg_sq"].clone() for s in optimizer.state.values()]
    fresh = Tables()
    again = torch.optim.AdamW(fresh.parameters(), lr=0.1)
    load_checkpoint(tmp_path, fresh, again)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, whole[name]), name
    for state, expected in zip(again.state.values(), moments, strict=True):
        assert_close(state["exp_avg_sq"], expected, 1e-6, "second moments")


def test_torch_itself_can_read_it_and_finds_true_rows_only(tmp_path: Path) -> None:
    run = Run(ALONE)
    run.model = ParallelGPT(CONFIG, rng=run.rng, vocab_multiple=32).double()  # 51 rows in 64
    run.optimizer = make_optimizer(run.model)
    run.train(range(1))
    path = run.save(tmp_path, 1)
    expected = run.whole()
    wanted = {"model.tokens.weight": torch.zeros(51, 16, dtype=torch.float64)}
    wanted["optimizer.tokens.weight.exp_avg"] = torch.zeros(51, 16, dtype=torch.float64)
    with pytest.warns(UserWarning, match="single process"):
        load(wanted, storage_reader=FileSystemReader(path), no_dist=True)
    assert torch.equal(wanted["model.tokens.weight"], expected["tokens.weight"])
    moment = wanted["optimizer.tokens.weight.exp_avg"]
    assert torch.equal(moment, expected["tokens.weight.exp_avg"])
    index = json.loads((path / "state.json").read_text())["index"]
    assert index["model.tokens.weight"]["shape"] == [51, 16]
    assert sum(name.endswith("tokens.weight") for name in index) == 1  # tied: one name


def test_each_file_has_one_writer(tmp_path: Path) -> None:
    """Pitfall 64: 4 ranks as two servers of 2; only the first server writes."""
    opened = run_ranks(writers, 4, str(tmp_path), 2, 2)
    every = [path for paths in opened for path in paths]
    assert len(every) == len(set(every)), sorted(every)
    assert any(".distcp" in path for path in opened[0])
    assert any(".distcp" in path for path in opened[1])
    assert opened[2] == opened[3] == []


def test_random_streams_at_the_same_layout_and_at_another(tmp_path: Path) -> None:
    before = run_ranks(streams, 4, str(tmp_path), 2, 2, True)
    same = run_ranks(streams, 4, str(tmp_path), 2, 2, False)
    for rank in range(4):
        assert same[rank]["told"] == "continued"
        assert same[rank]["next"] == before[rank]["next"], f"rank {rank}"
    other = run_ranks(streams, 4, str(tmp_path), 4, 1, False)
    assert {found["told"] for found in other} == {"restarted"}
    assert len({tuple(found["next"]["replicated"]) for found in other}) == 1
    drawn = {tuple(found["next"]["sharded"]) for found in other}
    assert len(drawn) == 4, "ranks share a stream"
    begun = {tuple(found[when]["sharded"]) for found in before for when in ("beginning", "next")}
    assert not drawn & begun, "a restarted stream repeats an old one"


def test_another_seed_is_refused(tmp_path: Path) -> None:
    model, optimizer = little(ALONE, 1.0)
    save_checkpoint(tmp_path, model, optimizer, step=1, rng=RNGTracker(3))
    with pytest.raises(ValueError, match=r"\[3, 'paper'\], this one has \[4, 'paper'\]"):
        load_checkpoint(tmp_path, model, rng=RNGTracker(4))


def test_without_optimizer_or_tracker_only_the_weights_change(tmp_path: Path) -> None:
    model, optimizer = little(ALONE, 1.0)
    save_checkpoint(tmp_path, model, optimizer, step=1, extra={"lr": 0.1})
    other, untouched = little(ALONE, 2.0)
    other.to(torch.bfloat16)
    torch.rand(3)
    noise = torch.get_rng_state()
    assert load_checkpoint(tmp_path, other)["rng"] is None
    assert torch.equal(torch.get_rng_state(), noise)
    assert other.up.weight.dtype == torch.bfloat16
    assert other.up.weight.unique().tolist() == [1.0]
    load_checkpoint(tmp_path, other, resumed := make_optimizer(other))
    state = resumed.state[other.up.weight]
    assert [state[k].dtype for k in ("step", "exp_avg")] == [torch.float32, torch.bfloat16]
    assert untouched.state[next(iter(untouched.state))]["exp_avg"].unique().tolist() == [2.0]


def test_optimizer_state_goes_by_name_not_by_number(tmp_path: Path) -> None:
    """Pitfall 50: the same groups, their parameters in another order."""
    model, optimizer = little(ALONE, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = 0.25
    for number, state in enumerate(optimizer.state.values()):
        state["exp_avg"].fill_(number)
    by_name = {n: optimizer.state[p]["exp_avg"].clone() for n, p in model.named_parameters()}
    save_checkpoint(tmp_path, model, optimizer, step=1)
    groups = [{**g, "params": g["params"][::-1]} for g in make_optimizer(model).param_groups]
    turned = torch.optim.AdamW(groups, fused=True)
    load_checkpoint(tmp_path, model, turned)
    assert [group["lr"] for group in turned.param_groups] == [0.25, 0.25]
    for name, parameter in model.named_parameters():
        assert torch.equal(turned.state[parameter]["exp_avg"], by_name[name]), name


class Tied(nn.Module):
    """An output layer that is the embedding, by name too, or only was once."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_weight_has_one_name_and_is_never_untied_or_tied(tmp_path: Path, tied: bool) -> None:
    """Pitfalls 49 and 50."""
    model, same = Tied(tied), Tied(tied)
    optimizer, again = (torch.optim.AdamW(m.parameters()) for m in (model, same))
    model.head(model.tokens(torch.arange(5))).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, model, optimizer, step=1)
    load_checkpoint(tmp_path, same, again)
    assert torch.equal(same.head.weight, model.head.weight)
    assert len(again.state) == len(list(same.parameters()))
    with pytest.raises(ValueError, match=r"head.weight is (unknown here|not in the checkpoint)"):
        load_checkpoint(tmp_path, Tied(not tied))


def test_newest_latest_and_what_is_kept(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    paths = []
    for step in (1, 2, 9, 3):  # back to 3: the newest is what was saved last, not the highest step
        model, optimizer = little(ALONE, float(step))
        paths.append(save_checkpoint(tmp_path, model, optimizer, step=step, keep=3))
        assert newest_checkpoint(tmp_path) == paths[-1]
    assert [path.exists() for path in paths] == [False, True, True, True]
    again = save_checkpoint(tmp_path, model, optimizer, step=3)  # beside it, never over it
    assert again.name == "step-00000003-2"
    assert load_checkpoint(paths[2], model, optimizer)["step"] == 9
    assert values(model, optimizer) == {9.0}
    (tmp_path / "latest").write_text(paths[1].name)
    keep_newest(tmp_path, 1)
    left = sorted(path.name for path in tmp_path.glob("*"))
    assert left == ["latest", "step-00000002", "step-00000003-2"]  # what `latest` names stays
    (tmp_path / "latest").unlink()
    assert newest_checkpoint(tmp_path) == again
    with pytest.raises(ValueError, match="keep is 0"):
        keep_newest(tmp_path, 0)
