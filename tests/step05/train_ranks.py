"""The real training program inside ranks, on a tiny model and a text that the test wrote."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from step01_single_gpu import GPT
from step01_single_gpu.batches import global_batch
from step01_single_gpu.config import PAPER_MODELS, GPTConfig
from step01_single_gpu.data import open_data, prepare
from step01_single_gpu.optimizer import lr_at, make_optimizer
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp import loop, program, train
from step05_hybrid_dp.load import load_run
from step05_hybrid_dp.options import Options

TINY = GPTConfig(1, 8, hidden_size=16, num_layers=2, num_heads=4)


def options(folder: Path, **others: Any) -> Options:
    """A short run with dropout on; `folder` has text.txt."""
    given: dict[str, Any] = {
        "model": "tiny", "steps": 6, "batch_size": 8, "lr": 1e-2, "warmup": 2, "valid_every": 3,
        "checkpoint_every": 100, "corpus": str(folder / "text.txt"), "root": folder / "data",
        "precision": "fp32", "vocab_multiple": 1, "compare_every": 2,
    }  # fmt: skip
    return Options(**{**given, **others})


def run(given: Options, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """train.main on this rank; what it printed, and where the run is."""
    PAPER_MODELS["tiny"] = TINY
    torch.set_default_dtype(dtype)
    loop.gemm_peak = program.gemm_peak = lambda *_: 1e9  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        folder = train.main(given)
    return {"run": folder, "printed": printed.getvalue()}


def write_text(folder: Path) -> None:
    lines = [f"line {i} of a text, and {'a longer one' * (i % 3)}\n" for i in range(400)]
    (folder / "text.txt").write_text("".join(lines))
    prepare(str(folder / "text.txt"), "bpe8192", folder / "data")  # once, not by every test


def reference_losses(given: Options) -> list[float]:
    """The same training in a few lines, unpartitioned, on step 1's model: losses of each step."""
    import dataclasses

    data = open_data(prepare(given.corpus, given.tokenizer, given.root))
    config = dataclasses.replace(TINY, vocab_size=data.train.vocab_size, dropout=given.dropout)
    rng = RNGTracker(given.seed, mode="invariant")
    model = GPT(config, seed=given.seed, dropout=rng.dropout)
    optimizer, losses = make_optimizer(model, weight_decay=given.weight_decay), []
    for step in range(given.steps):
        batch = global_batch(
            data.train.ids, step, batch_size=given.batch_size, seq_length=8, seed=given.seed
        )
        rng.at(step, 0)
        optimizer.zero_grad()
        loss = model.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(
                step, peak=given.lr, minimum=given.min_lr, warmup=given.warmup, total=given.steps
            )
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """A finished run's weights, opened in this one process."""
    PAPER_MODELS["tiny"] = TINY
    model, _ = load_run(folder)
    return {n: p.detach() for n, p in model.named_parameters()}


def interrupted(given: Options, at: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A run that is asked to stop after step `at`, on the last rank only."""
    import torch.distributed as dist

    original = loop.train_step

    def train_step(training: Any, step: int) -> Any:
        result = original(training, step)
        if step + 1 == at and dist.get_rank() == dist.get_world_size() - 1:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", train_step)
        return run(given, dtype)


def failing(cases: dict[str, Options]) -> dict[str, str]:
    """What each of these says; and that nothing was left behind."""
    said = {}
    for name, case in cases.items():
        try:
            run(case)
            said[name] = "no error"
        except ValueError as error:
            said[name] = str(error)
    return said


def other_options_on_rank_1(given: Options, changed: Options) -> str:
    import torch.distributed as dist

    try:
        run(changed if dist.get_rank() == 1 else given)
    except ValueError as error:
        return str(error)
    return "no error"


def drifted() -> list[str]:
    """A replica that differs in one bit on rank 1 of tp = 2 or dp = 2."""
    import torch.distributed as dist

    from step04_embeddings_loss import ParallelGPT
    from step05_hybrid_dp.grid import Grid
    from step05_hybrid_dp.replicas import compare_replicas

    config = GPTConfig(7, 8, hidden_size=16, num_layers=1, num_heads=4)
    world, said = dist.group.WORLD, []
    for tp in (world, None):
        model = ParallelGPT(config, group=tp, vocab_multiple=1)
        grid = Grid(*((2, 1) if tp is not None else (1, 2)), device_type="cpu")
        compare_replicas(model, grid)
        for parameter in (model.ln.weight, model.blocks[0].mlp.down.bias, model.tokens.weight):
            if dist.get_rank() == 1:
                parameter.data.view(-1)[0] += 1e-7
        try:
            compare_replicas(model, grid)
            said.append("no error")
        except RuntimeError as error:
            said.append(str(error))
    return said


def dying(given: Options) -> str:
    """A run whose first step fails on all ranks, as if killed before any was done."""

    def killed(training: Any, step: int) -> Any:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", killed)
        try:
            run(given)
        except RuntimeError as error:
            return str(error)
    return "no error"


def timeouts(seconds: float) -> dict[str, list[float]]:
    """Of every backend of a 2 x 2 grid's groups."""
    from step05_hybrid_dp.grid import Grid

    grid = Grid(2, 2, device_type="cpu", timeout=seconds)
    found = {}
    for name, group in (("tp", grid.tp_group), ("dp", grid.dp_group)):
        assert group is not None
        backend = group._get_backend(torch.device("cpu"))
        found[name] = [backend.options._timeout.total_seconds()]
    return found
