"""One picture of every peer: how many times as long as ours it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PEERS = {  # a colour each, in all rows
    "transformers": "tab:orange",
    "DTensor": "tab:red",
    "DTensor, loss_parallel": "tab:pink",
    "DTensor, logits gathered": "tab:brown",
    "fairscale": "tab:purple",
    "megatron-core": "tab:green",
    "DeepSpeed": "tab:cyan",
    "gather, then loss": "tab:gray",
}
FROM = ("single", "bert", "parallel", "loss", "endtoend")


def short(title: str) -> str:
    """A table's title as a label: what is timed, and how large."""
    head = title.split(":")[0].replace(", TP = 2", "").replace(", forward + backward", "")
    parts = head.replace("Loss over a cut vocabulary", "Loss").split(", ")
    return "\n".join([", ".join(parts[:2]), *filter(None, [", ".join(parts[2:])])])


def draw(kept: dict[str, Any], path: Path) -> None:
    """A group of bars for each table that has peers in it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = [
        (short(table["title"]), table["figures"])
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
        label = None if peer in seen else peer
        axes.barh(place, times - 1, left=1, color=PEERS[peer], label=label, height=0.85)
        side = "left" if times >= 1 else "right"
        axes.text(times, place, f" {times:.2f} ", va="center", ha=side, fontsize=8)
        seen.add(peer)
        if title:
            places.append(place)
            labels.append(title)
    axes.axvline(1.0, color="black", lw=1)
    axes.set(yticks=places, yticklabels=labels, xscale="log", xlim=(0.5, 15))
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_xlabel("time in multiples of ours; to the right ours is faster")
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(place + 1, 0)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)
