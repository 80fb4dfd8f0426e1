"""Text and numbers out of an Arrow stream, as far as small data sets need it.

The real library is 40 MB; this reads flat tables of strings, integers and booleans, and refuses
anything else. Layout: messages, each 0xFFFFFFFF, a length, a flatbuffer that describes it, a body
of buffers. The first is the schema, the others are batches of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

SCHEMA, RECORD_BATCH = 1, 3  # kinds of a message
INT, UTF8, BOOL = 2, 5, 6  # types of a column


def read_arrow(data: bytes) -> list[dict[str, Any]]:
    """Rows of the table, each a dict by column. Raises ValueError for what is not such a stream."""
    try:
        return list(_rows(data))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"the Arrow stream is cut short or damaged: {error}") from error


def _rows(data: bytes) -> Iterator[dict[str, Any]]:
    columns: list[tuple[str, int, str]] = []
    for kind, header, body in _messages(data):
        if kind == SCHEMA:
            columns = [_column(field) for field in header.tables(1)]
        elif kind == RECORD_BATCH and not header.has(3):
            values = _batch(header, body, columns)
            names = [name for name, _, _ in columns]
            yield from (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
        else:
            raise ValueError(
                f"message {kind} of an Arrow stream: compressed, or of a kind not read"
            )
    if not columns:
        raise ValueError("not an Arrow stream: it has no schema")


def _messages(data: bytes) -> Iterator[tuple[int, _Table, bytes]]:
    at = 0
    while at < len(data):
        mark, size = struct.unpack_from("<Ii", data, at)
        if mark != 0xFFFFFFFF:
            raise ValueError(f"not an Arrow stream: no message begins at byte {at}")
        if size == 0:
            return
        message = _Table.root(data, at + 8)
        body, length = at + 8 + size, message.number(3, "<q")
        if body + length > len(data):
            raise ValueError("the Arrow stream is cut short: it ends inside a message")
        yield message.number(1, "<B"), message.table(2), data[body : body + length]
        at = body + length


def _column(field: _Table) -> tuple[str, int, str]:
    """(name, kind, numpy type) of a column."""
    name, kind = field.text(0), field.number(2, "<B")
    if kind not in (INT, UTF8, BOOL) or field.has(4):
        raise ValueError(f"column {name!r} is of Arrow type {kind}; only text, int, bool are read")
    if kind != INT:
        return name, kind, ""
    sign = "i" if field.table(3).number(1, "<B") else "u"
    return name, kind, f"<{sign}{field.table(3).number(0, '<i') // 8}"


def _batch(header: _Table, body: bytes, columns: list[tuple[str, int, str]]) -> list[list[Any]]:
    """The columns' values; each has a buffer that says which are there, then its own buffers."""
    rows = header.number(0, "<q")
    buffers = iter(header.structs(2, "<qq"))

    def buffer() -> bytes:
        start, length = next(buffers)
        return body[start : start + length]

    found: list[list[Any]] = []
    for (name, kind, dtype), (_, missing) in zip(columns, header.structs(1, "<qq"), strict=True):
        if missing:
            raise ValueError(f"column {name!r} has {missing} missing values")
        buffer()  # all are there
        if kind == UTF8:
            ends, text = np.frombuffer(buffer(), "<i4")[: rows + 1].tolist(), buffer()
            found.append([text[a:b].decode("utf-8") for a, b in pairwise(ends)])
        elif kind == INT:
            found.append(np.frombuffer(buffer(), dtype)[:rows].tolist())
        else:
            bits = np.unpackbits(np.frombuffer(buffer(), np.uint8), bitorder="little")
            found.append(bits[:rows].astype(bool).tolist())
    return found


class _Table:
    """A flatbuffer's table: fields by number, where its "vtable" says how far away each one is."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.vtable = at - self._get("<i", at)

    @classmethod
    def root(cls, data: bytes, at: int) -> _Table:
        return cls(data, at + struct.unpack_from("<I", data, at)[0])

    def _get(self, form: str, at: int) -> Any:
        return struct.unpack_from(form, self.data, at)[0]

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        inside = slot < self._get("<H", self.vtable)
        offset = self._get("<H", self.vtable + slot) if inside else 0
        return self.at + offset if offset else 0

    def has(self, field: int) -> bool:
        return self._place(field) > 0

    def number(self, field: int, form: str) -> int:
        place = self._place(field)  # a default, 0, is not stored
        return int(self._get(form, place)) if place else 0

    def _target(self, field: int) -> int:
        place = self._place(field)
        return place + int(self._get("<I", place))

    def table(self, field: int) -> _Table:
        return _Table(self.data, self._target(field))

    def text(self, field: int) -> str:
        at = self._target(field)
        return self.data[at + 4 : at + 4 + self._get("<I", at)].decode("utf-8")

    def tables(self, field: int) -> list[_Table]:
        at = self._target(field)
        places = [at + 4 + 4 * i for i in range(self._get("<I", at))]
        return [_Table(self.data, place + self._get("<I", place)) for place in places]

    def structs(self, field: int, form: str) -> list[tuple[int, ...]]:
        at, size = self._target(field), struct.calcsize(form)
        return [
            struct.unpack_from(form, self.data, at + 4 + size * i)
            for i in range(self._get("<I", at))
        ]
