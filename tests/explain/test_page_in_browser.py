"""The page in a real browser: it is moved, stepped and switched, and must show the recording."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from explain.misconceptions import MISCONCEPTIONS
from explain.page import page
from explain.record import RANKS

from . import browser
from .test_recording import event, run, tensors

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing()),
]
Recording = dict[str, Any]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser.browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def address(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(page(recording), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def shown(driver: Any, address: str) -> Iterator[Any]:
    """The page, freshly opened from disk, at two ranks and the first step."""
    driver.get("about:blank")
    browser.screen(driver, 1600)
    browser.prefers(driver, "light")
    driver.get(address)
    yield driver
    assert not [e for e in driver.get_log("browser") if e["level"] == "SEVERE"]
    loaded = driver.execute_script("return performance.getEntriesByType('resource').length")
    assert loaded == 0, "nothing but the file itself"


def press(driver: Any, keys: str, on: str = "body") -> None:
    driver.find_element("css selector", on).send_keys(keys)


def text(driver: Any, selector: str) -> str:
    return driver.find_element("css selector", selector).text  # type: ignore[no-any-return]


def key(name: str) -> str:
    from selenium.webdriver.common.keys import Keys

    return getattr(Keys, name)  # type: ignore[no-any-return]


def expected_cells(recording: Recording, n: int, name: str, rank: int) -> dict[str, str]:
    """What rank `rank`'s table must say at each label. Numbers of cut tensors come from the run on
    *one* rank: the labels count over the whole, so that is what they must point to."""
    part = event(recording, n, name)
    mine = tensors(part, n)[rank]
    turned = name.endswith(".weight.grad") and mine.dim() > 1
    (whole,) = tensors(event(recording, 1, name), 1)
    cells = {}
    for index in itertools.product(*(range(size) for size in mine.shape)):
        at = list(index)
        value = mine[index].item()
        if part["layout"] == "cut":
            at[part["dim"]] += rank * mine.size(part["dim"])
            value = whole[tuple(at)].item()
        label = "QKV"[at.pop(0)] if len(at) == 3 else ""
        at = [0, *at] if len(at) == 1 else at
        row, column = reversed(at) if turned else at
        cells[f"{label} {row} {column}".strip()] = browser.rounded(value)
    return cells


@pytest.mark.parametrize("n", RANKS)
def test_stepping_shows_every_number_of_the_recording(
    shown: Any, recording: Recording, n: int
) -> None:
    """Arrow keys through all steps: numbers, shapes, sums, wire and totals are the recording's."""
    press(shown, f"{n}{key('HOME')}")
    events = run(recording, n)["events"]
    totals = [0] * n
    for i, now in enumerate(events):
        if i:
            press(shown, key("ARROW_RIGHT"))
        page = shown.execute_script(browser.READ)
        assert page["count"] == f"Step {i + 1} of {len(events)}"
        assert page["title"] == recording["steps"][now["name"]]["title"]
        assert len(page["cards"]) == n
        for rank, card in enumerate(page["cards"]):
            totals[rank] += sum(nbytes for _, _, nbytes in now["sent"][rank])
            assert card["sent"].startswith(f"sent so far: {totals[rank]} byte"), now["name"]
            cells = expected_cells(recording, n, now["name"], rank)
            if len(cells) > 100:  # as colours only
                assert card["cells"][-1] == len(cells)
            else:
                assert card["tensors"][-1] == cells, (now["name"], rank)
            if now["sent"][rank]:  # what went in stands above what came out
                before = expected_cells(recording, n, events[i - 1]["name"], rank)
                assert card["tensors"][0] == before
                assert card["bus"].endswith(f"adds up over {n} ranks")
            else:
                assert len(card["cells"]) == 1
        wire = page["wire"]
        assert wire.startswith("all-reduce" if now["sent"][0] else "nothing"), wire
        for _, numbers, nbytes in now["sent"][0]:
            assert f"{numbers} numbers, {nbytes} bytes from each" in wire
        assert page["difference"].startswith("equal")
    assert not shown.find_element("id", "next").is_enabled()


