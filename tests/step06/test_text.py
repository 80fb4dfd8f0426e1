"""Text for pretraining in files: made once, whole or not there, the same sentences when opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from step06_bert_layernorm.examples import Sentences
from step06_bert_layernorm.text import open_text, prepare_text
from step06_bert_layernorm.wordpiece import read_wordpiece, tokenize_documents

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "sen", "##ate", "met", "it"]
TEXTS = {
    "a.txt": "The senate met. It met. Unknown words met.",
    "b.txt": "One sentence alone",
    "c.txt": "It met.\n\nThe senate.",
    "d.txt": "The senate. It.",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "texts" / name).write_text(text)
    (tmp_path / "vocab.txt").write_text("\n".join(ENTRIES) + "\n")
    return tmp_path


def made(folder: Path) -> Path:
    return prepare_text(str(folder / "texts"), str(folder / "vocab.txt"), folder / "data")


def test_the_files_hold_the_sentences_of_the_text(folder: Path) -> None:
    """The last file of a folder is held out; the document of one sentence is left out."""
    text = open_text(made(folder))
    tokenizer = read_wordpiece(folder / "vocab.txt")
    for part, names in (("train", "abc"), ("valid", "d")):
        documents = tokenize_documents([TEXTS[f"{name}.txt"] for name in names], tokenizer)
        expected, found = Sentences(documents), getattr(text, part)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.starts.tolist() == expected.starts.tolist()
        assert found.document_end.tolist() == expected.document_end.tolist()
        assert isinstance(found.ids.base, np.memmap), "read through memory, not into it"
    assert text.train.passage(0, 100)[0].tolist() == [6, 7, 8, 9, 5], "the sen ##ate met ."
    assert len(text.train) == 3 + 2
    assert text.kind[:2] == (len(text.train.ids), 6)
    assert text.vocabulary.words == [5, 6, 7, 8, 9, 10]


def test_they_are_made_once_and_anew_for_another_text_or_vocabulary(folder: Path) -> None:
    first = made(folder)
    marked = first / "train.bin"
    before = marked.stat().st_mtime_ns
    assert made(folder) == first
    assert marked.stat().st_mtime_ns == before
    assert sorted(path.name for path in first.iterdir()) == [
        "source.json", "train.bin", "train.npz", "valid.bin", "valid.npz", "vocab.txt",
    ]  # fmt: skip
    (first / "source.json").unlink()  # as if interrupted
    assert made(folder) == first
    assert marked.stat().st_mtime_ns > before
    (folder / "vocab.txt").write_text("\n".join([*ENTRIES, "words"]) + "\n")
    other = made(folder)
    assert other != first
    (folder / "texts" / "a.txt").write_text("Another text. It met.")
    assert made(folder) not in (first, other)


def test_damaged_files_are_named(folder: Path) -> None:
    data = made(folder)
    whole = (data / "train.npz").read_bytes()
    for damage in (whole[:100], b"", (data / "valid.npz").read_bytes()):
        (data / "train.npz").write_bytes(damage)
        with pytest.raises(ValueError, match=r"train.npz doesn't belong to train.bin"):
            open_text(data)
    (data / "train.npz").write_bytes(whole)
    (data / "vocab.txt").write_text("\n".join(reversed(ENTRIES)) + "\n")
    with pytest.raises(ValueError, match=r"train.bin was made with vocabulary"):
        open_text(data)
    for tokens, lengths, counts in ((3, [2, 1], [1, 1]), (3, [2, 1], [3]), (4, [2, 1], [2])):
        with pytest.raises(ValueError, match="don't fit"):
            Sentences.of_arrays(np.arange(tokens), np.array(lengths), np.array(counts))


def test_a_part_without_an_order_makes_no_folder(folder: Path) -> None:
    (folder / "texts" / "d.txt").write_text("held out, and one sentence")
    with pytest.raises(ValueError, match=r"the 1 documents of the valid part \(d.txt\) has two"):
        made(folder)
    assert not (folder / "data").exists()
