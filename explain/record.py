"""Runs step 3's block for real at 1, 2, 4, 8 ranks, right and with each mistake, and keeps it all.

A recording is plain data for JSON: the sizes, the steps' texts, and for each run the operations in
order, with every rank's numbers, what was sent, and how far the whole is from the run on one rank.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import load_full_state_dict, run_ranks
from step03_attention_parallel import ParallelBlock

from .misconceptions import BY_KEY, MISCONCEPTIONS, Misconception, made
from .steps import FORWARD, STEPS, Layout
from .watch import Seen, watching

VERSION = 1  # of a recording's form; page.js and the tests know it too
RANKS = (1, 2, 4, 8)
TOKENS, HIDDEN, HEADS = 3, 8, 8
EQUAL = 1e-9  # relative to the largest value: far above float64's rounding, far below a mistake
CONFIG = GPTConfig(1, TOKENS, HIDDEN, num_layers=1, num_heads=HEADS, dropout=0.0)

Run = dict[str, Seen]  # what one rank saw, by the operation's name


def quarters(shape: tuple[int, ...], most: int, generator: torch.Generator) -> Tensor:
    """Random multiples of 1/4 up to most/4: easy to read, and exact in a recording."""
    return torch.randint(-most, most + 1, shape, generator=generator).double() / 4


def inputs() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Whole weights, x and dL/dy [1, s, h]: nothing symmetric, no bias zero, no gain one."""
    generator = torch.Generator().manual_seed(4)
    weights = {}
    for name, parameter in ParallelBlock(CONFIG).state_dict().items():
        shape = tuple(parameter.shape)
        weights[name] = quarters(shape, 3, generator)
        if name.startswith("ln") and name.endswith("weight"):
            weights[name] = 1.5 + quarters(shape, 1, generator)
        elif name.endswith("bias"):
            weights[name][weights[name] == 0.0] = 0.5
    x = quarters((1, TOKENS, HIDDEN), 8, generator)
    return weights, x, quarters((1, TOKENS, HIDDEN), 4, generator)


def on_this_rank(keys: list[str | None]) -> list[tuple[Run, list[dict[str, Any]]]]:
    """For each mistake (None: the code as it is), what this rank saw and which entries it holds."""
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    found = []
    for key in keys:
        with made(None if key is None else BY_KEY[key]):
            block = ParallelBlock(CONFIG, group=group).double()
            held = holdings(block)
            weights, x, upstream = inputs()
            load_full_state_dict(block, weights)
            x.requires_grad_()
            with watching(block) as watch:
                watch.follow("x", x)
                block(x).backward(upstream)
        found.append((watch.seen, held))
    return found


