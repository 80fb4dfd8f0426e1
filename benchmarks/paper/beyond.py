"""What the paper lacks: ablations, traffic, memory part by part, pipelines, how cost grows."""

from __future__ import annotations

from typing import Any

from step05_hybrid_dp.cost_model import Layout, memory
from step05_hybrid_dp.machines import GIB, MACHINES
from step05_hybrid_dp.plan import PARTS
from step05_hybrid_dp.sizes import paper_models

from .form import grid, shown, table


def sections(measured: dict[str, Any]) -> list[str]:
    def found(benchmark: str, start: str) -> str:
        return shown(table(measured, benchmark, start), f"make bench-{benchmark}")

    return [
        "## What the paper doesn't measure\n",
        "### Talking after every GEMM\n",
        "Section 3 argues for pairing a column-parallel with a row-parallel GEMM, and shows no "
        "figure for the alternative.\n",
        found("ablation", "Where an MLP talks: hidden 768"),
        "### Gathering the logits\n",
        "Section 3 fuses the loss with the output layer, so that three numbers a token are sent "
        "and not a row of the vocabulary.\n",
        found("loss", "Loss over a cut vocabulary, from this rank's logits, malloc keeps"),
        "### Memory of a GPU, part by part\n",
        parts(),
        "### A whole training step beside other people's\n",
        found("endtoend", "Whole training step, hidden 256"),
        found("endtoend", "Whole training step, hidden 768"),
        "### Cut by layers instead\n",
        "The paper calls pipelines orthogonal to its own cut.\n",
        *[
            shown(each, "make bench-pipeline")
            for each in measured.get("pipeline", {}).get("tables", [])
        ],
        "### The planner against real steps\n",
        found("plan", "The planner"),
        "### How cost grows\n",
        found("growth", "Cost by the number"),
        found("growth", "Training step on"),
    ]


def parts() -> str:
    """The 8.3B model on 1 to 16 tensor-parallel GPUs, reckoned."""
    machine, config = MACHINES["v100-32gb"], paper_models()["gpt2-8.3b"]
    sizes = (1, 2, 4, 8, 16)
    held = [memory(config, Layout(n, 64, 8, 512), machine) for n in sizes]
    rows = [
        [text, *(f"{getattr(each, name) / GIB:.1f}" for each in held)]
        for name, text in PARTS.items()
    ]
    rows.append(["**at the peak**", *(f"**{each.peak / GIB:.1f}**" for each in held)])
    return (
        "GiB, 8.3B weights, micro-batch 8, recompute, 64-way data parallel, by the planner (held "
        "against measured memory below):\n\n" + grid(["", *(f"tp {n}" for n in sizes)], rows)
    )
