"""A GPT-2 in a folder as Hugging Face keeps it: `model.safetensors` and `config.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.run_folder import write_text

from .huggingface import from_huggingface_gpt2, gpt2_config, to_huggingface_gpt2

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def read_gpt2(folder: Path) -> tuple[GPTConfig, dict[str, Tensor]]:
    """Sizes and whole weights of the GPT-2 in `folder`; the file is mapped, not read at once.

    Raises ValueError for a file that is missing, cut short, or of another kind of model.
    """
    for name in (WEIGHTS, CONFIG):
        if not (folder / name).is_file():
            raise ValueError(
                f"there is no {folder / name}; give a folder with {WEIGHTS} and {CONFIG}"
            )
    try:
        theirs = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS} is not a whole safetensors file: {error}") from error
    settings = _settings(folder / CONFIG)
    try:
        state = from_huggingface_gpt2(theirs)
        config = gpt2_config(
            state,
            settings["n_head"],
            norm_eps=settings.get("layer_norm_epsilon", 1e-5),
            dropout=settings.get("resid_pdrop", 0.1),
        )
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return config, state


def write_gpt2(folder: Path, config: GPTConfig, state_dict: Mapping[str, Tensor]) -> None:
    """Write a whole state so that `GPT2LMHeadModel.from_pretrained(folder)` opens it.

    Each file is written under another name first and renamed when complete.
    """
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
        "vocab_size": config.vocab_size,
        "n_positions": config.seq_length,
        "n_embd": config.hidden_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "layer_norm_epsilon": config.norm_eps,
        **{f"{kind}_pdrop": config.dropout for kind in ("attn", "embd", "resid")},
    }
    write_text(folder / CONFIG, json.dumps(settings, indent=2) + "\n")


def _settings(path: Path) -> dict[str, Any]:
    """config.json, if it is a GPT-2's of the kind that ours is."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if settings.get("model_type") != "gpt2" or "n_head" not in settings:
        raise ValueError(f"{path} is of a {settings.get('model_type')!r} model, not of a GPT-2")
    for name, wanted in (
        ("activation_function", "gelu_new"),
        ("scale_attn_by_inverse_layer_idx", False),
        ("n_inner", None),
    ):
        found = settings.get(name, wanted)
        if found != wanted and not (name == "n_inner" and found == 4 * settings["n_embd"]):
            raise ValueError(f"{path}: {name} is {found!r}; this model has {wanted!r}")
    return dict(settings)
