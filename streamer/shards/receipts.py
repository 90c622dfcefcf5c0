"""Defines the receipt of a finished shard, by which a pack resumes, is verified, and gets its manifest.

The outputs of shards (`outputs/`) return a `Written`, of which `upload` (`task.py`) makes the receipt and writes it to
the destination. The start and the end of a pack read the receipts, and `verify.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.tar import BLOCK


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts about a written file, which consists of pieces: samples of a tar, row groups, or runs of documents.

    Attributes:
        size: length of the file in bytes.
        blocks: length of each piece in blocks of `unit` bytes, as little-endian uint32. The last piece of Parquet
            includes the footer. Of a tar the end mark belongs to no piece.
        sums: CRC-32 of each piece, in the same form.
        unit: bytes of a block.
        rows: number of samples of each piece, in the same form. Empty means one sample each.
        index_size: length of the index file beside the file, or 0 if there is none.
        index_sum: CRC-32 of the index file, or 0 if there is none.
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
        """Boundaries of the pieces in bytes: int64, shape (pieces + 1,). Piece i is `[edges[i], edges[i + 1])`."""
        blocks = np.frombuffer(self.blocks, "<u4").astype(np.int64)
        return np.concatenate([[0], np.cumsum(blocks * self.unit)]).astype(np.int64)

    def samples_of(self, pieces: range) -> int:
        """Returns the number of samples in these pieces together."""
        if not self.rows:
            return len(pieces)
        return int(np.frombuffer(self.rows, "<u4")[pieces.start : pieces.stop].sum())

    def sum_of(self, piece: int) -> int:
        """Returns the CRC-32 of one piece."""
        return int.from_bytes(self.sums[4 * piece : 4 * piece + 4], "little")


class Receipt(Written, frozen=True, kw_only=True, omit_defaults=True):
    """A shard as it was uploaded.

    Attributes:
        shard: number of the shard.
        version: version of its object, as the store named it after the upload.
        index_version: version of its index file; "" if there is none.

    Raises:
        ValueError: there are not as many lengths as checksums, or a number is negative.
    """

    shard: int
    version: str
    index_version: str = ""

    def __post_init__(self) -> None:
        counts = {len(self.blocks), len(self.sums), len(self.rows or self.blocks)}
        if len(counts) > 1 or len(self.blocks) % 4 or min(self.shard, self.size, self.index_size) < 0:
            raise ValueError(f"a receipt of {len(self.blocks) // 4} pieces with other numbers of sums or rows")

    def is_of(self, written: Written) -> bool:
        """Returns whether another file has the same content, by sizes and checksums."""
        return all(getattr(self, name) == getattr(written, name) for name in Written.__struct_fields__)


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Encodes numbers below 2**32 as little-endian uint32."""
    return np.array(numbers, "<u4").tobytes()


def encode_receipt(receipt: Receipt) -> bytes:
    """Encodes a receipt as JSON."""
    return msgspec.json.encode(receipt)


def decode_receipt(content: bytes) -> Receipt | None:
    """Decodes a receipt; returns None if `content` is not one, or its numbers do not belong together."""
    try:
        return msgspec.json.decode(content, type=Receipt)
    except (ValueError, RecursionError):
        return None
