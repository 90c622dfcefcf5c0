"""The facts about a finished shard: enough to resume, to verify, and to write the manifest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.tar import BLOCK


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of samples in pieces: samples of a tar, row groups of Parquet, documents of tokens.

    Attributes:
        blocks: length of each piece: uint32, little endian. The last piece of Parquet includes the footer.
        sums: CRC-32 of each piece, in the same form.
        unit: bytes of a block.
        rows: samples of each piece, in the same form; empty: one each.
        index_size, index_sum: length and CRC-32 of the index file beside it; 0 if there is none.
    """

    size: int
    blocks: bytes
    sums: bytes
    unit: int = BLOCK
    rows: bytes = b""
    index_size: int = 0
    index_sum: int = 0

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return len(self.blocks) // 4

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.samples_of(range(self.pieces))

    @property
    def edges(self) -> NDArray[np.int64]:
        """Piece i is `[edges[i], edges[i + 1])`: int64, shape (pieces + 1,)."""
        blocks = np.frombuffer(self.blocks, "<u4").astype(np.int64)
        return np.concatenate([[0], np.cumsum(blocks * self.unit)]).astype(np.int64)

    def samples_of(self, pieces: range) -> int:
        """Number of samples in some pieces."""
        if not self.rows:
            return len(pieces)
        return int(np.frombuffer(self.rows, "<u4")[pieces.start : pieces.stop].sum())

    def sum_of(self, piece: int) -> int:
        """CRC-32 of one piece."""
        return int.from_bytes(self.sums[4 * piece : 4 * piece + 4], "little")


class Receipt(Written, frozen=True, kw_only=True, omit_defaults=True):
    """One shard, as it was written.

    Attributes:
        shard: its number.
        version, index_version: version of the shard and of its index file, as the store named it after the upload.
    """

    shard: int
    version: str
    index_version: str = ""

    def is_of(self, written: Written) -> bool:
        """Whether a file has the same content."""
        return all(getattr(self, name) == getattr(written, name) for name in Written.__struct_fields__)


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Encodes numbers for a receipt."""
    return np.array(numbers, "<u4").tobytes()


def encode_receipt(receipt: Receipt) -> bytes:
    """Encodes a receipt as JSON."""
    return msgspec.json.encode(receipt)


def decode_receipt(content: bytes) -> Receipt | None:
    """Decodes a receipt; None if it is not one."""
    try:
        return msgspec.json.decode(content, type=Receipt)
    except msgspec.MsgspecError:
        return None
