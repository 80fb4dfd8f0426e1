"""Right, or silent: on made-up observations, without ranks."""

from __future__ import annotations

from dataclasses import replace

import torch

from workshop.diagnosis import Verdict, judge
from workshop.probes.common import MAIN, Foreseen, Probe, Seen, right
from workshop.sim import SILENT, Layout, follow

SCALES = {"right": 1.0, "doubled": 2.0, "added to itself": 2.0, "tripled": 3.0}
PROBE = Probe(
    cases=MAIN,
    observe=lambda *_: Seen(),
    foresee=lambda case, c: Foreseen(
        [{"output": torch.arange(3.0) * SCALES[c["how"]] + 10 * r + case.seed} for r in range(4)]
    ),
    axes={"how": tuple(SCALES)},
)


def verdict(how: str, message_of: dict[str, str], change: float = 0.0) -> Verdict:
    rows = [PROBE.foresee(case, {"how": how}).values for case in PROBE.cases]
    rows[-1][0]["output"] = rows[-1][0]["output"] + change
    table = [[Seen(values) for values in row] for row in rows]
    return judge(PROBE, table, lambda key: message_of.get(key, ""))


ENTRIES = {"how=doubled": "two", "how=added to itself": "sum", "how=tripled": "three"}


def test_one_explanation_is_given_and_two_are_none() -> None:
    assert verdict("right", ENTRIES).ok
    assert verdict("tripled", ENTRIES).keys == ("three",)
    assert verdict("doubled", ENTRIES).keys == ()
    assert verdict("doubled", ENTRIES | {"how=added to itself": "two"}).keys == ("two",)
    assert verdict("tripled", {}).keys == ()


def test_one_number_elsewhere_and_there_is_no_diagnosis() -> None:
    found = verdict("tripled", ENTRIES, change=1.0)
    assert not found.ok
    assert found.keys == ()
    assert "largest difference" in found.differences[0].text


def test_values_that_fit_with_other_messages_sent_are_not_explained() -> None:
    loud = replace(
        PROBE,
        foresee=lambda case, c: Foreseen(
            PROBE.foresee(case, c).values, {"forward": 3 if c["how"] == "tripled" else 0}
        ),
    )
    rows = [loud.foresee(case, {"how": "tripled"}).values for case in loud.cases]
    table = [[Seen(values) for values in row] for row in rows]
    assert right(loud.axes) == {"how": "right"}
    assert judge(loud, table, lambda key: ENTRIES.get(key, "")).keys == ()


def test_rules_between_ranks() -> None:
    xs = [torch.tensor([float(v)]) for v in (1, 2, 3, 4)]
    pairs = Layout(((0, 1), (2, 3)))
    got = {rule: [x.item() for x in follow(rule, xs, pairs)] for rule in
           ("own", "sum", "mean", "twice", "max", "first", "world", "others", "own/n")}  # fmt: skip
    assert got["own"] == [1, 2, 3, 4]
    assert got["sum"] == [3, 3, 7, 7]
    assert got["mean"] == [1.5, 1.5, 3.5, 3.5]
    assert got["twice"] == [6, 6, 14, 14]
    assert got["max"] == [2, 2, 4, 4]
    assert got["first"] == [1, 1, 3, 3]
    assert got["world"] == [10] * 4
    assert got["others"] == [2, 1, 4, 3]
    assert got["own/n"] == [0.5, 1, 1.5, 2]
    assert "sum" not in SILENT
