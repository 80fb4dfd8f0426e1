"""The second half of 6.1's probe: what stands in the place of the chosen spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .common import Case, Choices, Seen

CALLS, LENGTH, MASK = 80, 60, 103
RANDOM_IDS = list(range(2000, 2150, 3))  # beyond the text's ids, and beyond their own number
GENERATORS = "all the generator's"
Spans = list[tuple[int, int]]
SHARES = {
    "80/10/10": (0.8, 0.1, 0.1), "80/2/18": (0.8, 0.02, 0.18), "80/20/0": (0.8, 0.2, 0.0),
    "80/0/20": (0.8, 0.0, 0.2), "100/0/0": (1.0, 0.0, 0.0), "10/80/10": (0.1, 0.8, 0.1),
    "10/10/80": (0.1, 0.1, 0.8), "90/10/0": (0.9, 0.1, 0.0), "0/10/90": (0.0, 0.1, 0.9),
    "80/18/2": (0.8, 0.18, 0.02), "90/0/10": (0.9, 0.0, 0.1), "all alike": (1 / 3, 1 / 3, 1 / 3),
}  # fmt: skip
REPLACING = {
    "shares": tuple(SHARES),
    "decided for": ("a span", "each token", "its first token alone", "the whole row"),
    "random words": ("from random_ids", "numbers in random_ids", "one for a whole span",
                     "the first of random_ids", "other ids"),
    "labels": ("what stood there", "what stands there now", "nothing where it stayed",
               "nothing where no mask stands"),
    "labels elsewhere": ("-100", "the ids", "0", "-1"),
    "order": ("inputs, labels", "labels, inputs"),
    "chance of words": (GENERATORS, "from elsewhere"),
}  # fmt: skip


def replacing(case: Case, c: Choices) -> dict[str, Any]:
    """What is foreseen of replace_spans."""
    _, random, _ = SHARES[c["shares"]]
    row = {
        "comes back": c["order"],
        "outside spans": "as it was",
        "one decision for": c["decided for"],
        "masked/random/kept": c["shares"],
        "random words": c["random words"] if random else "none",
        "labels in spans": c["labels"],
        "labels elsewhere": c["labels elsewhere"],
        "chance of words": c["chance of words"],
    }
    if c["decided for"] == "the whole row":
        del row["masked/random/kept"], row["random words"]
    return row


def spans_of(case: Case) -> Spans:
    """20 spans of one, two and three tokens."""
    return [(3 * i, 3 * i + 1 + (i + case.seed) % 3) for i in range(LENGTH // 3)]


def replaced(replace: Callable[..., Any], case: Case, seen: Seen) -> None:
    """Run it and note the facts."""
    ids, spans = torch.arange(1000, 1000 + LENGTH), spans_of(case)
    words = RANDOM_IDS if case.seed == 1 else torch.tensor(RANDOM_IDS)
    torch.manual_seed(case.seed)  # so that who seeds it anew is seen
    before, state = ids.clone(), torch.get_rng_state()

    def draw(seed: int) -> Any:
        return replace(ids, list(spans), torch.Generator().manual_seed(seed), MASK, words)

    drawn = [draw(seed) for seed in range(CALLS)]
    odd = next((text for found in drawn if (text := _odd(found))), "")
    if not torch.equal(ids, before):
        seen.flags["input changed"] = "ids"
    if odd:
        seen.values["comes back"] = odd
        return
    again = all(_alike(draw(seed), drawn[seed]) for seed in range(10))
    quiet = torch.equal(torch.get_rng_state(), state)
    seen.values["chance of words"] = GENERATORS if again and quiet else "from elsewhere"
    turned = all(bool((a == -100).any()) and not bool((b == -100).any()) for a, b in drawn)
    seen.values["comes back"] = "labels, inputs" if turned else "inputs, labels"
    pairs = [(b, a) if turned else (a, b) for a, b in drawn]
    inside = torch.zeros(LENGTH, dtype=torch.bool)
    for first, end in spans:
        inside[first:end] = True
    inputs, labels = (torch.stack([pair[i] for pair in pairs]) for i in (0, 1))
    kept = bool((inputs[:, ~inside] == before[~inside]).all())
    seen.values["outside spans"] = "as it was" if kept else "changed"
    seen.values["labels elsewhere"] = _elsewhere(labels[:, ~inside], before[~inside])
    seen.values["labels in spans"] = _labels(labels[:, inside], inputs[:, inside], before[inside])
    seen.values |= _kinds(inputs, before, spans)


def _odd(found: Any) -> str:
    if not isinstance(found, tuple | list) or len(found) != 2:
        return f"not two tensors: {str(found)[:60]}"
    if any(not isinstance(t, Tensor) or list(t.shape) != [LENGTH] for t in found):
        return f"not two tensors of shape [{LENGTH}]"
    return ""


def _alike(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _elsewhere(labels: Tensor, ids: Tensor) -> str:
    if bool((labels == ids).all()):
        return "the ids"
    values = {value for row in labels.tolist() for value in row}
    return str(values.pop()) if len(values) == 1 else "of several kinds"


def _labels(labels: Tensor, inputs: Tensor, ids: Tensor) -> str:
    stayed, nothing = inputs == ids, torch.full_like(labels, -100)
    named = {
        "what stood there": ids.expand_as(labels),
        "what stands there now": inputs,
        "nothing where it stayed": torch.where(stayed, nothing, ids),
        "nothing where no mask stands": torch.where(inputs == MASK, ids, nothing),
    }
    return next((name for name, t in named.items() if torch.equal(labels, t)), "something else")


def _kinds(inputs: Tensor, ids: Tensor, spans: Spans) -> dict[str, str]:
    """Who is decided for, in which shares, and where random words come from."""
    rows, old = inputs.tolist(), ids.tolist()
    found = [[_kind(row[i], old[i]) for i in range(*span)] for row in rows for span in spans]
    unit, n = "a span", len(spans)
    if any(len(set(kinds)) > 1 for kinds in found):
        unit = "each token"
        if all(set(kinds[1:]) <= {"kept"} for kinds in found):
            unit, found = "its first token alone", [kinds[:1] for kinds in found]
    elif len({kinds[0] for kinds in found}) > 1 and all(
        len({kinds[0] for kinds in found[i : i + n]}) == 1 for i in range(0, len(found), n)
    ):
        return {"one decision for": "the whole row"}  # too few decisions for shares
    whole = unit == "each token"
    units = Counter(kind for kinds in found for kind in (kinds if whole else kinds[:1]))
    shares = tuple(units[kind] / units.total() for kind in ("masked", "random", "kept"))
    random = [
        [row[i] for i in range(*span)] for row in rows for span in spans
        if all(_kind(row[i], old[i]) == "random" for i in range(*span))
    ]  # fmt: skip
    words = {row[i] for row in rows for span in spans for i in range(*span)
             if _kind(row[i], old[i]) == "random"}  # fmt: skip
    return {
        "one decision for": unit,
        "masked/random/kept": _named(shares),
        "random words": _words(words, [r for r in random if len(r) > 1]),
    }


def _kind(now: int, before: int) -> str:
    return "masked" if now == MASK else "kept" if now == before else "random"


def _named(shares: tuple[float, ...]) -> str:
    for name, wanted in SHARES.items():
        if all(
            abs(a - b) < 0.04 and (a == 0.0) == (b == 0.0)
            for a, b in zip(shares, wanted, strict=True)
        ):
            return name
    return "/".join(f"{share:.0%}" for share in shares)


def _words(words: set[int], spans: list[list[int]]) -> str:
    if not words:
        return "none"
    if words == {RANDOM_IDS[0]}:
        return "the first of random_ids"
    if words <= set(RANDOM_IDS):
        repeated = bool(spans) and all(len(set(span)) == 1 for span in spans)
        return "one for a whole span" if repeated else "from random_ids"
    return "numbers in random_ids" if words <= set(range(len(RANDOM_IDS))) else "other ids"
