"""Reads bytes of single samples without a session: the engine takes them from the cache, else from the store.

`member.py` uses it for `dataset[i]`, `keys.py` and `columns.py` to read keys and columns, `loader/scan_reader.py` for
scattered files, and `streamer show` and `streamer plan` for the samples that they look at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from streamer.batches.samples.maker import SampleLocation
from streamer.batches.torch_arguments import get_worker_info
from streamer.client.engine_client import EngineClient
from streamer.loader.members.connections import EngineConnections
from streamer.manifest.table import Manifest

logger = logging.getLogger(__name__)

# A dataset warns at this number of single reads: an inspection needs fewer.
_MANY_READS = 64
# The engine answers a request with at most this many bytes.
_PIECE_BYTES = 64 << 20


class SlowReads:
    """Counts single reads of a dataset, and warns once if there are as many as in a training. Used by one thread."""

    def __init__(self) -> None:
        self._reads = 0
        self._seconds = 0.0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Counts the read in its block, unless that raises. Of a plain DataLoader's workers, only the first warns."""
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started
        self._reads += 1
        worker = get_worker_info()
        if self._reads == _MANY_READS and (worker is None or worker.id == 0):
            logger.warning(
                "%d samples were read one by one, %.0f per second: dataset[i] is for inspection, and bypasses the "
                "cache's plan. torch's random_split, Subset and samplers read so. For a part of a dataset use "
                "dataset.select(indices=...) or dataset.select(fraction=(0, 0.9)), and iterate over it",
                self._reads,
                self._reads / self._seconds,
            )


class StreamedBytes:
    """Requests the bytes of samples from the engine, as a `ByteSource`. Each method raises the engine's StreamerError.

    Args:
        connection: Connection to the engine, with the credentials of the dataset.
        manifest: Manifest of the samples.
    """

    def __init__(self, connection: EngineClient, manifest: Manifest) -> None:
        self._connection = connection
        self._dataset = manifest.digest
        self._manifest = manifest

    def read(self, place: SampleLocation) -> memoryview:
        """Reads the bytes of a sample."""
        return self.read_chunk(place.chunk, place.start, place.stop)

    def read_each(self, places: Sequence[SampleLocation]) -> list[memoryview]:
        """Reads the bytes of several samples, one after the other."""
        return list(map(self.read, places))

    def boundaries(self, chunk: int) -> npt.NDArray[np.int64]:
        """Returns where the samples of a chunk begin in it, and where the last one ends: int64, (samples + 1,).

        In a recoded dataset they count from the begin of the chunk's first sample.
        """
        if not self._manifest.recoded:
            return self._manifest.sample_offsets(chunk)
        size = 4 * (int(self._manifest.chunk_samples[chunk]) + 1)
        answer = self._connection.read(self._dataset, chunk, 0, size, boundaries=True)
        # The offsets are modulo 2**32, so that only their differences count.
        return np.concatenate([[0], np.cumsum(np.diff(np.frombuffer(answer, "<u4")), dtype=np.int64)])

    def read_chunk(self, chunk: int, start: int, stop: int) -> memoryview:
        """Reads the bytes [start, stop) of a chunk, in requests of 64 MiB at most."""
        pieces = [
            self._connection.read(self._dataset, chunk, at, min(at + _PIECE_BYTES, stop))
            for at in range(start, stop, _PIECE_BYTES)
        ]
        return memoryview(bytearray(b"".join(pieces)))


@contextmanager
def stream_bytes(connections: EngineConnections, manifest: Manifest) -> Iterator[StreamedBytes]:
    """Gives a reader of the samples of a manifest, which has a connection for itself while the block runs."""
    with connections.for_requests() as connection:
        yield StreamedBytes(connection, manifest)
