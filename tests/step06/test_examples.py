"""Sentence pairs, rows, and whole examples out of text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from step01_single_gpu.weights import generator_for
from step06_bert_layernorm import pack_pair, pretraining_batch, pretraining_example, sop_pair
from step06_bert_layernorm.examples import Sentences, Vocabulary, word_ids_of
from step06_bert_layernorm.sentence_order import trimmed
from step06_bert_layernorm.wordpiece import (
    bert_wordpiece,
    read_wordpiece,
    split_sentences,
    tokenize_documents,
    vocabulary_of,
)
from tests.step01.test_real_data import fetched

CLS, SEP, PAD, UNK, MASK = 1, 2, 0, 3, 4
WORDS = range(10, 1000)
VOCABULARY = Vocabulary(
    [i >= 900 for i in range(1000)], WORDS, PAD, UNK, CLS, SEP, MASK
)  # ids from 900 on go on with a word
SPECIAL = {"cls_id": CLS, "sep_id": SEP, "pad_id": PAD}


def documents(seed: int = 0) -> list[list[list[int]]]:
    """Sentence j of document d holds ids d·100 + j alone, so that one sees where it is from."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for d in range(1, 8):
        lengths = torch.randint(1, 12, (d + 1,), generator=generator).tolist()
        found.append([[100 * d + j] * length for j, length in enumerate(lengths)])
    return found


def test_pitfall_91_both_pieces_are_of_one_document_and_half_are_swapped() -> None:
    document = list("abcdef")
    labels, cuts = [], set()
    for sample in range(2000):
        first, second, label = sop_pair(document, generator_for(sample))
        assert first, "a piece without a sentence"
        assert second
        whole = second + first if label else first + second
        assert whole == document
        labels.append(label)
        cuts.add(len(second if label else first))
    assert abs(sum(labels) / 2000 - 0.5) < 0.04
    assert cuts == {1, 2, 3, 4, 5}
    assert document == list("abcdef")
    for short in ([], ["a"]):
        with pytest.raises(ValueError, match=rf"a document of {len(short)} sentence\(s\) has no"):
            sop_pair(short, generator_for(0))


def test_pitfall_92_mask_and_segments_follow_the_lengths() -> None:
    row = pack_pair([11, 12, 13], [21, 22], 12, **SPECIAL)
    assert row.tokens.tolist() == [CLS, 11, 12, 13, SEP, 21, 22, SEP, 0, 0, 0, 0]
    assert row.segments.tolist() == [0] * 5 + [1] * 3 + [0] * 4
    assert row.padding_mask.tolist() == [True] * 8 + [False] * 4
    assert int(row.padding_mask.sum()) == 8
    assert int(row.segments.sum()) == 3
    alone = pack_pair([11, 12], [], 6, **SPECIAL)
    assert alone.tokens.tolist() == [CLS, 11, 12, SEP, 0, 0]
    assert int(alone.segments.sum()) == 0
    cut = pack_pair(list(range(10, 30)), list(range(50, 60)), 12, **SPECIAL)
    assert cut.tokens.tolist() == [CLS, 10, 11, 12, 13, SEP, 50, 51, 52, 53, 54, SEP]
    assert cut.padding_mask.all()
    for args in (([], [1], 9), ([1], [1], 4), ([1], [], 2)):
        with pytest.raises(ValueError, match=f"of {len(args[0])} and {len(args[1])} tokens don't"):
            pack_pair(*args, **SPECIAL)
    for a in range(1, 9):
        for b in range(1, 9):
            for room in range(2, 17):
                kept = trimmed(a, b, room)
                assert sum(kept) == min(a + b, room)
                assert 1 <= kept[0] <= a
                assert 1 <= kept[1] <= b
                assert kept == (a, b) or max(kept) - min(kept) <= 1 or min(kept) == min(a, b)


