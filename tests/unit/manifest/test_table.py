"""An opened manifest: its samples, chunks, extents and objects, compared with the data, and files that are damaged."""

from __future__ import annotations

import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from streamer.errors import ManifestCorruptError, ManifestError, ManifestVersionError
from streamer.formats.registry import find_format
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.validation import open_and_verify


def opened(manifest, store) -> dict[str, dict[str, bytes]]:
    """Reads every sample by key, through chunks and offsets."""
    kind = find_format(manifest.format)
    found = {}
    for c in range(manifest.chunks):
        chunk = manifest.chunk(c)
        raw = memoryview(store.bytes_of(chunk.extents))
        offsets = manifest.sample_offsets(c)
        assert len(raw) == chunk.local_bytes == chunk.fetch_bytes == offsets[-1]
        for i in range(chunk.samples):
            name = manifest.name(chunk.first_sample + i)
            key, fields = kind.open(raw[offsets[i] : offsets[i + 1]], name)
            found[key] = {field.name: bytes(field.content) for field in fields}
    return found


def test_every_tar_sample_is_where_the_manifest_says(tar_manifest, tars, store):
    """Chunks and offsets of a manifest of tars lead to the members that tarfile finds."""
    expected: dict[str, dict[str, bytes]] = {}
    for raw in tars.values():
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            for member in archive:
                key, _, field = member.name.partition(".")
                expected.setdefault(key, {})[field] = archive.extractfile(member).read()
    assert opened(tar_manifest, store(tars)) == expected
    assert tar_manifest.samples == len(expected) == 360


def test_every_file_is_a_sample(file_manifest, files, store):
    """A manifest of files has path, label and bytes of each file, of empty and large ones, too."""
    prefix = "s3://b/files/"
    expected = {url.removeprefix(prefix): {"jpg": raw} for url, raw in files.items() if url.endswith(".JPG")}
    assert opened(file_manifest, store(files)) == expected
    assert file_manifest.classes == ("c0", "c1", "c2", "c3", "c4")
    for ordinal in range(file_manifest.samples):
        name = file_manifest.name(ordinal)
        assert file_manifest.classes[name.label] == name.object_key.split("/")[0]
        assert file_manifest.labels[ordinal] == name.label


def test_each_sample_has_its_own_object(file_manifest, tar_manifest, files, store, tars):
    """`extent_of` returns the object and byte range of each sample, also of an empty file."""
    for ordinal in range(file_manifest.samples):
        extent = file_manifest.extent_of(ordinal)
        assert extent.object.url == f"s3://b/files/{file_manifest.name(ordinal).object_key}"
        assert (extent.start, extent.stop) == (0, len(files[extent.object.url]))
    kind = find_format(tar_manifest.format)
    for ordinal in range(0, tar_manifest.samples, 7):
        content = store(tars).bytes_of([tar_manifest.extent_of(ordinal)])
        assert (
            kind.open(memoryview(content), tar_manifest.name(ordinal))[0] == f"{ordinal // 30:02d}/{ordinal % 30:03d}"
        )


def test_locate_agrees_with_the_chunks(tar_manifest, file_manifest):
    """`locate` of many ordinals, in any order and with repeats, agrees with the offsets of each chunk."""
    for manifest in (tar_manifest, file_manifest):
        ordinals = np.random.default_rng(3).integers(0, manifest.samples, 1000)
        chunk, start, stop = manifest.locate(ordinals)
        assert (manifest.chunk_first[chunk] <= ordinals).all()
        for i in range(0, 1000, 17):
            offsets = manifest.sample_offsets(int(chunk[i]))
            inside = int(ordinals[i] - manifest.chunk_first[chunk[i]])
            assert (start[i], stop[i]) == (offsets[inside], offsets[inside + 1])
        assert [len(a) for a in manifest.locate(np.empty(0, np.int64))] == [0, 0, 0]


def test_the_extents_of_a_sample_are_its_bytes(tar_manifest, file_manifest, tars, files, store):
    """The extents of one sample read its bytes from the store without its chunk."""
    for manifest, source in ((tar_manifest, store(tars)), (file_manifest, store(files))):
        for ordinal in range(0, manifest.samples, 13):
            chunk, start, stop = (int(a[0]) for a in manifest.locate(np.array([ordinal])))
            whole = source.bytes_of(manifest.chunk(chunk).extents)
            assert source.bytes_of(manifest.chunk(chunk).extents_of(start, stop)) == whole[start:stop]


def test_a_sample_without_bytes_is_behind_the_one_before_it():
    """A sample without bytes lies behind the one before it, in the same object, wherever it is in its chunk."""
    one, other = (ObjectRecord(url, size, "1") for url, size in (("a", 6), ("b", 4)))
    chunk = Chunk(0, bytes(16), (Extent(one, 0, 6), Extent(other, 0, 4)), 0, 4, 10, 10)
    expected = {(0, 0): (one, 0, 0), (0, 6): (one, 0, 6), (6, 6): (one, 6, 6), (6, 10): (other, 0, 4)}
    assert {ends: chunk.extent_of(*ends) for ends in expected} == {
        ends: Extent(*place) for ends, place in expected.items()
    }
    assert chunk.extent_of(10, 10) == Extent(other, 4, 4)
    assert Chunk(0, bytes(16), (Extent(other, 4, 4),), 0, 1, 0, 0).extent_of(0, 0) == Extent(other, 4, 4)


