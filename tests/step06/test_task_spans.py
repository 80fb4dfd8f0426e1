"""Windows, labels in them and the search for spans, against loops that leave nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from step06_bert_layernorm.task_spans import (
    Window,
    best_windows,
    log_probabilities,
    n_best,
    no_answer_score,
    span_labels,
    span_windows,
    window_ranges,
)
from step06_bert_layernorm.wordpiece import read_wordpiece

LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary of letters: every word falls into its letters."""
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, ".", "日"]
    entries += [f"##{letter}" for letter in LETTERS]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(entries) + "\n", encoding="utf-8")
    return read_wordpiece(path)


def windows_of(tokenizer: Tokenizer, context: str, seq_length: int, stride: int) -> list[Window]:
    return span_windows("who", context, tokenizer, seq_length=seq_length, stride=stride)


@pytest.mark.parametrize(("count", "room", "stride"), [(9, 4, 2), (10, 4, 3), (4, 4, 1), (1, 3, 3)])
def test_windows_cover_every_token_and_no_more(count: int, room: int, stride: int) -> None:
    ranges = window_ranges(count, room, stride)
    assert {i for part in ranges for i in part} == set(range(count))
    assert all(0 < len(part) <= room for part in ranges)
    starts = [part.start for part in ranges]
    assert starts == [stride * i for i in range(len(ranges))]
    assert ranges[-1].stop == count
    assert all(part.stop < count for part in ranges[:-1]), "the last window was there already"


def test_a_token_in_several_windows_is_judged_where_it_has_most_around_it() -> None:
    """Windows 0-3, 2-5, 4-7: token 2 has min(2, 1) = 1 around it in the first and 0 in the second,
    token 3 has 0 and 1; equal windows: the first."""
    assert best_windows(8, window_ranges(8, 4, 2)) == [0, 0, 0, 1, 1, 2, 2, 2]
    assert best_windows(3, [range(0, 3)]) == [0, 0, 0]
    # Of equals the longer: token 4 is at the edge of both.
    assert best_windows(6, [range(0, 5), range(4, 6)]) == [0, 0, 0, 0, 0, 1]


def test_a_row_is_question_and_context_with_their_marks(tokenizer: Tokenizer) -> None:
    first, second = windows_of(tokenizer, "abc d.", seq_length=9, stride=2)
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    assert first.tokens[0] == cls
    assert [i for i, t in enumerate(first.tokens) if t == sep] == [4, 8]
    assert tokenizer.decode(first.tokens) == "who abc"
    assert first.segments == [0] * 5 + [1] * 4
    assert first.allowed == [True] + [False] * 4 + [True] * 3 + [False]
    assert first.characters[5:8] == [(0, 1), (1, 2), (2, 3)]
    assert second.characters[5:8] == [(2, 3), (4, 5), (5, 6)], "blanks belong to no token"
    for window in (first, second):
        sizes = {len(window.tokens), len(window.segments), len(window.best)}
        assert sizes == {len(window.characters)}


def test_a_stride_that_skips_tokens_and_rows_without_room_are_refused(tokenizer: Tokenizer) -> None:
    for seq_length, stride in ((9, 4), (6, 1), (9, 0)):
        with pytest.raises(ValueError, match=r"has room for .* the stride is"):
            windows_of(tokenizer, "abcdefgh", seq_length, stride)


def test_every_answer_can_be_said_from_its_labels(tokenizer: Tokenizer) -> None:
    """All spans of a text with accents, wide characters and double blanks: labels lead back to the
    same characters, but for blanks at the ends; windows that show a part say "not here"."""
    context = "Ünder  a naïve 日. Ça va"
    whole = windows_of(tokenizer, context, 60, 5)
    assert len(whole) == 1
    windows = windows_of(tokenizer, context, 13, 3)
    assert len(windows) > 3
    for start in range(len(context)):
        for stop in range(start + 1, len(context) + 1):
            text = context[start:stop]
            if not text.strip():
                continue
            left = start + len(text) - len(text.lstrip())
            right = left + len(text.strip())
            for window in [*whole, *windows]:
                first, last = span_labels(window, (left, right))
                shown = [c for c in window.characters if c is not None]
                if shown[0][0] <= left and right <= shown[-1][1]:
                    a, b = window.characters[first], window.characters[last]
                    assert a is not None
                    assert b is not None
                    assert context[a[0] : b[1]] == text.strip()
                else:
                    assert (first, last) == (0, 0)
    assert span_labels(whole[0], None) == [0, 0]


def test_an_answer_inside_a_word_takes_the_pieces_that_it_touches(tokenizer: Tokenizer) -> None:
    window = windows_of(tokenizer, "ab cd", 20, 1)[0]
    assert span_labels(window, (1, 4)) == [6, 7]


def test_the_search_is_exact(tokenizer: Tokenizer) -> None:
    """Against a loop over all pairs of places of all windows."""
    generator = torch.Generator().manual_seed(3)
    context = "abc defg hi. jklm no"
    for seq_length, stride, n, longest in ((11, 2, 7, 3), (14, 6, 1, 30), (40, 9, 500, 4)):
        windows = windows_of(tokenizer, context, seq_length, stride)
        width = max(len(w.tokens) for w in windows)
        logits = torch.full((len(windows), 2, width), -torch.inf, dtype=torch.float64)
        for row, window in zip(logits, windows, strict=True):
            allowed = torch.tensor(window.allowed)
            numbers = torch.randn(2, len(window.tokens), generator=generator, dtype=torch.float64)
            row[:, : len(window.tokens)] = numbers.masked_fill(~allowed, -torch.inf)
        scores = log_probabilities(logits)
        assert torch.allclose(scores.exp().sum((0, 2)), torch.ones(2, dtype=torch.float64)), (
            "one probability over all windows of a question"
        )
        expected = []
        for w, window in enumerate(windows):
            for i in range(len(window.tokens)):
                for j in range(i, min(i + longest, len(window.tokens))):
                    a, b = window.characters[i], window.characters[j]
                    if a is None or b is None or not window.best[i]:
                        continue
                    score = float(scores[w, 0, i] + scores[w, 1, j])
                    expected.append((score, context[a[0] : b[1]], (a[0], b[1])))
        expected.sort(reverse=True)
        found = n_best(scores, windows, context, n=n, max_length=longest)
        assert [(a.score, a.text, a.characters) for a in found] == expected[:n]
        assert len({a.characters for a in found}) == len(found), "no span twice"
        cls = [float(scores[w, 0, 0] + scores[w, 1, 0]) for w in range(len(windows))]
        assert no_answer_score(scores) == min(cls)


def test_an_empty_context_has_no_span(tokenizer: Tokenizer) -> None:
    windows = windows_of(tokenizer, "", 20, 1)
    assert [w.characters for w in windows] == [[None] * 6]
    scores = log_probabilities(torch.zeros(1, 2, 6))
    assert n_best(scores, windows, "") == []


def test_on_real_text_characters_lead_back(tmp_path: Path) -> None:
    """Longer than a window, with a tokenizer that knows few of its characters."""
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n", encoding="utf-8")
    context = "The 🏛 (est. 1789) – “the Senate”\u2028THE end"
    windows = span_windows("the", context, read_wordpiece(path), seq_length=9, stride=2)
    for word in ("1789", "🏛", "“", "THE", "Senate"):
        start = context.index(word)
        shown = [span_labels(w, (start, start + len(word))) for w in windows]
        found = {
            context[w.characters[i][0] : w.characters[j][1]]  # type: ignore[index]
            for w, (i, j) in zip(windows, shown, strict=True)
            if i
        }
        assert found == {word}
