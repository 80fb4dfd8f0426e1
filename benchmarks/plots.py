"""One picture of every peer: how many times as long as ours it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PEERS = {  # a colour each, in all rows
    "transformers": "tab:orange",
    "DTensor": "tab:red",
    "DTensor, loss_parallel": "tab:red",
    "DTensor, logits gathered": "tab:brown",
    "fairscale": "tab:purple",
    "megatron-core": "tab:green",
    "DeepSpeed": "tab:cyan",
    "gather, then loss": "tab:gray",
}
FROM = ("single", "bert", "parallel", "loss", "endtoend")


def draw(kept: dict[str, Any], path: Path) -> None:
    """A group of bars for each table that has peers in it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = [
        (table["title"].split(":")[0], table["figures"])
        for name in FROM
        for table in kept.get(name, {}).get("tables", [])
        if any(peer in table["figures"] for peer in PEERS)
    ]
    rows = [
        (title if i == 0 else "", peer, figures[peer])
        for title, figures in tables
        for i, peer in enumerate(peer for peer in PEERS if peer in figures)
    ]
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.27 * len(rows)), layout="constrained")
    seen: set[str] = set()
    places, labels, place = [], [], 0.0
    for title, peer, times in rows:
        place += 1.6 if title else 1.0
        axes.barh(
            place, times, color=PEERS[peer], label=None if peer in seen else peer, height=0.85
        )
        axes.text(times + 0.02, place, f"{times:.2f}", va="center", fontsize=8)
        seen.add(peer)
        if title:
            places.append(place)
            labels.append(title)
    axes.axvline(1.0, color="black", lw=1, ls="--")
    axes.set(yticks=places, yticklabels=labels, xlabel="time, in multiples of ours (dashed)")
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
