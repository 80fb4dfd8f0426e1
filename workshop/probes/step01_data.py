"""The probe of drawing a weight, and what it shares with that of a batch: relations of draws.

No particular numbers are asked for, so what is looked at are relations: the same again, another
name, another seed, another process. Four ranks are forked from one process and share the salt of
Python's `hash`, so the learner's function is given one whose salt changes.
"""

from __future__ import annotations

import builtins
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from step01_single_gpu.weights import draw_weight, generator_for

from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Odd, Probe, Seen, describe, imagined, yes

CASES = (Case("alone", torch.float64, 1), Case("alone", torch.float64, 2))


class Process:
    """What differs between processes: salt of `hash`, and the rank as torch tells it."""

    def __init__(self, function: Any) -> None:
        self.space = getattr(getattr(function, "__wrapped__", function), "__globals__", {})

    def run(self, salt: int, call: Callable[[], Any], rank: int | None = None) -> Any:
        """`call()` as in a process of another salt, and of another rank if one is given."""
        before = {name: self.space[name] for name in ("hash", "id") if name in self.space}
        real_rank = dist.get_rank
        self.space["hash"] = lambda value: builtins.hash((salt, value) if _salted(value) else value)
        self.space["id"] = lambda value: builtins.id(value) + 16 * salt
        if rank is not None:
            dist.get_rank = lambda group=None: rank
        try:
            return call()
        finally:
            dist.get_rank = real_rank
            del self.space["hash"], self.space["id"]
            self.space.update(before)


def _salted(value: Any) -> bool:
    inside = isinstance(value, tuple | frozenset) and any(map(_salted, value))
    return inside or isinstance(value, str | bytes)