def holdings(block: ParallelBlock) -> list[dict[str, Any]]:
    """Which entries of each whole tensor this rank holds, as the loader really cuts them.

    It is given whole tensors whose entries are their own numbers, and keeps some of them.
    """
    whole = {name: t for name, t in ParallelBlock(CONFIG).state_dict().items()}
    load_full_state_dict(
        block, {name: torch.arange(float(t.numel())).view_as(t) for name, t in whole.items()}
    )
    found = []
    for name, part in block.named_parameters():
        size = whole[name].numel()
        width = size if name.endswith("bias") else whole[name].size(-1)
        shape = (size // width, width)  # the stack of Q, K, V as a matrix of 3h rows
        numbers = part.detach().flatten().long()
        rows, columns = (numbers // shape[1]).unique(), (numbers % shape[1]).unique()
        if rows.numel() * columns.numel() != numbers.numel():
            raise RuntimeError(f"{name}: what a rank holds is not some rows of some columns")
        found.append(
            {"name": name, "shape": shape, "rows": rows.tolist(), "columns": columns.tolist()}
        )
    return found


def record(ranks: tuple[int, ...] = RANKS) -> dict[str, Any]:
    """The recording; `ranks` begins with 1, the reference. Each of `ranks` must divide 8."""
    keys = [None, *BY_KEY]
    reference: Run = {}
    runs = []
    for n in ranks:
        answers = run_ranks(on_this_rank, n, keys, timeout=180.0)
        for i, key in enumerate(keys):
            seen, held = zip(*(answer[i] for answer in answers), strict=True)
            reference = reference or seen[0]
            runs.append(one_run(list(seen), list(held), key, reference))
    return {
        "version": VERSION,
        "torch": torch.__version__,
        "dtype": "float64",
        "sizes": {"tokens": TOKENS, "hidden": HIDDEN, "heads": HEADS},
        "ranks": list(ranks),
        "steps": {name: step_text(name) for name in STEPS},
        "misconceptions": [
            {"key": m.key, "title": m.title, "belief": m.belief, "truth": m.truth}
            for m in MISCONCEPTIONS
        ],
        "runs": runs,
    }


def step_text(name: str) -> dict[str, Any]:
    step = STEPS[name]
    return {
        "phase": "forward" if step in FORWARD else "backward",
        "short": step.short, "title": step.title, "formula": step.formula, "text": step.text,
        "mark": step.mark, "weight": step.weight,
    }  # fmt: skip


def one_run(
    seen: list[Run], held: list[list[dict[str, Any]]], key: str | None, reference: Run
) -> dict[str, Any]:
    """One run of all ranks: its operations in order, each held against the reference."""
    misconception = None if key is None else BY_KEY[key]
    events = [one_event(name, seen, misconception, reference) for name in seen[0]]
    parted = [i for i, event in enumerate(events) if event["parted"]]
    return {
        "misconception": key,
        "ranks": len(seen),
        "holds": held,
        "parts_at": parted[0] if parted else None,
        "events": events,
    }


def one_event(
    name: str, seen: list[Run], misconception: Misconception | None, reference: Run
) -> dict[str, Any]:
    against, layout = name, STEPS[name].layout
    if misconception is not None:
        against, layout = misconception.against.get(name, (against, layout))
    # A rank may have nothing here: a parameter that it didn't use has no gradient.
    values = [view(name, run[name].value) if name in run else None for run in seen]
    expected = view(against, reference[against].value)
    difference = distance(values, expected, layout)
    shown = [None if v is None else v.flatten().tolist() for v in values]
    same = all(v == shown[0] for v in shown)
    return {
        "name": name,
        "against": against,  # the reference's operation that it is compared with
        "layout": layout.kind,
        "dim": layout.dim,
        "shape": list(next(v.shape for v in values if v is not None)),
        "whole": list(expected.shape),
        "same": same,  # bit for bit, on all ranks: then kept once
        "values": shown[:1] if same else shown,
        "sent": [
            [[c.op, c.numel, c.nbytes] for c in run[name].sent] if name in run else []
            for run in seen
        ],
        "difference": difference,
        "parted": difference > EQUAL * expected.abs().max().item(),
    }


def view(name: str, value: Tensor) -> Tensor:
    """As it is shown: without the batch of one; [s, 3h/n] of Q, K and V as [3, s, h/n]."""
    value = value[0] if value.dim() == 3 and value.size(0) == 1 else value
    if name in ("attention.qkv", "attention.qkv.grad"):
        return rearrange(value, "s (three part) -> three s part", three=3)
    return value


def distance(values: list[Tensor | None], expected: Tensor, layout: Layout) -> float:
    """The largest difference between what the ranks have together and the reference.

    Replicated: each rank's own. A rank that has nothing counts as zeros.
    """
    shape = next(v.shape for v in values if v is not None)
    tensors = [torch.zeros(shape, dtype=expected.dtype) if v is None else v for v in values]
    if layout.kind == "partial":
        tensors = [torch.stack(tensors).sum(0)]
    elif layout.kind == "cut":
        tensors = [torch.cat(tensors, layout.dim)]
    return max((t - expected).abs().max().item() for t in tensors)


def read(path: Path) -> dict[str, Any]:
    """A recording from a file. Raises ValueError for what isn't one of this version."""
    try:
        recording = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read as a recording: {error}") from error
    return checked(recording, str(path))


def checked(recording: Any, where: str) -> dict[str, Any]:
    """`recording`, or ValueError: of another version, or not a recording at all."""
    if not isinstance(recording, dict) or "version" not in recording:
        raise ValueError(f"{where} is not a recording of `make explain`: it names no version")
    if recording["version"] != VERSION:
        raise ValueError(
            f"{where} is a recording of version {recording['version']!r}; this page shows version "
            f"{VERSION}: make a new one with `make explain`"
        )
    missing = sorted({"ranks", "runs", "steps", "misconceptions", "sizes"} - recording.keys())
    if missing:
        raise ValueError(f"{where} is damaged: {', '.join(missing)} is missing")
    return recording
