"""Checks what a recoder has made of a chunk, or makes the error that names object and range.

`recode/pool.py` uses it in the engine, `recode/work.py` in tasks; `recode/annotations.py` reads a file by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from streamer.errors import ManifestError, ProtocolError, RecodeError
from streamer.formats.chunkfile import RecordTable
from streamer.manifest.blocks import decode_hints
from streamer.manifest.model import Chunk, Codec, Extent, ObjectRecord
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.messages import Done, RecodeJob


class Recoded(msgspec.Struct, frozen=True):
    """A recoded chunk.

    Attributes:
        content: the records, then their table. If records share parts, the parts come first, then the heads.
        table: where each record is in `content`.
    """

    content: memoryview
    table: RecordTable

    def answer(self, asked: Examine) -> Examined:
        """Returns what an index asked about an object: samples, bytes of records, and the records if it wants them."""
        length = int(self.table.starts[-2])
        return Examined(self.table.samples, length, bytes(self.content[:length]) if asked.reads else b"")

    def read(self, span: tuple[int, int] | None) -> bytes:
        """Returns bytes of the records, as if these were stored one after the other; or their boundaries.

        Args:
            span: `[start, stop)` in bytes. None asks for the samples + 1 boundaries of the records, which come as
                little-endian uint32. They are modulo 2**32, since shared parts count for each record that has them.

        Raises:
            ProtocolError: `span` is not within the records.
        """
        bounds = self.table.bounds
        if span is None:
            return bounds.astype("<u4").tobytes()
        start, stop = span
        if not 0 <= start <= stop <= bounds[-1]:
            raise ProtocolError(f"bytes {span} of a chunk of {bounds[-1]}")
        if not self.table.is_shared:
            return bytes(self.content[start:stop])
        first = int(np.searchsorted(bounds, start, "right")) - 1
        samples = range(first, int(np.searchsorted(bounds, stop)))
        joined = b"".join(self.table.record(sample, self.content) for sample in samples)
        return joined[start - int(bounds[first]) :][: stop - start]


def check_records(view: Callable[[int], memoryview], done: Done, job: RecodeJob, chunk: Chunk) -> Recoded:
    """Returns the result of a recoder, after checking that its table and counts are those of the chunk.

    Args:
        view: returns the first bytes of what the recoder wrote.
        done: the recoder's answer.
        job: the job.
        chunk: the chunk of the job. Its codec is checked, and the error names it.

    Raises:
        RecodeError: the table is damaged; or the number of samples or the codec is not as indexed, if the job says how
            many samples there are.
    """
    try:
        content = view(done.local_bytes)
        table = RecordTable.decode(content, done.samples, done.codec, len(content))
    except ValueError as error:
        raise failure(chunk, job, f"its recoder has not made what it says: {error}", -1) from error
    if job.samples != -1 and (job.samples, chunk.codec) != (done.samples, done.codec):
        raise failure(chunk, job, f"its recoder has made {done.samples} samples of codec {done.codec}", -1)
    return Recoded(content, table)


@contextmanager
def read_examined(asked: Examine) -> Iterator[Chunk]:
    """Yields the object that an index asks about as a chunk of one block.

    Raises:
        ManifestError: the code inside has raised a RecodeError; its "reason" is a detail of this one, too.
    """
    record = asked.object
    try:
        yield whole_object(record)
    except RecodeError as error:
        raise ManifestError(error.message, **{**error.details, "offset": 0, "size": record.size}) from error


def whole_object(record: ObjectRecord) -> Chunk:
    """Returns an object as a chunk of one block, with -1 for what is unknown; it only serves errors that name it."""
    return Chunk(
        index=-1,
        key=b"",
        extents=(Extent(record, 0, record.size),),
        first_sample=-1,
        samples=-1,
        fetch_bytes=record.size,
        local_bytes=record.size,
        codec=Codec.RECORDS,
    )


def failure(chunk: Chunk, job: RecodeJob, reason: str, block: int) -> RecodeError:
    """Makes the error of a chunk that cannot be recoded, which names object, range, format and reason.

    Args:
        chunk: the chunk.
        job: its job, which knows its blocks.
        reason: what is wrong.
        block: number of the block whose range is named; -1 names the range of the whole chunk.
    """
    start, stop = 0, chunk.fetch_bytes
    if block >= 0:
        before = [each.fetch_bytes for each in decode_hints(job.hint)[: block + 1]]
        start, stop = sum(before[:-1]), sum(before)
    extents = chunk.extents_of(start, stop) or [chunk.extent_of(start, stop)]
    url = extents[0].object.url
    first = extents[0].start
    last = max(extent.stop for extent in extents)
    return RecodeError(
        f"{url} [{first}, {last}): {reason} (format {job.format!r})",
        url=url,
        start=first,
        stop=last,
        format=job.format,
        reason=reason,
    )
