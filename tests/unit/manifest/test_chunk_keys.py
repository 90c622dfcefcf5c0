"""Keys of chunks are computed from what the manifest says of them, and a manifest with other keys is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamer.engine import datasets
from streamer.errors import ManifestCorruptError
from streamer.indexing.publish import publish_at
from streamer.indexing.rows import ManifestRows
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.chunking import key_at_endpoint
from streamer.manifest.columns import digest_of
from streamer.manifest.layout import ROOT_NAME, encode_root, file_name
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import export_files, install_files
from streamer.manifest.validation import base_keys, check_key, check_keys, open_and_verify
from streamer.tables.parquet.format import Parquet
from tests.formats.test_parquet import MemoryStore as Objects
from tests.formats.test_parquet import _cases, built
from tests.unit.manifest.conftest import MemoryStore

GOLDEN = Path("tests/golden/manifest-v1")


def with_keys(manifest: Manifest, target: Path, keys: np.ndarray) -> Path:
    """Copies a manifest with other keys and digests that fit them, as anyone who may write to a bucket can."""
    shutil.copytree(manifest.path, target)
    chunks = {**manifest.tables[0]["chunks"], "key": keys}
    name = file_name("chunks", 0)
    sizes = {path.name: path.stat().st_size for path in target.glob("*.arrows")} | {
        name: write_table(target / name, chunks)
    }
    part = manifest.content.parts[0]
    run = msgspec.structs.replace(part.tables["chunks"], digest=digest_of(chunks))
    part = msgspec.structs.replace(part, tables={**part.tables, "chunks": run})
    content = msgspec.structs.replace(manifest.content, parts=[part])
    (target / ROOT_NAME).write_bytes(encode_root(content, manifest.urls, sizes))
    return target


@pytest.fixture(params=["tars", "files", "parquet"])
async def manifest(request, tmp_path, tar_manifest, file_manifest) -> Manifest:
    """Builds a manifest of tars, of files, or of blocks of Parquet."""
    if request.param == "parquet":
        case = _cases()[0]
        return await built(case.format, Objects(case.objects), tmp_path / "parquet")
    return tar_manifest if request.param == "tars" else file_manifest


@pytest.mark.parametrize("row", [0, -1])
def test_a_foreign_key_is_refused(manifest, tmp_path, row):
    """A manifest with a foreign chunk key is refused even if all digests fit: its bytes would get another name."""
    keys = manifest.chunk_keys.copy()
    keys[row] = np.arange(16)
    forged = with_keys(manifest, tmp_path / "forged", keys)
    with pytest.raises(ManifestCorruptError, match=r"the key of chunk \d+ is not that of its objects"):
        open_and_verify(forged)
    with pytest.raises(ManifestCorruptError, match="is not that of its objects"):
        install_files(export_files(Manifest.open(forged)), tmp_path / "root")
    assert not list((tmp_path / "root").glob("[0-9a-f]*"))
    with pytest.raises(ManifestCorruptError, match=r"the key of chunk \d+ is not that of its objects"):
        check_key(Manifest.open(forged), row % manifest.chunks)


def test_keys_are_checked_once_for_the_same_files(manifest, tmp_path, monkeypatch):
    """A chunk's key is checked at its first use unless a file beside the manifest shows the check of these files."""
    copied = shutil.copytree(manifest.path, tmp_path / manifest.digest, copy_function=shutil.copy)
    checked = []
    monkeypatch.setattr(datasets, "check_key", lambda manifest, chunk: checked.append(chunk))

    def use_all(folder: Path) -> list[int]:
        checked.clear()
        dataset = datasets.Dataset(Manifest.open(folder), {})
        for chunk in (*range(manifest.chunks), 0):
            dataset.check_key(chunk)
        return list(checked)

    # Nothing is beside it.
    assert use_all(copied) == list(range(manifest.chunks))
    if not manifest.recoded:
        assert use_all(copied) == []
        os.utime(copied / ROOT_NAME)
        assert use_all(copied) == list(range(manifest.chunks))
    installed = install_files(export_files(manifest), tmp_path / "root")
    assert use_all(manifest.path) == use_all(installed.path) == []


def test_each_chunk_has_the_key_that_is_computed(manifest):
    """The computed keys are those of the manifest, all at once and one by one, for files, containers and blocks."""
    assert list(base_keys(manifest)) == [key.tobytes() for key in manifest.chunk_keys]
    for chunk in range(manifest.chunks):
        check_key(manifest, chunk)


@pytest.mark.parametrize("kind", ["tars", "files"])
async def test_several_parts_have_the_same_keys(build_it, tars, files, tmp_path, monkeypatch, kind):
    """A manifest whose tables are cut into parts has the same chunk keys."""
    store = MemoryStore(tars if kind == "tars" else files)
    whole = await build_it(store, f"s3://b/{kind}/")
    in_parts = ManifestRows.parts
    monkeypatch.setattr(ManifestRows, "parts", lambda rows: in_parts(rows, 5))
    parts = await build_it(store, f"s3://b/{kind}/", root=tmp_path / "parts")
    assert parts.parts > 1
    assert list(base_keys(parts)) == [key.tobytes() for key in whole.chunk_keys]
    check_key(parts, parts.chunks - 1)


def test_an_endpoint_is_part_of_the_keys(manifest, tmp_path):
    """A manifest at another endpoint has other chunk keys and version 4; without one it is as before."""
    root = tmp_path / "root"
    there = Manifest.open(publish_at(manifest, root, "endpoint http://there"))
    check_keys(there)
    assert (there.content.version, there.digest != manifest.digest) == (4, True)
    expected = [key_at_endpoint(key.tobytes(), "endpoint http://there") for key in manifest.chunk_keys]
    assert [key.tobytes() for key in there.chunk_keys] == expected
    assert not {key.tobytes() for key in there.chunk_keys} & {key.tobytes() for key in manifest.chunk_keys}
    back = Manifest.open(publish_at(there, root, ""))
    assert (back.digest, back.content) == (manifest.digest, manifest.content)


def test_samples_of_a_chunk_are_part_of_its_key(manifest, tmp_path):
    """Chunks whose samples begin elsewhere have other keys."""
    if manifest.recoded:
        pytest.skip("its samples are in the chunk files")
    moved = Manifest.open(manifest.path)
    moved.tables[0]["samples"]["start"] = np.zeros(moved.samples, np.uint32)
    assert set(base_keys(moved)).isdisjoint({key.tobytes() for key in manifest.chunk_keys[manifest.chunk_samples > 1]})


@pytest.mark.parametrize("name", ["folder", "webdataset"])
def test_keys_of_version_1_are_those_of_now(name):
    """Chunk keys of manifests of version 1 are the computed ones, so what is cached stays in use."""
    manifest = Manifest.open(GOLDEN / name)
    assert manifest.content.version == 1
    check_keys(manifest)


def test_a_block_that_contradicts_its_row_is_refused(tmp_path):
    """A chunk of blocks whose row has another number of samples than its hints has no key."""
    case = _cases()[0]
    manifest = asyncio.run(built(Parquet(), Objects(case.objects), tmp_path / "parquet"))
    object.__setattr__(manifest, "chunk_first", np.append(manifest.chunk_first[:-1], manifest.samples + 1))
    assert list(base_keys(manifest))[-1] is None
