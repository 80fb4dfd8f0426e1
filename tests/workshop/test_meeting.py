"""Whoever waits for a rank that never comes knows it at once, and who comes late is waited for."""

from __future__ import annotations

import pytest

from step02_mlp_parallel import run_ranks

from .meeting_ranks import met

NEVER = "rank 1 never comes to all_reduce of [[1]]"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("fine", ["[1.0]", "[1.0]", "[5.0]", "[5.0]"]),
        ("world", ["[6.0]"] * 4),
        ("in turn", ["[2.0]", "[2.0]", "[5.0]", "[5.0]"]),
        ("late", ["[1.0]", "[1.0]", "[5.0]", "[5.0]"]),
        ("one leaves", [NEVER, "left", "[5.0]", "[5.0]"]),
        ("one raises", [NEVER, "raised", "[5.0]", "[5.0]"]),
        ("other sizes", ["[1.0]", "[1.0]",
                         "rank 3 comes with all_reduce of [[2]], not all_reduce of [[1]]",
                         "rank 2 comes with all_reduce of [[1]], not all_reduce of [[2]]"]),
    ],
)  # fmt: skip
def test_who_meets_whom(what: str, said: list[str]) -> None:
    found = run_ranks(met, 4, what, timeout=20.0)
    assert [text for text, _ in found] == said
    assert max(seconds for _, seconds in found) < 10.0
