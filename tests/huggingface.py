"""Our GPT-2's weights under the names of transformers' (test and benchmark only)."""

from __future__ import annotations

import torch

from step01_single_gpu import GPT


def as_huggingface(model: GPT) -> dict[str, torch.Tensor]:
    """Ours under GPT-2's names. Its `Conv1D` computes x W, so *every* matrix is transposed, the
    square c_proj too, where forgetting it raises no error."""
    names = {
        "attention.out.weight": "attn.c_proj.weight", "attention.out.bias": "attn.c_proj.bias",
        "mlp.up.weight": "mlp.c_fc.weight", "mlp.up.bias": "mlp.c_fc.bias",
        "mlp.down.weight": "mlp.c_proj.weight", "mlp.down.bias": "mlp.c_proj.bias",
        "ln1.weight": "ln_1.weight", "ln1.bias": "ln_1.bias",
        "ln2.weight": "ln_2.weight", "ln2.bias": "ln_2.bias",
    }  # fmt: skip
    state = model.state_dict()
    out = {
        "transformer.wte.weight": state["tokens.weight"],
        "lm_head.weight": state["tokens.weight"],
        "transformer.wpe.weight": state["positions.weight"],
        "transformer.ln_f.weight": state["ln.weight"],
        "transformer.ln_f.bias": state["ln.bias"],
    }
    for i in range(model.config.num_layers):
        ours, theirs = f"blocks.{i}.", f"transformer.h.{i}."
        out[theirs + "attn.c_attn.weight"] = state[ours + "attention.qkv.weight"].flatten(0, 1).T
        out[theirs + "attn.c_attn.bias"] = state[ours + "attention.qkv.bias"].flatten()
        for one, other in names.items():
            tensor = state[ours + one]
            out[theirs + other] = tensor.T if tensor.dim() == 2 else tensor
    return out
