"""The probe of drawing a batch: where windows start, what a target is, what it all depends on."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from step01_single_gpu.batches import global_batch
from step01_single_gpu.weights import generator_for

from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Odd, Probe, Seen, complains, describe, imagined, yes
from .step01_data import CASES, facts, faked, fresh

ROWS, LENGTH = 32, 6


def _corpus(case: Case, size: int) -> Any:
    """Token 3i + 7 stands at place i: a row of 16-bit numbers, or a tensor."""
    whole = np.arange(size) * 3 + 7
    return whole.astype(np.uint16) if case.seed == 1 else torch.from_numpy(whole)


def _places(tokens: Tensor) -> Tensor:
    return (tokens.long() - 7) // 3


def _look(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen, (batch,) = Seen(sent=tap.sent), functions
    corpus = _corpus(case, 6007)
    before = corpus.copy() if isinstance(corpus, np.ndarray) else corpus.clone()

    def draw(step: int, seed: int, tokens: Any = corpus, rows: int = ROWS) -> Any:
        return batch(tokens, step, batch_size=rows, seq_length=LENGTH, seed=seed)

    def starts(step: int, seed: int, tokens: Any = corpus) -> Tensor:
        return _places(torch.as_tensor(draw(step, seed, tokens)[0]))[:, 0]

    first = draw(3, case.seed)
    if not (isinstance(first, tuple | list) and len(first) == 2 and
            all(isinstance(t, Tensor) for t in first)):  # fmt: skip
        seen.values["what comes back"] = Odd(describe(first))
        return seen
    inputs, targets = first
    seen.values["shapes"] = f"{list(inputs.shape)} and {list(targets.shape)}"
    if targets.dim() == 1 and len(targets) == len(inputs):
        seen.values["shapes"] = "a target for each row"
        return seen
    seen.values["dtypes"] = f"{inputs.dtype} and {targets.dtype}".replace("torch.", "")
    if inputs.dim() != 2 or inputs.shape != targets.shape:
        return seen
    seen.values |= _windows(_places(inputs), _places(targets))
    seen.values |= facts(lambda **key: draw(**key)[0], batch, {"step": 3, "seed": case.seed})

    def other(one: tuple[int, int], two: tuple[int, int]) -> str:
        return yes(not torch.equal(starts(*one), starts(*two)))

    seen.values["another step: another batch"] = other((3, 5), (4, 5))
    seen.values["another seed: another batch"] = other((3, 5), (3, 6))
    seen.values["another seed, at step 0: another batch"] = other((0, 5), (0, 6))
    seen.values["seed 2, step 3 is not seed 3, step 2"] = other((3, 2), (2, 3))
    seen.values["seed 2, step 3 is not seed 1, step 4"] = other((3, 2), (4, 1))
    seen.values["seed 1, step 23 is not seed 12, step 3"] = other((23, 1), (3, 12))
    seen.values["seed 2, step 3 is not seed 1, step 3 + 10, 100, 1000, …"] = yes(
        all(other((3, 2), (3 + 10**k, 1)) == "yes" for k in range(1, 7))
    )
    scattered = seen.values["rows start at places of their own"] == "yes" and (
        seen.values["a row goes on where the last one ended"] == "no"
        and seen.values["each row starts one further"] == "no"
    )
    spread, few = "not looked at", "not looked at"
    if scattered:
        many = _places(torch.as_tensor(draw(4, 9, rows=400)[0]))[:, 0]
        spread = yes(float(torch.histc(many.double(), 4, 0, 6001).min()) > 0.17 * len(many))
    if scattered and seen.values["a target is"] == "the next token":
        few = _reached(lambda: draw(4, 4, _corpus(case, LENGTH + 3), 80)[0])
    seen.values["every quarter of the corpus is drawn from"] = spread
    seen.values["starts in a corpus of three windows"] = few
    if not complains(lambda: draw(1, 1, _corpus(case, LENGTH))):
        seen.flags["no complaint"] = f"{LENGTH} tokens for a window of {LENGTH} and a target"
    if not np.array_equal(np.asarray(before), np.asarray(corpus)):
        seen.flags["input changed"] = "the corpus"
    return seen


def _reached(inputs: Callable[[], Any]) -> str:
    try:
        return str(sorted(set(_places(torch.as_tensor(inputs()))[:, 0].tolist())))
    except Exception:
        return "an error"


def _windows(inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    steps, ahead = inputs.diff(dim=1), targets - inputs
    words = {
        1: "the next token",
        0: "its input itself",
        -1: "the token before",
        2: "the next but one",
    }
    if len(torch.unique(ahead)) == 1:
        target = words.get(int(ahead[0, 0]), f"{int(ahead[0, 0]):+d}")
    elif bool((ahead[:, :-1] == 1).all()):
        target = "the next token, but not in the last column"
    else:
        target = "not the same everywhere"
    starts = inputs[:, 0]
    alike = len(torch.unique(starts))
    return {
        "a row is neighbours in the corpus": yes(bool((steps == 1).all())),
        "a target is": target,
        "rows start at places of their own": yes(alike > 0.9 * len(starts)),
        "all starts are multiples of the window": yes(
            alike > 1 and bool((starts % LENGTH == 0).all())
        ),
        "a row goes on where the last one ended": yes(bool((starts.diff() == LENGTH).all())),
        "each row starts one further": yes(bool((starts.diff() == 1).all())),
    }


def _batch(c: Choices) -> Callable[..., Any]:
    """A batch as somebody would draw it who errs so."""

    def draw(
        tokens: Any, step: int, *, batch_size: int, seq_length: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        if len(tokens) < seq_length + 1:
            raise ValueError("too short")
        spare = {"reached": 0, "one too few": -1, "one too many": 1}
        count = len(tokens) - seq_length + spare[c["last start"]]
        starts = _starts(c, max(count, 1), step, batch_size, seq_length, seed)
        width = seq_length + (0 if c["width"] == "one too short" else 1)
        more = 1 if c["target"] == "next but one" else 0
        last = len(tokens) - width - more if more else len(tokens)
        rows = np.stack([np.asarray(tokens[min(i, last) :][: width + more]) for i in starts])
        kind: Any = {"int64": np.int64, "corpus": rows.dtype, "int32": np.int32}[c["dtype"]]
        windows = torch.from_numpy(rows.astype(kind))
        ahead, behind = windows[:, 1:width], windows[:, : width - 1]
        if c["width"] == "inputs one too long":
            behind = windows[:, :width]
        return {
            "next": (behind, ahead), "same": (behind, behind), "before": (ahead, behind),
            "next but one": (behind, windows[:, 2 : width + 1]),
            "rolled": (behind, behind.roll(-1, 1)), "the last alone": (behind, ahead[:, -1]),
        }[c["target"]]  # fmt: skip

    return draw


def _starts(c: Choices, count: int, step: int, rows: int, length: int, seed: int) -> list[int]:
    keys: dict[str, list[object]] = {
        "seed and step": ["batch", seed, step], "sum": [seed + step], "product": [seed * step],
        "xor": [seed ^ step], "joined": [f"{seed}{step}"],
        "seed": [seed], "step": [step], "nothing": [], "a round multiple": [1000 * seed + step],
        "salted": [_hash(f"{seed}, {step}")],
    }  # fmt: skip
    key = keys[c["key"]]
    if c["rank"] == "in the key":
        key.append(dist.get_rank() if faked() else 0)
    generator: torch.Generator | None = generator_for(*key)
    if c["generator"] == "fresh each time":
        generator = generator_for(fresh())
    elif c["generator"].startswith("NumPy"):
        if c["generator"].endswith("seeded"):
            np.random.seed(generator_for(*key).initial_seed() % 2**32)
        drawn: list[int] = np.random.randint(0, count, rows).tolist()
        return drawn
    elif c["generator"] != "own":
        if c["generator"] == "global, seeded":
            torch.manual_seed(generator_for(*key).initial_seed())
        generator = None
    if c["starts"] == "in order":
        return [(step * rows + row) * length % count for row in range(rows)]
    if c["starts"] == "one stretch":
        first = int(torch.randint(count, (1,), generator=generator))
        return [(first + row * length) % count for row in range(rows)]
    if c["starts"] == "multiples":
        blocks = max(count // length, 1)
        return [length * i for i in torch.randint(blocks, (rows,), generator=generator).tolist()]
    if c["starts"] == "one for all":
        return torch.randint(count, (1,), generator=generator).expand(rows).tolist()
    if c["starts"] == "one further each":
        first = int(torch.randint(max(count - rows, 1), (1,), generator=generator))
        return [(first + row) % count for row in range(rows)]
    return torch.randint(count, (rows,), generator=generator).tolist()


def _hash(text: str) -> int:
    return int(globals().get("hash", builtins.hash)(text))


def _foresee(case: Case, c: Choices) -> Foreseen:
    wrong = [axis for axis, choices in BATCH.axes.items() if c[axis] != choices[0]]
    try:
        return imagined(_look, [_batch(c) if wrong else global_batch], case)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


BATCH = Probe(
    cases=CASES,
    observe=_look,
    foresee=_foresee,
    free_wire=True,
    facts=True,
    axes={
        "target": ("next", "same", "next but one", "before", "rolled", "the last alone"),
        "starts": ("anywhere", "multiples", "in order", "one for all", "one further each",
                   "one stretch"),
        "last start": ("reached", "one too few", "one too many"),
        "width": ("whole", "one too short", "inputs one too long"),
        "key": ("seed and step", "sum", "product", "xor", "joined", "seed", "step",
                "salted", "a round multiple"),
        "generator": ("own", "global", "global, seeded", "NumPy's", "NumPy's, seeded",
                      "fresh each time"),
        "rank": ("not in the key", "in the key"),
        "dtype": ("int64", "corpus", "int32"),
    },
)  # fmt: skip
