"""Columns of the samples of a manifest, beside it: `<digest>.<name>.<kind>.column`, an Arrow stream that is mapped.

They are not part of the manifest, whose digest does not depend on them: they can be added at any time. In a copy of the
manifest elsewhere they are `<digest>.<name>.<kind>.<digest of the content>.column`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import get_args
from urllib.parse import quote, unquote

import numpy as np

from streamer.errors import ConfigError, ManifestCorruptError, ManifestError
from streamer.manifest.arrow_ipc.reader import map_table, read_table
from streamer.manifest.columns import BinaryColumn, ColumnType
from streamer.manifest.condition import ColumnValues, Kind
from streamer.manifest.staging import settle_file, workplace
from streamer.manifest.table import Manifest

COLUMN_SUFFIX = ".column"
_LONGEST_NAME = 100
_EXPORTED = re.compile(
    rf"[0-9a-f]{{32}}\.[\w%~-]+\.(?P<kind>{'|'.join(get_args(Kind))})\.(?P<digest>[0-9a-f]{{32}}){re.escape(COLUMN_SUFFIX)}"
)
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


class ColumnFiles:
    """The columns of one manifest.

    Args:
        manifest: of the samples.
        spare: folder to write to if that of the manifest is read-only for this process.
    """

    def __init__(self, manifest: Manifest, spare: Path) -> None:
        self._manifest = manifest
        self._folders = (manifest.path.parent, spare)

    def __repr__(self) -> str:
        return f"ColumnFiles({self._manifest.digest}, {self.names})"

    @property
    def names(self) -> list[str]:
        """The columns that are there."""
        found = [path for folder in self._folders for path in folder.glob(f"{self._manifest.digest}.*{COLUMN_SUFFIX}")]
        return sorted({unquote(path.name.split(".")[1]) for path in found})

    def find(self, name: str) -> ColumnValues | None:
        """Maps a column; None: it is not there.

        Raises:
            ManifestCorruptError: its file is malformed.
        """
        for folder in self._folders:
            for kind in get_args(Kind):
                if (path := folder / self._file(name, kind)).is_file():
                    return _mapped(path, kind)
        return None

    def add(self, name: str, values: Sequence[object]) -> ColumnValues:
        """Writes a column; returns it mapped.

        Args:
            name: of the column.
            values: one per sample, in the order of the manifest; None: it has none.

        Raises:
            ConfigError: values of different types, or of none that can be compared.
            ManifestError: it cannot be written.
        """
        column = column_of(name, values)
        for folder in self._folders:
            try:
                return self._write(folder / self._file(name, column.kind), column)
            except ManifestError as error:
                if getattr(error.__cause__, "errno", None) not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
        raise ManifestError(f"column {name!r} can be written neither to {self._folders[0]} nor {self._folders[1]}")

    def exported(self) -> Iterator[tuple[str, bytes]]:
        """Yields (name, content) of every column, for a folder elsewhere; the name has a digest of the content."""
        for folder in self._folders:
            for path in sorted(folder.glob(f"{self._manifest.digest}.*{COLUMN_SUFFIX}")):
                content = path.read_bytes()
                yield f"{path.name.removesuffix(COLUMN_SUFFIX)}.{_digest(content)}{COLUMN_SUFFIX}", content

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Those of the names of `exported` that are columns of this manifest and not here."""
        own = [name for name in names if name.startswith(f"{self._manifest.digest}.") and _EXPORTED.fullmatch(name)]
        return [name for name in own if not (self._folders[0] / _local(name)).is_file()]

    def install(self, name: str, content: bytes) -> None:
        """Writes a column of `exported` beside the manifest.

        Raises:
            ManifestCorruptError: it is not what its name says, or not of these samples.
            ManifestError: it cannot be written.
        """
        found = _EXPORTED.fullmatch(name)
        if found is None or found["digest"] != _digest(content):
            raise ManifestCorruptError(f"{name[:300]}: the content is not that of its name", path=name)
        table = read_table(memoryview(content), _schema(found["kind"]), name)
        if len(table["valid"]) != self._manifest.samples:
            samples = self._manifest.samples
            raise ManifestCorruptError(f"{name}: {len(table['valid'])} values for {samples} samples", path=name)
        path = self._folders[0] / _local(name)
        with workplace(path.parent) as place:
            (place / path.name).write_bytes(content)
            settle_file(place / path.name, path)

    def _write(self, path: Path, column: ColumnValues) -> ColumnValues:
        # Only here: processes that read columns do not need nanoarrow.
        from streamer.manifest.arrow_ipc.writer import write_table

        values = column.values if isinstance(column.values, BinaryColumn) else column.values.view(np.int64)
        with workplace(path.parent) as place:
            write_table(place / path.name, {"valid": column.valid.view(np.uint8), "value": values})
            settle_file(place / path.name, path)
        return _mapped(path, column.kind)

    def _file(self, name: str, kind: str) -> str:
        text = quote(name, safe="").replace(".", "%2E")
        if len(text) > _LONGEST_NAME:
            raise ConfigError(f"the name of column {name!r:.200} is longer than {_LONGEST_NAME} bytes", field="where")
        return f"{self._manifest.digest}.{text}.{kind}{COLUMN_SUFFIX}"


def column_of(name: str, values: Sequence[object]) -> ColumnValues:
    """Packs the values of a column.

    Raises:
        ConfigError: values of different types, or of none that can be compared.
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
        return ColumnValues("float", valid, np.array([0 if value is None else value for value in plain], np.float64))
    numbers = [value or 0 for value in plain]
    if any(number not in _INT64 for number in numbers):
        if all(number in _UINT64 for number in numbers):
            return ColumnValues("uint", valid, np.array(numbers, np.uint64))
        raise ConfigError(f"column {name!r} has whole numbers that do not fit into 64 bits", field="where")
    return ColumnValues("bool" if bool in found else "int", valid, np.array(numbers, np.int64))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _local(name: str) -> str:
    """The name of an exported column beside the manifest."""
    return f"{name.removesuffix(COLUMN_SUFFIX).rpartition('.')[0]}{COLUMN_SUFFIX}"


def _schema(kind: str) -> dict[str, ColumnType]:
    return {"valid": "uint8", "value": "binary" if kind == "text" else "int64"}


def _mapped(path: Path, kind: Kind) -> ColumnValues:
    table = map_table(path, _schema(kind))
    valid = table["valid"]
    values = table["value"]
    assert isinstance(valid, np.ndarray)
    if kind == "float":
        assert isinstance(values, np.ndarray)
        values = values.view(np.float64)
    elif kind == "uint":
        assert isinstance(values, np.ndarray)
        values = values.view(np.uint64)
    return ColumnValues(kind, valid.view(np.bool_), values)
