"""The keys of the samples of a dataset: of the manifest or a kept column, else read chunk by chunk from the data."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path

import numpy as np

from streamer.batches.scan import KEY, ChunkScan, field_value, scan_chunks
from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.registry import restore_format
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.single_reads import StreamedBytes
from streamer.manifest.column_files import ColumnFiles
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.condition import ColumnValues
from streamer.manifest.kept import KeptFiles
from streamer.manifest.keys import Keys, hash_values, number_keys
from streamer.manifest.selection import Selection
from streamer.manifest.table import Manifest

_NAMES_AT_ONCE = 1 << 16


class KeyReader:
    """The keys of the samples of a dataset, in its order.

    Args:
        manifest: of the dataset; one with the columns that the key needs is enough.
        connections: to the engine, with the dataset's credentials.
        on: "__key__", a field, or a field and the names of its parts, "json.uid".
        fallback_dir: Where files are written if the manifest's folder is read-only for this process, and for locks.
        whole: the dataset's manifest, where `manifest` has fewer columns.
        selection: samples outside it have no key.

    Attributes:
        manifest: that of the dataset, with all its columns.
        kept: the tables that are made of them.
    """

    def __init__(
        self,
        manifest: Manifest,
        connections: EngineConnections,
        on: str,
        *,
        fallback_dir: Path,
        whole: Manifest | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.manifest = whole or manifest
        self.selection = selection
        self.kept = KeptFiles(self.manifest.path.parent, fallback_dir)
        self._read_from = manifest
        self._connections = connections
        self._on = on
        self._column = ColumnFiles(self.manifest, fallback_dir).find(on)
        own = restore_format(manifest)
        fields = {spec.name for spec in manifest.facts.fields}
        self._is_numbered = on == KEY and own.numbered_keys and KEY not in fields
        self._scan = ChunkScan(manifest, self._open_bytes)
        self._decoder = SampleDecoder()

    def __repr__(self) -> str:
        return f"KeyReader({self._on}, {self.manifest!r})"

    @property
    def identity(self) -> tuple[str, ...]:
        """What the keys depend on."""
        chosen = "" if self.selection is None else self.selection.digest
        return self.manifest.digest, chosen, self._on

    @property
    def unselected(self) -> KeyReader:
        """The keys of all samples."""
        whole = copy(self)
        whole.selection = None
        return whole

    @property
    def reads_data(self) -> bool:
        """Whether the keys are in the samples only."""
        of_names = self._on == KEY and self._read_from.whole_objects
        return not (self._is_numbered or of_names or self._column is not None)

    def batches(self) -> Generator[tuple[int, Keys]]:
        """Yields the keys of the samples, each batch with the number of its first sample; none outside the selection.

        Raises:
            ManifestError: keys that are neither texts nor whole numbers, or a sample without the field.
        """
        for first, keys in self._all():
            if self.selection is not None:
                begin, stop = np.searchsorted(self.selection.ordinals, (first, first + len(keys)))
                chosen = np.zeros(len(keys), np.bool_)
                chosen[self.selection.ordinals[begin:stop] - first] = True
                keys.missing[~chosen] = True
            yield first, keys

    def key_text(self, ordinal: int) -> str:
        """Returns the key of a sample, for messages."""
        chunk = int(self._read_from.chunk_first.searchsorted(ordinal, "right")) - 1
        if self._on == KEY and self._read_from.whole_objects:
            return repr(self._read_from.name(ordinal).object_key)
        if self._is_numbered:
            return str(ordinal)
        if self._column is not None:
            return f"{self._column.value(ordinal)!r:.100}"
        first = int(self._read_from.chunk_first[chunk])
        return f"{self._values(chunk, slice(ordinal - first, ordinal - first + 1))[0]!r:.100}"

    @contextmanager
    def named(self) -> Iterator[None]:
        """An error says which side it is about."""
        try:
            yield
        except ManifestError as error:
            raise ManifestError(f"{', '.join(self.manifest.urls[:4])}: {error.message}", **error.details) from error

    def _all(self) -> Iterator[tuple[int, Keys]]:
        if self._is_numbered:
            yield from self._numbers()
        elif self._on == KEY and self._read_from.whole_objects:
            yield from self._names()
        elif self._column is not None:
            yield from self._kept(self._column)
        else:
            yield from self._read()

    def _numbers(self) -> Iterator[tuple[int, Keys]]:
        for first in range(0, self.manifest.samples, _NAMES_AT_ONCE):
            yield (
                first,
                number_keys(np.arange(first, min(first + _NAMES_AT_ONCE, self.manifest.samples), dtype=np.uint64)),
            )

    def _names(self) -> Iterator[tuple[int, Keys]]:
        first = 0
        for tables in self._read_from.tables:
            column = tables["objects"]["key"]
            assert isinstance(column, BinaryColumn)
            for row in range(0, len(column), _NAMES_AT_ONCE):
                names = [column[number] for number in range(row, min(row + _NAMES_AT_ONCE, len(column)))]
                yield first, hash_values(names)
                first += len(names)

    def _kept(self, column: ColumnValues) -> Iterator[tuple[int, Keys]]:
        for first in range(0, self.manifest.samples, _NAMES_AT_ONCE):
            some = range(first, min(first + _NAMES_AT_ONCE, self.manifest.samples))
            try:
                yield first, hash_values(column.value(row) for row in some)
            except ManifestError as error:
                raise self._at(error, first) from error

    def _read(self) -> Iterator[tuple[int, Keys]]:
        """Reads chunk after chunk, several at the same time; not those without a selected sample."""
        wanted = np.arange(self._read_from.chunks)
        if self.selection is not None:
            wanted = np.flatnonzero(np.diff(self.selection.ordinals.searchsorted(self._read_from.chunk_first)))
        yield from scan_chunks(wanted.tolist(), self._of_chunk)

    def _of_chunk(self, chunk: int) -> tuple[int, Keys]:
        first = int(self._read_from.chunk_first[chunk])
        values = self._values(chunk)
        try:
            return first, hash_values(values)
        except ManifestError as error:
            raise self._at(error, first) from error

    def _at(self, error: ManifestError, first: int) -> ManifestError:
        """Names the sample of a key among those from `first` on."""
        at = first + int(error.details.pop("index", 0) or 0)
        return ManifestError(f"the key {self._on!r} of sample {at}: {error.message}", sample=at)

    def _values(self, chunk: int, part: slice = slice(None)) -> list[object]:
        """Returns the keys of the samples of a chunk, or of a part of them."""
        return [self._value(ordinal, content) for ordinal, content in self._scan.read_samples(chunk, part)]

    def _value(self, ordinal: int, content: memoryview) -> object:
        try:
            sample = self._scan.open_sample(ordinal, content)
            return sample.key if self._on == KEY else field_value(self._on, sample.fields, self._decoder)
        except (DecodeError, ConfigError) as error:
            raise ManifestError(f"the key {self._on!r} of sample {ordinal}: {error.message}", sample=ordinal) from error

    @contextmanager
    def _open_bytes(self) -> Iterator[StreamedBytes]:
        with self._connections.for_requests() as connection:
            yield StreamedBytes(connection, self._read_from)
