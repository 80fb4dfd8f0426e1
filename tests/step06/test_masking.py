"""Which words are asked for, what stands in their place, and that chance comes from one place."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from step01_single_gpu.weights import generator_for
from step06_bert_layernorm import mask_for_mlm
from step06_bert_layernorm.masking import choose_spans, ngram_length, replace_spans

MASK, RANDOM_IDS = 4, range(2000, 3000)  # ids of the text itself are below 2000


def text(s: int, seed: int) -> tuple[torch.Tensor, list[int | None]]:
    """A row of [CLS] and [SEP] round words of one to three pieces, and padding."""
    generator = torch.Generator().manual_seed(seed)
    word_ids: list[int | None] = [None]
    pieces = torch.tensor([0.7, 0.2, 0.1]).multinomial(s, True, generator=generator) + 1
    for word, n in enumerate(pieces.tolist()):
        word_ids += [word] * n
    word_ids = [*word_ids[: s - 3], None, None, None]
    return torch.randint(1000, 2000, (s,), generator=generator), word_ids


def masked(ids: torch.Tensor, word_ids: list[int | None], sample: int) -> tuple[torch.Tensor, ...]:
    return mask_for_mlm(
        ids,
        word_ids,
        generator=generator_for("test", 0, sample),
        mask_id=MASK,
        random_ids=RANDOM_IDS,
    )


def test_shares_over_a_million_tokens() -> None:
    """15 % asked; 80/10/10 by span and by token; lengths ∝ 1/n; all within half a point (lengths:
    one and a half, since the span that crosses the share is more often a short one)."""
    texts = [text(512, seed) for seed in range(16)]
    tokens = asked = samples = 0
    spans, lengths, by_length = Counter[str](), Counter[int](), Counter[tuple[int, str]]()
    of_tokens = Counter[str]()
    while tokens < 1_000_000:
        ids, word_ids = texts[samples % 16]
        generator = generator_for("test", 0, samples)
        chosen = choose_spans(word_ids, generator)
        inputs, labels = replace_spans(ids, chosen, generator, MASK, RANDOM_IDS)
        if samples < 100:  # they are what mask_for_mlm is made of
            both = masked(ids, word_ids, samples)
            assert torch.equal(torch.stack(both), torch.stack([inputs, labels]))
        tokens += len(word_ids) - word_ids.count(None)
        asked += int((labels != -100).sum())
        given, before = inputs.tolist(), ids.tolist()
        for first, end in chosen:
            found, n = given[first:end], len(set(word_ids[first:end]))
            kind = "masked" if found[0] == MASK else "random" if found[0] >= 2000 else "kept"
            alike = {
                "masked": all(i == MASK for i in found),
                "random": all(i >= 2000 for i in found),
                "kept": found == before[first:end],
            }
            assert alike[kind], "one decision for all of a span"
            spans[kind] += 1
            of_tokens[kind] += end - first
            by_length[n, kind] += 1
            lengths[n] += 1
        samples += 1
    assert abs(asked / tokens - 0.15) < 0.005
    total = spans.total()
    for kind, share in (("masked", 0.8), ("random", 0.1), ("kept", 0.1)):  # pitfall 86
        assert abs(spans[kind] / total - share) < 0.005, spans
        assert abs(of_tokens[kind] / asked - share) < 0.005, of_tokens
        for n in (1, 2, 3):
            assert abs(by_length[n, kind] / lengths[n] - share) < 0.015, "at every length"
    for n, share in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert abs(lengths[n] / total - share) < 0.015, lengths


def test_every_place_has_the_same_chance() -> None:
    counts = torch.zeros(40)
    for sample in range(4000):
        for first, end in choose_spans([*range(40)], generator_for("places", sample)):
            counts[first:end] += 1
    assert abs(counts.mean() / 4000 - 0.15) < 0.002
    # An n-gram starts at an end less often; in the middle all are alike (4 deviations: 0.023).
    assert (counts[3:-3] / 4000 - 0.15).abs().max() < 0.026
    assert counts.min() / 4000 > 0.09


def test_pitfall_85_special_tokens_are_never_touched() -> None:
    """10,000 draws on [CLS] a b [SEP] [PAD]."""
    ids = torch.tensor([2, 1000, 1001, 3, 0])
    seen = Counter[int]()
    for sample in range(10_000):
        inputs, labels = (t.tolist() for t in masked(ids, [None, 0, 1, None, None], sample))
        assert [inputs[i] for i in (0, 3, 4)] == [2, 3, 0]
        assert [labels[i] for i in (0, 3, 4)] == [-100] * 3
        seen[sum(label != -100 for label in labels)] += 1
    assert seen[0] == 0, "there is always a question"
    assert seen[1] > seen[2] > 0


@given(
    st.lists(st.sampled_from(["new", "same", "special"]), max_size=40),
    st.integers(0, 10**6),
    st.floats(0.01, 0.99),
    st.integers(1, 5),
)
def test_spans_are_whole_words_in_one_piece(
    kinds: list[str], seed: int, probability: float, max_ngram: int
) -> None:
    word_ids: list[int | None] = []
    for kind in kinds:
        last = word_ids[-1] if word_ids else None
        word = sum(w is not None for w in word_ids)
        if kind == "special":
            word_ids.append(None)
        else:
            word_ids.append(last if kind == "same" and last is not None else word)
    spans = choose_spans(word_ids, generator_for(seed), probability, max_ngram)
    covered = [i for first, end in spans for i in range(first, end)]
    assert len(set(covered)) == len(covered), "spans overlap"
    for first, end in spans:
        words = word_ids[first:end]
        assert None not in words, "a span crosses a special token"
        assert 1 <= len(set(words)) <= max_ngram
        assert first == 0 or word_ids[first - 1] != words[0], "half a word"
        assert end == len(word_ids) or word_ids[end] != words[-1], "half a word"
    real = sum(word is not None for word in word_ids)
    assert bool(spans) == bool(real)
    if spans:
        but_last = sum(end - first for first, end in spans[:-1])
        assert but_last < probability * real, "a span too many"


def test_short_documents_and_full_budgets() -> None:
    """A document shorter than an n-gram; a share so high that everything is taken."""
    for words in range(1, 4):
        sizes = {len(choose_spans([*range(words)], generator_for(i))) for i in range(50)}
        assert sizes == {1}
    assert choose_spans([None, None], generator_for(0)) == []
    inputs, labels = masked(torch.tensor([2, 3]), [None, None], 0)
    assert inputs.tolist() == [2, 3]
    assert labels.tolist() == [-100, -100]
    spans = choose_spans([*range(30)], generator_for(0), 0.999)
    assert sum(end - first for first, end in spans) >= 29


def test_an_example_is_a_function_of_seed_and_sample_and_leaves_the_stored_one_alone() -> None:
    ids, word_ids = text(64, 1)
    before, words_before = ids.clone(), list(word_ids)
    state = torch.get_rng_state()
    first = masked(ids, word_ids, 5)
    assert torch.equal(torch.get_rng_state(), state), "drawn from torch's global generator"
    masked(ids, word_ids, 6)
    again = masked(ids, word_ids, 5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], masked(ids, word_ids, 6)[0])
    for tensor in first:
        tensor.fill_(9)
    assert torch.equal(ids, before)
    assert word_ids == words_before
    rows = torch.stack([ids, ids])
    inputs, labels = masked(rows[0], word_ids, 5)
    where = labels != -100
    assert torch.equal(labels[where], before[where]), "labels are what stood there"
    assert torch.equal(inputs[~where], before[~where])
    assert torch.equal(rows[1], before), "a row of a larger tensor"


def test_random_words_come_from_those_given_and_differ_within_a_span() -> None:
    ids, chosen = torch.arange(1000, 1400), Counter[int]()
    for sample in range(300):
        inputs, _ = replace_spans(
            ids, [(i, i + 4) for i in range(0, 400, 4)], generator_for(sample), MASK, [7, 8, 9]
        )
        chosen.update(inputs[inputs < 10].tolist())
    assert set(chosen) == {MASK, 7, 8, 9}
    for i in (7, 8, 9):
        assert abs(chosen[i] / (300 * 400) - 0.1 / 3) < 0.004
    as_tensor, _ = replace_spans(ids, [(0, 400)], generator_for(1), MASK, torch.tensor([7]))
    assert set(as_tensor.tolist()) <= {MASK, 7, *range(1000, 1400)}
    assert ngram_length(0.0, 3) == 1
    assert ngram_length(0.999999, 3) == 3
    assert ngram_length(0.6, 3) == 2


def test_bad_input_is_named() -> None:
    ids, generator = torch.arange(4), torch.Generator()

    def call(ids: torch.Tensor, words: list[int | None], **others: object) -> None:
        options = {"generator": generator, "mask_id": MASK, "random_ids": [5]} | others
        mask_for_mlm(ids, words, **options)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=r"ids have shape \[4\] for 3 word_ids"):
        call(ids, [None, 0, 1])
    with pytest.raises(ValueError, match=r"ids have shape \[1, 4\]"):
        call(ids.unsqueeze(0), [0])
    for probability in (0.0, 1.0, 15):
        with pytest.raises(ValueError, match=f"probability is {probability}"):
            call(ids, [0, 1, 2, 3], probability=probability)
    with pytest.raises(ValueError, match="max_ngram is 0"):
        call(ids, [0, 1, 2, 3], max_ngram=0)
    with pytest.raises(ValueError, match="random_ids is empty"):
        call(ids, [0, 1, 2, 3], random_ids=[])
