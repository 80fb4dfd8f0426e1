"""BERT's pretraining step against transformers' BERT (`make bench-bert`).

The original order, since transformers has no other; the same sizes, weights and batch: masked words
and sentence order, SDPA, float32, fused AdamW. Losses are checked equal before anything is timed.
Ours is the model that `make train MODEL=bert-mini` trains, on one rank. Theirs makes logits for
every place, ours for those that are asked for; that is part of the comparison.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from step01_single_gpu.machine import keep_freed_memory
from step01_single_gpu.optimizer import make_optimizer
from step06_bert_layernorm import BertConfig, ParallelBERT, to_huggingface_bert
from step06_bert_layernorm.config import PAPER_MODELS

from .report import Step, Table, interleaved, show
from .single import training_table

BATCH = 16


@dataclass(frozen=True)
class Options:
    """Compare one pretraining step of both, in one process."""

    rounds: int = 11
    save: str = ""
    """Also write the tables as JSON into this file."""


def batch_of(config: BertConfig) -> dict[str, Any]:
    """Rows of two sentences and some padding; 15 % of the words are asked for."""
    shape = (BATCH, config.seq_length)
    places = torch.arange(config.seq_length)
    real = places < torch.randint(config.seq_length // 2, config.seq_length + 1, (BATCH, 1))
    tokens = torch.randint(config.vocab_size, shape)
    return {
        "tokens": tokens,
        "targets": tokens.where((torch.rand(shape) < 0.15) & real, -100),
        "segments": (places > config.seq_length // 3).long().expand(shape) * real,
        "padding_mask": real,
        "order": torch.randint(2, (BATCH,)),
    }


def ours(model: ParallelBERT, batch: dict[str, Any]) -> Step:
    return training_step(model, lambda: model.loss(**batch))


def theirs(model: ParallelBERT, batch: dict[str, Any]) -> Step:
    """transformers' BERT with the same weights."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    c = model.config
    peer = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads, intermediate_size=4 * c.hidden_size,
            max_position_embeddings=c.seq_length, hidden_dropout_prob=c.dropout,
            attention_probs_dropout_prob=c.dropout,
        )
    )  # fmt: skip
    peer.set_attn_implementation("sdpa")
    peer.load_state_dict(to_huggingface_bert(model.state_dict()), strict=False)
    peer.train()
    inputs = {
        "input_ids": batch["tokens"],
        "token_type_ids": batch["segments"],
        "attention_mask": batch["padding_mask"].long(),
        "labels": batch["targets"],
        "next_sentence_label": batch["order"],
    }
    return training_step(peer, lambda: peer(**inputs).loss)


def training_step(model: Any, loss_of: Any) -> Step:
    optimizer = make_optimizer(model, lr=1e-4)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step


def tables(options: Options) -> Iterator[Table]:
    keep_freed_memory()
    torch.manual_seed(0)
    for dropout in (0.1, 0.0):
        config = dataclasses.replace(
            PAPER_MODELS["bert-mini"], norm="original", dropout=dropout, hidden_size=256
        )
        batch = batch_of(config)
        exact = ParallelBERT(dataclasses.replace(config, dropout=0.0), vocab_multiple=1)
        losses = (theirs(exact, batch)(), ours(exact, batch)())
        assert abs(losses[0] - losses[1]) < 1e-5 * losses[1], f"not the same model: {losses}"
        model = ParallelBERT(config, vocab_multiple=1)
        steps = {"ours": ours(model, batch), "transformers": theirs(model, batch)}
        title = f"BERT's pretraining step in one process, dropout {dropout}"
        seconds = interleaved(steps, options.rounds)
        asked = (batch["targets"] >= 0).float().mean().item()
        yield training_table(title, config, BATCH, seconds, predicted=asked)


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
