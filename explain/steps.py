"""The operations of a block, in the order of a run: what each is, and how its result lies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """How a tensor lies over the ranks.

    "replicated": the same on each; "cut": side by side along `dim`; "partial": terms of a sum.
    """

    kind: str
    dim: int = 0


SAME, PARTIAL = Layout("replicated"), Layout("partial")


@dataclass(frozen=True)
class Step:
    """One operation. `mark` is "f" or "g" where the paper has that operator; `weight` names the
    matrix that is used."""

    name: str
    short: str  # for the map
    title: str
    formula: str
    layout: Layout
    text: str
    mark: str = ""
    weight: str = ""


FORWARD = (
    Step("x", "X", "The block's input", "X", SAME,
         "Whole, and the same on every rank: three tokens, a row each."),
    Step("ln1", "LN", "Layer norm", "N = LayerNorm(X)", SAME,
         "Every rank has all of X and computes the same. Cheaper than sending the result."),
    Step("attention.f", "f", "f, forward", "f(N) = N", SAME,
         "The way into the cut part. Everybody has N already, so nothing is sent. "
         "f shows what it is for in backward.", "f"),
    Step("attention.qkv", "QKV", "Queries, keys and values", "[Qᵢ, Kᵢ, Vᵢ] = N · [Q, K, V]ᵢ + bᵢ",
         Layout("cut", 2),
         "Cut by columns: whole columns are whole heads. Each rank gets all it needs for its own "
         "heads.", weight="attention.qkv.weight"),
    Step("attention.heads", "heads", "Attention of own heads", "Hᵢ = softmax(QᵢKᵢᵀ/√d) · Vᵢ",
         Layout("cut", 1),
         "Heads do not talk to one another. So nobody waits and nothing is sent."),
    Step("attention.out", "out", "Output projection", "Zᵢ = Hᵢ · Oᵢ", PARTIAL,
         "O is cut by rows, just where the heads lie. The result has its full shape on every rank, "
         "but it is only one term of a sum.", weight="attention.out.weight"),
    Step("attention.g", "g", "g, forward", "Z = Z₀ + … + Zₙ₋₁", SAME,
         "The way out. An all-reduce adds up the terms, and everybody has the sum. "
         "This is the attention's only exchange in forward.", "g"),
    Step("attention.bias", "+b", "Bias, once", "Z + b", SAME,
         "The bias is no term of the sum, so it comes behind g, and every rank adds it."),
    Step("residual1", "+", "Residual", "X′ = X + Z + b", SAME,
         "The same numbers on all ranks again."),
    Step("ln2", "LN", "Layer norm", "N = LayerNorm(X′)", SAME,
         "Computed by everybody, as before."),
    Step("mlp.f", "f", "f, forward", "f(N) = N", SAME,
         "Into the cut part again. Nothing is sent.", "f"),
    Step("mlp.up", "A", "First matrix of the MLP", "Uᵢ = N · Aᵢ + aᵢ", Layout("cut", 1),
         "A is cut by columns. Each rank gets whole entries of N · A, only fewer of them.",
         weight="mlp.up.weight"),
    Step("mlp.gelu", "GeLU", "GeLU", "Gᵢ = GeLU(Uᵢ)", Layout("cut", 1),
         "Whole entries, so GeLU can be taken on the spot. Were A cut by rows, each rank would "
         "hold terms of a sum, and GeLU of a sum is not a sum of GeLUs."),
    Step("mlp.down", "B", "Second matrix of the MLP", "Yᵢ = Gᵢ · Bᵢ", PARTIAL,
         "B is cut by rows: the columns of G that a rank has meet the rows of B that it has. "
         "No exchange between A and B. The result is a term of a sum.", weight="mlp.down.weight"),
    Step("mlp.g", "g", "g, forward", "Y = Y₀ + … + Yₙ₋₁", SAME,
         "The MLP's only exchange in forward.", "g"),
    Step("mlp.bias", "+b", "Bias, once", "Y + b", SAME, "Behind g, on every rank."),
    Step("y", "+", "The block's output", "X″ = X′ + Y + b", SAME,
         "The same on every rank. From here all ranks compute one and the same loss L."),
)  # fmt: skip

BACKWARD = (
    Step("y.grad", "dL", "The gradient arrives", "dX″ = dL/dX″", SAME,
         "Everybody computed the same loss, so everybody has its gradient already."),
    Step("mlp.down.bias.grad", "b", "Gradient of the bias", "db = Σ dX″ over tokens", SAME,
         "The same on every rank, so the copies of b stay equal. Nothing is sent."),
    Step("mlp.g.grad", "g", "g, backward", "dYᵢ = dY", SAME,
         "Y is a plain sum, so each term's gradient is dY itself. Nothing is sent.", "g"),
    Step("mlp.down.weight.grad", "dB", "Gradient of B", "dBᵢ = Gᵢᵀ · dY", Layout("cut", 1),
         "Each rank has the gradient of just the rows that it holds. Nobody else needs them.",
         weight="mlp.down.weight"),
    Step("mlp.gelu.grad", "dG", "Back through B", "dGᵢ = dY · Bᵢᵀ", Layout("cut", 1),
         "Own rows of B give the gradient of own entries.", weight="mlp.down.weight"),
    Step("mlp.up.grad", "GeLU′", "Back through GeLU", "dUᵢ = dGᵢ · GeLU′(Uᵢ)", Layout("cut", 1),
         "Entry by entry, on the spot."),
    Step("mlp.part.grad", "dN", "Back through A", "dNᵢ = dUᵢ · Aᵢᵀ", PARTIAL,
         "All of N went into every rank's columns. So this has the full shape, but it is only "
         "what this rank's columns say about N.", weight="mlp.up.weight"),
    Step("mlp.f.grad", "f", "f, backward", "dN = dN₀ + … + dNₙ₋₁", SAME,
         "f's all-reduce adds up what all columns say. The MLP's only exchange in backward.", "f"),
    Step("mlp.up.weight.grad", "dA", "Gradient of A", "dAᵢ = Nᵀ · dUᵢ", Layout("cut", 0),
         "Own columns only. On the real wire f's all-reduce runs meanwhile.",
         weight="mlp.up.weight"),
    Step("mlp.up.bias.grad", "a", "Gradient of A's bias", "daᵢ = Σ dUᵢ over tokens",
         Layout("cut", 0), "Own entries only."),
    Step("ln2.weight.grad", "γ", "Gradient of the norm's gain", "dγ = Σ dN · normed X′", SAME,
         "The same on every rank, thanks to f. With a partial dN the copies would drift apart."),
    Step("ln2.bias.grad", "β", "Gradient of the norm's shift", "dβ = Σ dN", SAME,
         "The same on every rank, thanks to f."),
    Step("residual1.grad", "dX′", "Both ways joined", "dX′ = dX″ + LayerNorm′(dN)", SAME,
         "Past the MLP and through it. Whole again."),
    Step("attention.out.bias.grad", "b", "Gradient of the bias", "db = Σ dX′ over tokens", SAME,
         "As in the MLP."),
    Step("attention.g.grad", "g", "g, backward", "dZᵢ = dZ", SAME, "Nothing is sent.", "g"),
    Step("attention.out.weight.grad", "dO", "Gradient of O", "dOᵢ = Hᵢᵀ · dZ", Layout("cut", 1),
         "Own rows only.", weight="attention.out.weight"),
    Step("attention.heads.grad", "dH", "Back through O", "dHᵢ = dZ · Oᵢᵀ", Layout("cut", 1),
         "The gradient of own heads.", weight="attention.out.weight"),
    Step("attention.qkv.grad", "dQKV", "Back through the attention", "dQᵢ, dKᵢ, dVᵢ",
         Layout("cut", 2), "Heads do not talk to one another in backward either."),
    Step("attention.part.grad", "dN", "Back through Q, K, V", "dNᵢ = [dQᵢ, dKᵢ, dVᵢ] · [Q, K, V]ᵢᵀ",
         PARTIAL, "What this rank's heads say about N: a term of a sum.",
         weight="attention.qkv.weight"),
    Step("attention.f.grad", "f", "f, backward", "dN = dN₀ + … + dNₙ₋₁", SAME,
         "The attention's only exchange in backward.", "f"),
    Step("attention.qkv.bias.grad", "b", "Gradient of their bias", "Σ [dQᵢ, dKᵢ, dVᵢ] over tokens",
         Layout("cut", 1), "Own heads only."),
    Step("attention.qkv.weight.grad", "dW", "Gradient of Q, K, V", "d[Q, K, V]ᵢ", Layout("cut", 1),
         "Own heads only.", weight="attention.qkv.weight"),
    Step("x.grad", "dX", "The gradient of X", "dX = dX′ + LayerNorm′(dN)", SAME,
         "Whole, and the same on every rank: ready for the block below. Four all-reduces in all."),
    Step("ln1.weight.grad", "γ", "Gradient of the norm's gain", "dγ = Σ dN · normed X", SAME,
         "The same on every rank."),
    Step("ln1.bias.grad", "β", "Gradient of the norm's shift", "dβ = Σ dN", SAME,
         "The same on every rank."),
)  # fmt: skip

STEPS = {step.name: step for step in (*FORWARD, *BACKWARD)}
