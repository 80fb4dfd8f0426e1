"""The paper's models, without waiting for torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from step01_single_gpu.config import GPTConfig

PACKAGE, NAME = "step01_single_gpu", "step01_single_gpu.config"


def paper_models() -> dict[str, GPTConfig]:
    """Step 1's PAPER_MODELS.

    Importing that package loads torch, which takes seconds; its config.py needs nothing. So the
    file is run on its own, unless it is there already.
    """
    module = sys.modules.get(NAME)
    if module is None:
        package = importlib.util.find_spec(PACKAGE)  # finds a package and doesn't run it
        if package is None or package.origin is None:
            raise ModuleNotFoundError(f"{PACKAGE} must be importable: run this from the repository")
        alone = f"{__name__}.config"  # not the real name: the real package may come later
        module = sys.modules.get(alone)
        if module is None:
            spec = importlib.util.spec_from_file_location(
                alone, Path(package.origin).with_name("config.py")
            )
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[alone] = module  # dataclasses look their module up here
            spec.loader.exec_module(module)
    return cast("dict[str, GPTConfig]", module.PAPER_MODELS)
