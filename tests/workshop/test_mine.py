"""The learner's functions in the real ones' places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from step01_single_gpu import weights
from step01_single_gpu.weights import embedding, linear
from workshop.evidence import RUNS
from workshop.light import light
from workshop.make_exercises import usable
from workshop.mine import Mine, blame
from workshop.probes.registry import PLACES
from workshop.together import together

from .test_exercises import STEPS, stub_file, with_body

NAME = "workshop/work/step02_mlp_parallel.py"
IDS = ("2.1", "2.2", "2.3", "2.4", "2.5", "2.6")


def finished(step: int) -> tuple[str, tuple[str, ...]]:
    """A work file with the real body of every exercise, and their ids."""
    source, exercises = stub_file(step), [e for e in usable(step) if e.id in PLACES]
    for e in exercises:
        source = with_body(source, e)
    return source, tuple(e.id for e in exercises)


@pytest.mark.parametrize("step", STEPS)
def test_all_functions_of_a_step_together(step: int) -> None:
    source, ids = finished(step)
    agree, said = together(step, (Mine(source, NAME, ids),))
    assert agree, said
    assert "equals the whole one to 1e-12" in said


def test_every_step_with_exercises_has_a_run() -> None:
    assert set(STEPS) <= RUNS.keys()


BROKEN = {  # before, after, what is said
    # g is in the layers' forward by way of g_, and in f's backward
    "2.2": ("return _G.apply(x, group)", "return 2 * _G.apply(x, group)", "the MLP is off by 1"),
    "2.4": ("return y if bias is None else y.add_(bias)", "return y", "the MLP is off by"),
    "2.6": (
        "n, size = group_size(group)",
        "raise KeyError(2)\n    n, size = group_size(group)",
        "KeyError: 2 (in 2.6 cut, line",
    ),
}


@pytest.mark.parametrize("id", BROKEN)
def test_one_that_breaks_the_whole_is_seen(id: str) -> None:
    source, _ = finished(2)
    before, after, said = BROKEN[id]
    broken = source.replace(before, after)
    assert broken != source
    agree, line = together(2, (Mine(broken, NAME, (id,)),))
    assert not agree
    assert said in line, line


def test_a_stub_in_place_says_so() -> None:
    agree, said = together(2, (Mine(stub_file(2), NAME, ("2.5",)),))
    assert not agree
    assert "NotImplementedError: 2.5 (in 2.5 ParallelMLP.forward, line" in said


def test_blame_names_the_exercise_or_the_helper(tmp_path: Path) -> None:
    source = "def helper(x):\n    return x.nothing\n\ndef f(x, group=None):\n    return helper(x)\n"
    mine = Mine(source, NAME, ("2.1",))
    trace = f'  File "/lib/torch.py", line 5, in run\n  File "{NAME}", line 5, in f\n'
    assert blame(trace, [mine]) == f"2.1 f, line 5 of {NAME}"
    assert blame(f'{trace}  File "{NAME}", line 2, in helper', [mine]).startswith("helper, line 2")
    assert blame(f'  File "{NAME}", line 5 in f', [mine]) == f"2.1 f, line 5 of {NAME}"
    assert blame('  File "/lib/torch.py", line 5, in run', [mine]) == ""


def test_layers_that_are_made_light_are_the_same() -> None:
    def made() -> list[torch.nn.Module]:
        return [kind(5, 4, std=0.1, seed=3, name="e") for kind in (embedding, linear)]

    with light():
        quick = made()
    for one, other in zip(quick, made(), strict=True):
        assert all(map(torch.equal, one.parameters(), other.parameters()))
        assert type(one).reset_parameters is type(other).reset_parameters
    assert vars(weights)["skip_init"] is torch.nn.utils.skip_init
