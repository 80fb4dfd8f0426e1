"""All finished functions of a step at once: what the step builds of them, against the whole."""

from __future__ import annotations

import torch.distributed as dist

from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import RankError

from .evidence import RUNS, Evidence, evidence
from .mine import Mine, WithMine, blame, gist
from .warm import busy

BOUND = 1e-12  # float64: largest error over largest value


def cut_over_all(step: int, sizes: tuple[int, ...]) -> dict[int, Evidence]:
    """In a rank: size of the group -> what the step builds, cut over groups of that many ranks."""
    found = {}
    for n in sizes:
        groups = [dist.new_group(list(range(first, first + n))) for first in range(0, sizes[-1], n)]
        found[n] = evidence(step, groups[dist.get_rank() // n] if n > 1 else None)
    return found


def together(step: int, mines: tuple[Mine, ...]) -> tuple[bool, str]:
    """Whether the functions of `mines` work with one another, and a line that says so."""
    what, sizes = RUNS[step][1:]
    head = f"together ({', '.join(id for mine in mines for id in mine.ids)})"
    try:  # all sizes in one start of the ranks: the pairs of four, and the four
        run = WithMine(mines, cut_over_all)
        results = run_ranks(run, sizes[-1], step, sizes, timeout=30.0 * busy())
    except RankError as error:
        culprit = blame(str(error), mines)
        where = f"on {sizes[-1]} ranks " if sizes[-1] > 1 else ""
        return False, f"{head}: {where}{gist(error)}" + (f" (in {culprit})" if culprit else "")
    whole = evidence(step, None)
    for n in sizes:
        where = f"on {n} ranks " if n > 1 else ""
        for rank, found in enumerate(results):
            for name in whole:
                off = error_of(found[n], whole, name)
                if not off <= BOUND:
                    return False, (
                        f"{head}: {where}{what} is off by {off:.1g} on rank {rank % n} ({name}), "
                        "though each function passes alone"
                    )
    ranks = f", on {' and '.join(map(str, sizes))} ranks" if sizes != (1,) else ""
    return True, f"{head}: {what} made of them equals the whole one to {BOUND:g}{ranks}"


def error_of(found: Evidence, whole: Evidence, name: str) -> float:
    """Largest error over largest value; infinity for what is missing, NaN or of another shape."""
    if name not in found or found[name].shape != whole[name].shape:
        return float("inf")
    scale = max(float(whole[name].abs().max()), 1e-3)  # a key's bias has no gradient but rounding
    off = float((found[name] - whole[name]).abs().max()) / scale
    return off if off == off else float("inf")
