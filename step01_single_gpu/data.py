"""`python -m step01_single_gpu.data`: from text to token files, once (`make data`).

data/<corpus>-<tokenizer>/   tokenizer.json  train.bin  valid.bin  valid.txt  source.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from tqdm import tqdm

from .corpus import Corpus, own_text, presidents
from .programs import run_program
from .run_folder import write_text
from .token_file import TokenFile, read_tokens, write_tokens
from .vocabulary import (
    END_OF_TEXT,
    gpt2_bpe,
    load_vocabulary,
    save_vocabulary,
    train_bpe,
    vocabulary_hash,
)

TokenizerName = Literal["bpe8192", "gpt2"]


@dataclass(frozen=True)
class Data:
    """What a training program reads: two token files and their tokenizer."""

    train: TokenFile
    valid: TokenFile
    tokenizer: Tokenizer
    folder: Path


def prepare(
    corpus: str = "presidents", tokenizer: TokenizerName = "bpe8192", root: Path = Path("data")
) -> Path:
    """Make the data folder of a corpus if it is not there and whole; returns the folder.

    `corpus` is "presidents" or the path of a text file or folder. A changed text gets a folder of
    its own; `source.json` is written last, so an interrupted run starts over.
    """
    text, digest, name = read_corpus(corpus, root)
    folder = root / f"{name}-{tokenizer}"
    done = folder / "source.json"
    if done.is_file() and json.loads(done.read_text())["sha256"] == digest:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer == "gpt2":
        trained = gpt2_bpe(root / "downloads")
    else:
        print(f"learning a vocabulary of 8,192 entries from {len(text.train)} documents ...")
        trained = train_bpe(text.train.values())
    save_vocabulary(trained, folder / "tokenizer.json")
    vocabulary = load_vocabulary(folder / "tokenizer.json")
    source: dict[str, Any] = {"corpus": corpus, "sha256": digest, "held_out": sorted(text.valid)}
    for part, documents in (("train", text.train), ("valid", text.valid)):
        source[f"{part}_tokens"] = write_tokens(
            folder / f"{part}.bin",
            _encode(vocabulary, documents, f"tokens for {part}"),
            vocab_size=vocabulary.get_vocab_size(),
            vocab_hash=vocabulary_hash(vocabulary),
        )
    write_text(folder / "valid.txt", "\n".join(text.valid.values()))
    write_text(done, json.dumps(source, indent=2) + "\n")
    return folder


def read_corpus(corpus: str, root: Path) -> tuple[Corpus, str, str]:
    """The documents, their sha256, and what to call their folder."""
    if corpus == "presidents":
        text = presidents(root / "downloads")
        return text, _digest(text), "presidents"
    text = own_text(Path(corpus))
    digest = _digest(text)
    return text, digest, f"{Path(corpus).stem}-{digest[:8]}"


def open_data(folder: Path) -> Data:
    """Open a folder that `prepare` made; raises ValueError if its files don't fit together."""
    tokenizer = load_vocabulary(folder / "tokenizer.json")
    digest = vocabulary_hash(tokenizer)
    train, valid = (read_tokens(folder / f"{part}.bin", digest) for part in ("train", "valid"))
    return Data(train, valid, tokenizer, folder)


def _encode(tokenizer: Tokenizer, documents: dict[str, str], label: str) -> Iterator[list[int]]:
    """Each document's ids, END_OF_TEXT after each."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None, "every vocabulary of this project has the mark"
    for text in tqdm(documents.values(), label, unit=" documents", leave=False, disable=None):
        yield [*tokenizer.encode(text).ids, end]


def _digest(corpus: Corpus) -> str:
    digest = hashlib.sha256()
    for documents in (corpus.train, corpus.valid):
        for name, text in documents.items():
            digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Options:
    """Turn a text into token files."""

    corpus: str = "presidents"
    """"presidents", or a text file or folder of your own."""
    tokenizer: TokenizerName = "bpe8192"
    """A vocabulary learned from the corpus, or GPT-2's own with 50,257 entries."""
    root: Path = Path("data")


def main(options: Options) -> None:
    folder = prepare(options.corpus, options.tokenizer, options.root)
    data = open_data(folder)
    print(
        f"{folder}: {len(data.train.ids):,} training and {len(data.valid.ids):,} validation "
        f"tokens, vocabulary of {data.train.vocab_size:,}"
    )


if __name__ == "__main__":
    run_program(main, Options)
