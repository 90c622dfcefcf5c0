"""Keeps columns with a value for each sample of a manifest, which conditions and keys of joins ask for.

`loader/members/` finds and adds them, `cli/index_command.py` exports them with a manifest, and
`engine/manifests/manifests.py` installs those that are beside a manifest at a url.

A column is a file beside the manifest, `<digest>.<name>.<kind>.column`: an Arrow stream that is mapped. It is not part
of the manifest, whose digest does not depend on it, and can be added at any time. In a copy of the manifest elsewhere
its name is `<digest>.<name>.<kind>.<digest of the content>.column`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import get_args
from urllib.parse import quote, unquote

import numpy as np

from streamer.errors import ConfigError, ManifestCorruptError
from streamer.manifest.arrow_ipc.reader import map_table, read_table
from streamer.manifest.columns import BinaryColumn, ColumnType
from streamer.manifest.condition import ColumnValues, Kind
from streamer.manifest.kept import KeptFiles
from streamer.manifest.model import ObjectRecord
from streamer.manifest.table import Manifest

COLUMN_SUFFIX = ".column"
_LONGEST_NAME = 100
_EXPORTED = re.compile(
    rf"[0-9a-f]{{32}}\.[\w%~-]+\.(?P<kind>{'|'.join(get_args(Kind))})\.(?P<digest>[0-9a-f]{{32}}){re.escape(COLUMN_SUFFIX)}"
)
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
# Values of these kinds are in files as int64 with the same bits.
_DTYPES = {"float": np.float64, "uint": np.uint64}


def select_columns(records: Iterable[ObjectRecord]) -> dict[str, ObjectRecord]:
    """Returns the objects that are columns of any manifest, by the last part of their url."""
    return {record.url.rpartition("/")[2]: record for record in records if record.url.endswith(COLUMN_SUFFIX)}


class ColumnFiles:
    """The columns of one manifest: finds, adds, exports and installs them.

    Args:
        manifest: the manifest.
        fallback_dir: folder where files are written if the manifest's folder is read-only for this process.
    """

    def __init__(self, manifest: Manifest, fallback_dir: Path) -> None:
        self._manifest = manifest
        self._kept = KeptFiles(manifest.path.parent, fallback_dir)

    def __repr__(self) -> str:
        return f"ColumnFiles({self._manifest.digest}, {self.names})"

    @property
    def names(self) -> list[str]:
        """Names of the columns that have files, sorted."""
        found = self._kept.glob(f"{self._manifest.digest}.*{COLUMN_SUFFIX}")
        return sorted({unquote(path.name.split(".")[1]) for path in found})

    def find(self, name: str) -> ColumnValues | None:
        """Maps a column. Returns None if it has no file, or a damaged one (logged): it can be added again.

        Raises:
            ConfigError: the name is too long for a file.
        """
        for kind in get_args(Kind):
            column = self._kept.open(self._file(name, kind), partial(self._map, kind=kind))
            if column is not None:
                return column
        return None

    def add(self, name: str, values: Sequence[object]) -> ColumnValues:
        """Writes a column, replacing one of the same name and kind; returns it mapped.

        Args:
            name: name of the column.
            values: a value for each sample, in the order of the manifest, or None for a sample without one.

        Raises:
            ConfigError: see `column_of`, also if the name is too long for a file.
            ManifestError: the file cannot be written.
        """
        column = column_of(name, values)
        path = self._kept.write(self._file(name, column.kind), partial(_write, column=column))
        return self._map(path, column.kind)

    def lock(self) -> AbstractContextManager[None]:
        """Returns a context in which one process of this machine at a time adds columns. Others wait at its entry.

        Raises:
            OSError: at the entry, if the lock file cannot be written.
        """
        return self._kept.lock(f"{self._manifest.digest}{COLUMN_SUFFIX}")

    def export(self) -> Iterator[tuple[str, bytes]]:
        """Yields (name, content) of every column, for a copy of the manifest; the name has a digest of the content.

        Raises:
            OSError: a file cannot be read.
        """
        for path in self._kept.glob(f"{self._manifest.digest}.*{COLUMN_SUFFIX}"):
            content = path.read_bytes()
            yield f"{path.name.removesuffix(COLUMN_SUFFIX)}.{_digest(content)}{COLUMN_SUFFIX}", content

    def list_absent(self, names: Iterable[str]) -> list[str]:
        """Returns those of the given names of exported columns that are of this manifest and have no file beside it."""
        own = [name for name in names if name.startswith(f"{self._manifest.digest}.") and _EXPORTED.fullmatch(name)]
        return [name for name in own if not (self._kept.beside / _local(name)).is_file()]

    def install(self, name: str, content: bytes) -> None:
        """Checks a column that `export` has yielded, and writes it where `add` would.

        Raises:
            ManifestCorruptError: the content does not have the digest or the kind of the name, or another number of
                values than the manifest has samples.
            ManifestError: the file cannot be written.
        """
        found = _EXPORTED.fullmatch(name)
        if found is None or found["digest"] != _digest(content):
            raise ManifestCorruptError(f"{name[:300]}: the content is not that of its name", path=name)
        table = read_table(memoryview(content), _schema(found["kind"]), name)
        if len(table["valid"]) != self._manifest.samples:
            samples = self._manifest.samples
            raise ManifestCorruptError(f"{name}: {len(table['valid'])} values for {samples} samples", path=name)
        self._kept.write(_local(name), lambda path: path.write_bytes(content))

    def _map(self, path: Path, kind: Kind) -> ColumnValues:
        """Maps the file of a column; raises ManifestCorruptError if it is malformed, or of other samples."""
        table = map_table(path, _schema(kind))
        valid = table["valid"]
        values = table["value"]
        assert isinstance(valid, np.ndarray)
        if len(valid) != self._manifest.samples:
            samples = self._manifest.samples
            raise ManifestCorruptError(f"{path}: {len(valid)} values for {samples} samples", path=str(path))
        if kind in _DTYPES:
            assert isinstance(values, np.ndarray)
            values = values.view(_DTYPES[kind])
        return ColumnValues(kind, valid.view(np.bool_), values)

    def _file(self, name: str, kind: str) -> str:
        """Returns the name of a column's file; raises ConfigError if it would be too long."""
        text = quote(name, safe="").replace(".", "%2E")
        if len(text) > _LONGEST_NAME:
            raise ConfigError(f"the name of column {name!r:.200} is longer than {_LONGEST_NAME} bytes", field="where")
        return f"{self._manifest.digest}.{text}.{kind}{COLUMN_SUFFIX}"


