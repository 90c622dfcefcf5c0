"""Verifies that a manifest is what was written, by its digests, and that its values make sense, by checking ranges.

A manifest may come from a url: a range that points outside must be found before a reader follows it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestCorruptError
from streamer.manifest.chunk_keys import check_keys
from streamer.manifest.columns import BinaryColumn, digest_of
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
    """Compares the content of every table with its digest (1 GB/s), and checks that its ranges and keys make sense.

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
    check_keys(manifest)


def _check_values(manifest: Manifest) -> None:
    """Checks that every range is within what it is a range of; 0.1 s per 10^7 samples."""
    strings = [
        column
        for tables in manifest.tables
        for table in tables.values()
        for column in table.values()
        if isinstance(column, BinaryColumn)
    ]
    first, local_bytes, sizes = manifest.chunk_first, manifest.chunk_local_bytes, _column(manifest, "objects", "size")
    rules = {
        "chunks begin at sample 0 and have samples": first[0] == 0 and (np.diff(first) > 0).all(),
        "lengths are not negative": all(_within(lengths, 0, 1 << 62) for lengths in (local_bytes, sizes)),
        "codecs are known": (_column(manifest, "chunks", "codec") == manifest.content.codec).all(),
        "byte strings are in order": all((np.diff(column.offsets) >= 0).all() for column in strings),
        "labels are classes": _within(manifest.labels, -1, len(manifest.classes)),
    }
    _require(manifest, rules)
    if not manifest.recoded:
        starts = _column(manifest, "samples", "start")
        _require(manifest, {"samples are inside their chunks": _samples_fit(manifest, starts)})
    if not manifest.whole_objects:
        _require(manifest, _extent_rules(manifest))
    else:
        total = np.add.reduceat(sizes, first[:-1])
        are_whole = manifest.samples == manifest.objects and (total == local_bytes).all()
        _require(manifest, {"chunks are as long as their objects": are_whole})


def _column(manifest: Manifest, table: str, name: str) -> Int64Array:
    return manifest.column(table, name).astype(np.int64, copy=False)


def _extent_rules(manifest: Manifest) -> dict[str, bool | np.bool_]:
    number, start, stop = (_column(manifest, "extents", name) for name in ("object", "start", "stop"))
    first = np.append(_column(manifest, "chunks", "first_extent"), len(number))
    in_order = first[0] == 0 and bool((np.diff(first) > 0).all())
    known = _within(number, 0, manifest.objects)
    if not (in_order and known):
        return {"chunks have extents": in_order, "extents name objects": known}
    total = np.add.reduceat(stop - start, first[:-1])
    sizes = _column(manifest, "objects", "size")
    return {
        "extents are inside their objects": ((start >= 0) & (start < stop) & (stop <= sizes[number])).all(),
        "chunks are as long as their extents": (total == _column(manifest, "chunks", "fetch_bytes")).all(),
        "unchanged chunks are as long as they were": manifest.recoded
        or (manifest.chunk_local_bytes == _column(manifest, "chunks", "fetch_bytes")).all(),
    }


def _samples_fit(manifest: Manifest, start: Int64Array) -> bool:
    first = manifest.chunk_first
    begins = np.zeros(len(start), bool)
    begins[first[:-1]] = True
    ascend = begins[1:] | (start[1:] >= start[:-1])
    last = start[first[1:] - 1]
    return bool(ascend.all() and (start[first[:-1]] == 0).all() and (last <= manifest.chunk_local_bytes).all())


def _within(values: NDArray[np.signedinteger], lower: int, upper: int) -> bool:
    return not len(values) or bool(values.min() >= lower and values.max() < upper)


def _require(manifest: Manifest, rules: dict[str, bool | np.bool_]) -> None:
    for rule, holds in rules.items():
        if not holds:
            raise ManifestCorruptError(
                f"{manifest.path}: broken rule: {rule}; index again", path=str(manifest.path), rule=rule
            )
