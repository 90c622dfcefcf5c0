"""Remembers the schema of each file of a table, so that the next survey reads few files besides new or changed ones.

The surveys of Parquet and Arrow use it. A survey leaves a memory beside the manifest (`Survey.memory`), and the next
survey of the same urls gets it (`SurveyContext.memories`). A schema is a string of bytes that only the format
understands.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from streamer.manifest.model import ObjectRecord

_NAME_BYTES = 16
# Max bytes of a memory. One of 10^5 files has 2 MB, and their schemas.
_MAX_BYTES = 64 << 20


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A memory as it is stored.

    Attributes:
        rule: Name and version of how schemas are read and encoded; memories of other rules are ignored.
        schemas: The different schemas.
        names: Digests of url, size and version of each file, 16 bytes each, one behind the other.
        numbers: Place in `schemas` of each file's schema, little-endian uint32.
    """

    rule: str
    schemas: list[bytes]
    names: bytes
    numbers: bytes


class SchemaMemory:
    """The schemas of files that earlier surveys have read, and of those that this one has.

    Args:
        rule: Name and version of how the format reads and encodes schemas.
        memories: Memories of earlier surveys, the newest first. Those of another rule or version are ignored.
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
            except ValueError:
                # The memory is of another version of this code, so the files are read again.
                continue
            numbers = np.frombuffer(stored.numbers[: len(stored.numbers) // 4 * 4], "<u4").tolist()
            is_whole = len(stored.names) == len(numbers) * _NAME_BYTES
            is_whole = is_whole and max(numbers, default=-1) < len(stored.schemas)
            if stored.rule == self._rule and is_whole:
                for place, number in enumerate(numbers):
                    name = stored.names[place * _NAME_BYTES : (place + 1) * _NAME_BYTES]
                    self._known.setdefault(name, stored.schemas[number])

    def find(self, record: ObjectRecord) -> bytes | None:
        """Returns the schema that the given memories have for this version of a file, or None if none has it."""
        return self._known.get(_name(record))

    def add(self, record: ObjectRecord, schema: bytes) -> None:
        """Notes the schema of a file for the next survey."""
        self._names += _name(record)
        self._numbers.append(self._schemas.setdefault(schema, len(self._schemas)))

    def encode(self) -> bytes:
        """Returns the memory of this survey: the files that were added. Empty if it is longer than 64 MiB."""
        numbers = np.array(self._numbers, "<u4").tobytes()
        stored = _Stored(self._rule, list(self._schemas), bytes(self._names), numbers)
        content = msgspec.msgpack.encode(stored)
        return content if len(content) <= _MAX_BYTES else b""


def _name(record: ObjectRecord) -> bytes:
    text = f"{record.url}\0{record.size}\0{record.version}"
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=_NAME_BYTES).digest()
