"""BERT's WordPiece: 30,522 entries out of a pinned package, lower case, words cut into pieces."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .examples import Vocabulary
from .pretrained import minilm

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def bert_wordpiece(downloads: Path) -> Tokenizer:
    """The uncased vocabulary of the original BERT; [CLS] and [SEP] come with `encode`."""
    return read_wordpiece(minilm(downloads) / "vocab.txt")


def read_wordpiece(path: Path) -> Tokenizer:
    """A tokenizer from a `vocab.txt`, one entry a line. Raises ValueError if special ones lack.

    Text that spells "[MASK]" is encoded as the characters it is.
    """
    if not path.is_file():
        raise ValueError(f"there is no vocabulary {path}")
    entries = path.read_text(encoding="utf-8").splitlines()
    missing = set(SPECIAL) - set(entries)
    if missing:
        raise ValueError(f"{path} is not a BERT's vocabulary: it has no {sorted(missing)}")
    ids = {entry: i for i, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """What masking must know of it. Random words are whole words and pieces, not the special ones
    and not the "[unused…]" that BERT's vocabulary keeps free."""
    ids = tokenizer.get_vocab()
    entries = sorted(ids, key=lambda entry: ids[entry])
    aside = re.compile(r"\[unused\d+\]")
    pad, unk, cls, sep, mask = (ids[name] for name in SPECIAL)
    return Vocabulary(
        continues=[entry.startswith("##") for entry in entries],
        words=[
            i for i, entry in enumerate(entries) if entry not in SPECIAL and not aside.match(entry)
        ],
        pad_id=pad,
        unk_id=unk,
        cls_id=cls,
        sep_id=sep,
        mask_id=mask,
    )


def tokenize_documents(texts: list[str], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """Documents as sentences as ids, without special tokens: what `Sentences` takes."""
    documents = []
    for text in texts:
        encoded = tokenizer.encode_batch(split_sentences(text), add_special_tokens=False)
        documents.append([sentence.ids for sentence in encoded])
    return documents


def split_sentences(text: str) -> list[str]:
    """Pieces that end in . ! or ? (and closing quotes or brackets) before a blank, or in an empty
    line. A rule of thumb: "Mr. Speaker" is two, which does the order task no harm."""
    pieces = re.split(r"(?<=[.!?])[\"'”’)\]]*\s+|\n\s*\n", text)
    return [piece.strip() for piece in pieces if piece.strip()]


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of "[CLS]" and the like; ValueError if the vocabulary hasn't got it."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the vocabulary has no {token}; a BERT needs it")
    return found
