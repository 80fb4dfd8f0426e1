"""Step 1's training step against transformers' GPT-2 (`make bench-single`).

Same sizes, same weights, same batch, SDPA, float32, fused AdamW, clip at 1.0; loss and gradient
norm are checked equal before anything is timed. Rounds are interleaved, so that a machine whose
speed drifts slows both; medians and the median of the ratios are printed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from step01_single_gpu import GPT, PAPER_MODELS, GPTConfig
from step01_single_gpu.machine import gemm_peak, keep_freed_memory, training_flops
from step01_single_gpu.optimizer import make_optimizer
from tests.huggingface import as_huggingface

from .report import Seconds, Step, Table, beside, interleaved, show

BATCH = 16


@dataclass(frozen=True)
class Options:
    """Compare one training step of both, in one process and as whole programs."""

    rounds: int = 15
    programs: int = 3
    """Runs of each whole program."""
    child: str = ""
    """Used by the benchmark itself: run "ours" or "transformers" alone."""
    save: str = ""
    """Also write the tables as JSON into this file."""


def ours(config: GPTConfig, batch: torch.Tensor, *, bf16: bool = False) -> tuple[GPT, Step]:
    """Our model and its training step, which returns the loss."""
    model = GPT(config)
    optimizer = make_optimizer(model, lr=1e-4)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model.loss(batch[:, :-1], batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return model, step


def theirs(model: GPT, batch: torch.Tensor) -> Step:
    """The training step of transformers' GPT-2 with the same weights."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    c = model.config
    peer = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=c.vocab_size, n_positions=c.seq_length, n_embd=c.hidden_size,
            n_layer=c.num_layers, n_head=c.num_heads, attn_pdrop=c.dropout, embd_pdrop=c.dropout,
            resid_pdrop=c.dropout, bos_token_id=0, eos_token_id=0, 
            use_cache=False,
        )
    )  # fmt: skip
    peer.set_attn_implementation("sdpa")
    peer.load_state_dict(as_huggingface(model), strict=False)
    peer.train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        # shift_labels: targets as they are, without a copy of the batch shifted inside.
        loss = peer(inputs, labels=targets, shift_labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step


def compare(config: GPTConfig, rounds: int) -> Table:
    """Both in this process, and ours in bf16 where this CPU multiplies it faster."""
    torch.manual_seed(0)
    batch = torch.randint(config.vocab_size, (BATCH, config.seq_length + 1))
    exact = dataclasses.replace(config, dropout=0.0)
    model, step = ours(exact, batch)
    losses = (theirs(model, batch)(), step())
    assert abs(losses[0] - losses[1]) < 1e-5 * losses[1], f"not the same model: {losses}"

    model, our_step = ours(config, batch)
    steps = {"ours": our_step, "transformers": theirs(model, batch)}
    cpu = torch.device("cpu")
    if gemm_peak(cpu, torch.bfloat16) > gemm_peak(cpu, torch.float32):
        steps["ours, bf16"] = ours(config, batch, bf16=True)[1]
    title = f"Training step in one process, dropout {config.dropout}"
    return training_table(title, config, BATCH, interleaved(steps, rounds))


def training_table(
    title: str, config: GPTConfig, batch: int, seconds: Seconds, *, predicted: float = 1.0
) -> Table:
    """With tokens a second, and the share of this machine's float32 GEMM rate that the GEMMs which
    are needed come to; `predicted`: the share of places that need logits."""
    rows, figures = beside(seconds)
    peak = gemm_peak(torch.device("cpu"), torch.float32)
    tokens = batch * config.seq_length
    for cells, (name, row) in zip(rows, seconds.items(), strict=True):
        work = training_flops(config, tokens, predicted=predicted)
        rate = work / statistics.median(row)
        figures[f"{name}, of the peak"] = rate / peak
        cells += [f"{tokens / statistics.median(row):,.0f}", f"{rate / peak:.0%}"]
    return Table(
        f"{title}: {config.num_layers} layers, hidden {config.hidden_size}, vocabulary "
        f"{config.vocab_size:,}, batch {batch} x {config.seq_length}",
        ["", "ms", "times ours", "tokens/s", "of the GEMM peak"],
        rows,
        f"GEMM peak: {peak / 1e9:.0f} GFLOP/s in float32",
        figures,
    )


def child(name: str, config: GPTConfig, rounds: int) -> None:
    """A whole program: ours with the malloc settings it makes for itself."""
    if name == "ours":
        keep_freed_memory()
    batch = torch.randint(config.vocab_size, (BATCH, config.seq_length + 1))
    model, step = ours(config, batch)
    if name == "transformers":
        step = theirs(model, batch)
    seconds = interleaved({name: step}, rounds)[name]
    print(json.dumps({"seconds": statistics.median(seconds), "mib": peak_mib()}))


def peak_mib() -> float:
    """This process's largest resident size. (getrusage would count its parent's, on Linux.)"""
    status = Path("/proc/self/status")
    if not status.exists():
        return math.nan
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**10


def programs(options: Options) -> Table:
    """Both as whole programs, in turn."""
    found: dict[str, list[dict[str, float]]] = {"ours": [], "transformers": []}
    for _ in range(options.programs):
        for name, rows in found.items():
            command = [sys.executable, "-m", "benchmarks.single", "--child", name]
            command += ["--rounds", str(options.rounds)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows.append(json.loads(output.splitlines()[-1]))
    table, figures = beside({n: [row["seconds"] for row in rows] for n, rows in found.items()})
    for cells, (name, rows) in zip(table, found.items(), strict=True):
        figures[f"{name}, MiB"] = statistics.median(row["mib"] for row in rows)
        cells.append(f"{figures[f'{name}, MiB']:,.0f}")
    return Table(
        "The same as whole programs, dropout 0.1 (ours with its malloc settings)",
        ["", "ms", "times ours", "MiB at the peak"],
        table,
        figures=figures,
    )


def tables(options: Options) -> Iterator[Table]:
    config = PAPER_MODELS["gpt2-mini"]
    for dropout in (0.1, 0.0):
        yield compare(dataclasses.replace(config, dropout=dropout), options.rounds)
    yield programs(options)


def main(options: Options) -> None:
    if options.child:
        child(options.child, PAPER_MODELS["gpt2-mini"], options.rounds)
    else:
        show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
