"""Draws holdings.svg: which rank holds what in the parallel MLP, and where f and g fire.

`python -m step02_mlp_parallel.figure [file]`. Everything drawn is read off the layers: the shapes
of what rank 0 and 1 hold, and the collectives that a real forward and backward recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from step01_single_gpu.config import GPTConfig

from .launch import run_ranks
from .ledger import record_collectives
from .mlp import ParallelMLP

COLOURS = ("#4477aa", "#ee7733")  # told apart by colour-blind readers and in grey


def holdings(hidden: int) -> dict[str, list[int]]:
    """Shapes on this rank, and shapes of what it sent forward and backward."""
    config = GPTConfig(1, 4, hidden_size=hidden, num_layers=1, num_heads=1)
    mlp = ParallelMLP(config, group=dist.group.WORLD)
    x = torch.randn(2, 4, hidden, requires_grad=True)
    with record_collectives() as forward:
        y = mlp(x)
    with record_collectives() as backward:
        y.sum().backward()
    found = {name: list(p.shape) for name, p in mlp.named_parameters()}
    return found | {"x": list(x.shape), "g": list(forward[0].shape), "f": list(backward[0].shape)}


def draw(path: Path) -> None:
    """Two ranks, one above the other, from x to y."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, Rectangle

    ranks = run_ranks(holdings, 2, 8)
    figure, axes = plt.subplots(figsize=(10, 4.6), layout="constrained")
    axes.set(xlim=(0, 20), ylim=(-0.2, 8.8))
    axes.axis("off")

    def box(x: float, y: float, w: float, h: float, colour: str, name: str, below: str) -> None:
        axes.add_patch(Rectangle((x, y), w, h, facecolor=colour, alpha=0.85, edgecolor="black"))
        axes.text(x + w / 2, y + h / 2, name, ha="center", va="center", fontsize=12)
        axes.text(x + w / 2, y - 0.12, below, ha="center", va="top", fontsize=8.5)

    def arrow(x: float, y: float, to: float) -> None:
        axes.add_patch(FancyArrowPatch((x, y), (to, y), arrowstyle="-|>", mutation_scale=11))

    for rank, (held, colour) in enumerate(zip(ranks, COLOURS, strict=True)):
        y = 4.7 - 4.3 * rank
        shape = {k: "×".join(map(str, v)) for k, v in held.items()}
        axes.text(0.0, y + 2.6, f"rank {rank}", fontsize=12, weight="bold", color=colour)
        box(0.2, y + 0.6, 1.5, 1.2, "#dddddd", "x", f"{shape['x']}\nsame on both")
        box(4.9, y + 0.2, 1.6, 2.0, colour, f"A{'₀₁'[rank]}", f"up.weight\n{shape['up.weight']}")
        box(8.6, y + 0.6, 2.0, 1.2, "#ffffff", "GeLU", "no communication")
        box(12.2, y + 0.7, 2.4, 1.0, colour, f"B{'₀₁'[rank]}",
            f"down.weight\n{shape['down.weight']}")  # fmt: skip
        box(18.2, y + 0.6, 1.5, 1.2, "#dddddd", "y", f"{shape['x']}\nsame on both")
        for start, end in (
            (1.8, 2.5),
            (3.9, 4.8),
            (6.6, 8.5),
            (10.7, 12.1),
            (14.7, 15.6),
            (17.0, 18.1),
        ):
            arrow(start, y + 1.2, end)
    for x, name, text in (
        (2.6, "f", f"forward: identity\nbackward: all-reduce\nof {ranks[0]['f']}"),
        (15.7, "g", f"forward: all-reduce\nof {ranks[0]['g']}\nbackward: identity"),
    ):
        axes.add_patch(Rectangle((x, 0.2), 1.2, 6.7, facecolor="#ccbb44", edgecolor="black"))
        axes.text(x + 0.6, 3.5, name, ha="center", va="center", fontsize=16, style="italic")
        axes.text(x + 0.6, 7.1, text, ha="center", va="bottom", fontsize=8.5)
    plt.rcParams["svg.hashsalt"] = "holdings"  # the same file each time
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("holdings.svg"))
