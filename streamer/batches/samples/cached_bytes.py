"""Reads the bytes of samples from the chunk files that the engine has made local. Imports no torch.

Readers of batches (`batches/samples/recipe.py`) and scans (`loader/scan_reader.py`) use it. A worker reports its
`ChunkUnreadableError` to the loader, which leases the chunk again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from streamer.batches.samples.maker import Integers, SampleLocation
from streamer.client.chunk_reader import ChunkReader
from streamer.errors import IntegrityError
from streamer.manifest.table import Manifest
from streamer.wire.messages import UNREADABLE

# A chunk that is still missing or wrong after this many new leases is an error. The loader counts them for each chunk,
# because a program that overwrites the cache damages many chunks of one batch.
REREADS = 3


class ChunkUnreadableError(Exception):
    """A chunk is missing or wrong: the loader must lease it again, and the batch must be repeated.

    It is raised instead of the FileNotFoundError or IntegrityError of the chunk's file, which is its cause: an error of
    the same type may come from a user's transform.

    Args:
        chunk: number of the chunk in the session with the engine, see `CachedBytes`.
        reason: text for the engine's log.
    """

    def __init__(self, chunk: int, reason: str) -> None:
        super().__init__(chunk, reason)
        self.chunk = chunk
        self.reason = reason

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.reason}"


class CachedBytes:
    """Reads the samples of one dataset from the chunk files that the engine has made local. Checks every byte.

    Args:
        manifest: manifest of the dataset.
        reader: reader of the cache folders, which the members of a mix share.
        first_chunk: number of the dataset's first chunk in the session with the engine. It may be above 0 in a mix, and
            for the right side of a join.
    """

    def __init__(self, manifest: Manifest, reader: ChunkReader, first_chunk: int = 0) -> None:
        self._manifest = manifest
        self._reader = reader
        self._first_chunk = first_chunk

    def read(self, place: SampleLocation) -> memoryview:
        """Returns the bytes of one sample.

        Raises:
            ChunkUnreadableError: the chunk is missing or wrong. The caller leases it again, waits, and reads again.
            CacheError: this process may open no more files, or has no memory.
        """
        if place.start == place.stop:
            return memoryview(b"")
        # A bytearray would be zero-filled first.
        content = np.empty(place.stop - place.start, np.uint8).data
        self.read_into(place.chunk, [(place, [content])])
        return content

    def read_each(self, places: Sequence[SampleLocation]) -> list[memoryview]:
        """Returns the bytes of samples in the order of `places`, with one read for each chunk; errors as of `read`."""
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
        """Reads samples of one chunk, each into buffers that together have the sample's length; errors as of `read`."""
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
        """Returns the boundaries of a recoded chunk's records, see `ByteSource.boundaries`; errors as of `read`."""
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