def facts(call: Callable[..., Any], function: Any, key: dict[str, Any]) -> dict[str, Any]:
    """What holds for anything that is drawn: for weights and for batches."""
    process = Process(function)
    torch.default_generator.manual_seed(11)
    np.random.seed(11)
    state = torch.get_rng_state()
    others = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    first = call(**key)
    touched = not torch.equal(state, torch.get_rng_state())
    others_too = others != (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    again = call(**key)
    torch.default_generator.manual_seed(12)
    other = call(**key)
    salts = [process.run(salt, lambda: call(**key)) for salt in (1, 2)]
    ranks = [process.run(0, lambda: call(**key), rank) for rank in (0, 1)]
    return {
        "drawn again: the same": yes(torch.equal(first, again)),
        "with torch's global generator elsewhere: the same": yes(torch.equal(first, other)),
        "torch's global generator: left alone": yes(not touched),
        "Python's and NumPy's global generators: left alone": yes(not others_too),
        "in another process: the same": yes(torch.equal(*salts)),
        "on another rank: the same": yes(torch.equal(*ranks)),
    }


NAMES = [f"blocks.{i}.{part}" for i in (0, 1, 10, 11) for part in ("mlp.up.weight", "out.weight")]
ANAGRAMS = ("blocks.12.qkv.weight", "blocks.21.qkv.weight")
SHAPE = (64, 48)


def _look_weight(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen, (draw,) = Seen(sent=tap.sent), functions
    std, name = (0.02 if case.seed == 1 else 3.0), NAMES[case.seed]
    first = draw(name, SHAPE, std, case.seed)
    if not isinstance(first, Tensor):
        seen.values["weight"] = Odd(describe(first))
        return seen
    seen.values["shape"] = str(list(first.shape))
    seen.values["dtype, device"] = f"{first.dtype} {first.device}".replace("torch.", "")
    seen.values["needs a gradient, has a history"] = yes(first.requires_grad)
    key = {"name": name, "shape": SHAPE, "std": std, "seed": case.seed}
    seen.values |= facts(draw, draw, key)
    seen.values["another seed: other numbers"] = yes(
        not torch.equal(first, draw(name, SHAPE, std, case.seed + 1))
    )
    process = Process(draw)

    def drawn(name: str, shape: tuple[int, ...] = (4, 4)) -> Tensor:
        torch.default_generator.manual_seed(13)
        found = process.run(1, lambda: draw(name, shape, std, case.seed))
        assert isinstance(found, Tensor)
        return found

    def apart(names: Any) -> str:
        return yes(
            not any(torch.equal(a, b) for a, b in itertools.combinations(map(drawn, names), 2))
        )

    short = NAMES[0].rpartition(".")[2]
    seen.values["other names: other numbers"] = yes(not torch.equal(drawn("a"), drawn("bcd")))
    seen.values["names of other blocks: other numbers"] = apart((NAMES[0], NAMES[2]))
    seen.values["names with the same letters: other numbers"] = apart(ANAGRAMS)
    seen.values["names of the same block: other numbers"] = apart(NAMES[:2])
    seen.values["names with the same end: other numbers"] = apart((short, "ln." + short))
    seen.values["two draws of a name in one run: the same"] = yes(
        torch.equal(drawn(NAMES[1]), drawn(NAMES[1]))
    )
    big = process.run(1, lambda: draw(name, (128, 96), std, case.seed)).double()
    seen.values |= _spread(big.detach(), first.detach(), std)
    return seen


def _spread(big: Tensor, small: Tensor, std: float) -> dict[str, Any]:
    """How the numbers lie, in words: a draw has no exact spread."""
    got, mean = float(big.std()), float(big.mean())
    scales = {"std": std, "std²": std**2, "root of std": std**0.5, "1": 1.0,
              "std / √columns": std / 96**0.5, "std / √rows": std / 128**0.5,
              "std / √3": std / 3**0.5, "2 std / √12": 2 * std / 12**0.5,
              "std / √12": std / 12**0.5, "√(2 / columns)": (2 / 96) ** 0.5,
              "std, cut off": 0.8796 * std,
              "√(2 / (rows + columns))": (2 / 224) ** 0.5}  # fmt: skip
    near = [word for word, scale in scales.items() if abs(got / scale - 1) < 0.03]
    means = {"0": 0.0, "std": std, "std / 2": std / 2, "elsewhere": 0.0}
    flat = float((big - mean).abs().max()) < 2.2 * got
    cut = not flat and float((big - mean).abs().max()) < 3.05 * got
    return {
        "spread": near[0] if near else f"{got:.3g}",
        "mean": next(w for w, m in means.items() if abs(mean - m) < 0.05 * got or w == "elsewhere"),
        "shape of the distribution": "flat" if flat else "cut off" if cut else "normal",
        "a number per entry": yes(len(torch.unique(small)) > 0.98 * small.numel()),
    }


_calls = itertools.count()


def fresh() -> int:
    return next(_calls)


def _weight(c: Choices) -> Callable[..., Any]:
    """Draws as somebody would who errs so."""

    def draw(name: str, shape: tuple[int, ...], std: float, seed: int) -> Tensor:
        named = {
            "whole": name, "not at all": "", "letters": "".join(sorted(name)),
            "last part": name.rpartition(".")[2], "length": len(name), "first part": name[:8],
            "first letter": name[:1],
            "salted": _hash(name),
        }[c["name"]]  # fmt: skip
        key: list[object] = [named]
        if c["seed"] == "used":
            key.append(seed)
        if c["rank"] == "in the key":
            key.append(dist.get_rank() if faked() else 0)
        generator: torch.Generator | None = generator_for(*key)
        if c["generator"] == "fresh each time":
            generator = generator_for(fresh())
        if c["generator"] == "global, seeded":
            torch.manual_seed(generator_for(*key).initial_seed())
            generator = None
        if c["generator"] == "global":
            generator = None
        if c["generator"] == "global, seeded by seed":
            torch.manual_seed(seed)
            generator = None
        if c["generator"].startswith("NumPy"):
            if c["generator"].endswith("seeded"):
                np.random.seed(generator_for(*key).initial_seed() % 2**32)
            x = torch.from_numpy(np.random.randn(*shape).astype(np.float32))
        elif c["kind"].startswith("uniform to"):
            x = torch.rand(shape, generator=generator) * 2 - 1
            x = x * 3**0.5 if c["kind"].endswith("√3 std") else x
        elif c["kind"] == "cut off":
            x = torch.nn.init.trunc_normal_(torch.empty(shape), generator=generator)
        elif c["kind"] == "uniform from 0":
            x = torch.rand(shape, generator=generator)
        else:
            x = torch.randn(shape, generator=generator)
        columns, rows = shape[-1], shape[0]
        scale: float = {"std": std, "variance": std**0.5, "std²": std**2, "none": 1.0,
                 "fan in": std / columns**0.5, "fan out": std / rows**0.5,
                 "Xavier's": (2 / (rows + columns))**0.5,
                 "Kaiming's": (2 / columns)**0.5}[c["scale"]]  # fmt: skip
        x = x * float(scale) + (std if c["mean"] == "std" else 0.0)
        x = x.double() if c["dtype"] == "float64" else x
        return x.requires_grad_() if c["history"] == "a parameter" else x

    return draw


def _hash(text: str) -> int:
    return int(globals().get("hash", builtins.hash)(text))


def faked() -> bool:
    return getattr(dist.get_rank, "__name__", "") == "<lambda>"


def _foresee_weight(case: Case, c: Choices) -> Foreseen:
    wrong = [axis for axis, choices in WEIGHT.axes.items() if c[axis] != choices[0]]
    return imagined(_look_weight, [_weight(c) if wrong else draw_weight], case)


WEIGHT = Probe(
    cases=CASES,
    observe=_look_weight,
    foresee=_foresee_weight,
    free_wire=True,
    facts=True,
    axes={
        "name": ("whole", "not at all", "letters", "last part", "length", "first part",
                 "first letter", "salted"),
        "seed": ("used", "not used"),
        "generator": ("own", "global", "global, seeded", "global, seeded by seed",
                      "NumPy's", "NumPy's, seeded", "fresh each time"),
        "rank": ("not in the key", "in the key"),
        "kind": ("normal", "uniform to std", "uniform to √3 std", "uniform from 0", "cut off"),
        "scale": ("std", "variance", "std²", "none", "fan in", "fan out", "Xavier's", "Kaiming's"),
        "history": ("none", "a parameter"),
        "mean": ("0", "std"),
        "dtype": ("float32", "float64"),
    },
)  # fmt: skip
