"""Fine-tuning inside ranks, and the same steps with an unpartitioned BERT."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import (
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
)
from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import Group
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp import Grid, checkpoint, clip_grad_norm_
from step06_bert_layernorm import BERT, BertConfig, ParallelBERT, finetune, finetune_report
from step06_bert_layernorm.finetune_options import Options
from step06_bert_layernorm.finetune_step import Place, backward_rows, predict
from step06_bert_layernorm.heads import Classifier, SpanReader
from step06_bert_layernorm.task_rows import Row

SEED = 5
Case = tuple[str, BertConfig, dict[str, Tensor], list[list[Row]], int | None]
Result = tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], Tensor]


class Alone:
    """The grid of one process."""

    tp_group: Group = None
    dp_group: Group = None
    tp_rank = dp_rank = 0
    tp_size = dp_size = 1


def headed(kind: str, bert: Any, rng: RNGTracker) -> nn.Module:
    """A classifier of 3, a choice among 3 texts, or a span reader."""
    if kind == "spans":
        return SpanReader(bert, seed=SEED)
    scores = 3 if kind == "pairs" else 1
    return Classifier(bert, scores, seed=SEED, dropout=rng.dropout)


def whole(case: Case) -> Result:
    """The reference: an unpartitioned BERT with the same head, all rows at once."""
    kind, config, full, batches, _ = case
    rng = RNGTracker(SEED, mode="invariant")
    model = headed(kind, BERT(config, heads=False, dropout=rng.dropout), rng).double()
    model.load_state_dict(full)
    return _steps(model, rng, batches, Place(Alone(), 0, torch.device("cpu")))


def trained(cases: list[Case], tp: int, dp: int) -> list[Result]:
    """The same with a ParallelBERT on this grid."""
    grid = Grid(tp, dp, device_type="cpu")
    found = []
    for kind, config, full, batches, micro in cases:
        rng = RNGTracker(
            SEED, tp_rank=grid.tp_rank, tp_size=tp, dp_rank=grid.dp_rank, mode="invariant"
        )
        bert = ParallelBERT(config, group=grid.tp_group, rng=rng, heads=False, vocab_multiple=1)
        model = headed(kind, bert, rng).double()
        load_full_state_dict(model, full)
        found.append(_steps(model, rng, batches, Place(grid, 0, torch.device("cpu"), micro)))
    return found


def _steps(model: Any, rng: RNGTracker, batches: list[list[Row]], place: Place) -> Result:
    """Losses, first whole gradients, this rank's own replicated gradients, final whole weights, and
    predictions for the first batch's rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    assert len(make_optimizer(model).param_groups[0]["params"]) > 0
    losses, first, own = [], {}, {}
    for step, rows in enumerate(batches):
        model.zero_grad()
        losses.append(backward_rows(model, rows, step, place, rng))
        if step == 0:
            named = dict(model.named_parameters())
            first = gather_full_gradients(model) if not isinstance(model.bert, BERT) else _of(model)
            copies = [] if isinstance(model.bert, BERT) else cuts(model).items()
            whole_names = [n for n, cut in copies if cut.shard_dim is None]
            own = {n: g.clone() for n in whole_names if (g := named[n].grad) is not None}
        clip_grad_norm_(model, 1.0, place.grid.tp_group)
        optimizer.step()
    state = model.state_dict() if isinstance(model.bert, BERT) else gather_full_state_dict(model)
    return losses, first, own, state, predict(model, batches[0], place, batch_size=2)


def _of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def run(options: Options, plotted: bool = True) -> Path:
    """The program, as every rank runs it, without torchrun."""
    if not plotted:  # to load matplotlib takes longer than all the rest
        finetune_report.plot_curve = lambda *_: None  # type: ignore[assignment]
    return finetune.main(dataclasses.replace(options, device="cpu"))


def counted(options: Options) -> int:
    """The program; returns the optimizer steps it took."""
    return stopped(options, -1, "")


def stopped(options: Options, after: int, writing: str = "seed-1") -> int:
    """The program under Ctrl-C: on all ranks, after so many optimizer steps in all, or, if it gets
    there, when those weights are written and not yet in place. Returns the steps it took."""
    taken, step, write = 0, finetune.backward_rows, checkpoint._write

    def one_step(*args: Any) -> Tensor:
        nonlocal taken
        if taken == after:
            raise KeyboardInterrupt
        taken += 1
        return step(*args)

    def write_and_stop(hidden: Path, *args: Any) -> dict[str, Any]:
        files = write(hidden, *args)
        if hidden.parent.name == writing:
            raise KeyboardInterrupt
        return files

    finetune.backward_rows, checkpoint._write = one_step, write_and_stop  # type: ignore[assignment]
    with contextlib.suppress(KeyboardInterrupt):
        run(options, plotted=False)
    return taken


def refused(many: list[Options]) -> list[str]:
    """What the program says of each, on this rank."""
    said = []
    for options in many:
        try:
            run(options)
            said.append("no error")
        except ValueError as error:
            said.append(str(error))
    return said
