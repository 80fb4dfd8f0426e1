"""All finished functions of a step at once: what the step builds of them, against the whole."""

from __future__ import annotations

import torch.distributed as dist

from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import RankError

from .evidence import RUNS, Evidence, evidence
from .mine import Mine, WithMine, blame, gist
from .warm import busy

BOUND = 1e-12  # float64: largest error over largest value


def cut_over_all(step: int) -> Evidence:
    """In a rank."""
    return evidence(step, dist.group.WORLD if dist.get_world_size() > 1 else None)


def together(step: int, mines: tuple[Mine, ...]) -> tuple[bool, str]:
    """Whether the functions of `mines` work with one another, and a line that says so."""
    what, worlds = RUNS[step][1:]
    head = f"together ({', '.join(id for mine in mines for id in mine.ids)})"
    whole = evidence(step, None)
    for n in worlds:
        where = f"on {n} ranks " if n > 1 else ""
        try:
            results = run_ranks(WithMine(mines, cut_over_all), n, step, timeout=30.0 * busy())
        except RankError as error:
            culprit = blame(str(error), mines)
            return False, f"{head}: {where}{gist(error)}" + (f" (in {culprit})" if culprit else "")
        for rank, found in enumerate(results):
            for name in whole:
                off = error_of(found, whole, name)
                if not off <= BOUND:
                    return False, (
                        f"{head}: {where}{what} is off by {off:.1g} on rank {rank} ({name}), "
                        "though each function passes alone"
                    )
    ranks = f", on {' and '.join(map(str, worlds))} ranks" if worlds != (1,) else ""
    return True, f"{head}: {what} made of them equals the whole one to {BOUND:g}{ranks}"


def error_of(found: Evidence, whole: Evidence, name: str) -> float:
    """Largest error over largest value; infinity for what is missing, NaN or of another shape."""
    if name not in found or found[name].shape != whole[name].shape:
        return float("inf")
    scale = max(float(whole[name].abs().max()), 1e-3)  # a key's bias has no gradient but rounding
    off = float((found[name] - whole[name]).abs().max()) / scale
    return off if off == off else float("inf")
