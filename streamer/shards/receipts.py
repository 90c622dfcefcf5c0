"""What is known of a shard that is done: enough to resume, to verify, and to write the manifest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.tar import BLOCK


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of samples in pieces: samples of a tar, row groups of Parquet, documents of tokens.

    Attributes:
        size: bytes.
        blocks: length of each piece: uint32, little endian. The last one of Parquet has the footer.
        sums: CRC-32 of each piece: likewise.
        unit: bytes of a block.
        rows: samples of each piece: likewise; empty: one.
        index_size, index_sum: bytes and CRC-32 of the index file beside it; 0: there is none.
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
        """How many."""
        return len(self.blocks) // 4

    @property
    def samples(self) -> int:
        """How many."""
        return self.samples_of(range(self.pieces))

    @property
    def edges(self) -> NDArray[np.int64]:
        """Piece i is `[edges[i], edges[i + 1])`: int64, shape (pieces + 1,)."""
        blocks = np.frombuffer(self.blocks, "<u4").astype(np.int64)
        return np.concatenate([[0], np.cumsum(blocks * self.unit)]).astype(np.int64)

    def samples_of(self, pieces: range) -> int:
        """How many samples some pieces have."""
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
        version: as the store told it after the upload. index_version: that of the index file.
    """

    shard: int
    version: str
    index_version: str = ""

    def is_of(self, written: Written) -> bool:
        """Whether a file has the same content."""
        return all(getattr(self, name) == getattr(written, name) for name in Written.__struct_fields__)


def packed_numbers(numbers: Sequence[int]) -> bytes:
    """Numbers as a receipt has them."""
    return np.array(numbers, "<u4").tobytes()


def encode_receipt(receipt: Receipt) -> bytes:
    """As JSON."""
    return msgspec.json.encode(receipt)


def decode_receipt(content: bytes) -> Receipt | None:
    """None: no receipt."""
    try:
        return msgspec.json.decode(content, type=Receipt)
    except msgspec.MsgspecError:
        return None
