from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from step01_single_gpu import global_batch
from step01_single_gpu.corpus import own_text
from step01_single_gpu.data import Options, open_data, prepare
from step01_single_gpu.data import main as data_main
from step01_single_gpu.token_file import HEADER, read_tokens, write_tokens
from step01_single_gpu.vocabulary import (
    END_OF_TEXT,
    load_vocabulary,
    save_vocabulary,
    train_bpe,
    vocabulary_hash,
)

HASH, OTHER = "ab" * 32, "cd" * 32


# ---- the batch of step k


@given(step=st.integers(0, 10**6), length=st.integers(1, 9), extra=st.integers(1, 30))
def test_targets_are_the_next_tokens_of_real_windows(step: int, length: int, extra: int) -> None:
    tokens = np.arange(length + extra, dtype=np.uint16)
    inputs, targets = global_batch(tokens, step, batch_size=5, seq_length=length, seed=1)
    assert inputs.shape == targets.shape == (5, length)
    assert inputs.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert int(targets.max()) < len(tokens)


def test_the_batch_depends_on_seed_and_step_alone() -> None:
    tokens = torch.randint(1000, (5000,))

    def batch(step: int, seed: int) -> torch.Tensor:
        torch.rand(3)  # the global generator moves on
        return global_batch(tokens, step, batch_size=4, seq_length=16, seed=seed)[0]

    first = batch(3, 7)
    batch(0, 7)
    assert torch.equal(first, batch(3, 7))
    assert not torch.equal(first, batch(4, 7))
    assert not torch.equal(first, batch(3, 8))
    as_array = global_batch(tokens.numpy(), 3, batch_size=4, seq_length=16, seed=7)[0]
    assert torch.equal(first, as_array)


def test_every_start_is_drawn_first_and_last_included() -> None:
    starts = {
        int(row[0])
        for step in range(60)
        for row in global_batch(np.arange(13), step, batch_size=4, seq_length=4, seed=0)[0]
    }
    assert starts == set(range(9)), "13 tokens hold 9 windows of 4 with a target after each"


def test_pitfall_07_a_corpus_around_the_size_of_a_window() -> None:
    for size in (8, 7, 0):  # a window of 8 needs a 9th token as its last target
        with pytest.raises(ValueError, match=f"corpus has {size} tokens; .* need 9"):
            global_batch(np.arange(size), 0, batch_size=2, seq_length=8, seed=0)
    inputs, targets = global_batch(np.arange(9), 0, batch_size=2, seq_length=8, seed=0)
    assert inputs.tolist() == [list(range(8))] * 2
    assert targets[0, -1] == 8
    odd = np.arange(2 * 8 * 5 + 3)  # no multiple of batch x window: nothing to reshape, no tail
    assert global_batch(odd, 4, batch_size=2, seq_length=8, seed=0)[0].shape == (2, 8)


# ---- token files


