"""`python -m step06_bert_layernorm.stability`: the paper's figure 7 on this machine.

Deep, narrow BERTs in both norm orders learn a few pages of real text: same starts, same data,
several depths and rates, with and without warm-up (`make figure7`). Written down are the losses,
the gradient norm of each layer at the start and a few steps later, and the largest rate at which
each order trains. Every finished run is one line in the folder, so a study can be gone on with.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from tqdm import tqdm

from step01_single_gpu.corpus import own_text, presidents
from step01_single_gpu.programs import run_program
from step01_single_gpu.run_folder import new_run, resumed_options, write_options, write_text
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import warm_up

from .deep_narrow import Sizes, Trial, train
from .examples import Batch
from .few_pages import few_pages, unigram_loss
from .stability_plot import draw
from .stability_results import MARGIN, ORDERS, Study, tables
from .wordpiece import bert_wordpiece, tokenize_documents, vocabulary_of

HEAD_DIM = 16
DOCUMENTS = 32  # at most: a few pages need no more


@dataclass(frozen=True)
class Options:
    """Train deep, narrow BERTs in both norm orders; draw who learns, and why the other doesn't."""

    depths: tuple[int, ...] = (6, 12, 24)
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    warmups: tuple[int, ...] = (0, 40)
    """Steps of linear warm-up; 0 must be among them."""
    seeds: int | None = None
    """Starts of the weights (the text is the same for all). None is 2, or what a study that is
    gone on with has."""
    steps: int = 160
    hidden_size: int = 32
    start: Literal["bert", "gpt2"] = "bert"
    """bert: all matrices of the blocks alike; gpt2: the last of each branch / √(2 · layers)."""
    vocab_size: int = 1000
    """The most frequent of BERT's 30,522 entries."""
    seq_length: int = 32
    batch_size: int = 16
    batches: int = 4
    """Different batches; they come in turn, again and again."""
    processes: int | None = None
    """Each has one thread; None is one a core."""
    fast: bool = False
    """Seconds instead of minutes: shows that all works, and nothing else."""
    corpus: str = "presidents"
    root: Path = Path("data")
    run: Path | None = None
    """Folder for the results; None is the next free runs/figure7-NNN."""
    resume: Path | None = None
    """Go on with a study that was stopped, or add seeds to it."""

    def __post_init__(self) -> None:
        for name in ("depths", "rates", "warmups"):
            if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"--{name} is {getattr(self, name)}; give values, each once")
        for name in ("seeds", "steps", "batches", "batch_size", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} is {value}; it must be at least 1")
        if min(self.depths) < 1 or not all(0.0 < rate < float("inf") for rate in self.rates):
            raise ValueError(f"depths {self.depths} and rates {self.rates} must be above 0")
        if 0 not in self.warmups or not all(0 <= w < self.steps for w in self.warmups):
            raise ValueError(
                f"--warmups is {self.warmups}; 0 must be among them, the others below "
                f"{self.steps} steps"
            )
        if self.hidden_size < HEAD_DIM or self.hidden_size % HEAD_DIM:
            raise ValueError(f"--hidden-size is {self.hidden_size}; heads are of {HEAD_DIM} each")


FAST: dict[str, Any] = {
    "depths": (2, 4), "rates": (1e-3, 1e-2), "warmups": (0,), "seeds": 1, "steps": 12,
    "vocab_size": 100, "batch_size": 4, "batches": 2,
}  # fmt: skip


