"""The shared proof: a module cut over n ranks is the unpartitioned one.

Both are built from one full state dict and run on the same input with the same upstream gradient;
then outputs, input gradients and every parameter gradient are compared, on every rank.

The factories travel to the ranks, so they are picklable: a class or `functools.partial` of one,
called with `group=` for the parallel module. This file imports nothing heavy, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step02_mlp_parallel import (
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
    run_ranks,
)
from step02_mlp_parallel.sharding import cuts
from tests.compare import assert_close

WORLDS = (1, 2, 4, 8)
BOUND = 1e-12  # float64: largest error over largest value


@dataclass(frozen=True)
class Case:
    """One comparison. `steps` optimizer steps of SGD with momentum follow the gradients."""

    reference: Callable[[], nn.Module]
    parallel: Callable[..., nn.Module]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    bound: float = BOUND
    seed: int = 0
    steps: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What one run gave; all tensors whole."""

    output: Tensor
    input_gradient: Tensor
    gradients: dict[str, Tensor]
    replicated: dict[str, Tensor]  # this rank's own copies: gradients and final weights
    weights: dict[str, Tensor]


def prove(cases: Sequence[Case] | Case, world_size: int) -> None:
    """Compare the cases at `world_size` ranks, all of them in one start of the ranks."""
    cases = [cases] if isinstance(cases, Case) else cases
    results = run_ranks(_parallel_results, world_size, list(cases))
    for index, case in enumerate(cases):
        expected = reference_result(case)
        for rank, row in enumerate(results):
            compare(row[index], expected, case, f"rank {rank} of {world_size}", world_size)
        first = results[0][index]
        for rank, row in enumerate(results[1:], start=1):
            for name, tensor in row[index].replicated.items():
                assert torch.equal(tensor, first.replicated[name]), (
                    f"{name}: replicas on rank 0 and {rank} of {world_size} are not bit-equal: an "
                    "all-reduce is missing before it (f), or it is reduced in another order"
                )


def compare(got: Result, expected: Result, case: Case, where: str, world_size: int) -> None:
    """Every tensor of a run against the reference's."""
    pairs = {
        "output": (got.output, expected.output),
        "input gradient": (got.input_gradient, expected.input_gradient),
    }
    for kind in ("gradients", "weights"):
        ours, theirs = getattr(got, kind), getattr(expected, kind)
        assert ours.keys() == theirs.keys(), f"{where}, {case}: {ours.keys()} != {theirs.keys()}"
        pairs |= {f"{kind[:-1]} of {name}": (ours[name], theirs[name]) for name in theirs}
    for what, (ours, theirs) in pairs.items():
        try:
            assert_close(ours, theirs, case.bound, f"{where}, {what}")
        except AssertionError as error:
            cause = likely_cause(ours, theirs, world_size)
            raise AssertionError(f"{error}\n  {cause}\n  {case}") from None


def likely_cause(got: Tensor, expected: Tensor, n: int) -> str:
    """A guess from the numbers, for whoever reads the failure."""
    if got.shape == expected.shape and n > 1:
        for factor, cause in (
            (n, f"exactly {n} times too large: one all-reduce too many (g's backward?)"),
            (1 / n, f"exactly {n} times too small: divided by the ranks"),
        ):
            if torch.allclose(got, expected * factor, rtol=1e-6, atol=0):
                return cause
    return "likely: a missing all-reduce (f or g), a bias added on every rank, or a wrong slice"


def random_state(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Weights that hide nothing: no zero bias, no symmetry, no norm gain of one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.3 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        + (1.0 if ".ln" in name or name.startswith("ln") else 0.0)
        for name, tensor in module.state_dict().items()
    }


def reference_result(case: Case) -> Result:
    """The unpartitioned run, in this process."""
    return _run(case, case.reference(), lambda m: None)


def _parallel_results(cases: list[Case]) -> list[Result]:
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    return [_run(case, case.parallel(group=group, **case.extra)) for case in cases]


def _run(case: Case, module: nn.Module, load: Callable[[nn.Module], None] | None = None) -> Result:
    module = module.to(case.dtype)
    state = random_state(case.reference(), case.seed)
    if load is None:
        load_full_state_dict(module, state)
    else:
        module.load_state_dict(state)
    generator = torch.Generator().manual_seed(case.seed + 1)
    x = torch.randn(case.shape, generator=generator, dtype=torch.float64).to(case.dtype)
    output = module(x.requires_grad_())
    # Random: the gradient of a plain sum is the same everywhere and hides a wrong slice.
    upstream = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(case.dtype)
    output.backward(upstream)
    parallel = load is None
    named = dict(module.named_parameters())
    gradients = (
        gather_full_gradients(module)
        if parallel
        else {name: p.grad for name, p in named.items() if p.grad is not None}
    )
    replicated = [n for n, c in cuts(module).items() if c.shard_dim is None] if parallel else []
    result = Result(
        output.detach(),
        _grad(x),
        {name: grad.clone() for name, grad in gradients.items()},
        {f"gradient of {name}": _grad(named[name]).clone() for name in replicated},
        {},
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(case.steps):
        optimizer.zero_grad()
        module(x.detach()).backward(upstream)
        optimizer.step()
    if case.steps:
        result.weights = gather_full_state_dict(module) if parallel else module.state_dict()
        result.replicated |= {name: named[name].detach() for name in replicated}
    return result


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad
