"""Random streams of all ranks, saved, and put back or started anew.

Each rank has its own: the tracker's two (step 3) and torch's global one, on the CPU and on its
GPU. At the same layout a run goes on with the very next number. At another there are more or fewer
ranks, so no old stream fits: all are started anew, keyed by (seed, step), so that no rank repeats
the masks of the run's beginning. (Mode "invariant" needs no stream; its masks stay the same.)
numpy's and Python's generators are not saved: nothing in these steps draws from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from step01_single_gpu.weights import generator_for
from step03_attention_parallel.rng import RNGTracker

State = dict[str, Any]


def own_streams(rng: RNGTracker | None) -> State:
    """This rank's: {"tensors": by name, "tracker": plain values or None}."""
    tensors = {"global.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        tensors["global.cuda"] = torch.cuda.get_rng_state()
    if rng is None:
        return {"tensors": tensors, "tracker": None}
    state = rng.state_dict()
    for stream in ("replicated", "sharded"):
        tensors |= {f"{stream}.{device}": value for device, value in state[stream].items()}
    tracker = {"seed": rng.seed, "mode": rng.mode, "position": list(state["position"])}
    return {"tensors": tensors, "tracker": tracker}


def stacked(ranks: Sequence[State]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The streams of all ranks as tensors [ranks, bytes], and the rest as plain values."""
    names = [n for n in ranks[0]["tensors"] if all(n in state["tensors"] for state in ranks)]
    tensors = {name: torch.stack([state["tensors"][name] for state in ranks]) for name in names}
    if any(state["tracker"] is None for state in ranks):
        return tensors, {"tracker": None}
    first = ranks[0]["tracker"]
    positions = [state["tracker"]["position"] for state in ranks]
    return tensors, {
        "tracker": {"seed": first["seed"], "mode": first["mode"], "positions": positions}
    }


def check_tracker(saved: Mapping[str, Any], rng: RNGTracker | None) -> None:
    """Raise ValueError if the run had another seed or mode than `rng` has."""
    tracker = saved["tracker"]
    if rng is not None and tracker is not None:
        theirs, ours = [tracker["seed"], tracker["mode"]], [rng.seed, rng.mode]
        if theirs != ours:
            raise ValueError(
                f"the run's RNGTracker had [seed, mode] {theirs}, this one has {ours}: a resumed "
                "run keeps both"
            )


def next_state(
    saved: Mapping[str, Any], arrived: Mapping[str, Tensor], rng: RNGTracker, rank: int, step: int
) -> tuple[dict[str, Any], str]:
    """What the tracker is to load, and "continued" or "restarted".

    `arrived` has this rank's streams, by name, if the layout is the same, else nothing.
    """
    own = rng.state_dict()
    streams = {
        stream: {
            name.removeprefix(f"{stream}."): state
            for name, state in arrived.items()
            if name.startswith(f"{stream}.")
        }
        for stream in ("replicated", "sharded")
    }
    usable = torch.cuda.is_available() or "replicated.cuda" not in arrived
    if saved["tracker"] is None or not usable or not all(streams.values()):
        key = generator_for("restarted", rng.seed, step).initial_seed()
        place = {"tp_rank": rng.tp_rank, "tp_size": rng.tp_size, "dp_rank": rng.dp_rank}
        anew = RNGTracker(key, mode=rng.mode, **place).state_dict()
        kept = {"layout": own["layout"], "position": own["position"]}
        return {**anew, **kept}, "continued" if rng.stateless else "restarted"
    for state in (*streams["replicated"].items(), *streams["sharded"].items()):
        check_stream(*state)
    position = [int(value) for value in saved["tracker"]["positions"][rank]]
    return {**own, "position": position, **streams}, "continued"


def check_stream(device: str, state: Tensor) -> None:
    """Raise ValueError, before anything is changed, for a state that no generator takes."""
    try:
        torch.Generator(device).set_state(state)
    except RuntimeError as error:
        raise ValueError(f"a random stream is damaged: {error}") from error


def set_global(arrived: Mapping[str, Tensor]) -> None:
    """torch's own generators; one that wasn't saved, or isn't on this machine, is left alone."""
    if "global.cpu" in arrived:
        torch.set_rng_state(arrived["global.cpu"])
    if "global.cuda" in arrived and torch.cuda.is_available():
        torch.cuda.set_rng_state(arrived["global.cuda"])
