"""The learner's functions in the places of the real ones, in this process.

    with_mine(fn, files)   a function that first installs them, then is fn: for `run_ranks`

Whatever imported a real function by name gets the learner's: every loaded module of the steps is
gone through, and what is imported later finds it in its home already.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .exercises import exercise
from .load import functions, parse


@dataclass(frozen=True)
class Mine:
    """A learner's file, and which of its exercises are to be used."""

    source: str
    filename: str
    ids: tuple[str, ...]

    def install(self) -> None:
        """Put the functions in place. They see one another, as in the step itself."""
        tree = parse(self.source, self.filename)
        made = {id: functions(tree, self.filename, exercise(id)) for id in self.ids}
        put: list[tuple[str, Any, Any]] = []
        for id, own in made.items():
            for part, function in zip(exercise(id).parts, own, strict=True):
                home = importlib.import_module(part.module)
                if part.owner:
                    setattr(getattr(home, part.owner), part.name, function)
                    continue
                put.append((part.name, getattr(home, part.name), function))
        spaces = [
            vars(module) for name, module in list(sys.modules.items()) if name.startswith("step0")
        ]
        spaces += [function.__globals__ for own in made.values() for function in own]
        for name, real, function in put:
            for space in spaces:
                if space.get(name) is real:
                    space[name] = function


@dataclass(frozen=True)
class WithMine:
    """Picklable: what `run_ranks` starts instead of `function`."""

    mine: Mine
    function: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        self.mine.install()
        return self.function(*args)
