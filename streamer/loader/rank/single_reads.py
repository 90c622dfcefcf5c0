"""Reads single samples for inspection: without a session, through the engine, from cache or store."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.client.engine_client import EngineClient
from streamer.errors import ConfigError
from streamer.formats.registry import open_format
from streamer.loader.samples.maker import SampleLocation
from streamer.manifest.column_files import ColumnFiles
from streamer.manifest.condition import Condition
from streamer.manifest.selection import Selection
from streamer.manifest.table import Manifest

logger = logging.getLogger(__name__)

KEY = "__key__"

# More than one looks at.
_MANY_READS = 64
# The engine answers a request with at most this many bytes.
_PIECE_BYTES = 64 << 20


class SlowReads:
    """Warns once if samples are read one by one as if for training. Used by one thread."""

    def __init__(self) -> None:
        self._reads = 0
        self._seconds = 0.0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Counts one read; of the workers of a stock DataLoader, the first one warns."""
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started
        self._reads += 1
        data = sys.modules.get("torch.utils.data")
        worker = None if data is None else data.get_worker_info()
        if self._reads == _MANY_READS and (worker is None or worker.id == 0):
            logger.warning(
                "%d samples were read one by one, %.0f per second: dataset[i] is for inspection, and bypasses the "
                "cache's plan. torch's random_split, Subset and samplers read so. For a part of a dataset use "
                "dataset.select(indices=...) or dataset.select(fraction=(0, 0.9)), and iterate over it",
                self._reads,
                self._reads / self._seconds,
            )


class StreamedBytes:
    """Requests the bytes of a sample from the engine: from the cache, else by a ranged read of the store."""

    def __init__(self, connection: EngineClient, manifest: Manifest) -> None:
        self._connection = connection
        self._dataset = manifest.digest
        self._manifest = manifest

    @property
    def spare(self) -> Path:
        """The folder of columns where that of the manifest is read-only for this process."""
        return self._connection.settings.runtime_dir / "selections"

    def read(self, place: SampleLocation) -> memoryview:
        """The sample's bytes."""
        return self.read_chunk(place.chunk, place.start, place.stop)

    def boundaries(self, chunk: int) -> npt.NDArray[np.int64]:
        """The boundaries of the samples of a chunk, of a recoded one those of its records: int64, (samples + 1,)."""
        if not self._manifest.recoded:
            return self._manifest.sample_offsets(chunk)
        size = 4 * (int(self._manifest.chunk_samples[chunk]) + 1)
        answer = self._connection.read(self._dataset, chunk, 0, size, boundaries=True)
        # Modulo 2**32: the lengths are what counts.
        return np.concatenate([[0], np.cumsum(np.diff(np.frombuffer(answer, "<u4")), dtype=np.int64)])

    def read_chunk(self, chunk: int, start: int, stop: int) -> memoryview:
        """The chunk-local bytes [start, stop), requested piece by piece."""
        pieces = [
            self._connection.read(self._dataset, chunk, at, min(at + _PIECE_BYTES, stop))
            for at in range(start, stop, _PIECE_BYTES)
        ]
        return memoryview(bytearray(b"".join(pieces)))


def find_key(
    manifest: Manifest, selection: Selection | None, content: StreamedBytes, key: str, *, reads: bool = True
) -> int:
    """The manifest ordinal of the first sample with this key.

    Args:
        manifest: of the samples.
        selection: samples outside it do not count.
        content: of the samples.
        key: looked for in the column of keys if `streamer index --columns __key__` has made one.
        reads: whether the data are read where keys are nowhere else.

    Raises:
        KeyError: there is none.
        ConfigError: the data would have to be read.
    """
    if (column := ColumnFiles(manifest, content.spare).find(KEY)) is not None:
        candidates = np.arange(manifest.samples) if selection is None else selection.ordinals
        found = np.flatnonzero(Condition(f"{KEY} == {key!r}").test(lambda _: [column], manifest.samples)(candidates))
        if found.size:
            return int(candidates[found[0]])
        raise KeyError(f"no sample has the key {key!r}")
    if not reads and not manifest.whole_objects:
        raise ConfigError(
            f"find({key!r:.100}): the keys of these samples are in the samples: `streamer index "
            f"{' '.join(manifest.urls[:1])} --columns {KEY}` reads them once; get(key) reads until it finds one",
            field="key",
        )
    named: Iterator[tuple[int, str]]
    if manifest.whole_objects:
        ordinals: Iterable[int] = range(manifest.samples) if selection is None else selection.ordinals.tolist()
        named = ((ordinal, manifest.name(ordinal).object_key) for ordinal in ordinals)
    else:
        named = _names_in_chunks(manifest, selection, content)
    for ordinal, name in named:
        if name == key:
            return ordinal
    raise KeyError(f"no sample has the key {key!r}")


def _names_in_chunks(
    manifest: Manifest, selection: Selection | None, content: StreamedBytes
) -> Iterator[tuple[int, str]]:
    """The names from all samples of all chunks: containers keep them nowhere else."""
    opener = open_format(manifest)
    for chunk in range(manifest.chunks):
        first, stop = int(manifest.chunk_first[chunk]), int(manifest.chunk_first[chunk + 1])
        wanted = np.arange(first, stop)
        if selection is not None:
            wanted = np.intersect1d(wanted, selection.ordinals, assume_unique=True)
        if wanted.size == 0:
            continue
        bounds = content.boundaries(chunk)
        # Records that share parts may be many times as long as their chunk: a piece at a time.
        pieces = (bounds[wanted - first] - bounds[wanted[0] - first]) // _PIECE_BYTES
        for some in np.split(wanted, np.flatnonzero(np.diff(pieces)) + 1):
            base, stop = int(bounds[some[0] - first]), int(bounds[some[-1] - first + 1])
            held = content.read_chunk(chunk, base, stop)
            for ordinal in some.tolist():
                sample = held[bounds[ordinal - first] - base : bounds[ordinal - first + 1] - base]
                yield ordinal, opener.open(sample, manifest.name(ordinal))[0] or str(ordinal)
