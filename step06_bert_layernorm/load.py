"""Opening a pretraining run in one process, whatever layout trained it."""

from __future__ import annotations

import json
from pathlib import Path

from step05_hybrid_dp.checkpoint import load_checkpoint

from .parallel_bert import ParallelBERT
from .pretrain import Options, model_config
from .text import Text, open_text, prepare_text


def is_bert_run(run: Path) -> bool:
    """Whether pretrain.py made the folder. (Only a BERT has a choice of norm.)"""
    path = run / "config.json"
    return path.is_file() and "norm" in json.loads(path.read_text(encoding="utf-8"))


def load_bert_run(run: Path) -> tuple[ParallelBERT, Text, Options]:
    """The trained model of a run, whole and on the CPU, its text and its options.

    Raises ValueError for the run of another model, or without a checkpoint.
    """
    if not is_bert_run(run):
        raise ValueError(f"{run} is not a BERT's run; train one: make train MODEL=bert-mini")
    values = json.loads((run / "config.json").read_text(encoding="utf-8"))
    options = Options(**{**values, "root": Path(values["root"]), "run": None, "resume": None})
    text = open_text(prepare_text(options.corpus, options.tokenizer, options.root))
    model = ParallelBERT(model_config(options, text.tokenizer.get_vocab_size()))
    load_checkpoint(run / "checkpoints", model)
    return model, text, options
