"""What every test shares: one torch thread a worker, no chance left in, small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from step01_single_gpu import GPTConfig
from step02_mlp_parallel.launch import warm_up

# The same few examples each time: a suite that fails must fail for everybody.
settings.register_profile("suite", max_examples=20, deadline=None, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    """Each test starts from the same global seed and leaves the default dtype as it was."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def float64() -> None:
    """Build and compute in double precision: equivalence is proved to 1e-12 there."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def tiny() -> GPTConfig:
    """A GPT-2 with odd sizes, so that no two dimensions can be mistaken for one another."""
    return GPTConfig(
        vocab_size=37, seq_length=11, hidden_size=24, num_layers=3, num_heads=3, dropout=0.0
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Warm the server of ranks while the first tests run, where tests with ranks will run."""
    controller = session.config.getoption("numprocesses", None) is not None
    if not controller and any("step01" not in item.nodeid for item in session.items):
        # A test run is short: here the ranks' own modules may be loaded beforehand too.
        folders = {Path(item.path).parent for item in session.items}
        files = [file for folder in folders for file in folder.glob("*ranks.py")]
        modules = [f"tests.{file.parent.name}.{file.stem}" for file in files]
        warm_up("torch._dynamo", "tests.equivalence", *modules)
