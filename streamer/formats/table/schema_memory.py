"""Remembers which schema each file of a table has, so that the next survey reads new and changed files only.

A survey leaves a memory beside the manifest (`Survey.memory`), and the next one of the same urls gets it
(`SurveyContext.memories`). A schema is bytes that mean something to the format alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from streamer.manifest.model import ObjectRecord

_NAME_BYTES = 16
# A memory of 10^5 files has 2 MB, and their schemas.
_MAX_BYTES = 64 << 20


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A memory as it is stored.

    Attributes:
        rule: How schemas are read; memories of other rules do not count.
        schemas: The different schemas.
        names: Digests of urls, sizes and versions of the files, one behind the other.
        numbers: Numbers of their schemas, little-endian uint32.
    """

    rule: str
    schemas: list[bytes]
    names: bytes
    numbers: bytes


class SchemaMemory:
    """The schemas of files that earlier surveys have read, and of those that this one has.

    Args:
        rule: Name and version of how the format reads and encodes schemas.
        memories: What earlier surveys have left.
    """

    def __init__(self, rule: str, memories: Sequence[bytes] = ()) -> None:
        self._rule = rule
        self._known: dict[bytes, bytes] = {}
        self._schemas: dict[bytes, int] = {}
        self._names = bytearray()
        self._numbers: list[int] = []
        for content in memories:
            try:
                stored = msgspec.msgpack.decode(content, type=_Stored)
            except msgspec.MsgspecError:
                # The memory is of another version: the files are read.
                continue
            numbers = np.frombuffer(stored.numbers[: len(stored.numbers) // 4 * 4], "<u4").tolist()
            is_whole = len(stored.names) == len(numbers) * _NAME_BYTES
            is_whole = is_whole and max(numbers, default=-1) < len(stored.schemas)
            if stored.rule == self._rule and is_whole:
                for place, number in enumerate(numbers):
                    name = stored.names[place * _NAME_BYTES : (place + 1) * _NAME_BYTES]
                    self._known.setdefault(name, stored.schemas[number])

    def find(self, record: ObjectRecord) -> bytes | None:
        """Returns the schema of a file; None if no survey has read this version of it."""
        return self._known.get(_name(record))

    def add(self, record: ObjectRecord, schema: bytes) -> None:
        """Notes the schema of a file for the next survey."""
        self._names += _name(record)
        self._numbers.append(self._schemas.setdefault(schema, len(self._schemas)))

    def encode(self) -> bytes:
        """Returns the memory of this survey; empty if it is too long to be kept."""
        numbers = np.array(self._numbers, "<u4").tobytes()
        stored = _Stored(self._rule, list(self._schemas), bytes(self._names), numbers)
        content = msgspec.msgpack.encode(stored)
        return content if len(content) <= _MAX_BYTES else b""


def _name(record: ObjectRecord) -> bytes:
    text = f"{record.url}\0{record.size}\0{record.version}"
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=_NAME_BYTES).digest()
