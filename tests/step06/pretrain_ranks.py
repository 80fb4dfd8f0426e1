"""Pretraining inside ranks: the engine on batches of all kinds, and the real program on a text
that the test wrote."""

from __future__ import annotations

import contextlib
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from step01_single_gpu.optimizer import lr_at, make_optimizer
from step02_mlp_parallel import (
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
)
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp import DataParallel, Grid, loop, program
from step05_hybrid_dp.batches import own_rows, rows_of
from step06_bert_layernorm import BERT, PAPER_MODELS, BertConfig, ParallelBERT, pretrain
from step06_bert_layernorm.examples import Batch, pretraining_batch
from step06_bert_layernorm.objective import PRETRAINING
from step06_bert_layernorm.scoring import guesses, score
from step06_bert_layernorm.text import open_text, prepare_text
from tests.step06.bert_ranks import SEED

TINY = BertConfig(1, 24, hidden_size=16, num_layers=2, num_heads=4)
WORDS = [f"{a}{b}" for a in "bcdfgklmnp" for b in "aeiou"]


def engine_steps(
    tp_size: int, config: BertConfig, full: dict[str, Tensor], batches: list[Batch], micro: int
) -> tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """The parts of each step's loss, whole gradients of the first, and the weights at the end."""
    grid = Grid(tp_size, dist.get_world_size() // tp_size, device_type="cpu")
    place = {"tp_rank": grid.tp_rank, "tp_size": tp_size, "dp_rank": grid.dp_rank}
    rng = RNGTracker(SEED, **place, mode="invariant")
    model = ParallelBERT(config, group=grid.tp_group, rng=rng, vocab_multiple=1).double()
    load_full_state_dict(model, full)
    engine = DataParallel(model, grid.dp_group, objective=PRETRAINING)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, first = [], {}
    for step, batch in enumerate(batches):
        own = Batch(*(own_rows(t, grid.dp_rank, grid.dp_size) for t in batch))
        rows = len(own.order)
        parts = [
            rows_of(own, slice(i, i + micro), torch.device("cpu")) for i in range(0, rows, micro)
        ]
        optimizer.zero_grad()
        seen.append(
            engine.backward_global_mean(
                parts, before=partial(place_at, rng, step, grid.dp_rank * rows)
            )
        )
        if step == 0:
            first = gather_full_gradients(model)
        optimizer.step()
    return seen, first, gather_full_state_dict(model)


def place_at(rng: RNGTracker, step: int, first: int, row: int) -> None:
    rng.at(step, first + row)


def scored(
    tp_size: int, config: BertConfig, full: dict[str, Tensor], batch: Batch
) -> tuple[Any, Tensor]:
    """Scores over this rank's rows, and the guesses for all of them; a rank without words too."""
    grid = Grid(tp_size, dist.get_world_size() // tp_size, device_type="cpu")
    model = ParallelBERT(config, group=grid.tp_group).double()
    load_full_state_dict(model, full)
    own = [Batch(*(t[i : i + 1] for t in batch)) for i in range(grid.dp_rank, 4, grid.dp_size)]
    return score(model, own, grid.dp_group), guesses(model, batch)


def write_texts(folder: Path) -> None:
    """Twenty documents of 20 words in all, and a vocabulary of 105 entries."""
    generator = torch.Generator().manual_seed(0)
    (folder / "texts").mkdir()
    for number in range(20):
        topic, sentences = WORDS[5 * (number % 4) :][:5], []
        for length in torch.randint(3, 7, (12,), generator=generator).tolist():
            words = torch.randint(5, (length,), generator=generator).tolist()
            sentences.append(" ".join(topic[i] for i in words) + ".")
        (folder / "texts" / f"{number:02d}.txt").write_text(" ".join(sentences))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    pieces = [f"##{word}" for word in WORDS[:49]]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS, *pieces]) + "\n")
    prepare_text(str(folder / "texts"), str(folder / "vocab.txt"), folder / "data")


def options(folder: Path, **others: Any) -> pretrain.Options:
    """A short run with dropout on."""
    PAPER_MODELS["tiny"] = TINY
    given: dict[str, Any] = {
        "model": "tiny", "steps": 4, "batch_size": 8, "lr": 1e-2, "warmup": 2, "valid_every": 2,
        "checkpoint_every": 100, "corpus": str(folder / "texts"), "root": folder / "data",
        "precision": "fp32", "compare_every": 2, "valid_examples": 9,
        "tokenizer": str(folder / "vocab.txt"),
    }  # fmt: skip
    return pretrain.Options(**{**given, **others})


def run(
    given: pretrain.Options, dtype: torch.dtype = torch.float32, plotted: bool = False
) -> dict[str, Any]:
    """pretrain.main on this rank; what it printed, and where the run is."""
    PAPER_MODELS["tiny"] = TINY
    if not plotted:  # to load matplotlib takes longer than all the rest
        pretrain.plot_pretraining = lambda *_: None  # type: ignore[attr-defined]
    torch.set_default_dtype(dtype)
    loop.gemm_peak = program.gemm_peak = lambda *_: 1e9  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        folder = pretrain.main(given)
    return {"run": folder, "printed": printed.getvalue()}


def interrupted(
    given: pretrain.Options, at: int, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """A run in which the last rank is asked to stop after step `at`."""
    import os
    import signal

    original = loop.train_step

    def train_step(training: Any, step: int) -> Any:
        result = original(training, step)
        if step + 1 == at and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", train_step)
        return run(given, dtype)


def failing(cases: dict[str, pretrain.Options]) -> dict[str, str]:
    said = {}
    for name, case in cases.items():
        try:
            run(case)
            said[name] = "no error"
        except ValueError as error:
            said[name] = str(error)
    return said


def reference(given: pretrain.Options) -> tuple[list[float], dict[str, Tensor]]:
    """The same training in a few lines, on the unpartitioned BERT: losses, weights at the end."""
    torch.set_default_dtype(torch.float64)
    text = open_text(prepare_text(given.corpus, given.tokenizer, given.root))
    config = pretrain.model_config(given, text.tokenizer.get_vocab_size())
    rng = RNGTracker(given.seed, mode="invariant")
    model = BERT(config, seed=given.seed, dropout=rng.dropout)
    optimizer, losses = make_optimizer(model, weight_decay=given.weight_decay), []
    for step in range(given.steps):
        batch = pretraining_batch(
            text.train, text.vocabulary, step, batch_size=given.batch_size, seq_length=24,
            seed=given.seed,
        )  # fmt: skip
        rng.at(step, 0)
        optimizer.zero_grad()
        loss = model.loss(**batch._asdict())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(
                step, peak=given.lr, minimum=given.min_lr, warmup=given.warmup, total=given.steps
            )
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()
