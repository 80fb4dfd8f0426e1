"""The probe of recompute: two blocks in a row, of which each tells what it drew and when.

Two, because a single block leaves a tracker where it was before backward, put back or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from step03_attention_parallel.recompute import recompute
from step03_attention_parallel.rng import RNGTracker

from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Odd, Probe, Seen, describe, imagined, integers, yes
from .step03_swap import Names

CASES = (
    Case("alone", torch.float64, 1),
    Case("alone", torch.float64, 2, "no tracker"),
    Case("alone", torch.float64, 3, "an input that needs no gradient"),
    Case("alone", torch.float64, 4, "backward twice"),
    Case("alone", torch.float64, 5, "without gradients"),
)


class _Block:
    """x -> w · x · (1 + number drawn), which notes what it drew and whether anything is kept."""

    def __init__(self, name: str, names: Names, rng: RNGTracker | None, log: list[str]) -> None:
        self.name, self.names, self.rng, self.log = name, names, rng, log
        self.w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        if self.rng is None:
            drawn, factor = self._draw()
        elif self.name == "A":
            with self.rng.replicated():
                drawn, factor = self._draw()
        else:
            with self.rng.replicated():
                one, factor = self._draw()
            with self.rng.sharded():
                two, other = self._draw()
            drawn, factor = f"{one} and {two}", factor + other
        loose, extra = self._draw()
        self.log.append(f"{self.name} draws {drawn}, {loose}")
        return (self.w * x * (1 + factor + extra)).square()

    def _draw(self) -> tuple[str, float]:
        number = float(torch.rand(1))
        return self.names.known.get(number, "a number of nobody"), number


def _look(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen = Seen(values={"raises": "nothing"}, sent=tap.sent)
    try:
        _two_blocks(functions[0], case, seen)
    except Exception as error:
        if not case.variant:
            raise
        seen.values["raises"] = f"{type(error).__name__}: {error}"[:200]
    return seen


def _two_blocks(function: Any, case: Case, seen: Seen) -> None:
    torch.manual_seed(case.seed)
    rng = None if case.variant == "no tracker" else RNGTracker(case.seed, tp_rank=1, tp_size=2)
    log: list[str] = []
    names = _names(rng, case.seed)
    a, b = _Block("A", names, rng, log), _Block("B", names, rng, log)
    wants = case.variant != "an input that needs no gradient"
    x = integers(case, "x", 2, 2)[0].requires_grad_(wants)
    with torch.set_grad_enabled(case.variant != "without gradients"):
        y = function(a, x, rng)
        y = function(b, y, rng) if isinstance(y, Tensor) else y
    seen.values["forward"] = _told(log)
    seen.values["output"] = y.detach().clone() if isinstance(y, Tensor) else Odd(describe(y))
    history = isinstance(y, Tensor) and y.requires_grad
    seen.values["output has a history"] = yes(history)
    again = case.variant == "backward twice"
    for backward in ("backward", "backward once more") if again else ("backward",):
        if not history:
            continue
        (y * integers(case, "upstream", 2, 2)[0]).sum().backward(retain_graph=again)
        seen.values[backward] = _told(log)
        for name, leaf in {"x": x, "A's weight": a.w, "B's weight": b.w}.items():
            kept = None if leaf.grad is None else leaf.grad.clone()
            seen.values[f"grad of {name} ({backward})"] = kept
        seen.values[f"what comes next ({backward})"] = _next(rng, names)


def _names(rng: RNGTracker | None, seed: int) -> Names:
    def at(start: int) -> torch.Generator:
        return torch.Generator().manual_seed(start)

    if rng is None:
        return Names(**{"global": at(seed)})
    return Names(**{"global": at(seed), "replicated": at(rng._replicated.start),
                    "sharded": at(rng._sharded.start)})  # fmt: skip


def _told(log: list[str]) -> str:
    told = "; ".join(log) or "nothing runs"
    log.clear()
    return told


def _next(rng: RNGTracker | None, names: Names) -> str:
    """What the generators would give next; nobody is moved on."""
    before, kept = torch.get_rng_state(), None if rng is None else rng.state_dict()
    found = [names.draw()]
    if rng is not None and kept is not None:
        with rng.replicated():
            found.append(names.draw())
        with rng.sharded():
            found.append(names.draw())
        rng.load_state_dict(kept)
    torch.set_rng_state(before)
    return ", ".join(found)


class _Around:
    """Around the second run: the tracker's state as the choice has it."""

    def __init__(self, rng: RNGTracker | None, c: Choices) -> None:
        self.rng, self.c = rng, c
        self.start = rng.state_dict() if rng else {}
        self.first = True

    def __enter__(self) -> None:
        if self.rng is None or (self.c["tracker"] == "put back once" and not self.first):
            return
        self.now, self.first = self.rng.state_dict(), False
        if self.c["tracker"] not in ("not put back", "as backward finds it"):
            state = dict(self.start)
            if self.c["tracker"] == "replicated alone":
                state["sharded"] = self.now["sharded"]
            if self.c["tracker"] == "sharded alone":
                state["replicated"] = self.now["replicated"]
            self.rng.load_state_dict(state)

    def __exit__(self, *error: object) -> None:
        if self.rng is None:
            return
        if self.c["afterwards"] == "forward again" and self.c["tracker"] != "not put back":
            self.rng.load_state_dict(self.now)
        elif self.c["afterwards"] == "to the start":
            self.rng.load_state_dict(self.start)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class _FromState(torch.autograd.Function):
    """By hand, with no trace of w if x needs no gradient (as reentrant checkpointing has it)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Any, rng: Any, c: Any) -> Tensor:
        ctx.save_for_backward(x)
        ctx.run, ctx.around, ctx.state = run, _Around(rng, c), torch.get_rng_state()
        ctx.put_back = c["global generator"] == "put back"
        with torch.no_grad():
            y: Tensor = run(x)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        before = torch.get_rng_state()
        x = ctx.saved_tensors[0].detach().requires_grad_()
        if ctx.put_back:
            torch.set_rng_state(ctx.state)
        with ctx.around, torch.enable_grad():
            y = (ctx.run(x) * grad).sum()
        torch.set_rng_state(before)
        y.backward()
        return x.grad, None, None, None


def _recompute(c: Choices) -> Callable[..., Any]:
    """Runs again as somebody would who errs so."""

    def stand_in(run: Callable[[Tensor], Tensor], x: Tensor, rng: RNGTracker | None) -> Tensor:
        if c["second run"] == "none":
            return run(x)
        if c["second run"] == "none, and no history":
            with torch.no_grad():
                return run(x)
        if not torch.is_grad_enabled():
            return run(x)
        x = x.detach() if c["input"] == "cut off" else x
        around = _Around(rng, c)
        y = _by_hand(run, x, rng, c) if c["by"] == "reentrant" else _by_hooks(run, x, around, c)
        if c["first run"] == "leaves them" and rng is not None:
            rng.load_state_dict(around.start)
        if c["tracker"] == "state taken behind" and rng is not None:
            around.start = rng.state_dict()
        return y

    return stand_in


def _by_hand(run: Any, x: Tensor, rng: RNGTracker | None, c: Choices) -> Tensor:
    y: Tensor = _FromState.apply(x, run, rng, c)  # type: ignore[no-untyped-call]
    return y


def _by_hooks(run: Any, x: Tensor, around: _Around, c: Choices) -> Tensor:
    y: Tensor = checkpoint(
        run, x, use_reentrant=False, preserve_rng_state=c["global generator"] == "put back",
        context_fn=lambda: (_Nothing(), around),
    )  # fmt: skip
    return y


def _foresee(case: Case, c: Choices) -> Foreseen:
    wrong = [axis for axis, choices in RECOMPUTE.axes.items() if c[axis] != choices[0]]
    return imagined(_look, [_recompute(c) if wrong else recompute], case)


RECOMPUTE = Probe(
    cases=CASES,
    observe=_look,
    foresee=_foresee,
    axes={
        "second run": ("in backward", "none", "none, and no history"),
        "tracker": ("put back", "not put back", "state taken behind", "replicated alone",
                    "sharded alone", "put back once", "as backward finds it"),
        "afterwards": ("forward again", "left there", "to the start"),
        "global generator": ("put back", "not put back"),
        "first run": ("moves the streams on", "leaves them"),
        "input": ("as it is", "cut off"),
        "by": ("hooks", "reentrant"),
    },
)  # fmt: skip
