"""From a text to sentences of WordPiece ids in files, once; then opened through memory.

data/<corpus>-wordpiece/   vocab.txt  train.bin  train.npz  valid.bin  valid.npz  source.json

A .bin is step 1's token file, all sentences one after another; the .npz beside it says how many
tokens each sentence has, and how many sentences each document.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from step01_single_gpu.data import read_corpus
from step01_single_gpu.run_folder import write_text
from step01_single_gpu.token_file import read_tokens, write_tokens

from .examples import Sentences, Vocabulary, with_an_order
from .pretrained import minilm
from .wordpiece import read_wordpiece, split_sentences, tokenize_documents, vocabulary_of

PARTS = ("train", "valid")


@dataclass(frozen=True)
class Text:
    """What BERT is pretrained on, and what it is judged by."""

    train: Sentences
    valid: Sentences
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    folder: Path
    kind: tuple[int, int, str, str]  # tokens of both, sha256 of the text, of the vocabulary


def prepare_text(
    corpus: str = "presidents", tokenizer: str = "wordpiece", root: Path = Path("data")
) -> Path:
    """Make the folder of a corpus if it is not there and whole; returns the folder.

    `corpus` as in step 1; `tokenizer` is "wordpiece", BERT's own 30,522 entries, or the path of a
    vocab.txt. A changed text or vocabulary gets a folder of its own; `source.json` is written last,
    so an interrupted run starts over. Raises ValueError, and makes nothing, for a part whose
    documents are all of one sentence.
    """
    text, digest, name = read_corpus(corpus, root)
    own = tokenizer != "wordpiece"
    entries = Path(tokenizer) if own else minilm(root / "downloads") / "vocab.txt"
    wordpiece = read_wordpiece(entries)
    vocabulary = hashlib.sha256(entries.read_bytes()).hexdigest()
    documents: dict[str, Mapping[str, str]] = {"train": text.train, "valid": text.valid}
    for part in PARTS:
        check_documents(documents[part], part)
    folder = root / f"{name}-wordpiece{f'-{vocabulary[:8]}' if own else ''}"
    done, source = folder / "source.json", {"sha256": digest, "vocabulary": vocabulary}
    if done.is_file() and json.loads(done.read_text()).items() >= source.items():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"vocab.txt.{os.getpid()}.tmp"
    shutil.copyfile(entries, temporary)
    os.replace(temporary, folder / "vocab.txt")
    for part in PARTS:
        _write(folder / part, documents[part], wordpiece, vocabulary)
    others = {"corpus": corpus, "held_out": sorted(text.valid)}
    write_text(done, json.dumps(source | others, indent=2) + "\n")
    return folder


def open_text(folder: Path) -> Text:
    """Open a folder that `prepare_text` made. Raises ValueError if its files don't fit together."""
    tokenizer = read_wordpiece(folder / "vocab.txt")
    digest = hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest()
    train, valid = (_read(folder / part, digest) for part in PARTS)
    sha = json.loads((folder / "source.json").read_text())["sha256"]
    kind = (len(train.ids), len(valid.ids), sha, digest)
    return Text(train, valid, tokenizer, vocabulary_of(tokenizer), folder, kind)


def check_documents(documents: Mapping[str, str], part: str) -> None:
    """Raise ValueError unless one of the texts has two sentences."""
    if not any(len(split_sentences(text)) > 1 for text in documents.values()):
        names = ", ".join(list(documents)[:3])
        raise ValueError(
            f"none of the {len(documents)} documents of the {part} part ({names}) has two "
            "sentences, so there is no order to predict; give longer texts"
        )


def _write(path: Path, texts: Mapping[str, str], tokenizer: Tokenizer, vocabulary: str) -> None:
    lengths: list[int] = []
    counts: list[int] = []

    def ids() -> Iterator[list[int]]:
        bar = tqdm(texts.values(), f"tokens for {path.name}", leave=False, disable=None)
        for text in bar:
            (document,) = tokenize_documents([text], tokenizer)
            sentences = with_an_order(document)
            if sentences:
                counts.append(len(sentences))
                lengths.extend(map(len, sentences))
                yield [i for sentence in sentences for i in sentence]

    write_tokens(
        path.with_suffix(".bin"),
        ids(),
        vocab_size=tokenizer.get_vocab_size(),
        vocab_hash=vocabulary,
    )
    temporary = path.with_name(f"{path.name}.npz.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        np.savez(file, lengths=np.array(lengths, np.int32), counts=np.array(counts, np.int32))
    os.replace(temporary, path.with_suffix(".npz"))


def _read(path: Path, vocabulary: str) -> Sentences:
    ids = read_tokens(path.with_suffix(".bin"), vocabulary).ids
    bounds = path.with_suffix(".npz")
    try:
        with open(bounds, "rb") as file, np.load(file) as arrays:
            return Sentences.of_arrays(ids, arrays["lengths"], arrays["counts"])
    except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
        raise ValueError(
            f"{bounds} doesn't belong to {path.name}.bin ({error}); delete {path.parent} and train "
            "again: it is made anew"
        ) from error