def test_a_token_file_gives_back_what_was_written(tmp_path: Path) -> None:
    for vocab_size, dtype in ((65536, np.uint16), (65537, np.uint32)):
        path = tmp_path / f"{vocab_size}.bin"
        ids = [[0, vocab_size - 1], [], [5]]
        assert write_tokens(path, ids, vocab_size=vocab_size, vocab_hash=HASH) == 3
        file = read_tokens(path, HASH)
        assert file.ids.dtype == dtype
        assert file.ids.tolist() == [0, vocab_size - 1, 5]
        assert (file.vocab_size, file.vocab_hash) == (vocab_size, HASH)
        with pytest.raises(ValueError, match="read-only"):
            file.ids[0] = 1
    assert len(list(tmp_path.iterdir())) == 2, "a temporary file was left"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    write_tokens(path, [[1, 2]], vocab_size=9, vocab_hash=HASH)

    def pieces() -> object:
        yield [3]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_tokens(path, pieces(), vocab_size=9, vocab_hash=HASH)  # type: ignore[arg-type]
    assert read_tokens(path).ids.tolist() == [1, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_files_that_are_not_what_they_should_be_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    with pytest.raises(ValueError, match=r"no token file .*t\.bin; .*make data"):
        read_tokens(path)
    write_tokens(path, [[1, 2, 3]], vocab_size=9, vocab_hash=HASH)
    good = path.read_bytes()
    with pytest.raises(ValueError, match=f"made with vocabulary {HASH[:12]}, not with cdcd"):
        read_tokens(path, OTHER)
    header = list(HEADER.unpack(good[:64]))
    header[1] = 99
    for content, message in {
        good[:-1]: "has 69 bytes where its header says 70",
        good + b"x": "has 71 bytes where its header says 70",
        good[:20]: "is not a token file",
        b"": "is not a token file",
        b"x" * 70: "is not a token file",
        HEADER.pack(*header) + good[64:]: "has version 99, this code reads version 1",
        struct.pack("<8sIIQQ32s", b"MLMTOKEN", 1, 3, 2, 9, b"") + b"123456": "has version",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_tokens(path)


# ---- text and vocabulary

TEXT = "It was the best of times, it was the worst of times — naïve café 你好.\n" * 40


def test_bpe_gives_every_text_back(tmp_path: Path) -> None:
    save_vocabulary(train_bpe([TEXT], vocab_size=300), tmp_path / "t.json")
    tokenizer = load_vocabulary(tmp_path / "t.json")
    assert vocabulary_hash(tokenizer) == vocabulary_hash(load_vocabulary(tmp_path / "t.json"))
    for text in (TEXT, " leading", "\n\n\ttabs", "🙂 never seen \x00", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert end not in tokenizer.encode(f"a {END_OF_TEXT} b").ids, "text must not forge the mark"


def test_a_vocabulary_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no vocabulary"):
        load_vocabulary(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a vocabulary"):
        load_vocabulary(tmp_path / "t.json")


def test_own_text_is_split_without_overlap(tmp_path: Path) -> None:
    for i in range(25):
        (tmp_path / f"{i:02d}.txt").write_text(f"text {i}\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    corpus = own_text(tmp_path)
    assert set(corpus.valid) == {"19.txt"}
    assert len(corpus.train) == 24
    one = tmp_path / "00.txt"
    one.write_text("".join(f"line {i}\n" for i in range(100)))
    single = own_text(one)
    assert single.train["00.txt"] + single.valid["00.txt"] == one.read_text()
    assert single.valid["00.txt"].startswith("line ")
    assert 3 <= single.valid["00.txt"].count("\n") <= 7


def test_text_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text file or folder"):
        own_text(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no \.txt or \.md"):
        own_text(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match="leaves no text for training"):
        own_text(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text \(byte 3\)"):
        own_text(tmp_path)


def test_prepare_makes_a_folder_once_and_again_when_the_text_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "own.txt"
    text.write_text(TEXT)
    folder = prepare(str(text), root=tmp_path / "data")
    data = open_data(folder)
    assert (
        data.tokenizer.decode(data.train.ids.tolist())
        + data.tokenizer.decode(data.valid.ids.tolist())
        == TEXT
    )
    assert data.train.ids[-1] == data.tokenizer.token_to_id(END_OF_TEXT)
    stamp = (folder / "train.bin").stat().st_mtime_ns
    assert prepare(str(text), root=tmp_path / "data") == folder
    assert (folder / "train.bin").stat().st_mtime_ns == stamp
    (folder / "source.json").unlink()  # as after an interrupted run
    assert prepare(str(text), root=tmp_path / "data") == folder
    assert (folder / "train.bin").stat().st_mtime_ns != stamp
    text.write_text(TEXT * 2)
    assert prepare(str(text), root=tmp_path / "data") != folder
    capsys.readouterr()
    data_main(Options(corpus=str(text), root=tmp_path / "data"))
    assert "training and" in capsys.readouterr().out
