"""Checks a chunk file that a peer sent, before anything of it is used. Synchronous; runs in a thread."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.writer import sample_checksums
from streamer.engine.datasets import Dataset
from streamer.errors import IntegrityError
from streamer.fetch.fetcher import Fetched
from streamer.formats.chunkfile import HEADER_BYTES, ChunkHeader, RecordTable


class Received(msgspec.Struct, frozen=True):
    """Holds a chunk file that a peer sent, in a buffer; close it when it is written.

    Attributes:
        file: the buffer.
        content: the chunk's bytes as they are stored.
        offsets: int64, (entries + 1,): the boundaries of its samples; of a recoded chunk of all its entries.
    """

    file: Fetched
    content: memoryview
    offsets: NDArray[np.int64]

    def close(self) -> None:
        """Gives the memory back."""
        self.file.close()


def checked(file: Fetched, dataset: Dataset, chunk: int, where: str) -> Received:
    """Returns the content of a chunk file, if it is that of the chunk.

    Raises:
        IntegrityError: another chunk, other lengths, or bytes that differ from their checksums; says which.
    """
    wanted = dataset.manifest.chunk(chunk)
    [raw] = file.parts
    header = ChunkHeader.decode(bytes(raw[:HEADER_BYTES]), where)
    _same(where, "key", wanted.key.hex(), header.key.hex())
    _same(where, "codec", int(wanted.codec), header.codec)
    _same(where, "length", header.file_bytes, len(raw))
    content = raw[HEADER_BYTES : HEADER_BYTES + header.local_bytes]
    offsets = _offsets(content, dataset, chunk, where)
    _same(where, "number of entries", len(offsets) - 1, header.samples)
    table = np.frombuffer(raw, "<u4", offset=HEADER_BYTES + header.local_bytes)
    if not np.array_equal(sample_checksums([content], offsets), table):
        raise IntegrityError(f"{where}: samples of chunk {wanted.key.hex()} differ from their checksums", where=where)
    return Received(file, content, offsets)


def _offsets(content: memoryview, dataset: Dataset, chunk: int, where: str) -> NDArray[np.int64]:
    wrong = f"{where}: {len(content)} bytes are not those of the chunk's samples"
    if not dataset.manifest.recoded:
        offsets = dataset.manifest.sample_offsets(chunk)
        if offsets[-1] != len(content):
            raise IntegrityError(wrong, where=where)
        return offsets
    wanted = dataset.manifest.chunk(chunk)
    try:
        return RecordTable.decode(content, wanted.samples, wanted.codec, len(content)).starts
    except ValueError as error:
        raise IntegrityError(f"{wrong}: {error}", where=where) from error


def _same(where: str, what: str, expected: str | int, actual: str | int) -> None:
    if expected != actual:
        raise IntegrityError(f"{where}: {what} is {actual}, expected {expected}", where=where)
