"""What is known of a shard that is done: enough to resume, to verify, and to write the manifest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.tar import BLOCK


class Receipt(msgspec.Struct, frozen=True):
    """One shard, as it was written.

    Attributes:
        shard: its number.
        size: bytes.
        version: as the store told it after the upload.
        blocks: length of each sample in blocks of 512 bytes: uint32, little endian.
        sums: CRC-32 of each sample's bytes in the tar: likewise.
    """

    shard: int
    size: int
    version: str
    blocks: bytes
    sums: bytes

    @property
    def samples(self) -> int:
        """How many."""
        return len(self.blocks) // 4

    @property
    def edges(self) -> NDArray[np.int64]:
        """Sample i is `[edges[i], edges[i + 1])`: int64, shape (samples + 1,)."""
        blocks = np.frombuffer(self.blocks, "<u4").astype(np.int64)
        return np.concatenate([[0], np.cumsum(blocks * BLOCK)]).astype(np.int64)

    def sum_of(self, sample: int) -> int:
        """CRC-32 of one sample."""
        return int.from_bytes(self.sums[4 * sample : 4 * sample + 4], "little")


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
