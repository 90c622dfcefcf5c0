"""Hidden files and folders are no part of a dataset, whatever its format."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamer.formats
from streamer.errors import ManifestError
from streamer.formats import detect
from streamer.indexing.listed_rows import list_objects
from streamer.manifest.beside import is_hidden
from streamer.store.local_store import LocalStore

HIDDEN_FOLDERS = [
    *(".ipynb_checkpoints", ".git/objects/ab", ".cache/huggingface/download", ".nv-meta", ".snapshot/hourly.0"),
    *(".Trash-1000/files", "..data", "..2026_11_28", "a/b/.thumbnails", "__MACOSX/a", "a/@eaDir", "lost+found"),
]


@pytest.mark.parametrize("folder", HIDDEN_FOLDERS)
def test_a_file_is_hidden_by_any_folder_that_it_is_in(folder: str) -> None:
    """A file in a hidden folder is hidden, at every depth and whatever its name."""
    assert is_hidden(f"{folder}/0.jpg")
    assert is_hidden(f"cat/{folder}/0.jpg")


@pytest.mark.parametrize(
    "key", [".DS_Store", "a/._0.jpg", "a/", "", "a/Thumbs.db", "desktop.ini", ".streamer/root.json"]
)
def test_hidden_files(key: str) -> None:
    """Names that begin with a dot, markers of empty folders and files that systems leave are hidden."""
    assert is_hidden(key)


@pytest.mark.parametrize(
    "key", ["a.jpg", "./a.jpg", "a/./b.jpg", "a/../b.jpg", "a.b/c.jpg", "a//b.jpg", "_x/a.jpg", "…/a"]
)
def test_visible_files(key: str) -> None:
    """A dot inside a name hides no file, and neither do the parts . and .. of a path."""
    assert not is_hidden(key)


# A file of each format that has endings of its own, and how many are needed to recognize it.
FILES = {
    "webdataset": ["0.tar", "1.tar.gz"],
    "parquet": ["0.parquet"],
    "jsonl": ["0.jsonl"],
    "tfrecord": ["0.tfrecord", "1.tfrecord"],
    "recordio": ["0.rec"],
    "arrow": ["0.arrow"],
    "hdf5": ["0.h5"],
    "zip": ["0.zip"],
    "lmdb": ["x/data.mdb"],
    "mds": ["shard.00000.mds", "index.json"],
    "litdata": ["chunk-0-0.bin", "index.json"],
    "tokens": ["0.bin", "0.idx"],
    "zarr": ["zarr.json", "c/0/0"],
    "folder": ["cat/0.jpg", "dog/1.jpg"],
}


@pytest.mark.parametrize("hidden", [".snapshot/d", ".git", "x/.ipynb_checkpoints"])
@pytest.mark.parametrize("kind", FILES)
async def test_copies_in_hidden_folders_are_no_part_of_a_dataset(store, kind: str, hidden: str) -> None:
    """Copies in hidden folders are neither objects nor index files of a dataset and do not change its format."""
    own = [f"s3://b/t/{name}" for name in FILES[kind]]
    copies = [f"s3://b/t/{hidden}{number}/{name}" for number in range(9) for name in (*FILES[kind], "z.metadata")]
    alone = await list_objects(["s3://b/t/"], store(dict.fromkeys(own, b"1")), detect.chooser("auto"), 4)
    found = await list_objects(["s3://b/t/"], store(dict.fromkeys(own + copies, b"1")), detect.chooser("auto"), 4)
    assert found.indexer.name == kind
    assert (found.listing.keys, found.listing.classes) == (alone.listing.keys, alone.listing.classes)
    assert found.others.keys() == alone.others.keys()


@pytest.mark.parametrize("kind", ["auto", "webdataset"])
async def test_copies_of_macs_beside_tars_are_no_shards(store, kind: str) -> None:
    """Files beside tars such as `._0.tar` (4 KiB of attributes) and `.1.tar` (an upload cut off) are no shards."""
    names = ["s3://b/t/0.tar", "s3://b/t/._0.tar", "s3://b/t/.1.tar"]
    found = await list_objects(["s3://b/t/"], store(dict.fromkeys(names, b"1")), detect.chooser(kind), 4)
    assert found.listing.keys == [b"0.tar"]


async def test_what_the_user_names_himself_is_not_hidden(store) -> None:
    """A hidden folder or file that the url itself names is not hidden."""
    names = ["s3://b/.h/cat/1.jpg", "s3://b/.h/dog/2.jpg"]
    found = await list_objects(["s3://b/.h/"], store(dict.fromkeys(names, b"1")), detect.chooser("auto"), 4)
    assert found.listing.classes == ("cat", "dog")
    found = await list_objects(["s3://b/.0.tar"], store({"s3://b/.0.tar": b"1"}), detect.chooser("auto"), 4)
    assert (found.indexer.name, found.listing.keys) == ("webdataset", [b".0.tar"])


async def test_braces_name_each_object(tmp_path: Path) -> None:
    """Objects that braces name are not hidden, as in a list of urls; a pattern leaves hidden ones out."""
    for folder in ("a", ".b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.tar").write_bytes(b"")
    found = await list_objects([f"{tmp_path}/{{a,.b}}/0.tar"], LocalStore(), detect.chooser("auto"), 4)
    assert sorted(found.listing.keys) == [b".b/0.tar", b"a/0.tar"]
    found = await list_objects([f"{tmp_path}/*/0.tar"], LocalStore(), detect.chooser("auto"), 4)
    assert found.listing.keys == [b"a/0.tar"]


async def test_a_dataset_of_hidden_files_is_told(store) -> None:
    """A dataset of hidden files only raises ManifestError that says to name their folder in the url."""
    with pytest.raises(ManifestError, match=r"all 2 objects below s3://b/t/ are in hidden folders, as \.git/1 is.*url"):
        await list_objects(
            ["s3://b/t/"], store({"s3://b/t/.git/1": b"", "s3://b/t/.git/2": b""}), detect.chooser("auto"), 4
        )


def test_every_format_has_a_case() -> None:
    """Every built-in format has a case here, except those that are only named or share files with another format."""
    assert streamer.formats.BUILT_IN.keys() - FILES.keys() == {"audio", "video", "lerobot", "npy", "raw"}
