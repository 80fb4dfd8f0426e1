"""One recording for all tests of a worker."""

from __future__ import annotations

from typing import Any

import pytest

from explain.record import record


@pytest.fixture(scope="session")
def recording() -> dict[str, Any]:
    return record()
