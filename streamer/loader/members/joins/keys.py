"""The keys of the samples of a dataset: of the manifest or a kept column, else read chunk by chunk from the data."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from itertools import islice
from pathlib import Path

import numpy as np

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Field, SampleName
from streamer.formats.registry import restore_format
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.single_reads import KEY, StreamedBytes
from streamer.manifest.column_files import ColumnFiles
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.condition import ColumnValues
from streamer.manifest.kept import KeptFiles
from streamer.manifest.keys import Keys, hash_values, number_keys
from streamer.manifest.selection import Selection
from streamer.manifest.table import Manifest

# Chunks that are read at the same time; an engine shares its link among them.
_READERS = 8
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
        self._opener = own.opener(manifest.facts)
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
        return f"{self._values(chunk, ordinal - first, ordinal - first + 1)[0]!r:.100}"

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
        with ThreadPoolExecutor(_READERS, "streamer-keys") as threads:
            wanted = np.arange(self._read_from.chunks)
            if self.selection is not None:
                wanted = np.flatnonzero(np.diff(self.selection.ordinals.searchsorted(self._read_from.chunk_first)))
            chunks = iter(wanted.tolist())
            running = deque(threads.submit(self._of_chunk, chunk) for chunk in islice(chunks, 2 * _READERS))
            try:
                while running:
                    yield running.popleft().result()
                    running.extend(threads.submit(self._of_chunk, chunk) for chunk in islice(chunks, 1))
            finally:
                for future in running:
                    future.cancel()

    def _of_chunk(self, chunk: int) -> tuple[int, Keys]:
        first = int(self._read_from.chunk_first[chunk])
        samples = int(self._read_from.chunk_samples[chunk])
        values = self._values(chunk, 0, samples)
        try:
            return first, hash_values(values)
        except ManifestError as error:
            raise self._at(error, first) from error

    def _at(self, error: ManifestError, first: int) -> ManifestError:
        """Names the sample of a key among those from `first` on."""
        at = first + int(error.details.pop("index", 0) or 0)
        return ManifestError(f"the key {self._on!r} of sample {at}: {error.message}", sample=at)

    def _values(self, chunk: int, start: int, stop: int) -> list[object]:
        """The keys of some samples of a chunk."""
        first = int(self._read_from.chunk_first[chunk])
        with self._connections.for_requests() as connection:
            content = StreamedBytes(connection, self._read_from)
            bounds = content.boundaries(chunk)[start : stop + 1].tolist()
            held = content.read_chunk(chunk, bounds[0], bounds[-1])
        keys = []
        for number in range(stop - start):
            piece = held[bounds[number] - bounds[0] : bounds[number + 1] - bounds[0]]
            keys.append(self._value(piece, first + start + number))
        return keys

    def _value(self, content: memoryview, ordinal: int) -> object:
        name = self._read_from.name(ordinal) if self._read_from.whole_objects else SampleName()
        try:
            key, fields = self._opener.open(content, name)
            if self._on == KEY:
                return ordinal if key is None else key
            value = key_value(self._on, fields, self._decoder)
        except (DecodeError, ConfigError) as error:
            raise ManifestError(f"the key {self._on!r} of sample {ordinal}: {error.message}", sample=ordinal) from error
        # A list of one number is how some formats have one.
        return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def key_value(on: str, fields: Sequence[Field], decoder: SampleDecoder) -> object:
    """Returns the key in the fields of a sample, or None if it is null.

    Raises:
        DecodeError: there is no such field, or it has no such part.
    """
    by_name = {field.name: field for field in fields}
    name = on
    parts = list[str]()
    while name not in by_name and "." in name:
        name, _, part = name.rpartition(".")
        parts.insert(0, part)
    if name not in by_name:
        raise DecodeError(f"it has no field {on!r}; it has {KEY}, {', '.join(by_name)}")
    value = decoder("", [by_name[name]])[name]
    for part in parts:
        if value is None:
            return None
        if not isinstance(value, dict) or part not in value:
            known = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise DecodeError(f"field {name!r} has no {part!r} ({known:.200})")
        value = value[part]
    return value
