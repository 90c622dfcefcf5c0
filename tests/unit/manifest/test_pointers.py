"""Pointers of Git LFS in place of files, as a clone without git-lfs has them, in every format that is indexed."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.errors import DecodeError, ManifestError
from streamer.formats import Folder, detect
from streamer.formats.base import SampleName
from streamer.indexing.build import BuildOptions, build

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"
FILES = {
    "webdataset": ["0.tar"],
    "parquet": ["0.parquet"],
    "jsonl": ["0.jsonl"],
    "tfrecord": ["0.tfrecord"],
    "recordio": ["0.rec"],
    "arrow": ["0.arrow"],
    "hdf5": ["0.h5"],
    "zip": ["0.zip"],
    "lmdb": ["data.mdb"],
    "mds": ["shard.00000.mds", "index.json"],
    "litdata": ["chunk-0-0.bin", "index.json"],
    "tokens": ["0.bin", "0.idx"],
    "zarr": ["zarr.json", "c/0/0"],
    "npy": ["0.npy"],
}


@pytest.mark.parametrize("kind", FILES)
async def test_an_index_names_them(store, tmp_path: Path, kind: str) -> None:
    """An index that meets a pointer of Git LFS raises ManifestError that names it, in every format."""
    objects = store({f"s3://b/t/{name}": POINTER for name in FILES[kind]})
    with pytest.raises(ManifestError, match=r"s3://b/t/.* is a pointer of Git LFS.*git lfs pull") as caught:
        await build(["s3://b/t/"], tmp_path, lister=objects, reader=objects, choose_format=detect.chooser(kind))
    assert "reason" in caught.value.details


async def test_they_are_left_out_where_damage_is(store, tmp_path: Path, tars: dict[str, bytes]) -> None:
    """Pointers of Git LFS are left out like damaged objects where these are skipped, with a note."""
    lines: list[str] = []
    objects = store({**tars, f"{next(iter(tars)).rpartition('/')[0]}/z.tar": POINTER})
    url = f"{next(iter(tars)).rpartition('/')[0]}/"
    manifest = await build(
        [url],
        tmp_path,
        lister=objects,
        reader=objects,
        choose_format=detect.chooser("auto"),
        options=BuildOptions(on_damage=lines.append),
    )
    assert manifest.objects == len(tars)
    assert any("z.tar: is a pointer of Git LFS" in line for line in lines)


def test_a_file_that_is_one_is_no_sample() -> None:
    """A pointer of Git LFS is not delivered as a text; a longer text that begins like one is."""
    with pytest.raises(DecodeError, match=r"a/1\.txt is a pointer of Git LFS"):
        Folder().open(memoryview(POINTER), SampleName("a/1.txt"))
    _, (field,) = Folder().open(memoryview(POINTER + bytes(1000)), SampleName("a/1.txt"))
    assert len(field.content) == len(POINTER) + 1000
