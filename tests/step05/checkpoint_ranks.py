"""Functions that run inside ranks: saving, loading and training on a (dp, tp) grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from step01_single_gpu.batches import global_batch
from step01_single_gpu.config import GPTConfig
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import gather_full_state_dict
from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import Group, all_gather, all_reduce_
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import VocabParallelEmbedding
from step04_embeddings_loss.gpt import ParallelGPT
from step05_hybrid_dp.checkpoint import load_checkpoint, save_checkpoint

# 51 words: 26 + 25 rows on 2 ranks, 13 + 13 + 13 + 12 on 4.
CONFIG = GPTConfig(51, 8, hidden_size=16, num_layers=2, num_heads=4, dropout=0.2)
BATCH, SEED = 4, 7


class Place:
    """A rank's place on the grid, as step 5's Grid tells it."""

    def __init__(self, tp_size: int, dp_size: int) -> None:
        self.tp_size, self.dp_size = tp_size, dp_size
        self.tp_group: Group = None
        self.dp_group: Group = None
        self.dp_rank = self.tp_rank = 0
        if dist.is_initialized():
            mesh = init_device_mesh("cpu", (dp_size, tp_size), mesh_dim_names=("dp", "tp"))
            self.tp_group, self.dp_group = mesh.get_group("tp"), mesh.get_group("dp")
            self.dp_rank, self.tp_rank = divmod(dist.get_rank(), tp_size)


class Run:
    """A model in training: everything that a checkpoint must bring back."""

    def __init__(
        self,
        place: Place,
        mode: str = "invariant",
        dtype: torch.dtype = torch.float64,
        seed: int = SEED,
    ) -> None:
        self.place = place
        self.rng = RNGTracker(
            seed, tp_rank=place.tp_rank, tp_size=place.tp_size, dp_rank=place.dp_rank, mode=mode
        )
        self.model = ParallelGPT(CONFIG, group=place.tp_group, rng=self.rng, vocab_multiple=1)
        self.model.to(dtype)
        self.optimizer = make_optimizer(self.model, lr=0.0)

    def train(self, steps: range) -> None:
        place, rows = self.place, BATCH // self.place.dp_size
        corpus = torch.randint(51, (200,), generator=torch.Generator().manual_seed(1))
        for step in steps:
            first = place.dp_rank * rows
            batch = global_batch(corpus, step, batch_size=BATCH, seq_length=8, seed=SEED)
            inputs, targets = (part[first : first + rows] for part in batch)
            self.rng.at(step, first)
            self.optimizer.zero_grad()
            loss = self.model.loss(inputs, targets, reduction="sum", divisor=BATCH * 8)
            loss.backward()
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                all_reduce_(parameter.grad, place.dp_group)
            for group in self.optimizer.param_groups:
                group["lr"] = 1e-3 * (step + 1)
            self.optimizer.step()

    def save(self, folder: Path, step: int, **more: Any) -> Path:
        return save_checkpoint(
            folder, self.model, self.optimizer, step=step, rng=self.rng, grid=self.place, **more
        )

    def load(self, folder: Path) -> dict[str, Any]:
        return load_checkpoint(folder, self.model, self.optimizer, rng=self.rng, grid=self.place)

    def whole(self) -> dict[str, Tensor]:
        """Weights and moments, whole, by name."""
        found = gather_full_state_dict(self.model)
        table = cuts(self.model)
        for name, parameter in self.model.named_parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                moment, (dim, group, size) = self.optimizer.state[parameter][key], table[name]
                if dim is not None:
                    moment = torch.cat(list(all_gather(moment, group)), dim)
                    moment = moment if size is None else moment.narrow(dim, 0, size)
                found[f"{name}.{key}"] = moment.clone()
            found[f"{name}.step"] = self.optimizer.state[parameter]["step"].clone()
        return found


# ---- going on


def straight_and_resumed(folder: str, tp_size: int, dp_size: int) -> dict[str, Any]:
    """Ten steps in one go, and five, a checkpoint, a new start and five more; paper's dropout."""
    place = Place(tp_size, dp_size)

    def new() -> Run:
        torch.manual_seed(dist.get_rank() + 100)
        return Run(place, mode="paper", dtype=torch.float32)

    straight = new()
    straight.train(range(10))
    first = new()
    first.train(range(5))
    torch.rand(3)
    noise = torch.get_rng_state()
    first.save(Path(folder), 5, extra={"tokens": 160})
    resumed, without_streams = new(), new()
    load_checkpoint(folder, without_streams.model, without_streams.optimizer, grid=place)
    told = resumed.load(Path(folder))
    same_noise = torch.equal(torch.get_rng_state(), noise)
    for run in (resumed, without_streams):
        run.train(range(told["step"], 10))

    def equal(run: Run) -> bool:
        pairs = zip(run.model.parameters(), straight.model.parameters(), strict=True)
        moments = zip(run.optimizer.state.values(), straight.optimizer.state.values(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs) and all(
            torch.equal(a[key], b[key]) for a, b in moments for key in a
        )

    options = [
        {k: v for k, v in g.items() if k != "params"} for g in resumed.optimizer.param_groups
    ]
    return {
        "told": told,
        "resumed": equal(resumed),
        "without streams": equal(without_streams),
        "noise": same_noise,
        "options": options,
    }


def trained_and_saved(folder: str, tp_size: int, dp_size: int, steps: int) -> dict[str, Tensor]:
    run = Run(Place(tp_size, dp_size))
    run.train(range(steps))
    run.save(Path(folder), steps)
    return run.whole()


def loaded_and_trained(
    folder: str, tp_size: int, dp_size: int, until: int
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """What load says; the whole state right after it; and at step `until`."""
    run = Run(Place(tp_size, dp_size), seed=SEED)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(9.0)  # padding too
    told = run.load(Path(folder))
    padding = run.model.tokens.weight[run.model.tokens.words.count :]
    assert not padding.any(), "padding isn't zero after loading"
    after = run.whole()
    run.train(range(told["step"], until))
    return told, after, run.whole()


class Tables(nn.Module):
    """Vocabularies that don't divide: 51 rows are 7 a rank on 8 ranks, the last has 2; of 5 rows
    three ranks of 8 have none."""

    def __init__(self, group: Group = None) -> None:
        super().__init__()
        self.words = VocabParallelEmbedding(51, 3, group=group, std=1.0, seed=1, name="words")
        self.few = VocabParallelEmbedding(5, 3, group=group, std=1.0, seed=2, name="few")

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        ids = torch.arange(51)
        (self.words(ids).square().sum() + self.few(ids % 5).pow(3).sum()).backward()
        optimizer.step()


def tables_saved(folder: str) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Saved on all ranks after a step of Adam, and loaded again; whole weights, shapes held."""
    place = Place(dist.get_world_size(), 1)
    tables = Tables(place.tp_group)
    optimizer = torch.optim.AdamW(tables.parameters(), lr=0.1)
    tables.step(optimizer)
    save_checkpoint(folder, tables, optimizer, step=1, grid=place)
    whole = gather_full_state_dict(tables)
    again = Tables(place.tp_group)
    load_checkpoint(folder, again, grid=place)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, tables.state_dict()[name]), name
    return whole, {name: list(tensor.shape) for name, tensor in tables.state_dict().items()}


def streams(folder: str, tp_size: int, dp_size: int, save: bool) -> dict[str, Any]:
    """What each rank's two streams draw next: after saving, or after loading."""
    place = Place(tp_size, dp_size)
    run = Run(place, mode="paper", dtype=torch.float32)
    beginning = _draws(run.rng)
    told = None
    if save:
        run.save(Path(folder), 5)
    else:
        told = run.load(Path(folder))["rng"]
    return {"told": told, "beginning": beginning, "next": _draws(run.rng)}


def _draws(rng: RNGTracker) -> dict[str, list[float]]:
    with rng.replicated():
        replicated = torch.rand(3).tolist()
    with rng.sharded():
        return {"replicated": replicated, "sharded": torch.rand(3).tolist()}