def test_the_slider_of_the_ranks(shown: Any, recording: Recording) -> None:
    press(shown, key("HOME"), "#ranks")
    for n in RANKS:
        if n > 1:
            press(shown, key("ARROW_RIGHT"), "#ranks")
        assert text(shown, "#title-ranks") == ("1 rank" if n == 1 else f"{n} ranks")
        cards = shown.execute_script(browser.READ)["holds"]
        assert len(cards) == n
        for rank, card in enumerate(cards):
            held = {h["name"]: h for h in run(recording, n)["holds"][rank]}
            assert len(card) == 4
            for name, (filled, _) in card.items():
                assert filled == len(held[name]["rows"]) * len(held[name]["columns"])
        last = f"{32 - 32 // n}–31"
        _, says_a = cards[-1]["mlp.up.weight"]
        _, says_b = cards[-1]["mlp.down.weight"]
        assert says_a == ("A all of it" if n == 1 else f"A columns {last}")
        assert says_b == ("B all of it" if n == 1 else f"B rows {last}")


def test_the_bill_counts_the_ledger(shown: Any) -> None:
    rows = [row.text.split() for row in shown.find_elements("css selector", "#bill-rows tr")]
    calls = [row[:4] for row in rows]
    assert calls == [["1", "0", "0", "0"], *([f"{n}", "2", "2", "768"] for n in (2, 4, 8))]
    # 12 h² of matrices, 7 h of biases that are cut; two norms and two biases stay whole.
    assert [int(row[4]) for row in rows] == [(12 * 64 + 7 * 8) // n + 6 * 8 for n in RANKS]


@pytest.mark.parametrize("mistake", MISCONCEPTIONS, ids=lambda m: m.key)
def test_the_switch_replays_a_misconception(shown: Any, recording: Recording, mistake: Any) -> None:
    from selenium.webdriver.support.select import Select

    assert not shown.find_element("id", "mistake").is_displayed()
    shown.find_element("id", "switch").click()
    Select(shown.find_element("id", "which")).select_by_value(mistake.key)
    assert mistake.belief in text(shown, "#mistake")
    for n in (2, 8):
        press(shown, f"{n}p")
        wrong = run(recording, n, mistake.key)
        at, first = wrong["parts_at"], wrong["events"][wrong["parts_at"]]
        assert text(shown, "#count") == f"Step {at + 1} of {len(wrong['events'])}"
        assert f"part at step {at + 1}," in text(shown, "#parting")
        figure = float(text(shown, "#parting").split("up to ")[1].rstrip("."))
        assert figure == pytest.approx(first["difference"], rel=1e-3)
        assert text(shown, "#difference") == f"parts: off by up to {figure:g}"
        chips = shown.find_elements("css selector", "#map li .first")
        assert [c.get_dom_attribute("data-step") for c in chips] == [mistake.parts_at]
        assert len(shown.find_elements("css selector", "#map li .parted")) == sum(
            e["parted"] for e in wrong["events"]
        )
        cards = shown.execute_script(browser.READ)["cards"]
        assert any(card["off"] or card["nothing"] for card in cards), "marked where they differ"
    press(shown, "1")
    assert "At 1 rank nothing is wrong" in text(shown, "#parting")
    press(shown, "m")
    assert not shown.find_element("id", "mistake").is_displayed()
    assert shown.find_element("id", "switch").get_dom_attribute("aria-checked") == "false"


def test_a_dropped_sum_is_struck_out(shown: Any) -> None:
    press(shown, "4mp")  # the first misconception is the dropped sum
    assert "nothing, where the right code sends an all-reduce" in text(shown, "#wire")
    assert text(shown, ".bus.missing") == "✗ f does not add up here"
    press(shown, "m")
    assert text(shown, ".bus.wired") == "Σ f adds up over 4 ranks"


def test_everything_by_keyboard(shown: Any) -> None:
    marks = []
    press(shown, key("HOME"))
    for _ in range(8):
        press(shown, "n")
        marks.append(text(shown, "#title"))
    forward, backward = ["f, forward", "g, forward"], ["g, backward", "f, backward"]
    assert marks == forward * 2 + backward * 2
    press(shown, key("ARROW_LEFT"))
    assert text(shown, "#title") == "Back through Q, K, V"
    press(shown, key("END"))
    assert text(shown, "#title") == "Gradient of the norm's shift"
    assert "step=ln1.bias.grad" in shown.current_url
    # Every control can be reached with Tab, and has a name.
    seen = []
    for _ in range(12):
        shown.switch_to.active_element.send_keys(key("TAB"))
        seen.append(shown.switch_to.active_element)
    assert all(element.accessible_name for element in seen)
    ids = {element.get_dom_attribute("id") for element in seen}
    assert {"theme", "ranks", "back", "step", "next-mark", "switch"} <= ids
    assert text(shown, '#cards [aria-label="rank 1"] h3').startswith("rank 1")


def test_the_address_opens_the_same_view(shown: Any, address: str) -> None:
    shown.get("about:blank")
    shown.get(f"{address}#ranks=8&step=mlp.g&mistake=bias-every-rank")
    assert text(shown, "#title-ranks") == "8 ranks"
    assert text(shown, "#title") == "g, forward"
    assert text(shown, "#mistake-title") == "The bias inside the sum"
    shown.get("about:blank")
    shown.get(f"{address}#ranks=3&step=nowhere&mistake=none")
    assert text(shown, "#title-ranks") == "2 ranks"
    assert not shown.find_element("id", "mistake").is_displayed()


@pytest.mark.parametrize("keys", ["1", "2", "4m", "8"])
def test_a_phone_needs_no_sideways_scrolling(shown: Any, keys: str) -> None:
    browser.screen(shown, 390, 844)
    press(shown, keys)
    assert text(shown, "#title-ranks").startswith(f"{keys[0]} rank")
    assert not shown.execute_script(browser.STICKS_OUT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(shown: Any, scheme: str) -> None:
    """At least 4.5 to 1 (WCAG AA), whatever the cell's colour."""
    browser.prefers(shown, scheme)
    assert dark(shown) == (scheme == "dark")
    for view in ("2", "m"):
        press(shown, view)
        ratio, where = shown.execute_script(browser.CONTRAST)
        assert ratio >= 4.5, where
    press(shown, "t")
    assert dark(shown) == (scheme == "light"), "the button beats the system"
    shown.find_element("id", "theme").click()
    assert dark(shown) == (scheme == "dark")


def dark(driver: Any) -> bool:
    colour = driver.find_element("tag name", "body").value_of_css_property("background-color")
    numbers = [float(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3]]
    return sum(numbers) < 3 * 128


def test_a_recording_of_another_version_is_refused(
    driver: Any, recording: Recording, tmp_path: Path
) -> None:
    html = page(recording).replace('{"version":1,', '{"version":7,')
    (tmp_path / "old.html").write_text(html, encoding="utf-8")
    driver.get((tmp_path / "old.html").as_uri())
    assert "a recording of version 7; this page shows version 1" in text(driver, "#refused")
    assert not driver.find_element("tag name", "main").is_displayed()


def test_expected_cells_know_a_wrong_rank(recording: Recording) -> None:
    """The comparison itself: rank 0's numbers would not pass for rank 1's."""
    cut = [expected_cells(recording, 2, "mlp.up", rank) for rank in (0, 1)]
    assert not cut[0].keys() & cut[1].keys()
    partial = [expected_cells(recording, 2, "mlp.down", rank) for rank in (0, 1)]
    assert partial[0].keys() == partial[1].keys()
    assert partial[0] != partial[1]
    assert torch.equal(*tensors(event(recording, 2, "mlp.g"), 2))
