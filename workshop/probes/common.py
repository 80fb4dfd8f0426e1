"""What a probe is made of: cases, what is seen in a rank, and what is foreseen for it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..journal import WORLD
from ..sim import Layout
from ..wiretap import Sent, Wiretap

LAYOUTS = {
    "all": Layout(((0, 1, 2, 3),)),
    "pairs": Layout(((0, 1), (2, 3))),
    "alone": Layout(((0,), (1,), (2,), (3,))),
}
Values = dict[str, Any]  # name -> tensor, None or a plain value


@dataclass(frozen=True)
class Case:
    """One scene. layout "alone" passes group=None. `variant`: a corner that is looked at last."""

    layout: str
    dtype: torch.dtype
    seed: int
    variant: str = ""

    @property
    def shape(self) -> Layout:
        return LAYOUTS[self.layout]

    @property
    def n(self) -> int:
        return len(self.shape.groups[0])


@dataclass
class Seen:
    """What one rank showed in one case."""

    values: Values = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)  # facts that are wrong whatever the numbers
    sent: list[Sent] = field(default_factory=list)
    work: list[Any] = field(default_factory=list)  # in order: Sent, or (phase, what was computed)
    error: Any = None  # journal.Trouble
    stopped: str = ""  # why backward was not run


@dataclass
class Foreseen:
    """What all ranks would show: right, or under some wrong choice."""

    values: list[Values]
    numel: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})  # sent


Choices = Mapping[str, str]


@dataclass(frozen=True)
class Probe:
    """`observe` runs in a rank with the learner's functions; `foresee` in the checker. `axes`: what
    can be done in several ways, the right one first; `{}`-choices mean all right."""

    cases: tuple[Case, ...]
    observe: Callable[[list[Callable[..., Any]], Case, Any, int, Wiretap], Seen]
    foresee: Callable[[Case, Choices], Foreseen]
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scene: Callable[[Case], dict[str, list[Tensor]]] = (
        lambda case: {}
    )  # what ranks hold, for `play`
    free_wire: bool = False  # True: what is sent isn't judged
    harmless: frozenset[str] = frozenset()  # "axis=choice" that is right too, and changes the rest
    facts: bool = False  # True: each value is a fact of its own, and of two mistakes each shows one

    @property
    def alone(self) -> bool:
        """Whether every case is one of a single rank: all ranks would do the very same."""
        return all(case.layout == "alone" for case in self.cases)


def right(axes: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {axis: choices[0] for axis, choices in axes.items()}


MAIN = (
    Case("all", torch.float64, 1),
    Case("pairs", torch.float32, 2),
    Case("alone", torch.float64, 3),
)


def integers(case: Case, name: str, *shape: int, same: bool = False, low: int = -4) -> list[Tensor]:
    """A matrix of small whole numbers, none zero, for each rank; `same`: one for each group."""
    out = []
    for rank in range(WORLD):
        key = case.shape.group(rank)[0] if same else rank
        generator = torch.Generator().manual_seed(
            1000 * case.seed + 10 * key + 100_003 * sum(map(ord, name))
        )
        x = torch.randint(low, 5, shape, generator=generator)
        out.append(torch.where(x == 0, torch.full_like(x, 5), x).to(case.dtype))
    return out


def leaves(*groups: list[Tensor]) -> list[list[Tensor]]:
    """Copies that want gradients, for the imagined ranks."""
    return [[x.clone().requires_grad_() for x in ranks] for ranks in groups]


def watch(
    call: Callable[[], Any],
    inputs: Mapping[str, Tensor],
    upstream: Tensor,
    tap: Wiretap,
    *,
    kept: Mapping[str, Tensor] | None = None,
) -> Seen:
    """Run `call`, and backward from `upstream`; note all that a learner's code can do to it.

    `inputs`: leaves whose gradients are wanted. They, `upstream` and `kept` must not change.
    """
    seen = Seen()
    tap.work.clear()  # of what set the scene
    watched = {**inputs, **(kept or {})}
    before = {name: x.detach().clone() for name, x in watched.items()}
    tap.phase = "forward"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = call()
        seen.sent = tap.sent
        if not note_output(seen, y, upstream):
            return seen
        grads_wanted = bool(inputs)
        if grads_wanted and not y.requires_grad:
            seen.stopped, seen.flags["detached"] = "detached", "output"
        elif grads_wanted:
            tap.phase = "backward"
            given = copy.deepcopy(upstream)  # with its strides
            _Above.apply(y, given).backward()  # type: ignore[no-untyped-call]
            tap.phase = "after"
            if not torch.equal(given, upstream):
                seen.flags["upstream changed"] = "the gradient that came from above"
    for name, x in inputs.items():
        seen.values[f"grad of {name}"] = None if x.grad is None else x.grad.detach().clone()
    for name, old in before.items():
        if not torch.equal(watched[name].detach(), old):
            seen.flags["input changed"] = name
    if any("autograd kernel was not registered" in str(w.message) for w in said):
        seen.flags["no derivative"] = "all-reduce"
    if tap.open_handles:
        seen.flags["not waited"] = str(tap.open_handles)
    return seen


class _Above(torch.autograd.Function):
    """What stands above: y's gradient is `given`, the very tensor, whatever its strides.
    (`y.backward(given)` would load torch's symbolic shapes first: a second in each rank.)"""

    @staticmethod
    def forward(ctx: Any, y: Tensor, given: Tensor) -> Tensor:
        ctx.given = given
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.given, None


def note_output(seen: Seen, y: Any, like: Tensor, name: str = "output") -> bool:
    """Keep what came back; False if it can't be worked with any further."""
    if not isinstance(y, Tensor):
        seen.values[name], seen.stopped = Odd(describe(y)), "type"
        return False
    seen.values[name] = y.detach().clone()
    if y.shape != like.shape or y.dtype != like.dtype:
        seen.stopped = "shape" if y.shape != like.shape else "dtype"
        return False
    return True


@dataclass(frozen=True)
class Odd:
    """Something that is no tensor, described for the learner."""

    text: str


def describe(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    if kind == "ndarray":
        return f"a NumPy array of shape {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {kind} of {len(value)}"
    text = repr(value)
    return f"{kind} {text[:60]}"


def imagined(probe_of: Callable[..., Seen], functions: list[Any], case: Case) -> Foreseen:
    """What every rank shows with stand-ins that send nothing: looked at as the learner's are."""
    seen = probe_of(functions, case, None, 0, Wiretap())
    return Foreseen([seen.values] * WORLD)


def complains(call: Callable[[], Any]) -> bool:
    """Whether bad input is refused, by whatever error."""
    try:
        call()
    except Exception:
        return True
    return False


def note_refusal(seen: Seen, call: Callable[[], Any], what: str) -> None:
    """Bad input is to be a ValueError."""
    try:
        call()
    except ValueError:
        return
    except Exception as error:
        seen.flags.setdefault("other error", f"{what}: {type(error).__name__}")
    else:
        seen.flags.setdefault("no complaint", what)


def yes(fact: bool) -> str:
    return "yes" if fact else "no"
