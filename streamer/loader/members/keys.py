"""Reads the keys of the samples of a dataset: from the manifest or a kept column, else chunk by chunk from the data.

`joins.py` compares them, `member.py` finds a sample by its key, `streamer index --columns` keeps them in a table, and
`streamer show` looks one up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from streamer.batches.scan import KEY, ChunkScan, field_value, scan_chunks
from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.registry import restore_format
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.single_reads import stream_bytes
from streamer.manifest.column_files import ColumnFiles
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.kept import KeptFiles, hash_question
from streamer.manifest.keys import Keys, KeyTable, Kind, build_keys, hash_values, number_keys
from streamer.manifest.selection import Selection
from streamer.manifest.table import Manifest

logger = logging.getLogger(__name__)


# Number of keys of a batch, where they are not read chunk by chunk.
_NAMES_AT_ONCE = 1 << 16


class KeyReader:
    """Reads the keys of the samples of a dataset, in its order.

    Args:
        manifest: Manifest of the dataset; one with the columns that the key needs is enough.
        connections: Connections to the engine, with the dataset's credentials.
        on: "__key__", a field, or a field and the names of its parts, "json.uid".
        fallback_dir: Where files are written if the manifest's folder is read-only for this process, and for locks.
        whole: Manifest of the dataset, where `manifest` has fewer columns.
        selection: Selection outside of which samples have no key, or None for all samples.

    Attributes:
        manifest: Manifest of the dataset, with all its columns.
        selection: Selection outside of which samples have no key, or None.
        kept: Files that are made of the keys.

    Raises:
        ConfigError, ManifestVersionError: see `ChunkScan`; or the rule of decoding is invalid.
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
        self._on = on
        self._column = ColumnFiles(self.manifest, fallback_dir).find(on)
        own = restore_format(manifest)
        fields = {spec.name for spec in manifest.facts.fields}
        self._is_numbered = on == KEY and own.numbered_keys and KEY not in fields
        self._scan = ChunkScan(manifest, partial(stream_bytes, connections, manifest))
        self._decoder = SampleDecoder()

    def __repr__(self) -> str:
        return f"KeyReader({self._on}, {self.manifest!r})"

    @property
    def identity(self) -> tuple[str, ...]:
        """Digests of the manifest and the selection ("" for none), and `on`: the keys depend on these."""
        chosen = "" if self.selection is None else self.selection.digest
        return self.manifest.digest, chosen, self._on

    @property
    def unselected(self) -> KeyReader:
        """A reader of the keys of all samples, without the selection."""
        whole = copy(self)
        whole.selection = None
        return whole

    @property
    def reads_data(self) -> bool:
        """Whether the keys are in the samples only."""
        are_names = self._on == KEY and self._read_from.whole_objects
        return not (self._is_numbered or are_names or self._column is not None)

    def batches(self) -> Generator[tuple[int, Keys]]:
        """Yields the keys of consecutive samples, each batch with the number of its first sample in the manifest.

        Samples outside the selection have missing keys. Where keys are read from the data, chunks of which no sample is
        selected are left out.

        Raises:
            ManifestError: keys are neither texts nor whole numbers, or a sample lacks the field or is damaged.
            StreamerError: the error of the engine, where the keys are read from the data.
        """
        for first, keys in self._read_all():
            if self.selection is not None:
                begin, stop = np.searchsorted(self.selection.ordinals, (first, first + len(keys)))
                chosen = np.zeros(len(keys), np.bool_)
                chosen[self.selection.ordinals[begin:stop] - first] = True
                keys.missing[~chosen] = True
            yield first, keys

    def key_text(self, ordinal: int) -> str:
        """Returns the key of a sample as a text for messages; reads the sample if the key is only there.

        Raises:
            ManifestError: the sample has no such key.
            StreamerError: the sample cannot be read.
        """
        chunk = int(self._read_from.chunk_first.searchsorted(ordinal, "right")) - 1
        if self._on == KEY and self._read_from.whole_objects:
            return repr(self._read_from.name(ordinal).object_key)
        if self._is_numbered:
            return str(ordinal)
        if self._column is not None:
            return f"{self._column.value(ordinal)!r:.100}"
        first = int(self._read_from.chunk_first[chunk])
        return f"{self._read_values(chunk, slice(ordinal - first, ordinal - first + 1))[0]!r:.100}"

    @contextmanager
    def name_errors(self) -> Iterator[None]:
        """Lets a ManifestError of the block name the urls of this dataset."""
        try:
            yield
        except ManifestError as error:
            raise ManifestError(f"{', '.join(self.manifest.urls[:4])}: {error.message}", **error.details) from error

    def _read_all(self) -> Iterator[tuple[int, Keys]]:
        """Yields the batches of `batches`, in which samples outside the selection may have keys."""
        if self._is_numbered:
            for first in range(0, self.manifest.samples, _NAMES_AT_ONCE):
                stop = min(first + _NAMES_AT_ONCE, self.manifest.samples)
                yield first, number_keys(np.arange(first, stop, dtype=np.uint64))
        elif self._on == KEY and self._read_from.whole_objects:
            first = 0
            for tables in self._read_from.tables:
                column = tables["objects"]["key"]
                assert isinstance(column, BinaryColumn)
                for row in range(0, len(column), _NAMES_AT_ONCE):
                    names = [column[number] for number in range(row, min(row + _NAMES_AT_ONCE, len(column)))]
                    yield first, hash_values(names)
                    first += len(names)
        elif self._column is not None:
            kept = self._column
            for first in range(0, self.manifest.samples, _NAMES_AT_ONCE):
                some = range(first, min(first + _NAMES_AT_ONCE, self.manifest.samples))
                try:
                    yield first, hash_values(kept.value(row) for row in some)
                except ManifestError as error:
                    raise self._locate_error(error, first) from error
        else:
            # Chunk after chunk, several at the same time, without those that have no selected sample.
            wanted = np.arange(self._read_from.chunks)
            if self.selection is not None:
                wanted = np.flatnonzero(np.diff(self.selection.ordinals.searchsorted(self._read_from.chunk_first)))
            yield from scan_chunks(wanted.tolist(), self._read_chunk)

    def _read_chunk(self, chunk: int) -> tuple[int, Keys]:
        """Reads the keys of a chunk; returns them with the number of their first sample."""
        first = int(self._read_from.chunk_first[chunk])
        values = self._read_values(chunk)
        try:
            return first, hash_values(values)
        except ManifestError as error:
            raise self._locate_error(error, first) from error

    def _locate_error(self, error: ManifestError, first: int) -> ManifestError:
        """Returns an error that names the sample: the one that `error` counts from the sample `first` on."""
        at = first + int(error.details.pop("index", 0) or 0)
        return ManifestError(f"the key {self._on!r} of sample {at}: {error.message}", sample=at)

    def _read_values(self, chunk: int, part: slice = slice(None)) -> list[object]:
        """Returns the keys of the samples of a chunk, or of a slice of them; raises ManifestError."""
        values: list[object] = []
        for ordinal, content in self._scan.read_samples(chunk, part):
            try:
                sample = self._scan.open_sample(ordinal, content)
                own_key = self._on == KEY
                values.append(sample.key if own_key else field_value(self._on, sample.fields, self._decoder))
            except (DecodeError, ConfigError) as error:
                raise ManifestError(
                    f"the key {self._on!r} of sample {ordinal}: {error.message}", sample=ordinal
                ) from error
        return values


