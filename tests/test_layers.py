"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("step0*/**/*.py"))
# Programs may use these; a layer file may not, so that it can be lifted out.
PROGRAM_ONLY = {"tokenizers", "tyro", "tqdm", "rich", "matplotlib", "safetensors"}
PROGRAMS = {
    "step01_single_gpu": {
        "data", "evaluate", "lambada", "programs", "run_folder", "sample", "train", "vocabulary",
        "wikitext",
    },
    "step02_mlp_parallel": {"figure"},
    "step03_attention_parallel": {"timeline"},
    "step04_embeddings_loss": {"weights_file", "write"},
    "step05_hybrid_dp": {
        "evaluate", "export", "grid512", "loop", "options", "plan", "sample", "start", "train",
        "trajectories",
    },
    "step06_bert_layernorm": {
        "curves", "finetune", "finetune_open", "finetune_report", "guessing", "pretrained",
        "stability", "stability_plot", "task_examples", "task_spans", "tasks", "text", "wordpiece",
    },
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports from outside its own package."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_step_imports_only_from_steps_below_it(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    above = {name for name in imported(path) if name.startswith("step0") and name >= own}
    assert not above, f"{path.name} imports {above}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_layer_file_needs_only_torch_numpy_and_einops(path: Path) -> None:
    if path.stem not in PROGRAMS.get(path.parent.name, set()):
        extra = imported(path) & (PROGRAM_ONLY | {"mwparserfromhell", "transformers"})
        assert not extra, f"{path.name} imports {extra}"


def test_no_file_is_longer_than_a_learner_reads() -> None:
    files = [*SOURCES, *ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/*.py")]
    long = {path.name: n for path in files if (n := len(path.read_text().splitlines())) > 300}
    assert not long
