"""The paper's tables about speed and size: Tables 1, 2, 4, 7, 8, figures 1, 5 and 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from step05_hybrid_dp.cost_model import Layout, memory, parameters_per_gpu
from step05_hybrid_dp.grid import figure_8
from step05_hybrid_dp.machines import GIB, MACHINES, TERA
from step05_hybrid_dp.paper_tables import DAYS, SCALING, figures, predictions
from step05_hybrid_dp.sizes import paper_models
from step05_hybrid_dp.time_model import iteration, work
from step06_bert_layernorm.config import PAPER_MODELS as BERTS

from .form import figure, grid, percent

MACHINE = MACHINES["v100-32gb"]
TRAINING = ("training", "Weak scaling of the whole")
EPOCH = 68507  # iterations, Table 2


def sections(measured: dict[str, Any]) -> list[str]:
    return [
        "## Table 1: models of the scaling study\n",
        table_1(),
        "Does the memory of 32 GB explain the paper's choice of GPUs? By the planner, each model "
        "fits the GPUs it was given and not half of them.\n",
        "## Figures 1 and 5: weak scaling\n",
        "![efficiencies: paper, planner, here](figure5.png)\n",
        figure_5(measured),
        figure_1(),
        "Here: a model of twice the weights on two cores against one core alone, the whole "
        "training step (`make bench-training`).\n",
        "## Table 7: more heads, narrower GEMMs\n",
        table_7(measured),
        "Speed with 16 heads is 1. Here: one block at hidden 768 on two ranks "
        "(`make bench-parallel`).\n",
        "## Table 8: the same model on more GPUs\n",
        table_8(measured),
        "Speed-up over one. Here: two cores (`make bench-training`).\n",
        "## Table 2: days for an epoch\n",
        table_2(),
        "## Table 4: the BERTs\n",
        table_4(),
        "## Figure 8: who is in which group\n",
        f"```text\n{figure_8(8, 64, most=5)}\n```\n\n"
        "`make grid512` really starts these 512 processes and holds one training step against a "
        "single one.\n",
    ]


def table_1() -> str:
    rows = []
    for name, tp in SCALING:
        c = paper_models()[name]
        needs = [memory(c, Layout(n, 1, 8, 8), MACHINE).peak / GIB for n in (tp, tp // 2) if n]
        count = parameters_per_gpu(c, tp) * tp / 1e9
        size = [f"{c.hidden_size:,}", str(c.num_heads), str(c.num_layers), f"{count:.2f}"]
        half = f"{needs[1]:.1f}" if len(needs) > 1 else "-"
        rows.append([name, *size, str(tp), f"{needs[0]:.1f}", half])
    columns = ["model", "hidden", "heads", "layers", "billion weights (ours)", "GPUs"]
    return grid([*columns, "GiB a GPU needs", "on half as many"], rows)


def scaled() -> list[tuple[Any, float]]:
    """The paper's efficiencies and the planner's, in percent."""
    rows = figures()
    return list(zip(rows, predictions(MACHINE, rows), strict=True))


def figure_5(measured: dict[str, Any]) -> str:
    here = {
        (2, 1): figure(measured, *TRAINING, "TP = 2 of alone"),
        (1, 2): figure(measured, *TRAINING, "DP = 2 of alone"),
    }
    rows = []
    for row, found in scaled():
        if row.table == "figure 5":
            alone = row.percent == 100
            mine = here.get((row.layout.tp_size, row.layout.dp_size))
            rows.append(
                [
                    row.label,
                    "39 TFLOP/s" if alone else f"{row.percent:.0f} %",
                    f"{39 * found / 100:.0f} TFLOP/s" if alone else f"{found:.0f} %",
                    percent(mine),
                ]
            )
    rows.append(["two data-parallel ranks", "-", "-", percent(here[1, 2])])
    return grid(["", "paper", "planner", "here"], rows)


def figure_1() -> str:
    config, layout = paper_models()["gpt2-8.3b"], Layout(8, 64, 8, 512)
    flops = work(config, layout, MACHINE).flops
    seconds = iteration(config, layout, MACHINE).total
    found = 512 * flops / seconds / TERA / 1000
    return (
        f"Figure 1's largest point is 15.1 PFLOP/s on 512 GPUs; the planner has {found:.1f} "
        f"({seconds:.2f} s an iteration, {512 * config.seq_length / seconds:,.0f} tokens/s, which "
        "the paper doesn't give).\n"
    )


def table_7(measured: dict[str, Any]) -> str:
    rows = [(row, found) for row, found in scaled() if row.table == "Table 7"]
    lines = []
    for row, found in rows:
        heads = row.config.num_heads
        here = figure(measured, "parallel", "The paper's Table 7", str(heads))
        lines.append(
            [
                str(heads),
                f"{row.percent / rows[0][0].percent:.2f}",
                f"{found / rows[0][1]:.2f}",
                "-" if here is None else f"{here:.2f}",
            ]
        )
    return grid(["heads", "paper", "planner", "here"], lines)


def table_8(measured: dict[str, Any]) -> str:
    kept = figure(measured, *TRAINING, "TP = 2, same model of alone")
    lines = []
    for row, found in scaled():
        if row.table == "Table 8":
            n = row.layout.tp_size
            here = f"{2 * kept:.2f}" if n == 2 and kept is not None else "-"
            lines.append([str(n), f"{row.percent * n / 100:.2f}", f"{found * n / 100:.2f}", here])
    return grid(["GPUs", "paper", "planner", "here"], lines)


def table_2() -> str:
    rows = []
    for name, gpus, tp, days in DAYS:
        dp = gpus // tp
        layout = Layout(tp, dp, 512 // dp, 512)
        found = EPOCH * iteration(paper_models()[name], layout, MACHINE).total / 86400
        rows.append([name, str(gpus), f"{days:.2f}", f"{found:.2f}", f"{found / days - 1:+.0%}"])
    return grid(["model", "GPUs", "paper, days", "planner, days", "off"], rows)


def table_4() -> str:
    rows = [
        [name, str(c.num_layers), f"{c.hidden_size:,}", str(c.num_heads), f"{c.num_parameters:,}"]
        for name, c in BERTS.items()
        if name != "bert-mini"
    ]
    return grid(["model", "layers", "hidden", "heads", "weights (ours)"], rows)


def draw(measured: dict[str, Any], path: Path) -> None:
    """figure5.png: efficiencies of the paper, the planner and this machine."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [(row, found) for row, found in scaled() if row.table == "figure 5"]
    figure_, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, dp in zip(axes, (1, 64), strict=True):
        part = [(row, found) for row, found in rows if row.layout.dp_size == dp]
        places = range(len(part))
        percents = [row.percent for row, _ in part]
        reckoned = [100.0 if row.percent == 100 else found for row, found in part]
        ax.bar([p - 0.2 for p in places], percents, 0.4, label="the paper", color="tab:blue")
        ax.bar([p + 0.2 for p in places], reckoned, 0.4, label="planner", color="tab:orange")
        ax.set_xticks(places, [f"tp {row.layout.tp_size}\n× dp {dp}" for row, _ in part])
        ax.set(title=f"{dp}-way data parallel", ylim=(0, 125))
        ax.grid(axis="y", alpha=0.3)
    here = figure(measured, *TRAINING, "TP = 2 of alone")
    if here is not None:
        axes[0].plot([1], [100 * here], "k*", ms=11, label="here, 2 cores")
    axes[0].set_ylabel("% of one GPU's rate")
    axes[0].legend(frameon=False, fontsize=8, loc="upper right", ncols=3)
    figure_.savefig(path, dpi=110)
    plt.close(figure_)
