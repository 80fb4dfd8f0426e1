"""Probe of masked words: which spans are chosen, and what stands in their place then.

Chance can be spent in many right ways, so what is judged are facts about hundreds of draws, each a
word or two. A fact that would mean nothing beside a coarser fault (the lengths of spans that cut
words in two) is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..journal import WORLD
from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Probe, Seen
from .step06_replacing import REPLACING, replaced, replacing

DRAWS, WORD_TOKENS, PADDING = 160, 100, 85
# (probability, max_ngram) by the case's seed
ASKED = {1: (0.15, 3), 2: (0.3, 2)}
WordIds = list[int | None]
Spans = list[tuple[int, int]]


@functools.cache
def row_of_words(seed: int) -> WordIds:
    """Sentences of some 25 tokens in words of one to three pieces, separated, and padding."""
    generator = torch.Generator().manual_seed(seed)
    pieces = torch.tensor([0.6, 0.3, 0.1]).multinomial(WORD_TOKENS, True, generator=generator) + 1
    words = [word for word, n in enumerate(pieces.tolist()) for _ in range(n)][:WORD_TOKENS]
    ids: WordIds = [None]
    for i, word in enumerate(words):
        if i > 24 and word % 16 == 0 and word != words[i - 1]:
            ids.append(None)
        ids.append(word)
    return [*ids, *[None] * PADDING]


def _facts(case: Case, c: Choices) -> Foreseen:
    _, longest = ASKED[case.seed]
    lengths = {"∝ 1/n": "∝ 1/n", "all alike": "all alike", "the longest": f"always {longest}",
               "one word": "at most 1", "one fewer": f"at most {longest - 1}",
               "one more": f"at most {longest + 1}",
               "3 whatever is asked": "∝ 1/n" if longest == 3 else "at most 3"}  # fmt: skip
    share = c["share"]
    if share == "15 % whatever is asked":
        share = "as asked" if case.seed == 1 else "15%"
    least = "none, now and then" if share == "a little below" else c["fewest"]
    share = share.removesuffix(", but for the first")
    row = {
        "a span is": f"{c['a span is']}, {c['its end']}",
        "special tokens": c["special tokens"],
        "words": c["words"],
        "overlaps": c["overlaps"],
        "share of tokens": share,
        "words a span": lengths[c["length"]],
        "places": c["places"],
        "spans of a short text": least,
        "chance of spans": c["chance of spans"],
    }
    for fault in ("special tokens", "words", "overlaps"):
        if c[fault] != CHOOSING[fault][0]:
            kept = ("a span is", "chance of spans", fault)
            row = {name: row[name] for name in row if name in kept}
            break
    return Foreseen([row | replacing(case, c), *[{}] * (WORLD - 1)])


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    choose, replace = functions
    seen = Seen(sent=tap.sent)
    if rank > 0:  # hundreds of draws, and nothing in them that depends on the rank
        return seen
    _chosen(choose, case, seen)
    replaced(replace, case, seen)
    return seen


def _chosen(choose: Callable[..., Any], case: Case, seen: Seen) -> None:
    word_ids, (probability, longest) = list(row_of_words(case.seed)), ASKED[case.seed]
    torch.manual_seed(case.seed)  # so that who seeds it anew is seen
    before, state = list(word_ids), torch.get_rng_state()

    def draw(seed: int, ids: WordIds) -> Any:
        return choose(ids, torch.Generator().manual_seed(seed), probability, longest)

    drawn = [draw(seed, word_ids) for seed in range(DRAWS)]
    again = all(draw(seed, word_ids) == drawn[seed] for seed in range(10))
    quiet = torch.equal(torch.get_rng_state(), state)
    seen.values["chance of spans"] = GENERATORS if again and quiet else "from elsewhere"
    if word_ids != before:
        seen.flags["input changed"] = "word_ids"
    odd = next((text for spans in drawn if (text := _odd(spans))), "")
    if odd:
        seen.values["a span is"] = odd
        return
    spans: list[Spans] = [[(int(a), int(b)) for a, b in found] for found in drawn]
    kind, spans = _as_tokens(spans, word_ids)
    seen.values["a span is"] = kind
    fault = _fault(spans, word_ids)
    if fault:
        seen.values |= fault
        return
    short: WordIds = [None, 0, 1, None]
    empty = any(not choose(short, torch.Generator().manual_seed(i), 0.15, 3) for i in range(40))
    seen.values |= {
        "special tokens": CHOOSING["special tokens"][0],
        "words": CHOOSING["words"][0],
        "overlaps": CHOOSING["overlaps"][0],
        "share of tokens": _share(spans, word_ids, probability),
        "words a span": _lengths(spans, word_ids, longest),
        "places": _places(spans, len(word_ids) - PADDING),
        "spans of a short text": "none, now and then" if empty else "always one",
    }


def _odd(spans: Any) -> str:
    try:
        good = all(len(span) == 2 and int(span[0]) <= int(span[1]) for span in spans)
    except (TypeError, ValueError):
        good = False
    return "" if good else f"not (first, end): {str(spans)[:60]}"


def _as_tokens(drawn: list[Spans], word_ids: WordIds) -> tuple[str, list[Spans]]:
    """What the two numbers stand for, and the spans as tokens first … end - 1."""
    end, kind = "end not in it", "tokens"
    if any(b <= a for spans in drawn for a, b in spans):
        end, drawn = "end in it", [[(a, b + 1) for a, b in spans] for spans in drawn]
    starts = [i for i, w in enumerate(word_ids) if w is not None and w != word_ids[i - 1]]
    most = max((b for spans in drawn for _, b in spans), default=0)
    if most <= len(starts) and _fault(drawn, word_ids):  # and all is well if they are words
        last = {word: i + 1 for i, word in enumerate(word_ids)}
        ends = [last[word_ids[start]] for start in starts]
        kind, drawn = "words", [[(starts[a], ends[b - 1]) for a, b in spans] for spans in drawn]
    return f"{kind}, {end}", drawn


def _fault(drawn: list[Spans], word_ids: WordIds) -> dict[str, str]:
    for spans in drawn:
        if any(None in word_ids[a:b] or b > len(word_ids) for a, b in spans):
            return {"special tokens": "in spans"}
    for spans in drawn:
        if any(word_ids[a - 1] == word_ids[a] or word_ids[b] == word_ids[b - 1] for a, b in spans):
            return {"words": "cut in two"}
    for spans in drawn:
        covered = [i for a, b in spans for i in range(a, b)]
        if len(set(covered)) < len(covered):
            return {"overlaps": "some"}
    return {}


def _share(drawn: list[Spans], word_ids: WordIds, probability: float) -> str:
    real = sum(word is not None for word in word_ids)
    share = sum(b - a for spans in drawn for a, b in spans) / len(drawn) / real
    if abs(share - probability) < 0.005:
        return "as asked"
    if abs(share - probability) < 0.032:
        return "a little above" if share > probability else "a little below"
    words = len(set(word_ids) - {None})
    for name, factor in (("of all places", len(word_ids) / real), ("in words", real / words)):
        if abs(share / probability / factor - 1) < 0.05:
            return name
    return "15%" if abs(share - 0.15) < 0.01 else f"{share:.1%}"


def _lengths(drawn: list[Spans], word_ids: WordIds, longest: int) -> str:
    found = [len(set(word_ids[a:b])) for spans in drawn for a, b in spans]
    most = max(found, default=0)
    shares = [found.count(n) / max(len(found), 1) for n in range(1, longest + 1)]
    if most != longest:
        return f"at most {most}"
    if shares[-1] > 0.8:
        return f"always {longest}"
    total = sum(1 / n for n in range(1, longest + 1))
    named = {"∝ 1/n": [1 / n / total for n in range(1, longest + 1)],
             "all alike": [1 / longest] * longest}  # fmt: skip
    for name, wanted in named.items():
        if max(abs(a - b) for a, b in zip(shares, wanted, strict=True)) < 0.08:
            return name
    return "/".join(f"{share:.0%}" for share in shares)


def _places(drawn: list[Spans], length: int) -> str:
    starts = [a for spans in drawn for a, _ in spans]
    front = sum(a < length / 2 for a in starts) / max(len(starts), 1)
    if front > 0.9:
        return "from the front"
    return "anywhere" if 0.42 < front < 0.6 else f"{front:.0%} in the first half"


GENERATORS = "all the generator's"
CHOOSING = {
    "a span is": ("tokens", "words"),
    "its end": ("end not in it", "end in it"),
    "special tokens": ("never in spans", "in spans"),
    "words": ("whole", "cut in two"),
    "overlaps": ("none", "some"),
    "share": ("as asked", "a little above", "a little below",
              "a little below, but for the first", "of all places",
              "in words", "15 % whatever is asked"),
    "length": ("∝ 1/n", "all alike", "the longest", "one word", "one fewer", "one more",
               "3 whatever is asked"),
    "places": ("anywhere", "from the front"),
    "fewest": ("always one", "none, now and then"),
    "chance of spans": (GENERATORS, "from elsewhere"),
}  # fmt: skip
MASKING = Probe(
    cases=(Case("alone", torch.float64, 1), Case("alone", torch.float64, 2)),
    observe=_observe,
    foresee=_facts,
    facts=True,
    axes={**CHOOSING, **REPLACING},
)
