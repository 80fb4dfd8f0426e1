"""The probe of a stream that stands in for torch's global generator: whose number each draw was.

All numbers that the two generators would give are known beforehand, so a draw is told as "stream 3"
or "global 0".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from step03_attention_parallel.rng import _Stream

from ..wiretap import Wiretap
from .common import Case, Choices, Foreseen, Probe, Seen, imagined, yes

CASES = (Case("alone", torch.float64, 1), Case("alone", torch.float64, 2))


class Names:
    """What a drawn number is called: its generator's name and how many came before it."""

    def __init__(self, **generators: torch.Generator) -> None:
        self.known: dict[float, str] = {}
        for name, generator in generators.items():
            for i in range(24):
                self.known[float(torch.rand(1, generator=generator))] = f"{name} {i}"

    def draw(self) -> str:
        return self.known.get(float(torch.rand(1)), "neither")


def _look(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    seen, (swapped_in,) = Seen(sent=tap.sent), functions
    stream = _Stream("probe", case.seed)
    names = Names(
        stream=torch.Generator().manual_seed(stream.start),
        **{"global": torch.Generator().manual_seed(case.seed)},
    )
    torch.manual_seed(case.seed)
    draw = names.draw
    scene: list[str] = [draw()]
    with swapped_in(stream):
        scene += [draw(), draw()]
    seen.values["before, inside twice, behind"] = ", ".join([*scene, draw()])
    states, kept = dict(stream.states), {k: v.clone() for k, v in stream.states.items()}
    with swapped_in(stream):
        scene = [draw()]
    seen.values["inside again, behind"] = ", ".join([*scene, draw()])
    seen.values["an old state is as it was"] = yes(
        all(torch.equal(states[k], kept[k]) for k in kept)
    )
    with swapped_in(stream):
        scene = [draw()]
        with swapped_in(stream):
            scene.append(draw())
        scene.append(draw())
        with swapped_in(stream):
            scene.append(draw())
    seen.values["inside itself: outer, inner, outer, inner, behind"] = ", ".join([*scene, draw()])
    try:
        with swapped_in(stream):
            scene = [draw()]
            raise KeyError("of the probe")
    except KeyError:
        scene.append(draw())
    with swapped_in(stream):
        scene.append(draw())
    seen.values["left by an exception: inside, behind, inside again"] = ", ".join(scene)
    later = torch.Generator().manual_seed(stream.start)
    torch.rand(10, generator=later)
    stream.states = {"cpu": later.get_state()}
    with swapped_in(stream):
        seen.values["inside, after a state was loaded"] = draw()
    seen.values["active behind it all"] = yes(bool(stream.active))
    return seen


def _swapped_in(c: Choices) -> Callable[..., Any]:
    """Swaps as somebody would who errs so."""

    @contextmanager
    def swapped_in(self: _Stream) -> Iterator[None]:
        if self.active and c["inside itself"] == "goes on":
            yield
            return
        if c["enter"] == "nothing":
            yield
            return
        before = torch.get_rng_state()
        if c["enter"] == "seeded":
            torch.manual_seed(self.start)
        else:
            torch.set_rng_state(self.states["cpu"])
        if c["global is kept"] == "too late":
            before = torch.get_rng_state()
        self.active = True
        failed = True
        try:
            yield
            failed = False
        finally:
            if not failed or c["error"] != "not put back":
                self.active = c["active"] == "left on"
                if c["stream is kept"] == "in place":
                    self.states["cpu"].copy_(torch.get_rng_state())
                elif c["stream is kept"] == "after the swap":
                    torch.set_rng_state(before)
                    self.states = {"cpu": torch.get_rng_state()}
                elif c["stream is kept"] != "not" and (not failed or c["error"] == "put back"):
                    self.states = {"cpu": torch.get_rng_state()}
                if c["leave"] == "global put back":
                    torch.set_rng_state(before)
                elif c["leave"] == "seeded":
                    torch.seed()

    return swapped_in


def _foresee(case: Case, c: Choices) -> Foreseen:
    wrong = [axis for axis, choices in SWAP.axes.items() if c[axis] != choices[0]]
    return imagined(_look, [_swapped_in(c) if wrong else _Stream.swapped_in], case)


SWAP = Probe(
    cases=CASES,
    observe=_look,
    foresee=_foresee,
    axes={
        "enter": ("the stream's state", "nothing", "seeded"),
        "leave": ("global put back", "left", "seeded"),
        "stream is kept": ("a new state", "not", "in place", "after the swap"),
        "global is kept": ("before", "too late"),
        "inside itself": ("goes on", "swaps again"),
        "error": ("put back", "not put back", "stream not kept"),
        "active": ("reset", "left on"),
    },
)  # fmt: skip
