"""The vocabulary-parallel loss against others' (`make bench-loss`), GPT-2's vocabulary.

Two gloo ranks, each with one thread on a core of its own. Results are compared before anything is
timed. Each works on a fresh copy of the same inputs, made outside the timing, since some change
them. Rounds are interleaved in one run; a step is over when the slower rank is; medians, and the
median ratio to ours with its quartiles, are printed. Memory is counted in a run of its own.

By default malloc gives buffers of this size back to Linux, which clears fresh pages for the next:
whoever allocates nothing, because it overwrites the caller's logits, is spared that. So the loss is
timed both so and with step 1's `keep_freed_memory`, as the training programs have it, for all.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from step01_single_gpu.machine import keep_freed_memory
from step02_mlp_parallel import run_ranks
from step04_embeddings_loss import padded_vocab_size
from step04_embeddings_loss.vocab import words_of

from .loss_peers import Step, of_hidden, of_logits
from .parallel import own_core
from .report import Table, beside, show, slower_rank

TP = 2
RUNS = (  # where it starts, whether malloc keeps freed memory, what to print
    ("logits", False, "this rank's logits, malloc as it is"),
    ("logits", True, "this rank's logits, malloc keeps freed memory"),
    ("hidden", True, "hidden states with the output GEMM, malloc keeps freed memory"),
)


@dataclass(frozen=True)
class Options:
    """Compare the vocabulary-parallel loss with its peers at TP = 2."""

    rounds: int = 9
    tokens: int = 2048
    vocab: int = 50257
    hidden: int = 768
    save: str = ""
    """Also write the tables as JSON into this file."""


class Case:
    """The inputs on this rank, who works on them, and who can't."""

    def __init__(self, kind: str, options: Options) -> None:
        warnings.simplefilter("ignore")
        own_core()
        v, t = options.vocab, options.tokens
        width = padded_vocab_size(v, TP) // TP
        count = words_of(width, v, dist.group.WORLD, allow_empty_ranks=False).count
        mine = torch.Generator().manual_seed(dist.get_rank())
        alike = torch.Generator().manual_seed(TP)
        self.missing: dict[str, str] = {}
        if kind == "logits":
            logits = torch.randn(t, width, generator=mine)
            logits[:, count:] = -torch.inf
            self.inputs = [logits]
            self.steps, self.missing = of_logits(v)
        else:
            weight = 0.02 * torch.randn(width, options.hidden, generator=mine)
            weight[count:] = 0.0
            self.inputs = [torch.randn(t, options.hidden, generator=alike), weight]
            self.steps = of_hidden(v, width)
        self.targets = torch.randint(v, (t,), generator=alike)
        self.fresh = [x.clone().requires_grad_() for x in self.inputs]

    def run(self, step: Step) -> tuple[float, tuple[Tensor, ...]]:
        """Seconds of a forward and backward, started together on all ranks; loss and gradients."""
        with torch.no_grad():
            for copy, x in zip(self.fresh, self.inputs, strict=True):
                copy.copy_(x)
        dist.barrier()
        start = time.perf_counter()
        results = step(*self.fresh, self.targets)
        return time.perf_counter() - start, results


def compared(case: Case) -> list[str]:
    """Who changed the inputs. Raises AssertionError for whoever's loss or gradients differ."""
    expected, changing = case.run(case.steps["ours"])[1], []
    for name, step in case.steps.items():
        for got, wanted in zip(case.run(step)[1], expected, strict=True):
            error = (got - wanted).norm() / wanted.norm()
            assert error < 1e-5, f"{name} is off by {error:.1e}"
        if not all(map(torch.equal, case.fresh, case.inputs)):
            changing.append(name)
    return changing


def timed(kind: str, keep: bool, options: Options) -> dict[str, Any]:
    """Seconds by implementation and round, on this rank."""
    if keep:
        keep_freed_memory()
    case = Case(kind, options)
    changing = compared(case)
    seconds: dict[str, list[float]] = {name: [] for name in case.steps}
    for _ in range(options.rounds):
        for name, step in case.steps.items():
            seconds[name].append(case.run(step)[0])
    return {"seconds": seconds, "missing": case.missing, "changing": changing}


def remembered(kind: str, options: Options) -> dict[str, float]:
    """MiB at the peak by implementation, on this rank."""
    case, peaks = Case(kind, options), {}
    for name, step in case.steps.items():
        case.run(step)  # what is made once and kept
        peaks[name] = peak_mib(case, step)
    return peaks


def peak_mib(case: Case, step: Step) -> float:
    """The most that torch's allocator held at once, the inputs and the weight's gradient apart.

    The profiler hears of every block that is allocated and freed, within operators too.
    """
    with torch.profiler.profile(profile_memory=True) as profile:
        results = case.run(step)[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    blocks = [event for event in events if event["name"] == "[memory]"]
    blocks.sort(key=lambda event: event["args"]["Ev Idx"])
    weight_grads = {grad.untyped_storage().data_ptr() for grad in results[2:]}
    held = highest = 0
    for i, block in enumerate(blocks):
        later = (after["args"]["Addr"] for after in blocks[i + 1 :])
        address = block["args"]["Addr"]
        if address not in weight_grads or address in later:  # others stood there before it
            held += block["args"]["Bytes"]
        highest = max(highest, held)
    return highest / 2**20


def tables(options: Options) -> Iterator[Table]:
    peaks = {kind: run_ranks(remembered, TP, kind, options, timeout=3600) for kind, _, _ in RUNS}
    for kind, keep, what in RUNS:
        ranks = run_ranks(timed, TP, kind, keep, options, timeout=3600)
        seconds = slower_rank([rank["seconds"] for rank in ranks])
        rows, figures = beside(seconds, ranks[0]["missing"])
        for row in rows:
            name = row[0]
            if name in seconds:
                figures[f"{name}, MiB"] = max(rank[name] for rank in peaks[kind])
                row.append(f"{figures[f'{name}, MiB']:.1f}")
                row.append("yes" if name in ranks[0]["changing"] else "no")
            else:
                row += ["-", "-"]
        yield Table(
            f"Loss over a cut vocabulary, from {what}",
            ["", "ms", "times ours", "MiB at the peak", "overwrites its inputs"],
            rows,
            f"{options.tokens:,} tokens, vocabulary {options.vocab:,}, hidden {options.hidden}, "
            f"float32, TP = {TP}, forward + backward",
            figures,
        )


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
