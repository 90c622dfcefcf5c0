"""Reads the bytes of samples from the chunk files that the engine has made local. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from streamer.batches.samples.maker import Integers, SampleLocation
from streamer.client.chunk_reader import ChunkReader
from streamer.errors import IntegrityError
from streamer.manifest.table import Manifest
from streamer.wire.messages import UNREADABLE

# A chunk that is still missing or wrong after this many new leases is an error. Counted for each chunk: a program that
# overwrites the cache damages many of one batch.
REREADS = 3


class ChunkUnreadableError(Exception):
    """A chunk is missing or wrong: lease it again, then repeat the batch.

    A `StreamReader` raises it instead of the FileNotFoundError or IntegrityError of the chunk's file, to tell it from
    an error of the same type in a user's transform.

    Args:
        chunk: its number in the session with the engine; see `CachedBytes`.
        reason: for the engine's log.
    """

    def __init__(self, chunk: int, reason: str) -> None:
        super().__init__(chunk, reason)
        self.chunk = chunk
        self.reason = reason

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.reason}"


class CachedBytes:
    """Reads from the chunk files that the engine has made local.

    Args:
        manifest: of the dataset.
        reader: of the cache folders; the members of a mix share one.
        first_chunk: the number of its first chunk in the session with the engine; in a mix it may be above 0.
    """

    def __init__(self, manifest: Manifest, reader: ChunkReader, first_chunk: int = 0) -> None:
        self._manifest = manifest
        self._reader = reader
        self._first_chunk = first_chunk

    def read(self, place: SampleLocation) -> memoryview:
        """Reads one sample.

        Raises:
            ChunkUnreadableError: the chunk is missing or wrong. The caller reports it, waits, and reads again.
        """
        if place.start == place.stop:
            return memoryview(b"")
        # A bytearray would be zero-filled first.
        content = np.empty(place.stop - place.start, np.uint8).data
        self.read_into(place.chunk, [(place, [content])])
        return content

    def read_each(self, places: Sequence[SampleLocation]) -> list[memoryview]:
        """Reads samples to memory of their own, those of one chunk together; errors as of `read`."""
        ends = [0, *accumulate(place.stop - place.start for place in places)]
        memory = np.empty(ends[-1], np.uint8).data
        contents = [memory[start:stop] for start, stop in pairwise(ends)]
        chunks: dict[int, list[tuple[SampleLocation, list[memoryview]]]] = {}
        for place, content in zip(places, contents, strict=True):
            chunks.setdefault(place.chunk, []).append((place, [content]))
        for chunk, targets in chunks.items():
            self.read_into(chunk, targets)
        return contents

    def read_into(self, chunk: int, targets: Sequence[tuple[SampleLocation, Sequence[memoryview]]]) -> None:
        """Reads samples of one chunk, each into buffers that together have its length.

        Raises:
            ChunkUnreadableError: as above.
        """
        manifest = self._manifest
        key = manifest.chunk_keys[chunk].tobytes()
        samples = int(manifest.chunk_samples[chunk])
        try:
            if manifest.recoded:
                self._reader.read_records(key, samples, targets)
            else:
                self._reader.read_into(key, int(manifest.chunk_local_bytes[chunk]), samples, targets)
        except (FileNotFoundError, IntegrityError) as error:
            raise self._unreadable(chunk, error) from error

    def boundaries(self, chunk: int) -> Integers:
        """Reads the boundaries from the chunk file; see `ByteSource.boundaries`.

        Raises:
            ChunkUnreadableError: as above.
        """
        manifest = self._manifest
        try:
            return self._reader.records(manifest.chunk_keys[chunk].tobytes(), int(manifest.chunk_samples[chunk])).bounds
        except (FileNotFoundError, IntegrityError) as error:
            raise self._unreadable(chunk, error) from error

    def _unreadable(self, chunk: int, error: FileNotFoundError | IntegrityError) -> ChunkUnreadableError:
        if isinstance(error, FileNotFoundError):
            reason = f"missing: {error.filename}"
        elif "errno" in error.details:
            reason = f"{UNREADABLE}{error}"
        else:
            reason = f"wrong bytes: {error}"
        return ChunkUnreadableError(self._first_chunk + chunk, reason)