@pytest.mark.parametrize("seq_length", [12, 40])
def test_examples_are_of_one_document_and_say_what_is_real(seq_length: int) -> None:
    sentences = Sentences(documents())
    starts, labels, asked, words = set(), [], 0, 0
    for sample in range(300):
        row = pretraining_example(sentences, VOCABULARY, sample, seq_length=seq_length, seed=3)
        assert all(t.shape == (seq_length,) for t in row[:4])
        true = torch.where(row.targets != -100, row.targets, row.tokens)
        text = true[row.padding_mask]
        assert (true[~row.padding_mask] == PAD).all()
        assert (row.targets[~row.padding_mask] == -100).all()
        assert text[0] == CLS
        assert (text == SEP).sum() == 2
        assert text[-1] == SEP
        inner = true[(true >= 100) & row.padding_mask]
        assert len({int(i) // 100 for i in inner}) == 1, "two documents"
        a = true[(row.segments == 0) & (true >= 100)]
        b = true[(row.segments == 1) & (true >= 100)]
        assert (a.max() < b.min()) if row.order == 0 else (b.max() < a.min())
        starts.add(int(inner.min()))
        labels.append(int(row.order))
        asked, words = asked + int((row.targets >= 0).sum()), words + len(inner)
    assert abs(sum(labels) / 300 - 0.5) < 0.1
    assert starts == {100 * d + j for d in range(1, 8) for j in range(d)}
    assert 0.13 < asked / words < 0.25  # short rows always ask for something


def test_a_batch_is_its_samples_at_any_layout() -> None:
    """Rows are a function of (seed, sample): other batch sizes, other orders, the same rows."""
    sentences = Sentences(documents())
    options = {"seq_length": 24, "seed": 3}
    batch = pretraining_batch(sentences, VOCABULARY, 2, batch_size=4, **options)
    assert [tuple(t.shape) for t in batch] == [(4, 24)] * 4 + [(4,)]
    halves = [
        pretraining_batch(sentences, VOCABULARY, step, batch_size=2, **options) for step in (5, 4)
    ]
    for whole, second, first in zip(batch, *halves, strict=True):
        assert torch.equal(whole, torch.cat([first, second]))
    other = pretraining_batch(sentences, VOCABULARY, 2, batch_size=4, seq_length=24, seed=4)
    assert not torch.equal(batch.tokens, other.tokens)
    assert sentences.ids.tolist() == Sentences(documents()).ids.tolist()


@pytest.mark.parametrize("seq_length", [128, 512])
def test_examples_are_made_fast(seq_length: int) -> None:
    """100,000 a minute at either length on an idle core (the chapter has the figures). Here seconds
    of this process count, and half is enough, since caches shared with others cost time too."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 40, (400,), generator=generator).tolist()
    document = [torch.randint(10, 1000, (n,), generator=generator).tolist() for n in lengths]
    sentences, best = Sentences([document]), float("inf")
    for step in range(20):
        began = time.process_time()
        pretraining_batch(sentences, VOCABULARY, step, batch_size=20, seq_length=seq_length, seed=0)
        best = min(best, (time.process_time() - began) / 20)
    assert 60 / best > 50_000, f"{60 / best:,.0f} examples a minute"


def test_documents_of_one_sentence_are_left_out() -> None:
    kept = Sentences([[[10, 11]], [], [[12], [], [13, 14]], [[15], []]])
    assert len(kept) == 2
    assert [part.tolist() for part in kept.passage(1, 50)] == [[12], [13, 14]]
    with pytest.raises(ValueError, match="none of the 2 documents has two sentences"):
        Sentences([[[10, 11]], []])


def test_words_are_numbered_as_tokenizers_does() -> None:
    ids = torch.tensor([CLS, 20, 901, 902, 30, UNK, SEP, 40, 903, SEP, PAD])
    expected = [None, 1, 1, 1, 2, None, None, 3, 3, None, None]
    assert word_ids_of(ids, VOCABULARY) == expected


def test_real_wordpiece() -> None:
    tokenizer = fetched(bert_wordpiece)
    assert tokenizer.get_vocab_size() == 30522
    assert tokenizer.encode("Hello world").ids == [101, 7592, 2088, 102]
    pair = tokenizer.encode("Unaffable", "café [MASK]")
    assert pair.tokens[:5] == ["[CLS]", "una", "##ffa", "##ble", "[SEP]"]
    assert pair.tokens[5:] == ["cafe", "[", "mask", "]", "[SEP]"], "text is only text"
    assert pair.type_ids == [0] * 5 + [1] * 5
    vocabulary = vocabulary_of(tokenizer)
    assert len(vocabulary.continues) == 30522
    found = word_ids_of(torch.tensor(pair.ids), vocabulary)
    # `tokenizers` numbers each piece from 0 (una ##ffa ##ble | cafe [ mask ]), we go on.
    assert pair.word_ids == [None, 0, 0, 0, None, 0, 1, 2, 3, None]
    assert found == [None, 1, 1, 1, None, 2, 3, 4, 5, None]
    words = set(vocabulary.words)
    assert not words & {0, 100, 101, 102, 103}
    assert not words & set(range(1, 100)), "unused entries"
    assert len(words) == 30522 - 5 - 994
    text = 'He came. Did he? "Yes!" she said.\n\nA title without a stop\n\nThe end.'
    pieces = ["He came.", "Did he?", '"Yes!', "she said.", "A title without a stop", "The end."]
    assert split_sentences(text) == pieces
    (document,) = tokenize_documents([text], tokenizer)
    assert len(document) == 6
    assert document[0] == tokenizer.encode("He came.").ids[1:-1]
    row = pretraining_example(Sentences([document]), vocabulary, 0, seq_length=32, seed=0)
    assert row.tokens.max() < 30522


def test_a_file_that_is_no_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no vocabulary"):
        read_wordpiece(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n")
    with pytest.raises(ValueError, match=r"it has no \['\[CLS\]', '\[MASK\]', '\[SEP\]'\]"):
        read_wordpiece(tmp_path / "vocab.txt")
