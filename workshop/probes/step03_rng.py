"""The probe of a tracker's streams: who shares one with whom, seen from what they draw."""

from __future__ import annotations

import builtins
import functools
from functools import partial
from typing import Any

import torch
from torch import Tensor

from step03_attention_parallel.rng import RNGTracker, _Stream

from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Probe, Seen, complains, imagined, yes
from .step01_data import Process

CASES = (Case("alone", torch.float64, 1), Case("alone", torch.float64, 2))
FIELDS = ("seed", "mode", "tp_rank", "tp_size", "dp_rank", "step", "first_sample", "stateless")


def _drawn(tracker: RNGTracker, kind: str) -> Tensor:
    with tracker.replicated() if kind == "replicated" else tracker.sharded():
        return torch.rand(6)


def _look(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen, (init,) = Seen(sent=tap.sent), functions
    seed, n = {1: (5, 2), 2: (1234, 4)}[case.seed]

    def made(dp: int = 0, tp: int = 0, seed: int = seed, mode: str = "paper") -> RNGTracker:
        tracker = RNGTracker.__new__(RNGTracker)
        init(tracker, seed, tp_rank=tp, tp_size=n, dp_rank=dp, mode=mode)
        return tracker

    def anew(kind: str, dp: int = 0, tp: int = 0, seed: int = seed) -> Tensor:
        return _drawn(made(dp, tp, seed), kind)

    stream = functools.cache(anew)

    def alike(one: Tensor, other: Tensor) -> str:
        return "the same" if torch.equal(one, other) else "different"

    r, s = "replicated", "sharded"
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = made(1, 1)
    seen.values["torch's global generator: left alone"] = yes(
        torch.equal(before, torch.get_rng_state())
    )
    for name in FIELDS:
        seen.values[name] = str(getattr(one, name, "missing"))
    seen.values["stateless in invariant mode"] = str(
        getattr(made(mode="invariant"), "stateless", "missing")
    )
    seen.values |= {
        "replicated, TP ranks 0 and 1": alike(stream(r), stream(r, 0, 1)),
        "replicated, TP ranks 0 and 1 of DP rank 1": alike(stream(r, 1), stream(r, 1, 1)),
        "replicated, DP ranks 0 and 1": alike(stream(r), stream(r, 1)),
        "sharded, TP ranks 0 and 1": alike(stream(s), stream(s, 0, 1)),
        "sharded, TP ranks 0 and 1 of DP rank 1": alike(stream(s, 1), stream(s, 1, 1)),
        "sharded, DP ranks 0 and 1": alike(stream(s), stream(s, 1)),
        "sharded, DP ranks 0 and 1, of TP rank 1": alike(stream(s, 0, 1), stream(s, 1, 1)),
        "sharded, TP rank 1 and DP rank 1": alike(stream(s, 0, 1), stream(s, 1)),
        "replicated and sharded": alike(stream(r), stream(s)),
        "replicated of DP rank 1, sharded of TP rank 1": alike(stream(r, 1), stream(s, 0, 1)),
        "replicated of DP rank 1, sharded of DP rank 1": alike(stream(r, 1), stream(s, 1)),
        "replicated, another seed": alike(stream(r), stream(r, seed=seed + 7)),
        "sharded, another seed": alike(stream(s), stream(s, seed=seed + 7)),
        "replicated, made again": alike(stream(r), anew(r)),
        "sharded, made again": alike(stream(s), anew(s)),
    }
    process = Process(init)
    for kind in (r, s):
        found = [process.run(salt, partial(anew, kind)) for salt in (1, 2)]
        seen.values[f"{kind}, in another process"] = alike(*found)
    tracker = made()
    _drawn(tracker, r)
    seen.values["sharded, after replicated has drawn"] = alike(_drawn(tracker, s), anew(s))
    for bad in ({"mode": "other"}, {"tp_rank": n, "tp_size": n}, {"dp_rank": -1}):
        blank = RNGTracker.__new__(RNGTracker)
        if not complains(partial(init, blank, seed, **bad)):
            seen.flags.setdefault("no complaint", str(bad))
    return seen


def _init(c: Choices) -> Any:
    """Makes a tracker as somebody would who errs so."""

    def init(
        self: Any, seed: int, *, tp_rank: int = 0, tp_size: int = 1, dp_rank: int = 0,
        mode: str = "paper",
    ) -> None:  # fmt: skip
        if mode not in ("paper", "invariant") or not 0 <= tp_rank < tp_size or dp_rank < 0:
            raise ValueError("bad")
        self.seed, self.mode, self.step, self.first_sample = seed, mode, 0, 0
        self.tp_rank, self.tp_size, self.dp_rank = tp_rank, tp_size, dp_rank
        self.stateless = {"never": False, "always": True, "in paper mode": mode == "paper",
                          "in invariant mode": mode == "invariant"}[c["stateless"]]  # fmt: skip
        if c["global generator"] == "seeded":
            torch.manual_seed(seed)
        parts = {
            "dp": (dp_rank,), "nothing": (), "tp": (tp_rank,), "dp and tp": (dp_rank, tp_rank),
            "sum": (dp_rank + tp_rank,), "product": (dp_rank * tp_rank,),
            "dp, one further": (dp_rank + 1,),
        }  # fmt: skip
        start = {"used": seed, "not used": 0}[c["seed"]]
        first, second = parts[c["replicated by"]], parts[c["sharded by"]]
        if c["kinds"] == "exchanged":
            first, second = second, first
        names = {"two": ("replicated", "sharded"), "exchanged": ("replicated", "sharded"),
                 "salted": (_hash("replicated"), _hash("sharded")),
                 "one": ("", ""), "one stream": ("", "")}[c["kinds"]]  # fmt: skip
        if c["kinds"] == "one":  # numbers added to a seed: rank 0 adds nothing to either
            key_1, key_2 = ((start + 100 * p[0] if p else start) for p in (first[:1], second[:1]))
            key_2 += second[1] if len(second) > 1 else 0
            self._replicated, self._sharded = _Stream(key_1), _Stream(key_2)
            return
        self._replicated = _Stream(start, names[0], *first)
        self._sharded = _Stream(start, names[1], *second)
        if c["kinds"] == "one stream":
            self._sharded = self._replicated
        if c["made again"] == "differs":
            self._replicated, self._sharded = _Stream(torch.seed()), _Stream(torch.seed())

    return init


def _hash(text: str) -> int:
    return int(globals().get("hash", builtins.hash)(text))


def _foresee(case: Case, c: Choices) -> Foreseen:
    wrong = [axis for axis, choices in STREAMS.axes.items() if c[axis] != choices[0]]
    return imagined(_look, [_init(c) if wrong else RNGTracker.__init__], case)


STREAMS = Probe(
    cases=CASES,
    observe=_look,
    foresee=_foresee,
    facts=True,
    axes={
        "replicated by": ("dp", "nothing", "tp", "dp and tp", "sum"),
        "sharded by": ("dp and tp", "tp", "dp", "nothing", "sum", "product"),
        "kinds": ("two", "exchanged", "one", "one stream", "salted"),
        "seed": ("used", "not used"),
        "stateless": ("in invariant mode", "never", "always", "in paper mode"),
        "global generator": ("left alone", "seeded"),
        "made again": ("the same", "differs"),
    },
)  # fmt: skip
