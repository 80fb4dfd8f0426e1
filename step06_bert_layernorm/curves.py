"""The picture of a pretraining run."""

from __future__ import annotations

from pathlib import Path

from step01_single_gpu.run_folder import Metrics


def plot_pretraining(metrics: Metrics, path: Path, unigram: float) -> None:
    """Masked words on the left, sentence order on the right, each with the line to get past."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (words, order) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")

    def points(key: str) -> tuple[list[int], list[float]]:
        rows = [row for row in metrics.rows if key in row]
        return [row["step"] for row in rows], [row[key] for row in rows]

    words.plot(*points("masked_loss"), color="tab:blue", alpha=0.5, lw=1, label="training")
    words.plot(*points("valid_loss"), color="tab:orange", marker="o", label="validation")
    words.axhline(unigram, color="gray", ls="--", lw=1, label="word frequencies alone")
    words.set(xlabel="optimizer step", ylabel="loss of masked words (nats)")
    steps, accuracy = points("valid_order_accuracy")
    percent = [100 * value for value in accuracy]
    order.plot(steps, percent, color="tab:orange", marker="o", label="validation")
    order.axhline(50, color="gray", ls="--", lw=1, label="guessing")
    order.set(xlabel="optimizer step", ylabel="sentence order told right (%)")
    for axes in (words, order):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
