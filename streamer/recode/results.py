"""The result of recoding a chunk: records that are checked, or an error that names object and range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestError, ProtocolError, RecodeError
from streamer.formats.chunkfile import START_BYTES, decode_starts
from streamer.manifest.blocks import decode_hints
from streamer.manifest.model import Chunk, Codec, Extent, ObjectRecord
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.messages import Done, Job


class Recoded(msgspec.Struct, frozen=True):
    """A recoded chunk.

    Attributes:
        content: records, then the table of their starts.
        offsets: int64, shape (samples + 2,): boundaries of the records, and of the table.
    """

    content: memoryview
    offsets: NDArray[np.int64]

    @property
    def examined(self) -> Examined:
        """Number of its samples, and bytes of their records."""
        return Examined(len(self.offsets) - 2, int(self.offsets[-2]))

    def read(self, span: tuple[int, int] | None) -> bytes:
        """Returns the bytes `[start, stop)`; None: the samples + 1 boundaries of the samples, little-endian uint32."""
        if span is None:
            return self.offsets[:-1].astype("<u4").tobytes()
        if not 0 <= span[0] <= span[1] <= len(self.content):
            raise ProtocolError(f"bytes {span} of a chunk of {len(self.content)}")
        return bytes(self.content[slice(*span)])


def checked(view: Callable[[int], memoryview], done: Done, job: Job, chunk: Chunk) -> Recoded:
    """Returns the records, if they are what a chunk file may have; else raises RecodeError."""
    try:
        content = view(done.local_bytes)
        offsets = decode_starts(content[len(content) - START_BYTES * done.samples :], len(content))
    except ValueError as error:
        raise failure(chunk, job, f"its recoder has not made what it says: {error}", -1) from error
    if job.samples not in (-1, done.samples) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise failure(chunk, job, "its recoder has made records that overlap", -1)
    return Recoded(content, offsets)


@contextmanager
def examining(asked: Examine) -> Iterator[Chunk]:
    """Yields the object that an index asks about as a chunk; turns RecodeError into ManifestError."""
    record = asked.object
    try:
        yield whole_object(record)
    except RecodeError as error:
        raise ManifestError(error.message, **{**error.details, "offset": 0, "size": record.size}) from error


def whole_object(record: ObjectRecord) -> Chunk:
    """Returns an object as a chunk of one block, for messages about it."""
    return Chunk(-1, b"", (Extent(record, 0, record.size),), -1, -1, record.size, record.size, Codec.RECORDS)


def failure(chunk: Chunk, job: Job, reason: str, block: int) -> RecodeError:
    """Makes an error that names object and range of a block, or of the whole chunk (-1)."""
    start, stop = 0, chunk.fetch_bytes
    if block >= 0:
        before = [each.fetch_bytes for each in decode_hints(job.hint)[: block + 1]]
        start, stop = sum(before[:-1]), sum(before)
    extents = chunk.extents_of(start, stop)
    url, first, last = extents[0].object.url, extents[0].start, max(extent.stop for extent in extents)
    return RecodeError(
        f"{url} [{first}, {last}): {reason} (format {job.format!r})",
        url=url,
        start=first,
        stop=last,
        format=job.format,
        reason=reason,
    )
