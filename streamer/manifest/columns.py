"""Columns of tables as numpy arrays: their types, byte strings, how texts are encoded, and a table's digest.

Used by `manifest/`, which maps tables, by `indexing/`, which makes them, by `annotations/`, `recode/annotations.py` and
`loader/members/`, which have tables of their own, by `engine/datasets.py`, which reads the names of objects, and by
`formats/folder.py` for names of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

ColumnType = Literal["uint8", "uint32", "int32", "int64", "binary", "key16"]
Schema = Mapping[str, ColumnType]

# Length of a chunk's key.
KEY_BYTES = 16
_MAX_INT32 = 2**31 - 1
_PACKED_AT_ONCE = 1 << 16


class BinaryColumn(msgspec.Struct, frozen=True):
    """A column of byte strings of any length: value i is `content[offsets[i]:offsets[i + 1]]`.

    Attributes:
        offsets: int32 or int64, shape (n + 1,); int32 while the content has less than 2 GiB.
        content: uint8, the values one after the other.
    """

    offsets: NDArray[np.int32] | NDArray[np.int64]
    content: NDArray[np.uint8]

    @classmethod
    def of(cls, values: list[bytes]) -> BinaryColumn:
        """Makes a column of byte strings, which are copied."""
        offsets = np.zeros(len(values) + 1, np.int64)
        content = bytearray()
        # A step packs some of them: with 10^6 in one step, other threads would wait for a tenth of a second.
        for first in range(0, len(values), _PACKED_AT_ONCE):
            some = values[first : first + _PACKED_AT_ONCE]
            ends = offsets[first + 1 : first + len(some) + 1]
            np.cumsum(np.fromiter(map(len, some), np.int64, len(some)), out=ends)
            ends += offsets[first]
            content += b"".join(some)
        return cls(offsets.astype(np.int32) if offsets[-1] <= _MAX_INT32 else offsets, np.frombuffer(content, np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.content[int(self.offsets[row]) : int(self.offsets[row + 1])].tobytes()


def encode_text(text: str) -> bytes:
    """Encodes a name or a version as UTF-8; bytes of a file's name that are no UTF-8 become what they were.

    Raises:
        UnicodeEncodeError: the text has other surrogates than those of `os.fsdecode`.
    """
    return text.encode("utf-8", "surrogateescape")


def decode_text(raw: bytes) -> str:
    """Decodes what `encode_text` has made."""
    return raw.decode("utf-8", "surrogateescape")


def is_utf_8(text: str) -> bool:
    """Whether a name can be written as UTF-8; a file's name that cannot has surrogates, as `os.fsdecode` makes them."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


# The name of a class that is not UTF-8 is in root.json as this character, which no name has, and its bytes as hex.
_AS_BYTES = "\0"


def write_name(name: str) -> str:
    """Returns the name of a class as root.json has it."""
    return name if is_utf_8(name) else _AS_BYTES + encode_text(name).hex()


def read_name(written: str) -> str:
    """Returns the name of a class that `write_name` has written."""
    return decode_text(bytes.fromhex(written[1:])) if written.startswith(_AS_BYTES) else written


Column = NDArray[np.generic] | BinaryColumn
Table = dict[str, Column]


def digest_of(table: Table) -> str:
    """Returns the identity of a table's content, 32 hex characters: of names, types and values, not of the file."""
    state = blake2b(digest_size=16)
    for name, column in table.items():
        # The width of the offsets depends on the content; the identity must not depend on it.
        parts: tuple[NDArray[np.generic], ...] = (
            (column.offsets.astype(np.int64), column.content) if isinstance(column, BinaryColumn) else (column,)
        )
        for part in parts:
            state.update(f"{name}:{part.dtype.str}:{part.shape}\n".encode())
            state.update(np.ascontiguousarray(part).tobytes())
    return state.hexdigest()
