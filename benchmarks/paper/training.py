"""The paper's results of training: Tables 3, 5 and 6, figures 6 and 7."""

from __future__ import annotations

import statistics
from typing import Any

from step06_bert_layernorm.task_presets import SIZES, TABLE_6

from .form import grid

# Figures of the paper that nothing here can reproduce; they stand for scale.
TABLE_3 = (("355M", 19.31, 45.18), ("2.5B", 12.76, 61.73), ("8.3B", 10.81, 66.51))
TABLE_5 = (
    ("336M", "89.7 / 90.0", "92.3", "94.2 / 88.0", "88.1 / 84.8", "83.0 (86.9 / 81.5)"),
    ("1.3B", "90.9 / 91.0", "92.6", "94.9 / 89.1", "90.2 / 87.1", "87.3 (90.4 / 86.1)"),
    ("3.9B", "91.4 / 91.4", "92.7", "95.5 / 90.0", "91.2 / 88.5", "89.5 (91.8 / 88.6)"),
)


def sections(kept: dict[str, Any]) -> list[str]:
    return [
        "## Figure 6: larger models learn faster\n",
        figure_6(kept.get("figure6")),
        "## Table 3: zero-shot WikiText-103 and LAMBADA\n",
        grid(
            ["model", "WikiText-103 perplexity", "LAMBADA, %"],
            [[name, f"{w:.2f}", f"{a:.2f}"] for name, w, a in TABLE_3],
        ),
        "Out of reach here: these models read 157 billion tokens. `make evaluate` computes both "
        "figures by the paper's rules (perplexity a *word*, overlapping windows, whole last word) "
        "for any run, and takes the official files.\n",
        "## Table 5: BERT on downstream tasks\n",
        grid(
            ["model", "MNLI m/mm", "QQP", "SQuAD 1.1 F1/EM", "SQuAD 2.0 F1/EM", "RACE m/h"],
            [list(row) for row in TABLE_5],
        ),
        "Out of reach too. The heads, the readers of the official files and the metrics are all "
        "there; what a laptop can do is fine-tune a small pretrained BERT on a stand-in:\n",
        boolq(kept.get("boolq")),
        "## Table 6: settings of fine-tuning\n",
        table_6(),
        '`make finetune ARGS="--preset 336m"` takes them.\n',
        "## Figure 7: where the layer norm stands\n",
        figure_7(kept.get("figure7")),
    ]


def figure_6(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not measured yet: `make figure6`.\n"
    rows = [
        [f"{found['parameters'][name] / 1e6:.1f} M", *(f"{p:.0f}" for _, p in curve)]
        for name, curve in found["perplexity"].items()
    ]
    steps = [str(step) for step, _ in next(iter(found["perplexity"].values()))]
    return (
        "![validation perplexity against the step](figure6.png)\n\n"
        "The paper's three models have the order of their sizes all the way through 300,000 "
        f"iterations. Three of this repository's, {found['steps']} steps on the presidents' "
        f"messages (`make figure6`, {found['date']}), validation perplexity by step:\n\n"
        + grid(["weights", *steps], rows)
    )


def boolq(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not measured yet: `make finetune`.\n"
    seeds = found["seeds"]
    rows = [["one answer to all", *(f"{100 * v:.1f}" for v in found["floor"].values())]]
    names = list(found["floor"])
    for seed in seeds:
        rows.append([f"seed {seed['seed']}", *(f"{100 * seed[n]:.1f}" for n in names)])
    for name in ("median", "ensemble"):
        if name in found:
            rows.append([name, *(f"{100 * found[name][n]:.1f}" for n in names)])
    return (
        f"MiniLM (22.7 M weights, pretrained by others), {found['rows']['train']:,} questions of "
        f"BoolQ, scored on {found['rows']['valid']:,}, two tensor-parallel ranks, "
        f"{found['seconds'] / 60:.0f} minutes (`make finetune`, {found['date']}):\n\n"
        + grid(["", *(f"{n}, %" for n in names)], rows)
    )


def table_6() -> str:
    rows = [
        [task, *(f"{p.batch_size} · {p.lr:g} · {p.epochs}" for p in presets)]
        for task, presets in TABLE_6.items()
    ]
    return "Batch · rate · epochs, as `task_presets.py` has them:\n\n" + grid(["", *SIZES], rows)


def figure_7(found: dict[str, Any] | None) -> str:
    if found is None:
        return "Not measured yet: `make figure7`.\n"
    runs, best = found["runs"], found["unigram"] - found["margin"]
    rates = sorted({run["rate"] for run in runs})
    rows = []
    for depth in sorted({run["depth"] for run in runs}):
        for norm in ("original", "rearranged"):
            for warmup in sorted({run["warmup"] for run in runs}):
                cells = []
                for rate in rates:
                    wanted = (depth, norm, warmup, rate)
                    finals = [
                        run["final"]
                        for run in runs
                        if (run["depth"], run["norm"], run["warmup"], run["rate"]) == wanted
                    ]
                    cells.append(cell(finals, best))
                rows.append([str(depth), norm, str(warmup), *cells])
    return (
        "![both orders, several depths and rates](figure7.png)\n\n"
        "The paper: at 752M weights the original order diverges, the rearranged one trains. Here: "
        f"deep, narrow BERTs (`make figure7`, {found['date']}), mean loss at the end of "
        f"{found['steps']} steps over all starts; the unigram loss is {found['unigram']:.2f}, and "
        "**bold** means that every start learned more than word frequencies:\n\n"
        + grid(["layers", "order", "warm-up", *(f"rate {rate:g}" for rate in rates)], rows)
        + "\nStep 6's chapter reads them.\n"
    )


def cell(finals: list[float | None], best: float) -> str:
    if not finals or any(final is None for final in finals):
        return "diverged" if finals else "-"
    numbers = [final for final in finals if final is not None]
    text = f"{statistics.mean(numbers):.2f}"
    return f"**{text}**" if max(numbers) <= best else text
