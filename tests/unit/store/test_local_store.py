"""Local folders with links, pipes and cache folders in them, on a real file system."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streamer.cache.folder import open_folder
from streamer.errors import ObjectNotFoundError, StoreError
from streamer.manifest.model import Extent, ObjectRecord
from streamer.store import local_store
from streamer.store.base import Get
from streamer.store.local_store import LocalStore, read_files


async def listed(url: Path | str) -> list[str]:
    """Returns the urls of the objects below a url."""
    return [record.url async for page in LocalStore().list(str(url)) for record in page]


def write(path: Path) -> Path:
    """Writes a file of one byte and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


async def test_linked_folders_are_walked(tmp_path: Path) -> None:
    """Links to folders are followed, relative, absolute or nested, and two links to one folder list its files twice."""
    write(tmp_path / "elsewhere/cat/1.jpg")
    write(tmp_path / "deep/2.jpg")
    (tmp_path / "elsewhere/cat/more").symlink_to("../../deep")
    root = tmp_path / "data"
    write(root / "dog/3.jpg")
    (root / "cat").symlink_to(tmp_path / "elsewhere/cat")
    (root / "cat2").symlink_to("../elsewhere/cat")
    wanted = [f"{root}/{key}" for key in ("cat/1.jpg", "cat/more/2.jpg", "cat2/1.jpg", "cat2/more/2.jpg", "dog/3.jpg")]
    assert await listed(root) == wanted
    assert await listed(f"{root}/**/*.jpg") == wanted
    assert await listed(f"{root}/cat/*.jpg") == wanted[:1]
    (tmp_path / "link").symlink_to(root)
    assert len(await listed(tmp_path / "link")) == len(wanted)


@pytest.mark.parametrize("target", [".", "..", "../..", "self"])
async def test_links_in_a_circle_are_not_followed(tmp_path: Path, target: str, caplog) -> None:
    """A link to a folder that contains the link is not followed and is logged; all files are listed once."""
    write(tmp_path / "data/cat/1.jpg")
    link = tmp_path / "data/cat/again"
    link.symlink_to(tmp_path / "data" if target == "self" else target)
    found = await listed(tmp_path / "data")
    # A link that leads above the url comes back into it, but not further.
    again = [f"{link}/data/cat/1.jpg"] if target == "../.." else []
    assert sorted(found) == sorted([f"{tmp_path}/data/cat/1.jpg", *again])
    assert "again is a link to a folder that it is in, and is not followed" in caplog.text


async def test_folders_that_link_to_each_other_end(tmp_path: Path, monkeypatch) -> None:
    """Folders that link to each other are refused after a number of visits, by an error that names the folder."""
    monkeypatch.setattr(local_store, "MOST_VISITS", 20)
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
        for other in "abcdefgh".replace(name, ""):
            (tmp_path / name / other).symlink_to(f"../{other}")
    with pytest.raises(StoreError, match=r"links lead to .* from more than 20 places below"):
        await listed(tmp_path)


@pytest.mark.parametrize("target", ["/nowhere/x.jpg", "broken.jpg", "other/x.jpg"])
@pytest.mark.parametrize("url", ["", "/*/*.jpg", "/cat/{0,broken}.jpg", "/cat/broken.jpg"])
async def test_a_broken_link_is_named(tmp_path: Path, url: str, target: str) -> None:
    """A link to nothing, to itself or through a file is an error that names it, by folder, glob and braces."""
    write(tmp_path / "cat/0.jpg")
    write(tmp_path / "cat/other")
    (tmp_path / "cat/broken.jpg").symlink_to(target)
    with pytest.raises(ObjectNotFoundError, match=r"cat/broken\.jpg is a symbolic link to .*mend the link"):
        await listed(f"{tmp_path}{url}")
    assert await listed(f"{tmp_path}/cat/0*.jpg") == [f"{tmp_path}/cat/0.jpg"]


async def test_broken_links_that_are_hidden_do_no_harm(tmp_path: Path) -> None:
    """Hidden links that lead nowhere are ignored, since editors lock files by them."""
    write(tmp_path / "0.jpg")
    (tmp_path / ".#0.jpg").symlink_to("user@host.1234")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/x").symlink_to("nowhere")
    assert await listed(tmp_path) == [f"{tmp_path}/0.jpg"]


async def test_pipes_are_left_out(tmp_path: Path, caplog) -> None:
    """A pipe is left out of a listing and named in a log line, because opening it would wait for a writer."""
    write(tmp_path / "0.jpg")
    os.mkfifo(tmp_path / "1.jpg")
    assert await listed(tmp_path) == [f"{tmp_path}/0.jpg"]
    assert "1.jpg is neither a file nor a folder" in caplog.text


async def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe in the place of a file is an error when it is read, because a thread that opens it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore()
    record = ObjectRecord(str(tmp_path / "pipe"), 10, "stat:10:1")
    with pytest.raises(StoreError, match="not a regular file any more"):
        await asyncio.wait_for(store.get(Get(record, 0, 10), lambda piece: None), 10)
    with pytest.raises(StoreError, match="not a regular file any more"):
        read_files([Extent(record, 0, 10)], [memoryview(bytearray(10))])


async def test_a_cache_folder_below_the_data_is_none_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cache folder of streamer below the data is left out of the listing and logged.

    With `cache_dir="data/cache"` its marker, and later its chunks, were samples.
    """
    write(tmp_path / "a.bin")
    open_folder(tmp_path / "cache")
    found = [record.url async for page in LocalStore().list(f"{tmp_path}/") for record in page]
    assert found == [f"{tmp_path}/a.bin"]
    assert "cache is a cache folder of streamer below the data, and is left out" in caplog.text


async def test_a_mounted_configmap_has_each_file_once(tmp_path: Path) -> None:
    """A mounted ConfigMap lists each file once, although Kubernetes mounts a hidden folder and links to its files."""
    from streamer.formats.detect import chooser
    from streamer.indexing.listed_rows import list_objects

    write(tmp_path / "..2026_11_28/labels.jsonl")
    (tmp_path / "..data").symlink_to("..2026_11_28")
    (tmp_path / "labels.jsonl").symlink_to("..data/labels.jsonl")
    found = await list_objects([str(tmp_path)], LocalStore(), chooser("auto"), 4)
    assert found.listing.keys == [b"labels.jsonl"]
