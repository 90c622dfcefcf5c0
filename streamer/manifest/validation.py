"""Verifies that a manifest is what was written, by its digests, and that its values make sense, by checking ranges.

A manifest may come from a url: a range that points outside must be found before a reader follows it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestCorruptError
from streamer.manifest.columns import BinaryColumn, Table, digest_of
from streamer.manifest.layout import file_name
from streamer.manifest.table import Manifest

Int64Array = NDArray[np.int64]


def open_verified(path: Path) -> Manifest:
    """Opens a manifest and verifies it.

    Raises:
        ManifestError: see `Manifest.open` and `verify`.
    """
    manifest = Manifest.open(path)
    verify(manifest)
    return manifest


def verify(manifest: Manifest) -> None:
    """Compares the content of every table with its digest (1 GB/s), and checks that its ranges make sense.

    Raises:
        ManifestCorruptError: names the file, or the violated rule.
    """
    for part, (digests, tables) in enumerate(zip(manifest.digests, manifest.tables, strict=True)):
        for name, table in tables.items():
            expected, actual = digests[name], digest_of(table)
            if actual != expected:
                where = str(manifest.path / file_name(name, part))
                raise ManifestCorruptError(
                    f"{where}: content has digest {actual}, expected {expected}; index again",
                    path=where,
                    expected=expected,
                    actual=actual,
                )
    _check_values(manifest)


def _check_values(manifest: Manifest) -> None:
    """Checks that every range is within what it is a range of; 0.1 s per 10^7 samples."""
    columns = _Columns(manifest.tables)
    first, local_bytes = manifest.chunk_first, manifest.chunk_local_bytes
    rules = {
        "chunks begin at sample 0 and have samples": first[0] == 0 and (np.diff(first) > 0).all(),
        "lengths are not negative": _not_negative(local_bytes, columns.of("objects", "size")),
        "codecs are known": (columns.of("chunks", "codec") == manifest.content.codec).all(),
        "byte strings are in order": all(map(_in_order, columns.strings())),
        "labels are classes": _within(manifest.labels, -1, len(manifest.classes)),
    }
    _require(manifest, rules)
    if not manifest.recoded:
        _require(manifest, {"samples are inside their chunks": _samples_fit(manifest, columns.of("samples", "start"))})
    if not manifest.whole_objects:
        _require(manifest, _extent_rules(manifest, columns))
    else:
        total = np.add.reduceat(columns.of("objects", "size"), first[:-1])
        _require(
            manifest,
            {
                "chunks are as long as their objects": manifest.samples == manifest.objects
                and (total == local_bytes).all()
            },
        )


class _Columns:
    """Columns over all parts."""

    def __init__(self, parts: list[dict[str, Table]]) -> None:
        self._parts = parts

    def of(self, table: str, name: str) -> Int64Array:
        found = [part[table][name] for part in self._parts]
        return np.concatenate([column for column in found if isinstance(column, np.ndarray)]).astype(
            np.int64, copy=False
        )

    def strings(self) -> list[BinaryColumn]:
        every = [column for part in self._parts for table in part.values() for column in table.values()]
        return [column for column in every if isinstance(column, BinaryColumn)]


def _extent_rules(manifest: Manifest, columns: _Columns) -> dict[str, bool | np.bool_]:
    number, start, stop = (columns.of("extents", name) for name in ("object", "start", "stop"))
    first = np.append(columns.of("chunks", "first_extent"), len(number))
    in_order = first[0] == 0 and bool((np.diff(first) > 0).all())
    known = _within(number, 0, manifest.objects)
    if not (in_order and known):
        return {"chunks have extents": in_order, "extents name objects": known}
    total = np.add.reduceat(stop - start, first[:-1])
    sizes = columns.of("objects", "size")
    return {
        "extents are inside their objects": ((start >= 0) & (start < stop) & (stop <= sizes[number])).all(),
        "chunks are as long as their extents": (total == columns.of("chunks", "fetch_bytes")).all(),
        "unchanged chunks are as long as they were": manifest.recoded
        or (manifest.chunk_local_bytes == columns.of("chunks", "fetch_bytes")).all(),
    }


def _samples_fit(manifest: Manifest, start: Int64Array) -> bool:
    """Starts ascend within a chunk, from 0 to at most its length."""
    first = manifest.chunk_first
    begins = np.zeros(len(start), bool)
    begins[first[:-1]] = True
    ascend = begins[1:] | (start[1:] >= start[:-1])
    last = start[first[1:] - 1]
    return bool(ascend.all() and (start[first[:-1]] == 0).all() and (last <= manifest.chunk_local_bytes).all())


def _in_order(column: BinaryColumn) -> bool:
    return bool((np.diff(column.offsets) >= 0).all())


def _within(values: NDArray[np.signedinteger], lower: int, upper: int) -> bool:
    return not len(values) or bool(values.min() >= lower and values.max() < upper)


def _not_negative(*columns: Int64Array) -> bool:
    return all(_within(column, 0, 1 << 62) for column in columns)


def _require(manifest: Manifest, rules: dict[str, bool | np.bool_]) -> None:
    for rule, holds in rules.items():
        if not holds:
            raise ManifestCorruptError(
                f"{manifest.path}: broken rule: {rule}; index again", path=str(manifest.path), rule=rule
            )