def main(options: Options) -> Study:
    """Run what is missing, write results.json and figure7.png, print the tables."""
    if options.fast:
        options = dataclasses.replace(options, **FAST)
    if options.resume is not None:
        resume = options.resume
        options = resumed_options(options, may_change=("seeds", "processes"))
        lists: dict[str, Any] = {
            k: tuple(v) for k, v in vars(options).items() if isinstance(v, list)
        }
        options, folder = dataclasses.replace(options, **lists), resume
        batches = read_batches(options)
    else:
        options = dataclasses.replace(options, seeds=options.seeds or 2)
        batches = read_batches(options)  # first: what can't be read leaves no folder behind
        folder = new_run(options.run, "figure7")
    write_options(folder, options)
    sizes = Sizes(
        options.vocab_size, options.hidden_size, options.hidden_size // HEAD_DIM,
        options.seq_length, options.steps, options.start, probe=min(10, options.steps - 1),
    )  # fmt: skip
    done = {_trial(run) for run in read_runs(folder)}
    missing = [trial for trial in trials(options) if trial not in done]
    if missing:
        warm_up("torch._dynamo")
        run_ranks(
            one_process, min(processes(options), len(missing)), sizes, missing, batches, folder,
            timeout=7 * 24 * 3600.0,
        )  # fmt: skip
    runs = [run for run in read_runs(folder) if _trial(run) in set(trials(options))]
    study = Study(
        runs, unigram_loss(batches), sizes.steps, sizes.start, sizes.probe, sizes.vocab_size
    )
    result = {"unigram": study.unigram, "margin": MARGIN, "sizes": vars(sizes), "runs": runs}
    write_text(folder / "results.json", json.dumps(result) + "\n")
    draw(study, folder / "figure7.png")
    print(tables(study))
    print(f"\nin {folder}: figure7.png, results.json")
    return study


def read_batches(options: Options) -> list[Batch]:
    """The few pages: of at most DOCUMENTS documents, spread over the training text."""
    downloads = options.root / "downloads"
    own = options.corpus != "presidents"
    text = own_text(Path(options.corpus)) if own else presidents(downloads)
    texts = list(text.train.values())
    tokenizer = bert_wordpiece(downloads)
    return few_pages(
        tokenize_documents(texts[:: -(-len(texts) // DOCUMENTS)], tokenizer),
        vocabulary_of(tokenizer),
        vocab_size=options.vocab_size,
        batches=options.batches,
        batch_size=options.batch_size,
        seq_length=options.seq_length,
        seed=0,
    )


def trials(options: Options) -> list[Trial]:
    """All runs, seed by seed, so that a stopped study has whole grids; the two orders side by
    side, so that processes that take every n-th have as much to do."""
    return [
        Trial(norm, depth, rate, warmup, seed)
        for seed in range(options.seeds or 2)
        for warmup in options.warmups
        for depth in sorted(options.depths, reverse=True)
        for rate in options.rates
        for norm in ORDERS
    ]


def one_process(
    sizes: Sizes, missing: Sequence[Trial], batches: Sequence[Batch], folder: Path
) -> None:
    """This process's share of the runs, one line each in a file of its own."""
    rank, n = dist.get_rank(), dist.get_world_size()
    own = missing[rank::n]
    # tqdm's own lock is a semaphore of the system, which a process that is ended leaves behind.
    tqdm.set_lock(threading.RLock())
    with (
        open(folder / f"runs-{rank}.jsonl", "a", encoding="utf-8") as file,
        tqdm(
            total=sum(trial.depth for trial in own),
            desc=f"process 1 of {n}",
            unit=" layers",
            disable=True if rank else None,
        ) as bar,
    ):
        print(file=file)  # a stopped process may have left half a line
        for trial in own:
            began = time.monotonic()
            found = train(sizes, trial, batches)
            seconds = round(time.monotonic() - began, 2)
            row = vars(trial) | {"seconds": seconds} | found
            print(json.dumps(row), file=file, flush=True)
            bar.set_postfix_str(f"{trial.depth} layers, {trial.norm}: {found['losses'][-1]:.2f}")
            bar.update(trial.depth)


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Every whole line of the folder's runs, in an order that doesn't depend on who ran what."""
    runs = {}
    for path in folder.glob("runs-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                run = json.loads(line)
            except ValueError:  # empty, or stopped in the middle of it
                continue
            runs[_trial(run)] = run
    return [runs[trial] for trial in sorted(runs, key=dataclasses.astuple)]


def processes(options: Options) -> int:
    """As asked, or one a core that this program may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return options.processes or cores or 1


def _trial(run: dict[str, Any]) -> Trial:
    return Trial(**{field.name: run[field.name] for field in dataclasses.fields(Trial)})


if __name__ == "__main__":
    run_program(main, Options)
