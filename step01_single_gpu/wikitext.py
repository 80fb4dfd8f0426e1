"""WikiText-style articles: the official files, and real Wikipedia articles from a package."""

from __future__ import annotations

import bz2
import re
from pathlib import Path
from xml.etree import ElementTree

from .packages import WIKIPEDIA, fetch, members

ARTICLES = (
    "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)


def read_wikitext(path: Path) -> tuple[str, int]:
    """An official `wiki.*.tokens` file: (ordinary text, number of original words).

    The file is tokenised: blanks stand around every word and mark, and " \\n " ends a line. Its
    words are what stands between blanks, the line ends among them; for the test file that count
    is the 245,566 that the paper divides by (appendix E.1).
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the official wiki.test.tokens")
    text = path.read_text(encoding="utf-8").strip()
    if not text:
        raise ValueError(f"{path} is empty")
    return detokenize(text), len(text.split(" "))


def detokenize(text: str) -> str:
    """Undo WikiText's tokenisation, so that a BPE sees text as people write it."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)  # split numbers and compounds: 1 @,@ 000
    text = re.sub(r" ([.,:;!?%)\]}])", r"\1", text)
    text = re.sub(r"([(\[{$£]) ", r"\1", text)
    text = re.sub(r'"\s([^"\n]*?)\s"', r'"\1"', text)
    text = re.sub(r" ('(?:s|t|re|ve|m|ll|d)\b)", r"\1", text)  # Bob 's, they 're
    text = re.sub(r"(\w) (n't)\b", r"\1\2", text)
    text = re.sub(r"(s) ' ", r"\1' ", text)
    return re.sub(r" ?\n ?", "\n", text)


def wikipedia_articles(downloads: Path, *, at_most: int | None = None) -> dict[str, str]:
    """Real English Wikipedia articles as plain text, by title; redirects are left out.

    The text is under CC BY-SA: it is fetched, never part of this repository.
    """
    raw = bz2.decompress(members(fetch(WIKIPEDIA, downloads), ARTICLES)[ARTICLES])
    articles: dict[str, str] = {}
    for page in ElementTree.fromstring(raw).iterfind(".//{*}page"):
        markup = page.findtext(".//{*}text") or ""
        if page.find("{*}redirect") is not None or not markup:
            continue
        articles[page.findtext("{*}title") or ""] = plain_text(markup)
        if at_most is not None and len(articles) == at_most:
            break
    return articles


def plain_text(markup: str) -> str:
    """The running text of an article: no footnotes, pictures or templates, nothing after it."""
    import mwparserfromhell

    text = re.split(r"\n==\s*(?:See also|Notes|References|External links)", markup)[0]
    text = re.sub(r"<ref[^>]*/>|<ref.*?</ref>", "", text, flags=re.DOTALL)
    inner_link = r"\[\[[^\[\]]*\]\]"
    picture = rf"\[\[(?:File|Image|Category):(?:{inner_link}|[^\[\]])*\]\]"
    text = re.sub(picture, "", text)
    lines = mwparserfromhell.parse(text).strip_code().splitlines()
    text = "\n".join(line.strip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
