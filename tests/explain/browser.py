"""A headless Chromium for the tests of the page, and what it shows, read out of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from explain.page import short

# What the page says, and what each card shows: {"label row column": text} for each tensor in it.
READ = """
const said = (id) => document.getElementById(id).textContent;
const page = Object.fromEntries(
  ["count", "title", "wire", "difference", "shape", "parting"].map((id) => [id, said(id)]));
page.holds = [...document.querySelectorAll(".card")].map((card) => Object.fromEntries(
  [...card.querySelectorAll("figure")].map((figure) => [figure.dataset.weight,
    [figure.querySelectorAll(".held").length, figure.textContent]])));
page.cards = [...document.querySelectorAll(".card")].map((card) => ({
  sent: card.querySelector(".sent").textContent,
  bus: card.querySelector(".bus")?.textContent ?? null,
  off: card.querySelectorAll(".off").length,
  nothing: card.querySelector(".nothing") !== null,
  cells: [...card.querySelectorAll(".tensor")].map(
    (area) => area.querySelectorAll("td, .colours rect").length),
  tensors: [...card.querySelectorAll(".tensor")].map((area) => Object.fromEntries(
    [...area.querySelectorAll("table")].flatMap((table) => {
      const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
      return [...table.tBodies[0].rows].flatMap((row) => [...row.cells].slice(1).map((cell, i) =>
        [`${heads[0]} ${row.cells[0].textContent} ${heads[i + 1]}`.trim(), cell.textContent]));
    }))),
}));
return page;
"""

# What sticks out of a narrow screen, or of its card, at any step: "step: what".
STICKS_OUT = """
const right = (node) => node.getBoundingClientRect().right;
return current().events.flatMap((event) => {
  choose({ step: event.name });
  const all = [...document.querySelectorAll("body :not(svg *)")];
  const wide = all.filter((node) => right(node) > innerWidth + 1);
  const cut = [...document.querySelectorAll(".card .numbers, .card figure")].filter(
    (node) => right(node) > right(node.closest(".card")));
  const far = document.documentElement.scrollWidth > innerWidth ? [document.body] : [];
  return [...wide, ...cut, ...far].map((n) => `${event.name}: ${n.outerHTML.slice(0, 120)}`);
});
"""

# The smallest contrast of a text with what is behind it (WCAG 2's formula), at any step, and where.
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map();
function rgb(colour) {
  if (!known.has(colour)) known.set(colour, painted(colour));
  return known.get(colour);
}
function painted(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((v) => v / 255).map(
    (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}
function behind(node) {
  for (; node; node = node.parentElement) {
    const colour = rgb(getComputedStyle(node).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255];
}
let worst = [99, ""];
for (const event of current().events) {
  choose({ step: event.name });
  for (const node of document.querySelectorAll("body :not(svg *)")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    if (!own || node.closest(":disabled, [hidden]")) continue;
    if (!node.checkVisibility({ visibilityProperty: true })) continue;
    const [a, b] = [luminance(rgb(getComputedStyle(node).color)), luminance(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, `${event.name}: ${node.outerHTML.slice(0, 120)}`];
  }
}
return worst;
"""


def missing() -> str:
    """Why there can be no browser test here; empty if there can."""
    names = {"chromium": chromium(), "chromedriver": shutil.which("chromedriver")}
    lacking = [name for name, path in names.items() if path is None]
    if not lacking:
        return ""
    return f"no {' and no '.join(lacking)} here: apt-get install chromium chromium-driver"


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def browser() -> Iterator[Any]:
    """A driver of a headless Chromium. Nothing is downloaded: the driver's path is given."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium() or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def screen(driver: Any, width: int, height: int = 900) -> None:
    """A screen of this size; a window itself can't be as narrow as a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefers(driver: Any, scheme: str) -> None:
    """What the system says: "light" or "dark"."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def rounded(value: float) -> str:
    """As the page prints a number: two places, halves away from zero, a real minus sign."""
    (kept,) = short([value])
    text = f"{Decimal(kept).quantize(Decimal('0.01'), ROUND_HALF_UP)}"
    return ("0.00" if text == "-0.00" else text).replace("-", "−")
