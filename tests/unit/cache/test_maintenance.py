"""The commands on a cache folder that no engine uses: stat, check, clear and export."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.cache import maintenance
from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import ChunkBytes
from streamer.cache.maintenance import check, clear, export, stat
from streamer.config import CacheConfig
from streamer.errors import CacheError, CacheVersionError
from streamer.manifest.reader_lock import remove_unread

MakeChunk = Callable[..., ChunkBytes]


@pytest.fixture
async def folder(config: CacheConfig, make_chunk: MakeChunk) -> Path:
    """Makes a cache folder with two chunks of dataset a, one of b, and a manifest."""
    async with ChunkCache(config) as cache:
        for number, dataset in enumerate("aab"):
            chunk = make_chunk(number)
            await cache.publish(chunk.key, chunk.parts, chunk.sample_offsets, dataset=dataset)
    (config.directory / "manifests" / "m").mkdir()
    (config.directory / "manifests" / "m" / "root.json").write_text("{}")
    return config.directory


def damage(folder: Path, key: bytes) -> None:
    path = folder / "chunks" / key.hex()[0] / f"{key.hex()}.chunk"
    path.write_bytes(path.read_bytes().replace(b"\x05", b"\x06"))


def test_stat_counts_by_dataset(folder: Path) -> None:
    """`stat` returns chunks and bytes of each dataset, and the bytes used on the disk."""
    found = stat(folder)
    assert found.datasets == {"a": (2, 20_152), "b": (1, 10_076)}
    assert (found.chunks, found.chunk_bytes) == (3, 30_228)
    assert found.used_bytes > found.chunk_bytes


def test_check_names_what_is_wrong_and_repairs_on_demand(folder: Path, make_chunk: MakeChunk) -> None:
    """`check` names damaged chunks and reports progress; it removes them only with `repair`."""
    key = make_chunk(1).key
    damage(folder, key)
    seen: list[tuple[int, int]] = []
    report = check(folder, progress=lambda done, total: seen.append((done, total)))
    assert list(report.damaged) == [key.hex()]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert check(folder, repair=True).damaged
    assert check(folder).damaged == {}
    assert check(folder).chunks == 2


def test_clear_leaves_an_empty_folder_that_can_be_used_again(folder: Path) -> None:
    """`clear` empties a cache folder, and refuses a folder that is not a cache."""
    assert clear(folder) > 30_000
    assert list(folder.iterdir()) == []
    (folder / "precious").touch()
    with pytest.raises(CacheError, match="cannot read the cache layer"):
        clear(folder)
    assert (folder / "precious").exists()


def test_export_copies_what_is_sound(folder: Path, make_chunk: MakeChunk, tmp_path: Path) -> None:
    """`export` copies sound chunks and manifests to a layer, leaves damaged chunks out, and copies nothing twice."""
    damage(folder, make_chunk(1).key)
    layer = tmp_path / "layer"
    assert export(folder, layer) == 2
    assert (layer / "manifests" / "m" / "root.json").read_text() == "{}"
    times = {path: path.stat().st_mtime_ns for path in layer.glob("chunks/*/*")}
    assert export(folder, layer, keys=[make_chunk(0).key]) == 1
    assert {path: path.stat().st_mtime_ns for path in layer.glob("chunks/*/*")} == times
    assert check(layer).damaged == {}


def test_an_export_keeps_a_manifest_until_it_is_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that `export` copies is not removed meanwhile; one that is gone, or not finished, is left out.

    Regression: a manifest that the engine removed during the export ended it as a failure of the target.
    """
    manifests = folder / "manifests"
    (manifests / "gone").symlink_to(tmp_path / "nowhere")
    (manifests / ".building-0").mkdir()
    (manifests / "m.question.rows").write_text("made of m")
    copytree, removed = maintenance.shutil.copytree, []

    def copy(source: Path, target: Path) -> None:
        removed.append(remove_unread(source))
        copytree(source, target)

    monkeypatch.setattr(maintenance.shutil, "copytree", copy)
    layer = tmp_path / "layer"
    assert export(folder, layer) == 3
    assert removed == [False]
    assert sorted(path.name for path in (layer / "manifests").iterdir()) == ["m", "m.question.rows"]
    assert (layer / "manifests" / "m" / "root.json").read_text() == "{}"
    assert list((layer / "tmp").iterdir()) == []
    assert remove_unread(manifests / "m")


def test_an_export_replaces_a_manifest_that_is_not_whole(folder: Path, tmp_path: Path) -> None:
    """A manifest of the layer that an earlier copy has left without a file is replaced by a whole one."""
    half = tmp_path / "layer" / "manifests" / "m"
    export(folder, tmp_path / "layer", keys=[])
    (half / "root.json").unlink()
    export(folder, tmp_path / "layer", keys=[])
    assert (half / "root.json").read_text() == "{}"
    assert list((tmp_path / "layer" / "tmp").iterdir()) == []


@pytest.mark.parametrize("call", ["copyfile", "copytree"])
def test_an_export_that_fails_leaves_nothing_unfinished(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """An export to a disk that fails raises CacheError with the folder and the reason, and leaves no temporary file."""

    def refuse(*arguments: object, **options: object) -> None:
        if call == "copyfile":
            Path(str(arguments[1])).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(maintenance.shutil, call, refuse)
    layer = tmp_path / "layer"
    with pytest.raises(CacheError, match=f"the export to {layer} has ended: No space left on device; a second run"):
        export(folder, layer)
    assert [path for path in layer.glob("chunks/**/*") if path.suffix != ".chunk" and path.is_file()] == []
    assert not list((layer / "tmp").glob("*"))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """`stat` raises CacheError for a folder that does not exist."""
    with pytest.raises(CacheError, match="cannot read the cache layer"):
        stat(tmp_path / "none")


@pytest.mark.parametrize("work", [stat, check, clear])
def test_other_folders_are_refused(tmp_path: Path, work: Callable[[Path], object]) -> None:
    """`stat`, `check` and `clear` refuse a cache folder of another version."""
    (tmp_path / "streamer-cache").write_text("streamer cache 7")
    (tmp_path / "root-id").write_text("x")
    with pytest.raises(CacheVersionError):
        work(tmp_path)
