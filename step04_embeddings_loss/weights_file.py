"""A GPT-2 in a folder as Hugging Face keeps it: `model.safetensors` and `config.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.model import GPT
from step01_single_gpu.run_folder import write_text

from .huggingface import from_huggingface_gpt2, to_huggingface_gpt2

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SIZES = {  # theirs -> ours
    "vocab_size": "vocab_size",
    "n_positions": "seq_length",
    "n_embd": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
}
GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "erf"}  # theirs -> ours
# What a GPT-2 of theirs may have otherwise, and ours never.
EXPECTED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def read_gpt2(folder: Path) -> tuple[GPTConfig, dict[str, Tensor]]:
    """Sizes and whole weights of the GPT-2 in `folder`.

    Raises ValueError for a file that is missing, cut short, of another kind of model, or whose
    sizes are not config.json's.
    """
    config = read_config(folder)
    try:
        theirs = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS} is not a whole safetensors file: {error}") from error
    try:
        state = from_huggingface_gpt2(theirs)
        check_sizes(config, state)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return config, state


def read_config(folder: Path) -> GPTConfig:
    """The sizes in config.json. Raises ValueError if it is missing, or of another kind of model."""
    for name in (WEIGHTS, CONFIG):
        if not (folder / name).is_file():
            raise ValueError(
                f"there is no {folder / name}; give a folder with {WEIGHTS} and {CONFIG}"
            )
    path = folder / CONFIG
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind != "gpt2":
        raise ValueError(f"{path} is of a {kind!r} model, not of a GPT-2")
    missing = [name for name in SIZES if name not in settings]
    if missing:
        raise ValueError(f"{path} doesn't say {', '.join(missing)}")
    for name, wanted in EXPECTED.items():
        if settings.get(name, wanted) != wanted:
            raise ValueError(f"{path}: {name} is {settings[name]!r}; this model has {wanted!r}")
    if settings.get("n_inner") not in (None, 4 * settings["n_embd"]):
        raise ValueError(f"{path}: n_inner is {settings['n_inner']}; this model has 4 · n_embd")
    activation = settings.get("activation_function", "gelu_new")
    if activation not in GELU:
        raise ValueError(
            f"{path}: activation_function is {activation!r}; this model has {', '.join(GELU)}"
        )
    dropouts = [settings.get(f"{kind}_pdrop", 0.1) for kind in ("attn", "embd", "resid")]
    if len(set(dropouts)) > 1:
        raise ValueError(f"{path}: attn, embd and resid_pdrop are {dropouts}; this model has one")
    try:
        return GPTConfig(
            **{ours: settings[theirs] for theirs, ours in SIZES.items()},
            dropout=dropouts[0],
            gelu=GELU[activation],
            norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_sizes(config: GPTConfig, state_dict: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the state is whole and of these sizes: a rank's part, or the padded
    rows of a vocabulary, would pass for a model of its own."""
    with torch.device("meta"):
        expected = {name: tuple(t.shape) for name, t in GPT(config).state_dict().items()}
    found = {name: tuple(t.shape) for name, t in state_dict.items()}
    wrong = [
        f"{name} is {list(found[name])} and should be {list(expected[name])}"
        if name in found and name in expected
        else f"{name} is {'missing' if name in expected else 'too many'}"
        for name in sorted(expected.keys() | found.keys())
        if found.get(name) != expected.get(name)
    ]
    if wrong:
        more = f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(f"not the weights of these sizes: {'; '.join(wrong[:4])}{more}")


def write_gpt2(folder: Path, config: GPTConfig, state_dict: Mapping[str, Tensor]) -> None:
    """Write a whole state so that `GPT2LMHeadModel.from_pretrained(folder)` opens it.

    Each file is written under another name first and renamed when complete. Raises ValueError
    unless the state is whole (gathered) and of the config's sizes.
    """
    check_sizes(config, state_dict)
    folder.mkdir(parents=True, exist_ok=True)
    theirs = to_huggingface_gpt2(state_dict)
    del theirs["lm_head.weight"]  # tied; transformers makes it from wte
    temporary = folder / f"{WEIGHTS}.{os.getpid()}.tmp"
    try:
        save_file(theirs, temporary, metadata={"format": "pt"})
        os.replace(temporary, folder / WEIGHTS)
    finally:
        temporary.unlink(missing_ok=True)
    settings = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new" if config.gelu == "tanh" else "gelu",
        **{theirs: getattr(config, ours) for theirs, ours in SIZES.items()},
        "layer_norm_epsilon": config.norm_eps,
        **{f"{kind}_pdrop": config.dropout for kind in ("attn", "embd", "resid")},
    }
    write_text(folder / CONFIG, json.dumps(settings, indent=2) + "\n")
