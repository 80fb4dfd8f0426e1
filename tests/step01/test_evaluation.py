from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from step01_single_gpu import GPT, GPTConfig, token_losses
from step01_single_gpu.evaluate import text_perplexities
from step01_single_gpu.lambada import lambada_accuracy, read_lambada, split_last_word
from step01_single_gpu.scoring import perplexity, unigram_loss
from step01_single_gpu.vocabulary import load_vocabulary, save_vocabulary, train_bpe
from step01_single_gpu.wikitext import detokenize, plain_text, read_wikitext
from tests.compare import assert_close


@pytest.mark.parametrize("stride", [None, 1, 4, 10, 11])
@pytest.mark.parametrize("length", [1, 2, 5, 11, 12, 13, 23, 40])
def test_every_token_is_scored_once_with_the_context_it_should_have(
    tiny: GPTConfig, length: int, stride: int | None, float64: None
) -> None:
    model, tokens = GPT(tiny), torch.randint(37, (length,))
    got = token_losses(model, tokens, stride=stride, batch_size=3)
    assert got.shape == (length - 1,)
    step, done, i = stride or 11, 0, 0
    while done < length - 1:  # the definition, window by window
        end = min(11 + i * step, length - 1)
        window = tokens[max(0, end - 11) : end + 1]
        losses = model.loss(window[None, :-1], window[None, 1:], reduction="none")[0]
        assert_close(got[done:end], losses[len(losses) - (end - done) :], 1e-12)
        done, i = end, i + 1


def test_scores_do_not_depend_on_the_batch_size(tiny: GPTConfig, float64: None) -> None:
    model, tokens = GPT(tiny), np.random.default_rng(0).integers(37, size=200)
    one = token_losses(model, tokens, stride=3, batch_size=1)
    for size in (2, 7, 1000):
        assert_close(token_losses(model, tokens, stride=3, batch_size=size), one, 1e-12)


def test_scoring_drops_nothing_and_keeps_the_mode(tiny: GPTConfig) -> None:
    model, tokens = GPT(GPTConfig(37, 11, 24, 1, 3, dropout=0.5)), torch.randint(37, (30,))
    assert torch.equal(token_losses(model, tokens), token_losses(model, tokens))
    assert model.training


def test_a_scoring_request_that_cannot_work_is_named(tiny: GPTConfig) -> None:
    model = GPT(tiny)
    for tokens, options in (
        ([], {}), ([1, 2], {"stride": 0}), ([1, 2], {"stride": 12}), ([1, 2], {"batch_size": 0}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{len(tokens)} tokens, stride"):
            token_losses(model, tokens, **options)


def test_perplexity_by_words_and_by_tokens() -> None:
    """Ten words in fourteen tokens: the same losses, two denominators, two figures."""
    losses = torch.full((14,), 2.0)
    assert perplexity(losses, 10) == pytest.approx(math.exp(28 / 10))
    assert perplexity(losses, 14) == pytest.approx(math.exp(2.0))


def test_unigram_loss_is_the_cross_entropy_of_counts() -> None:
    train, valid = np.array([0, 0, 0, 1]), np.array([0, 1, 2])
    p = np.array([4, 2, 1]) / 7
    assert unigram_loss(train, valid, 3) == pytest.approx(-np.log(p).mean())


class Parrot(torch.nn.Module):
    """Predicts that token t is followed by t + 1."""

    def __init__(self, seq_length: int) -> None:
        super().__init__()
        self.config = GPTConfig(400, seq_length, 4, 1, 1)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        assert tokens.size(1) <= self.config.seq_length
        return torch.nn.functional.one_hot(tokens + 1, 400).float()


class Numbers:
    """A tokenizer for texts like "5 6 78": ids are digits, a word of two digits two tokens."""

    def encode(self, text: str) -> Numbers:
        self.ids = [int(c) for c in text if c != " "]
        return self


def test_pitfall_83_a_word_is_right_only_if_all_its_tokens_are() -> None:
    items = [
        ("1 2", " 345"),  # right: 2→3→4→5
        ("1 2", " 346"),  # last of three pieces wrong
        ("1 2", " 445"),  # first piece wrong
        ("1", " 2"),
        ("0 1 2 3 4 5 6", " 7"),  # longer than the window: its end counts
    ]
    for size in (1, 2, 5):
        accuracy = lambada_accuracy(Parrot(4), Numbers(), items, batch_size=size)
        assert accuracy == pytest.approx(3 / 5)
    with pytest.raises(ValueError, match="no LAMBADA item"):
        lambada_accuracy(Parrot(4), Numbers(), [])


def test_lambada_splits_before_the_blank(tmp_path: Path) -> None:
    assert split_last_word("I don't care about signs\n") == ("I don't care about", " signs")
    save_vocabulary(train_bpe(["I don't care about signs of it"] * 9, 300), tmp_path / "t.json")
    tokenizer = load_vocabulary(tmp_path / "t.json")
    context, word = split_last_word("I don't care about signs")
    ids = [tokenizer.encode(text).ids for text in (context, word, context + word)]
    assert ids[0] + ids[1] == ids[2]
    path = tmp_path / "lambada.jsonl"
    path.write_text('{"text": "a b c"}\n{"text": "d e"}\n')
    assert read_lambada(path) == [("a b", " c"), ("d", " e")]
    for bad in ('{"text": "one"}', '{"txt": "a b"}', "a b", "3"):
        path.write_text('{"text": "a b c"}\n' + bad)
        with pytest.raises(ValueError, match="line 2: no passage"):
            read_lambada(path)


def test_wikitext_counts_its_own_words_and_reads_like_text(tmp_path: Path) -> None:
    path = tmp_path / "wiki.test.tokens"
    official = (
        " \n = Robert Boulter = \n \n Robert 's film , a 1 @,@ 000 @-@ word ( long ) story ; "
        '" The Bill " is <unk> . \n \n'
    )
    path.write_text(official)
    text, words = read_wikitext(path)
    assert text == (
        '= Robert Boulter =\n\nRobert\'s film, a 1,000-word (long) story; "The Bill" is <unk>.'
    )
    assert words == len(official.strip().split(" "))
    assert detokenize("they 're here , is n't it ?") == "they're here, isn't it?"
    with pytest.raises(ValueError, match="there is no file"):
        read_wikitext(tmp_path / "no")
    path.write_text(" \n")
    with pytest.raises(ValueError, match="is empty"):
        read_wikitext(path)


def test_wikipedia_markup_becomes_running_text() -> None:
    markup = (
        "{{Infobox|x=1}}'''Autism''' is a [[disorder|condition]]<ref name=a>Some {{cite}}</ref> of "
        "[[File:a.png|thumb|a [[link]] inside]]the brain<ref name=a/>.\n\n== Causes ==\nMany.\n"
        "== See also ==\n* [[Other]]\n[[Category:Mind]]"
    )
    assert plain_text(markup) == "Autism is a condition of the brain.\n\nCauses\nMany."


def test_pitfall_80_both_denominators_are_reported(tmp_path: Path) -> None:
    save_vocabulary(train_bpe(["never such words"], vocab_size=260), tmp_path / "t.json")
    tokenizer = load_vocabulary(tmp_path / "t.json")
    model = GPT(GPTConfig(tokenizer.get_vocab_size(), 8, 8, 1, 1))
    row = text_perplexities(model, tokenizer, "ten words", 2, stride=2, batch_size=2)
    assert row["tokens"] == len(tokenizer.encode("ten words").ids) - 1
    total = math.log(row["token_perplexity"]) * row["tokens"]
    assert math.log(row["word_perplexity"]) * 2 == pytest.approx(total)
