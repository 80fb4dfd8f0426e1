"""The page holds everything itself, and refuses what it can't show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from explain.page import page, write
from explain.record import VERSION, read

ROOT = Path(__file__).parents[2]
Recording = dict[str, Any]


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_is_one_file_that_loads_nothing(recording: Recording) -> None:
    html = page(recording)
    for tag, attributes in Tags(html).found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "audio", "video")
        assert not {"src", "srcset", "href", "action", "data"} & attributes.keys()
    addresses = set(re.findall(r"https?://[^\s\"')]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name of SVG's, never loaded"
    for loader in ("@import", "url(", "fetch(", "XMLHttpRequest", "import(", "WebSocket", "//cdn"):
        assert loader not in html
    assert "default-src 'none'" in html, "and the browser is told to refuse the rest"
    assert not re.search(r"/\* \w+\.(css|js) \*/|>RECORDING<", html), "every part was put in"


def test_the_page_carries_the_recording(recording: Recording) -> None:
    html = page(recording)
    (data,) = re.findall(r'<script type="application/json" id="recording">(.*?)</script>', html)
    kept = json.loads(data)
    assert kept["version"] == VERSION
    for run, shown in zip(recording["runs"], kept["runs"], strict=True):
        assert [e["name"] for e in run["events"]] == [e["name"] for e in shown["events"]]
        for event, short in zip(run["events"], shown["events"], strict=True):
            assert event["sent"] == short["sent"]
            assert event["difference"] == short["difference"]
            for values, six in zip(event["values"], short["values"], strict=True):
                assert (values is None) == (six is None)
                if values is not None:
                    assert six == pytest.approx(values, rel=1e-5)


def test_a_recording_cannot_end_its_script(recording: Recording) -> None:
    html = page({**recording, "torch": "</script><b>"})
    assert "</script><b>" not in html


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 99, "runs": []}', r"version 99; this page shows version 1: make a new one"),
        ('{"version": null}', r"version None; this page shows version 1"),
        ('{"runs": []}', r"names no version"),
        ("[1, 2]", r"not a recording"),
        ("{", r"can't be read as a recording"),
        ('{"version": 1, "runs": []}', r"damaged: misconceptions, ranks, sizes, steps is missing"),
    ],
)
def test_what_is_no_recording_of_this_version_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        read(path)
    assert "old.json" in str(refused.value)


def test_the_program_says_so_and_writes_nothing(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text('{"version": 0}')
    out = tmp_path / "page.html"
    words = [sys.executable, "-m", "explain", "--recording", str(old), "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "is a recording of version 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_a_kept_recording_gives_the_same_page(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    write(path, json.dumps(recording))
    assert page(read(path)) == page(recording)
    assert [p.name for p in tmp_path.iterdir()] == ["recording.json"], "nothing half-written left"


def test_no_file_is_longer_than_a_learner_reads() -> None:
    files = [p for p in (ROOT / "explain").iterdir() if p.suffix in (".py", ".js", ".css", ".html")]
    assert len(files) >= 9
    assert all(len(p.read_text().splitlines()) <= 300 for p in files)
