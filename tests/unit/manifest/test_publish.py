"""The publication of a manifest's folder: renames, leftovers of killed writers, and what is synced to the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading

import pytest

from streamer.errors import ConfigError, ManifestCorruptError, ManifestError, ObjectNotFoundError
from streamer.indexing.publish import publish_again
from streamer.manifest import staging, table
from streamer.manifest.beside import CACHE_MARKER
from streamer.manifest.staging import settle, sweep, workplace
from streamer.manifest.table import Manifest
from streamer.manifest.validation import open_and_verify


async def test_publishing_twice_keeps_the_first(build_it, store, tars):
    """Publishing a manifest again keeps the files that are there."""
    first = await build_it(store(tars), "s3://b/tars/")
    before = {p.name: p.stat().st_ino for p in first.path.iterdir()}
    await build_it(store(tars), "s3://b/tars/")
    assert {p.name: p.stat().st_ino for p in first.path.iterdir()} == before
    assert {p.name for p in first.path.parent.iterdir()} == {first.digest, f"{first.digest}.checked"}


async def test_a_broken_folder_is_replaced(build_it, store, tars):
    """Building a manifest again replaces a folder with a missing file."""
    first = await build_it(store(tars), "s3://b/tars/")
    (first.path / "chunks-00000.arrows").unlink()
    with pytest.raises(ManifestCorruptError, match=r"chunks-00000.arrows is missing"):
        Manifest.open(first.path)
    await build_it(store(tars), "s3://b/tars/")
    open_and_verify(first.path)
    assert {p.name for p in first.path.parent.iterdir()} == {first.digest, f"{first.digest}.checked"}


async def test_an_open_manifest_outlives_its_folder(build_it, store, tars):
    """A mapped manifest whose folder was removed by another program is written again from its tables."""
    first = await build_it(store(tars), "s3://b/tars/")
    before = {path.name: path.read_bytes() for path in first.path.glob("*.arrows")}
    shutil.rmtree(first.path.parent)
    assert publish_again(first, first.path.parent) == first.path
    assert {path.name: path.read_bytes() for path in first.path.glob("*.arrows")} == before != {}
    assert open_and_verify(first.path).digest == first.digest


def test_nothing_remains_of_a_failed_writer(tmp_path):
    """A writer that fails leaves neither a folder nor a lock."""

    def fail():
        with workplace(tmp_path) as place:
            (place / "half").write_bytes(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def leftover(root, name):
    folder = root / f".building-{name}"
    folder.mkdir()
    (folder / "samples-00000.arrows").write_bytes(b"half")
    lock = root / f".building-{name}.lock"
    lock.touch()
    return folder, lock


def test_leftovers_of_the_dead_are_swept(tmp_path):
    """The folder and lock of a killed writer are removed."""
    folder, lock = leftover(tmp_path, "dead")
    assert set(sweep(tmp_path)) == {folder, lock}
    assert list(tmp_path.iterdir()) == []


def test_the_living_are_left_alone(tmp_path):
    """The folder of a writer that holds its lock is not removed."""
    folder, lock = leftover(tmp_path, "alive")
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep(tmp_path) == []
        with workplace(tmp_path) as mine:
            assert sweep(tmp_path) == []
            assert mine.is_dir()
    assert folder.is_dir()


def test_a_lock_without_folder_is_swept(tmp_path):
    """A lock without a folder, as a writer killed before it made one leaves, is removed."""
    (tmp_path / ".building-x.lock").touch()
    assert len(sweep(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("durable", [True, False])
async def test_what_is_to_last_is_on_the_disk_before_it_has_its_name(tar_manifest, tmp_path, monkeypatch, durable):
    """A durable manifest syncs all files and their folder before its rename; other copies sync nothing."""
    place, target, synced = tmp_path / "place", tmp_path / "target", []
    shutil.copytree(tar_manifest.path, place)
    names = {str(path) for path in (place, *place.iterdir())}
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.readlink(f"/proc/self/fd/{number}"), target.exists()))
    )
    settle(place, target, durable=durable)
    assert set(synced) == ({(name, False) for name in names} | {(str(tmp_path), True)} if durable else set())


async def test_the_slower_of_two_writers_takes_the_others_folder(tar_manifest, tmp_path):
    """The slower of two writers of one digest uses the folder of the other one."""
    place = tmp_path / "place"
    place.mkdir()
    assert settle(place, tar_manifest.path) == tar_manifest.path
    open_and_verify(tar_manifest.path)


def test_an_error_of_a_store_inside_a_workplace_keeps_its_type(tmp_path):
    """A store's error that is an OSError, too, leaves a writer's folder as it is; others are ManifestErrors."""
    with pytest.raises(ObjectNotFoundError, match="gone"), workplace(tmp_path):
        raise ObjectNotFoundError("gone", url="s3://b/a")
    with pytest.raises(ManifestError, match="cannot write a manifest"), workplace(tmp_path):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_second_sweeper_of_a_removed_lock_leaves_the_folder(tmp_path, monkeypatch):
    """A sweeper spares the folder of a writer whose first lock file it opened and another sweeper removed."""
    flock, opened, written = fcntl.flock, threading.Event(), threading.Event()
    late = threading.Thread(target=sweep, args=(tmp_path,))

    def interleave(file, how):
        if threading.current_thread() is late:
            opened.set()
            assert written.wait(20)
        elif how == fcntl.LOCK_EX and not late.ident:
            late.start()
            assert opened.wait(20)
            assert len(sweep(tmp_path)) == 1
        flock(file, how)

    monkeypatch.setattr(staging.fcntl, "flock", interleave)
    with workplace(tmp_path) as place:
        (place / "half").write_bytes(b"x")
        written.set()
        late.join(20)
        assert (place / "half").read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == []


async def test_the_name_of_a_broken_folder_never_leads_nowhere(tar_manifest, tmp_path, monkeypatch):
    """A folder that replaces a broken one exchanges its name with it: another writer may have replaced that before."""
    place, target = tmp_path / "place", tmp_path / "target"
    shutil.copytree(tar_manifest.path, place)
    target.mkdir()
    (target / "root.json").write_bytes(b"torn")
    renamed = []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (renamed.append(old), rename(old, new)))
    assert settle(place, target) == target
    open_and_verify(target)
    assert target not in renamed


async def test_what_cannot_be_looked_at_is_not_replaced(tar_manifest, tmp_path, monkeypatch):
    """A writer that may open no more files leaves a folder of its name, and says how to raise the limit."""
    place = tmp_path / "place"
    shutil.copytree(tar_manifest.path, place)
    before = tar_manifest.path.stat().st_ino

    def refuse(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(table, "map_file", refuse)
    with pytest.raises(ConfigError, match="ulimit -n"):
        settle(place, tar_manifest.path, durable=False)
    assert tar_manifest.path.stat().st_ino == before


def test_a_rename_that_the_disk_refuses_says_so(tmp_path, monkeypatch):
    """A writer whose finished folder cannot be renamed names the disk's reason, and not that there is no manifest."""

    def refuse(old, new):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(old))

    monkeypatch.setattr(staging.os, "rename", refuse)
    with (
        pytest.raises(ManifestError, match="Permission denied"),
        workplace(tmp_path) as place,
    ):
        settle(place, tmp_path / "target")


@pytest.mark.parametrize(
    ("mode", "is_cache", "found"), [(0o750, True, 0o644), (0o700, True, 0o600), (0o755, False, 0o600)]
)
def test_a_group_reads_manifests_whatever_the_umask_is(tmp_path, mode, is_cache, found):
    """A manifest in a cache of a group can be read with any umask of its writer; elsewhere the umask holds."""
    root = tmp_path / "manifests"
    root.mkdir()
    root.chmod(mode)
    if is_cache:
        (tmp_path / CACHE_MARKER).touch()
    before = os.umask(0o077)
    try:
        with workplace(root) as place:
            (place / "root.json").write_bytes(b"{}")
            settle(place, root / "folder")
        with workplace(root) as place:
            (place / "file").write_bytes(b"{}")
            staging.settle_file(place / "file", root / "file")
    finally:
        os.umask(before)
    modes = [(root / name).stat().st_mode & 0o777 for name in ("folder", "folder/root.json", "file")]
    assert modes == [found | 0o100 | (found & 0o044) >> 2, found, found]
