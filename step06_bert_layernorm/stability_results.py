"""What the runs of a stability study say: who trained, at which rates, and through which layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ORDERS = ("original", "rearranged")
MARGIN = 0.25  # nats; fixed before the chapter's runs


@dataclass(frozen=True)
class Study:
    """All runs of one study. Each is a `Trial`'s fields and what `train` returned."""

    runs: list[dict[str, Any]]
    unigram: float
    steps: int
    start: str
    probe: int
    vocab_size: int

    def of(self, **wanted: Any) -> list[dict[str, Any]]:
        """The runs whose fields are as wanted."""
        return [run for run in self.runs if all(run[k] == v for k, v in wanted.items())]

    def values(self, field: str) -> list[Any]:
        return sorted({run[field] for run in self.runs})

    def final(self, **wanted: Any) -> float:
        """Mean final loss over the seeds of one setting; infinite if one of them broke down."""
        found = [final_loss(run["losses"], self.steps) for run in self.of(**wanted)]
        return sum(found) / len(found)

    def best_rate(self, **wanted: Any) -> float:
        """The rate with the lowest mean final loss, whether that is good or not."""
        rates = sorted({run["rate"] for run in self.of(**wanted)})
        return float(min(rates, key=lambda rate: self.final(rate=rate, **wanted)))

    def largest_rate(self, **wanted: Any) -> float | None:
        """The largest rate at which *all* seeds train; None if there is no such rate."""
        good = {run["rate"] for run in self.of(**wanted)}
        for run in self.of(**wanted):
            if not trains(run["losses"], self.steps, self.unigram):
                good.discard(run["rate"])
        return max(good, default=None)

    def layers(self, look: int, **wanted: Any) -> list[float]:
        """Gradient norm of each layer at the first or second look, the geometric mean over runs.

        Empty if a run had broken down before that look.
        """
        rows = [
            run["looks"][look]["layers"] for run in self.of(**wanted) if len(run["looks"]) > look
        ]
        if len(rows) < len(self.of(**wanted)) or not all(g > 0 for row in rows for g in row):
            return []
        return [
            math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*rows, strict=True)
        ]


def final_loss(losses: Sequence[float], steps: int) -> float:
    """Mean of the last tenth of the steps; infinite for a run that didn't come to its end."""
    if len(losses) < steps or not all(map(math.isfinite, losses)):
        return math.inf
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def trains(losses: Sequence[float], steps: int, unigram: float) -> bool:
    """Whether a run learned more of the text than how frequent its words are: its final loss is
    below the unigram loss by MARGIN."""
    return final_loss(losses, steps) <= unigram - MARGIN


def tables(study: Study) -> str:
    """Final losses of every setting, largest rates, and the lowest layer's share of gradient."""
    rates, seeds = study.values("rate"), len(study.values("seed"))
    lines = [
        f"final loss, mean over {seeds} seed(s); * all seeds train: at least {MARGIN} below the "
        f"unigram loss of {study.unigram:.2f}",
        f"{'warm-up':>7} {'layers':>6} {'order':<10} "
        + " ".join(f"{f'{rate:g}':>7}" for rate in rates)
        + "   largest rate",
    ]
    for warmup in study.values("warmup"):
        for depth in study.values("depth"):
            for norm in ORDERS:
                key = {"warmup": warmup, "depth": depth, "norm": norm}
                cells = []
                for rate in rates:
                    ok = study.largest_rate(**key, rate=rate) is not None
                    cells.append(f"{study.final(**key, rate=rate):6.2f}{'*' if ok else ' '}")
                largest = study.largest_rate(**key)
                shown = "none" if largest is None else f"{largest:g}"
                lines.append(f"{warmup:>7} {depth:>6} {norm:<10} {' '.join(cells)}   {shown}")
    return "\n".join([*lines, "", gradients(study)])


def gradients(study: Study) -> str:
    """Gradient of the lowest layer over that of the highest, before the first step and later."""
    rate = shown_rate(study)
    lines = [
        f"gradient norm of layer 1 over that of the last: at the start, and after {study.probe} "
        f"steps at {rate:g} without warm-up"
    ]
    for depth in study.values("depth"):
        for norm in ORDERS:
            key = {"warmup": 0, "depth": depth, "norm": norm, "rate": rate}
            rows = [study.layers(look, **key) for look in (0, 1)]
            shares = [f"{row[0] / row[-1]:.1e}" if row else "broken" for row in rows]
            cosines = [run["looks"][-1]["alike"] for run in study.of(**key)]
            lines.append(
                f"{depth:>6} {norm:<10} {'  '.join(shares)}   tokens alike "
                f"{sum(cosines) / len(cosines):.3f}"
            )
    return "\n".join(lines)


def shown_rate(study: Study) -> float:
    """The rate whose gradients are shown: the rearranged order's best at the greatest depth."""
    return study.best_rate(norm="rearranged", depth=max(study.values("depth")), warmup=0)