Opened = TypeVar("Opened")

# Part of the names of tables; it is raised when the content of these files changes.
_REVISION = 3
_NUMBER = re.compile("-?[0-9]{1,100}")


def name_table(what: str, *sides: KeyReader, arranged: bool = False) -> str:
    """Returns the name of the folder of a table.

    Args:
        what: Kind of the table.
        sides: Datasets of whose keys it is made, one or two.
        arranged: Whether the rows of the second side are arranged in the order of their use.
    """
    content = [_REVISION, arranged, *(each for side in sides for each in side.identity)]
    return f"{'-'.join(side.manifest.digest for side in sides)}.{hash_question(msgspec.json.encode(content))}.{what}"


def keep(what: str, side: KeyReader, open_path: Callable[[Path], Opened], write: Callable[[Path], object]) -> Opened:
    """Returns an opened table of the keys of one dataset, and writes it first if it is not there.

    Args:
        what: Kind of the table.
        side: Keys of the dataset.
        open_path: Opens the folder of the table.
        write: Writes the files of the table into an empty folder.

    Raises:
        ManifestError: see `KeyReader.batches`; or the table cannot be written.
        StreamerError: see `KeyReader.batches`.
        OSError: the lock file cannot be written.
    """

    def make(folder: Path) -> None:
        logger.info("reads the keys of %s", ", ".join(side.manifest.urls[:4]))
        folder.mkdir()
        with side.name_errors():
            write(folder)

    return side.kept.open_or_make(name_table(what, side), open_path, make)


def keep_keys(side: KeyReader) -> KeyTable:
    """Returns the table of the sorted keys of one dataset; it is written if it is not there. Raises as `keep`."""
    return keep("keys", side, KeyTable.open, lambda folder: build_keys(side.batches(), folder))


def find_key(side: KeyReader, key: str, *, reads: bool = True) -> int:
    """Returns the ordinal in the manifest of the first sample with a key, by the table of keys if there is one.

    Args:
        side: Keys of the dataset. Samples outside its selection do not count.
        key: Key of the sample; digits stand for a number where keys are numbers.
        reads: Whether the samples are read if the keys are only there.

    Raises:
        KeyError: no sample has the key.
        ConfigError: the samples would have to be read.
        ManifestError, StreamerError: see `KeyReader.batches`.
    """
    table = side.kept.open(name_table("keys", side.unselected), KeyTable.open)
    if table is not None:
        rows = table.rows_of(_convert_key(key, table.head.kind))
        chosen = rows if side.selection is None else rows[np.isin(rows, side.selection.ordinals)]
        if len(chosen):
            return int(chosen[0])
    elif side.reads_data and not reads:
        raise ConfigError(
            f"find({key!r:.100}): the keys of these samples are in the samples: `streamer index "
            f"{' '.join(side.manifest.urls[:1])} --columns {KEY}` reads them once; get(key) reads until it finds one",
            field="key",
        )
    else:
        with closing(side.batches()) as batches:
            for first, keys in batches:
                if len(found := keys.places_of(_convert_key(key, keys.kind))):
                    return first + int(found[0])
    raise KeyError(f"no sample has the key {key!r}")


def _convert_key(key: str, kind: Kind) -> str | int:
    """Converts a key of digits to a number if the keys of the table are numbers."""
    return int(key) if kind == "number" and _NUMBER.fullmatch(key) else key
