"""Manifests with wrong values and digests that fit them, as a hostile url might serve them, are refused."""

from __future__ import annotations

import shutil

import msgspec
import numpy as np
import pytest

from streamer.errors import ManifestCorruptError
from streamer.manifest.arrow_ipc.reader import map_table
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.columns import BinaryColumn, digest_of
from streamer.manifest.layout import ROOT_NAME, decode_root, encode_root, file_name
from streamer.manifest.table import Manifest
from streamer.manifest.validation import MAX_OBJECT_BYTES, open_and_verify, sums_of


def forged(manifest: Manifest, target, table: str, column: str, row: int, value: int):
    """Copies a manifest with one wrong value and digests that fit it, as a hostile url might serve it."""
    shutil.copytree(manifest.path, target)
    path = target / file_name(table, 0)
    root = decode_root((target / ROOT_NAME).read_bytes(), "root")
    # From the original: the copy is written while these columns are mapped.
    columns = dict(map_table(manifest.path / path.name, manifest.content.schemas[table]))
    old = columns[column]
    changed = (old.offsets if isinstance(old, BinaryColumn) else old).copy()
    changed[row] = value
    columns[column] = BinaryColumn(changed, old.content) if isinstance(old, BinaryColumn) else changed
    sizes = {**root.file_bytes, path.name: write_table(path, columns)}
    part = root.content.parts[0]
    run = msgspec.structs.replace(part.tables[table], digest=digest_of(columns))
    part = msgspec.structs.replace(part, tables={**part.tables, table: run})
    content = msgspec.structs.replace(root.content, parts=[part])
    (target / ROOT_NAME).write_bytes(encode_root(content, root.urls, sizes))
    return target


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "rule"),
    [
        ("chunks", "first_sample", 0, 1, "chunks begin at sample 0"),
        ("chunks", "first_sample", 3, 0, "have samples"),
        ("chunks", "local_bytes", 3, -1, "lengths are not negative"),
        ("chunks", "local_bytes", 3, 1 << 39, "as long as they were"),
        ("chunks", "local_bytes", 3, 1 << 40, "shorter than 1 TiB"),
        ("objects", "size", 3, 1 << 53, "lengths are not negative"),
        ("chunks", "codec", 3, 9, "codecs are known"),
        ("chunks", "first_extent", 3, 0, "chunks have extents"),
        ("objects", "size", 3, -1, "lengths are not negative"),
        ("objects", "size", 3, 10, "extents are inside their objects"),
        ("objects", "key", 3, 10_000, "byte strings are in order"),
        ("extents", "object", 3, 99, "extents name objects"),
        ("extents", "start", 0, -512, "extents are inside their objects"),
        ("extents", "stop", 0, 1 << 40, "extents are inside their objects"),
        ("samples", "start", 0, 5, "samples are inside their chunks"),
        ("samples", "start", 1, 1 << 31, "samples are inside their chunks"),
    ],
)
def test_wrong_values_of_containers(tar_manifest, tmp_path, table, column, row, value, rule):
    """One wrong value in a table of containers with fitting digests is refused by the rule that it breaks."""
    path = forged(tar_manifest, tmp_path / "forged", table, column, row, value)
    with pytest.raises(ManifestCorruptError, match=rule):
        open_and_verify(path)


@pytest.mark.parametrize("place", ["base", "urls", "signed"])
def test_a_manifest_with_a_login(tar_manifest, tmp_path, place):
    """A manifest with a login or signature in its urls, as versions up to 0.2 wrote, is refused without showing it."""
    shutil.copytree(tar_manifest.path, tmp_path / "old")
    root = decode_root((tmp_path / "old" / ROOT_NAME).read_bytes(), "root")
    urls = root.urls
    content = root.content
    if place == "urls":
        urls = ["https://u:hunter2@host/x/"]
    else:
        base = "https://u:hunter2@host/x/" if place == "base" else "https://host/x?X-Amz-Signature=hunter2&name="
        content = msgspec.structs.replace(content, base=base)
    (tmp_path / "old" / ROOT_NAME).write_bytes(encode_root(content, urls, root.file_bytes))
    with pytest.raises(ManifestCorruptError, match="urls have no logins and no signatures; index again") as refused:
        open_and_verify(tmp_path / "old")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "rule"),
    [
        ("samples", "label", 3, 5, "labels are classes"),
        ("samples", "label", 3, -2, "labels are classes"),
        ("objects", "size", 3, 1 << 40, "as long as their objects"),
    ],
)
def test_wrong_values_of_files(file_manifest, tmp_path, table, column, row, value, rule):
    """One wrong value in a table of whole files with fitting digests is refused by the rule that it breaks."""
    path = forged(file_manifest, tmp_path / "forged", table, column, row, value)
    with pytest.raises(ManifestCorruptError, match=rule):
        open_and_verify(path)


def test_a_forgery_without_a_change_passes(tar_manifest, tmp_path):
    """A copy with recomputed digests and no wrong value is accepted."""
    path = forged(tar_manifest, tmp_path / "forged", "samples", "start", 0, 0)
    assert np.array_equal(open_and_verify(path).chunk_first, tar_manifest.chunk_first)


def _with(manifest: Manifest, target, **columns):
    """Copies a manifest with other columns of several tables, each `table_column`, and digests that fit."""
    path = manifest.path
    for number, (name, values) in enumerate(columns.items()):
        table, _, column = name.partition("_")
        for row, value in enumerate(values):
            path = forged(Manifest.open(path), target / f"{number}-{row}", table, column, row, value)
    return path


def test_sums_that_wrap_around_are_no_lengths(tar_manifest, tmp_path):
    """Objects of 2^62 bytes are refused, since sums of their extents wrap around to the length of a chunk.
    (The engine planned 2^41 ranges for it.)"""
    big = (1 << 62) - 1
    objects = tar_manifest.objects
    path = _with(tar_manifest, tmp_path, objects_size=[big] * objects)
    with pytest.raises(ManifestCorruptError, match="lengths are not negative"):
        open_and_verify(path)


def test_no_sum_of_lengths_wraps():
    """`sums_of` returns -1 for lengths below 2^53 whose sum does not fit 64 bits."""
    lengths = np.full(4096, MAX_OBJECT_BYTES - 1, np.int64)
    lengths[-1] = MAX_OBJECT_BYTES - 1
    wrapped = int(np.add.reduceat(lengths, np.array([0]))[0])
    assert wrapped != 4096 * (MAX_OBJECT_BYTES - 1)
    assert sums_of(lengths, np.array([0, 1]))[1] == -1
    assert list(sums_of(np.array([1, 2, 3, 4]), np.array([0, 2]))) == [3, 7]


def test_numbers_that_ascend_by_wrapping_are_refused(tar_manifest, tmp_path):
    """Sample numbers that step from 2^63 - 1 to -2^63 are refused, though their difference is 1 in 64 bits."""
    path = _with(tar_manifest, tmp_path, chunks_first_sample=[0, (1 << 63) - 1, -(1 << 63)])
    with pytest.raises(ManifestCorruptError, match="have samples"):
        open_and_verify(path)
