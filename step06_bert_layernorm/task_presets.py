"""How long and how fast a model is fine-tuned: the paper's table 6, and what a laptop has time for.

The stand-ins are other data than the paper's, so each borrows the settings of the task that it
stands in for.
"""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """Rows of an optimizer step, the highest learning rate, passes over the data; how many examples
    are trained on and scored (0: all); tokens in a row (0: 128, or 384 for spans); and whether
    longer examples are left out, where they are cut else."""

    batch_size: int
    lr: float
    epochs: int
    train_rows: int = 0
    valid_rows: int = 0
    seq_length: int = 0
    whole: bool = False


SIZES = ("336m", "1.3b", "3.9b")  # table 6 calls the last one 3.8B
TABLE_6: dict[str, tuple[Preset, Preset, Preset]] = {
    "mnli": (Preset(128, 1e-5, 10), Preset(128, 1e-5, 10), Preset(128, 1e-5, 10)),
    "qqp": (Preset(128, 5e-5, 12), Preset(128, 3e-5, 12), Preset(256, 4e-5, 12)),
    "squad": (Preset(64, 3e-5, 2), Preset(48, 3e-5, 2), Preset(48, 1e-5, 2)),
    "squad2": (Preset(48, 3e-5, 2), Preset(64, 3e-5, 2), Preset(48, 1e-5, 2)),
    "race": (Preset(32, 2e-5, 3), Preset(16, 1e-5, 3), Preset(32, 2e-5, 3)),
}
STANDS_IN_FOR = {
    "rte": "mnli", "boolq": "mnli", "mrpc": "qqp", "sciq": "race", "squad-sample": "squad"
}  # fmt: skip
# MiniLM is 30 times smaller than the paper's smallest and takes higher rates.
LAPTOP = {
    "boolq": Preset(8, 1e-4, 2, seq_length=96, whole=True),
    "rte": Preset(16, 1e-4, 4),
    "mrpc": Preset(16, 1e-4, 4),
    "sciq": Preset(16, 1e-4, 2),
    "squad-sample": Preset(16, 1e-4, 3),
}


def preset(task: str, name: str) -> Preset:
    """Settings of `task` by the name "laptop" or a size of the paper's.

    Raises ValueError for an unknown name. A task without laptop settings takes the paper's
    smallest model's.
    """
    paper = TABLE_6[STANDS_IN_FOR.get(task, task)]
    if name == "laptop":
        return LAPTOP.get(task, paper[0])
    if name not in SIZES:
        raise ValueError(f"preset is {name!r}; it must be one of {('laptop', *SIZES)}")
    return paper[SIZES.index(name)]