def column_of(name: str, values: Sequence[object]) -> ColumnValues:
    """Makes a column of values of one type: texts, truth values or numbers, of which one float makes all floats.

    A column without any value is one of texts.

    Args:
        name: name of the column, for errors.
        values: a value for each sample; None for a sample without one.

    Raises:
        ConfigError: values of several of these types or of another one, or whole numbers that fit neither all into
            int64 nor all into uint64, or that are too large for a column of floats.
    """
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    valid = np.fromiter((value is not None for value in plain), np.bool_, len(plain))
    found = {type(value) for value in plain} - {type(None)}
    if found <= {str}:
        texts = [str(value or "").encode("utf-8", "surrogatepass") for value in plain]
        return ColumnValues("text", valid, BinaryColumn.of(texts))
    if not found <= {bool} and not found <= {int, float}:
        kinds = ", ".join(sorted(kind.__name__ for kind in found))
        raise ConfigError(
            f"column {name!r} has values of type {kinds}: a column has numbers, texts or truth values", field="where"
        )
    if float in found:
        try:
            floats = np.array([0 if value is None else value for value in plain], np.float64)
        except OverflowError as error:
            raise ConfigError(
                f"column {name!r} has a whole number that is too large for its floats: {error}", field="where"
            ) from error
        return ColumnValues("float", valid, floats)
    numbers = [value or 0 for value in plain]
    if any(number not in _INT64 for number in numbers):
        if all(number in _UINT64 for number in numbers):
            return ColumnValues("uint", valid, np.array(numbers, np.uint64))
        raise ConfigError(f"column {name!r} has whole numbers that do not fit into 64 bits", field="where")
    return ColumnValues("bool" if bool in found else "int", valid, np.array(numbers, np.int64))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _local(name: str) -> str:
    """Returns the name that an exported column has beside the manifest, without the digest of its content."""
    return f"{name.removesuffix(COLUMN_SUFFIX).rpartition('.')[0]}{COLUMN_SUFFIX}"


def _schema(kind: str) -> dict[str, ColumnType]:
    return {"valid": "uint8", "value": "binary" if kind == "text" else "int64"}


def _write(path: Path, column: ColumnValues) -> None:
    # Imported here: processes that read columns do not need nanoarrow.
    from streamer.manifest.arrow_ipc.writer import write_table

    values = column.values if isinstance(column.values, BinaryColumn) else column.values.view(np.int64)
    write_table(path, {"valid": column.valid.view(np.uint8), "value": values})