def test_numbers_agree(tar_manifest, file_manifest):
    """Prefix sums, sizes and keys of a manifest agree with each other, and its arrays are read-only."""
    for manifest in (tar_manifest, file_manifest):
        assert manifest.chunk_first[-1] == manifest.samples == manifest.chunk_samples.sum()
        assert (manifest.chunk_samples > 0).all()
        assert manifest.chunk_keys.shape == (manifest.chunks, 16)
        assert len({manifest.chunk(c).key for c in range(manifest.chunks)}) == manifest.chunks
        assert [manifest.chunk(c).key for c in (0, 1)] == [row.tobytes() for row in manifest.chunk_keys[:2]]
        arrays = ("chunk_first", "chunk_samples", "chunk_local_bytes", "chunk_keys", "labels")
        assert not any(getattr(manifest, name).flags.writeable for name in arrays)
        assert str(manifest.samples) in repr(manifest)


def test_objects_are_those_of_the_listing(tar_manifest, tars):
    """A manifest has url, size and version of every object, in the order of the listing."""
    records = [tar_manifest.object(i) for i in range(tar_manifest.objects)]
    assert [r.url for r in records] == sorted(tars)
    assert [r.size for r in records] == [len(tars[r.url]) for r in records]
    assert all(r.version.startswith("etag:") for r in records)
    assert tar_manifest.total_bytes == sum(map(len, tars.values()))
    assert isinstance(records[0], ObjectRecord)


@pytest.mark.parametrize("method", ["chunk", "object", "name"])
@pytest.mark.parametrize("index", [-1, 10_000])
def test_out_of_range(tar_manifest, method, index):
    """Indices below zero or beyond the end raise IndexError."""
    with pytest.raises(IndexError, match=str(index)):
        getattr(tar_manifest, method)(index)


@pytest.mark.parametrize("ordinals", [[-1], [0, 360]])
def test_locate_out_of_range(tar_manifest, ordinals):
    """`locate` with an ordinal outside the dataset raises IndexError."""
    with pytest.raises(IndexError, match="of 360 samples"):
        tar_manifest.locate(np.array(ordinals))


def test_a_pickled_manifest_opens_the_same_files(tar_manifest):
    """A pickled manifest contains its path, not its tables, and opens the same files."""
    raw = pickle.dumps(tar_manifest)
    assert len(raw) < 1000
    assert pickle.loads(raw).digest == tar_manifest.digest


def test_bytes_per_sample(tar_manifest, file_manifest):
    """A manifest takes 4 bytes per sample in tars for their starts, and at most 120 per raw file."""
    tar_bytes = sum(part["samples"]["start"].nbytes for part in tar_manifest.tables)
    assert tar_bytes == 4 * tar_manifest.samples
    (part,) = file_manifest.tables
    columns = [*part["objects"].values(), *part["samples"].values()]
    total = sum(c.nbytes if isinstance(c, np.ndarray) else c.offsets.nbytes + c.content.nbytes for c in columns)
    assert total <= 120 * file_manifest.samples


def test_no_manifest(tmp_path):
    """Opening a folder without root.json raises ManifestError that names it."""
    with pytest.raises(ManifestError, match="no manifest at"):
        Manifest.open(tmp_path / "nothing")


@pytest.mark.parametrize("damage", ["remove", "cut", "grow"])
def test_lengths_are_checked_at_open(tar_manifest, damage):
    """Opening a manifest finds a missing file or one of another length."""
    victim = tar_manifest.path / "samples-00000.arrows"
    if damage == "remove":
        victim.unlink()
    else:
        os.truncate(victim, victim.stat().st_size + (8 if damage == "grow" else -8))
    with pytest.raises(ManifestCorruptError, match=r"samples-00000\.arrows"):
        Manifest.open(tar_manifest.path)


def test_verify_finds_a_flipped_bit(tar_manifest):
    """A flipped bit in a table is found by `open_and_verify`, and not by `open`."""
    victim = tar_manifest.path / "samples-00000.arrows"
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    Manifest.open(tar_manifest.path)
    with pytest.raises(ManifestCorruptError, match=r"samples-00000\.arrows: content has digest"):
        open_and_verify(tar_manifest.path)


def test_exchanged_tables(tar_manifest):
    """Opening a manifest whose table has the right length and other columns raises ManifestCorruptError."""
    root = tar_manifest.path / "root.json"
    objects, samples = (tar_manifest.path / f"{name}-00000.arrows" for name in ("objects", "samples"))
    objects.write_bytes(samples.read_bytes().ljust(objects.stat().st_size, b"\0")[: objects.stat().st_size])
    with pytest.raises(ManifestCorruptError, match=r"objects-00000\.arrows"):
        Manifest.open(root.parent)


def test_version(tar_manifest):
    """Opening a manifest of a later version raises ManifestVersionError."""
    root = tar_manifest.path / "root.json"
    root.write_text(root.read_text().replace('"version": 1', '"version": 5'))
    with pytest.raises(ManifestVersionError, match="version 5"):
        Manifest.open(tar_manifest.path)
