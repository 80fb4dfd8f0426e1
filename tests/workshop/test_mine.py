"""The learner's functions in the real ones' places."""

from __future__ import annotations

from workshop.exercises import exercise
from workshop.together import together

from .test_exercises import stub_file, with_body

IDS = ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6"]


def test_all_functions_together_and_that_it_can_fail() -> None:
    source = stub_file(2)
    for id in IDS:
        source = with_body(source, exercise(id))
    said = together(source, "work.py", IDS)
    assert "equals the whole one" in said, said
    broken = source.replace("return _G.apply(x, group)", "return 2 * _G.apply(x, group)")
    assert broken != source
    said = together(broken, "work.py", ["2.2", "2.3", "2.4"])
    assert "equals the whole one" in said, "2.4's real body goes by g_, and not by g"
    broken = source.replace("return y if bias is None else y.add_(bias)", "return y")
    said = together(broken, "work.py", ["2.4"])
    assert "on 2 ranks the MLP is off by" in said, said
    stub = together(stub_file(2), "work.py", ["2.5"])
    assert "NotImplementedError: 2.5" in stub
