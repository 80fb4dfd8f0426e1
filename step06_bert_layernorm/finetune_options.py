"""What `make finetune` can be told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from step01_single_gpu.run_folder import resumed_options

from .config import BertConfig
from .task_examples import OFFICIAL, STAND_INS
from .task_presets import SIZES, Preset, preset

# A resumed run may have these otherwise; all else would make it another run.
MAY_CHANGE = ("seeds", "tp", "dp", "micro_batch_size", "timeout", "device", "root")


@dataclass(frozen=True)
class Options:
    """Fine-tune a BERT on a task, on tp × dp ranks: under torchrun, or alone. The default takes a
    laptop a few minutes: a pretrained MiniLM on some of BoolQ."""

    task: str = "boolq"
    """boolq, rte, mrpc, sciq, squad-sample (fetched); mnli, qqp, race, squad, squad2 (--data)."""
    data: Path | None = None
    """Folder with the official files of one of the paper's tasks."""
    weights: Path | None = None
    """Folder with config.json, model.safetensors and vocab.txt, as Hugging Face keeps a BERT; None
    is MiniLM, fetched."""
    preset: str = "laptop"
    """laptop, or a row of the paper's table 6: 336m, 1.3b, 3.9b. What follows overrides it."""
    batch_size: int | None = None
    """Rows in a global batch: what one optimizer step sees."""
    lr: float | None = None
    """The highest learning rate."""
    epochs: int | None = None
    train_rows: int | None = None
    """Examples to train on, drawn once from all; 0 is all of them."""
    valid_rows: int | None = None
    """Held-out examples to score; 0 is all of them."""
    seeds: int = 1
    """How often to train anew: another head, order and dropout each time. From 2 on, the median is
    reported, and what the mean of their probabilities scores."""
    seed: int = 0
    """The first seed; the others follow."""
    seq_length: int | None = None
    """Tokens in a row; None is the preset's, or what the model has positions for."""
    whole: bool | None = None
    """Leave out examples that are longer than a row, where they are cut else."""
    stride: int = 128
    """Spans: how far apart windows over a long text begin, in tokens."""
    micro_batch_size: int | None = None
    """Rows in one forward and backward; None is all that a rank has."""
    warmup: float = 0.1
    """Share of the steps in which the rate goes up."""
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float = 0.1
    looks: int = 4
    """How often a part of the held-out examples is scored in mid-training, for the curve."""
    look_rows: int = 300
    skip_malformed: bool = False
    """Leave malformed lines of a .tsv out, and count them, in place of an error."""
    tp: int | None = None
    """Tensor-parallel ranks; None is all that there are, over dp."""
    dp: int | None = None
    """Data-parallel ranks; None is 1."""
    rng: Literal["paper", "invariant"] = "paper"
    """How dropout is drawn; invariant is slower, and the same at every layout."""
    bf16: bool = False
    """GEMMs in bfloat16 (autocast)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    timeout: float = 600.0
    """Seconds that a rank waits for another before it gives up."""
    root: Path = Path("data")
    """Where what is fetched is kept."""
    run: Path | None = None
    """Folder of this run; None is the next free runs/<task>-NNN."""
    resume: Path | None = None
    """Go on with the run in this folder, with its options: finished seeds stay as they are, one
    that was interrupted starts again. With a higher --seeds it trains more of them."""

    def __post_init__(self) -> None:
        if self.task not in STAND_INS and self.task not in OFFICIAL:
            raise ValueError(
                f"there is no task {self.task!r}; fetched: {', '.join(STAND_INS)}; from official "
                f"files with --data: {', '.join(OFFICIAL)}"
            )
        if self.preset not in ("laptop", *SIZES):
            raise ValueError(f"--preset is {self.preset!r}; it must be laptop or one of {SIZES}")
        for name in ("batch_size", "epochs", "seq_length", "micro_batch_size", "tp", "dp"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} is {value}; it must be at least 1")
        for name in ("seeds", "stride", "looks", "look_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("train_rows", "valid_rows"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"--{name} is {getattr(self, name)}; it must be 0 (all) or more")
        if self.whole and self.spans:
            raise ValueError("--whole is not for spans: long texts are read window by window")
        if not 0.0 <= self.warmup <= 1.0:
            raise ValueError(f"--warmup is {self.warmup}; it is a share of the steps, 0 to 1")
        if self.lr is not None and not self.lr > 0.0:
            raise ValueError(f"--lr is {self.lr}; it must be above 0")

    @property
    def settings(self) -> Preset:
        """The preset, with what was given in its place."""
        own = {name: getattr(self, name) for name in Preset._fields}
        return preset(self.task, self.preset)._replace(
            **{name: value for name, value in own.items() if value is not None}
        )

    @property
    def spans(self) -> bool:
        """Whether answers are spans."""
        return self.task.startswith("squad")


def resumed(given: Options) -> Options:
    """The options of the run that `given.resume` names, with those given that may change. Raises
    ValueError as step 1's `resumed_options` does."""
    options: Options = resumed_options(given, MAY_CHANGE)
    data, weights = (path and Path(path) for path in (options.data, options.weights))
    return dataclasses.replace(options, data=data, weights=weights)


def check_positions(options: Options, config: BertConfig, vocabulary: int) -> int:
    """The length of a row. Raises ValueError if it is more than the model has positions for, or if
    tokenizer and model have different vocabularies."""
    if vocabulary != config.vocab_size:
        raise ValueError(
            f"the vocabulary has {vocabulary} entries and the model was made for "
            f"{config.vocab_size}: take vocab.txt and model.safetensors from one place"
        )
    if options.seq_length is None:
        preset = options.settings.seq_length or (384 if options.spans else 128)
        return min(preset, config.seq_length)
    if options.seq_length > config.seq_length:
        raise ValueError(
            f"--seq_length {options.seq_length} is longer than the model's {config.seq_length} "
            "positions"
        )
    return options.seq_length


def check_layout(options: Options, config: BertConfig, world_size: int) -> tuple[int, int]:
    """(tp, dp). Raises ValueError unless the heads divide by tp. (The grid checks the world.)"""
    dp = options.dp or 1
    tp = options.tp or max(1, world_size // dp)
    if config.num_heads % tp:
        works = [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0]
        raise ValueError(
            f"tp {tp} doesn't divide the {config.num_heads} heads of the model; these would: "
            f"{', '.join(map(str, works))}"
        )
    return tp, dp
