"""Probe of sentence order: what two pieces of one document, and their label, may be.

Chance can be spent in many right ways, so what is judged are facts about hundreds of draws, each a
word or two: "swapped": "half of them".
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ..journal import WORLD
from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Probe, Seen

DRAWS = 400
LENGTHS = {1: 5, 2: 7}  # sentences of a document, by the case's seed
CHANGED = "the document itself was changed"
EMPTY = "none or all, now and then"
CUTS = ("anywhere", "also at an end", "never behind the first", "never before the last",
        "in the middle", "behind the first", "before the last",
        "not before the last, but of two")  # fmt: skip


def _cuts(choice: str, n: int) -> list[int]:
    """Where the cut may be: how many sentences stand before it."""
    return {
        "anywhere": list(range(1, n)),
        "also at an end": [],
        "never behind the first": list(range(2, n)),
        "never before the last": list(range(1, n - 1)),
        "in the middle": [n // 2],
        "behind the first": [1],
        "before the last": [n - 1],
        "not before the last, but of two": list(range(1, n - 1)),
    }[choice]


LABELS = {
    "swapped is 1": "1 if swapped", "swapped is 0": "0 if swapped", "always 0": "always 0",
    "always 1": "always 1", "drawn apart": "has nothing to do with it",
}  # fmt: skip


def _facts(case: Case, c: Choices) -> Foreseen:
    cut = str(_cuts(c["cut"], LENGTHS[case.seed]) or EMPTY)
    swaps = {"half": "half of them", "never": "none", "always": "all",
             "by the cut": "by where the cut is", "seldom": "fewer than half",
             "mostly": "more than half"}[c["swapped"]]  # fmt: skip
    label = LABELS[c["label"]]
    if swaps in ("none", "all") and label.endswith("if swapped"):
        label = "always 0" if (label[0] == "0") == (swaps == "all") else "always 1"
    row: dict[str, Any] = {
        "pieces are made of": c["made of"],
        "sentences stand before the cut": cut,
        "swapped": swaps,
        "label": label,
        "generator": c["chance"],
        "two sentences": "an error" if c["cut"].startswith("never") else "a pair",
        "one sentence": c["single"],
    }
    if c["made of"] != "all sentences of the document, in order":
        row.pop("sentences stand before the cut")
        row.pop("label")
        row.pop("swapped")
    if c["made of"] == TEXT:  # nothing else is looked at
        row = {"pieces are made of": TEXT}
    return Foreseen([row, *[{}] * (WORLD - 1)])


def _observe(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    (sop_pair,) = functions
    if rank > 0:  # hundreds of draws, and nothing in them that depends on the rank
        return Seen(sent=tap.sent)
    n = LENGTHS[case.seed]
    document = [f"sentence {i}" for i in range(n)]
    torch.manual_seed(case.seed)  # so that who seeds it anew is seen
    state = torch.get_rng_state()
    drawn = [_draw(sop_pair, document, seed) for seed in range(DRAWS)]
    seen = Seen(sent=tap.sent)
    odd = [d for d in drawn if isinstance(d, str)]
    if CHANGED in odd:
        seen.flags["input changed"] = "document"
    if odd:
        seen.values["pieces are made of"] = odd[0]
        return seen
    same = all(_draw(sop_pair, document, seed) == drawn[seed] for seed in range(20))
    quiet = torch.equal(torch.get_rng_state(), state)
    seen.values["generator"] = "all chance is its" if same and quiet else "chance from elsewhere"
    seen.values |= _summary([d for d in drawn if not isinstance(d, str)], document)
    try:
        two = _draw(sop_pair, ["a", "b"], 3)
        seen.values["two sentences"] = two if isinstance(two, str) else "a pair"
    except Exception:
        seen.values["two sentences"] = "an error"
    try:
        sop_pair(["alone"], torch.Generator().manual_seed(0))
        seen.values["one sentence"] = "no complaint"
    except Exception as error:
        seen.values["one sentence"] = type(error).__name__
    return seen


Pair = tuple[tuple[str, ...], tuple[str, ...], int]


def _draw(sop_pair: Any, document: list[str], seed: int) -> Pair | str:
    """What came back, or what is odd about it."""
    given = list(document)
    found = sop_pair(given, torch.Generator().manual_seed(seed))
    if given != document:
        return CHANGED
    if not isinstance(found, tuple | list) or len(found) != 3:
        return f"not three things: {str(found)[:60]}"
    first, second, label = found
    if isinstance(first, str) or isinstance(second, str):
        return TEXT
    label = label.item() if isinstance(label, torch.Tensor) else label
    if not isinstance(label, int | float):
        return f"the label is {label!r}"
    return tuple(first), tuple(second), int(label)


def _summary(drawn: list[Pair], document: list[str]) -> dict[str, str]:
    whole, empty, labels = tuple(document), 0, Counter[tuple[bool, int]]()
    cuts: dict[int, list[bool]] = {}
    for first, second, label in drawn:
        swapped = second + first == whole
        if not swapped and first + second != whole:
            return {"pieces are made of": _made_of(drawn, document)}
        if not first or not second:  # has no order: its label says nothing
            empty += 1
            continue
        cuts.setdefault(len(second) if swapped else len(first), []).append(swapped)
        labels[swapped, label] += 1
    return {
        "pieces are made of": "all sentences of the document, in order",
        "sentences stand before the cut": EMPTY if empty else _where(cuts),
        "swapped": _how_often(cuts),
        "label": _label(labels),
    }


def _where(cuts: dict[int, list[bool]]) -> str:
    counts = [len(turned) for turned in cuts.values()]
    even = min(counts) > 0.5 * sum(counts) / len(counts)
    return str(sorted(cuts)) + ("" if even else ", some of them seldom")


def _how_often(cuts: dict[int, list[bool]]) -> str:
    """Which pairs are swapped; where the cut is should have nothing to do with it."""
    turned = [t for each in cuts.values() for t in each]
    share = sum(turned) / max(len(turned), 1)
    if share in (0.0, 1.0):
        return "all" if share else "none"
    if any(abs(sum(each) / len(each) - share) > 0.25 for each in cuts.values()):
        return "by where the cut is"
    if 0.4 < share < 0.6:
        return "half of them"
    return "fewer than half" if share < 0.5 else "more than half"


def _label(counts: Counter[tuple[bool, int]]) -> str:
    """What the label has to do with (swapped, label)'s first."""
    values = {label for _, label in counts}
    if not values <= {0, 1}:
        return f"one of {sorted(values)}"
    if len(values) == 1:
        return f"always {values.pop()}"
    agree = (counts[True, 1] + counts[False, 0]) / counts.total()
    if agree in (0.0, 1.0):
        return "1 if swapped" if agree else "0 if swapped"
    return "has nothing to do with it" if 0.4 < agree < 0.6 else f"agrees in {agree:.0%}"


TEXT = "a piece is a text, not a list"
MADE = ("all sentences of the document, in order", "two sentences", "some of them more than once",
        "some left out", "not in the document's order", TEXT)  # fmt: skip


def _made_of(drawn: list[Pair], document: list[str]) -> str:
    counts = [Counter(first + second) for first, second, _ in drawn]
    if any(count > 1 for c in counts for count in c.values()):
        return MADE[2]
    if all(len(first) == len(second) == 1 for first, second, _ in drawn):
        return MADE[1]
    whole = set(document)
    if all(set(c) == whole for c in counts):
        return MADE[4]
    return MADE[3]


ORDER = Probe(
    cases=(Case("alone", torch.float64, 1), Case("alone", torch.float64, 2)),
    observe=_observe,
    foresee=_facts,
    facts=True,
    axes={
        "swapped": ("half", "never", "always", "by the cut", "seldom", "mostly"),
        "label": tuple(LABELS),
        "cut": CUTS,
        "made of": MADE,
        "chance": ("all chance is its", "chance from elsewhere"),
        "single": ("ValueError", "no complaint", "RuntimeError"),
    },
)
