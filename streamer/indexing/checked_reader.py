"""Reads for an index, and names objects that are not what they are called, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from streamer.errors import ManifestError
from streamer.manifest.beside import POINTER_ADVICE, POINTER_BYTES, is_pointer
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.protocols import BoundedReader, Examine, Examined, Examiner, RangeReader


def refuse_pointers(reader: RangeReader) -> RangeReader:
    """Returns a reader that refuses pointers of Git LFS; it has recoders if the given one has."""
    return _CheckedExaminer(reader) if isinstance(reader, Examiner) else _CheckedReader(reader)


class _CheckedReader:
    """Reads ranges; raises ManifestError for an object that is a pointer of Git LFS."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`."""
        content = await self._reader.read(extent)
        if extent.start == 0 and extent.object.size < POINTER_BYTES and is_pointer(content):
            raise _refusal(extent.object)
        return content

    def hold(self, ranges: Sequence[Extent]) -> AbstractAsyncContextManager[None]:
        """Reserves memory for ranges, if the given reader bounds it; see `BoundedReader`."""
        return self._reader.hold(ranges) if isinstance(self._reader, BoundedReader) else nullcontext()


class _CheckedExaminer(_CheckedReader):
    """Also lets a recoder count samples."""

    async def examine(self, asked: Examine) -> Examined:
        """Recodes an object as one block, and counts; raises ManifestError as `read`."""
        if asked.object.size < POINTER_BYTES:
            await self.read(Extent(asked.object, 0, asked.object.size))
        assert isinstance(self._reader, Examiner)
        return await self._reader.examine(asked)


def _refusal(record: ObjectRecord) -> ManifestError:
    return ManifestError(f"{record.url} {POINTER_ADVICE}", url=record.url, size=record.size, reason=POINTER_ADVICE)
