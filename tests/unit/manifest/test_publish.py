from __future__ import annotations

import fcntl
import os
import shutil

import pytest

from streamer.errors import ManifestCorruptError
from streamer.indexing.publish import publish_again
from streamer.manifest.staging import settle, sweep, workplace
from streamer.manifest.table import Manifest
from streamer.manifest.validation import open_and_verify


async def test_publishing_twice_keeps_the_first(build_it, store, tars):
    """The folder that is there stays, file for file."""
    first = await build_it(store(tars), "s3://b/tars/")
    before = {p.name: p.stat().st_ino for p in first.path.iterdir()}
    await build_it(store(tars), "s3://b/tars/")
    assert {p.name: p.stat().st_ino for p in first.path.iterdir()} == before
    assert {p.name for p in first.path.parent.iterdir()} == {first.digest, f"{first.digest}.checked"}


async def test_a_broken_folder_is_replaced(build_it, store, tars):
    """Building again repairs a manifest with a missing or wrong file."""
    first = await build_it(store(tars), "s3://b/tars/")
    (first.path / "chunks-00000.arrows").unlink()
    with pytest.raises(ManifestCorruptError):
        Manifest.open(first.path)
    await build_it(store(tars), "s3://b/tars/")
    open_and_verify(first.path)
    assert {p.name for p in first.path.parent.iterdir()} == {first.digest, f"{first.digest}.checked"}


async def test_an_open_manifest_outlives_its_folder(build_it, store, tars):
    """Another program removes the files: the mapped tables are written again."""
    first = await build_it(store(tars), "s3://b/tars/")
    before = {path.name: path.read_bytes() for path in first.path.glob("*.arrows")}
    shutil.rmtree(first.path.parent)
    assert publish_again(first, first.path.parent) == first.path
    assert {path.name: path.read_bytes() for path in first.path.glob("*.arrows")} == before != {}
    assert open_and_verify(first.path).digest == first.digest


def test_nothing_remains_of_a_failed_writer(tmp_path):
    """An error in between leaves no folder and no lock."""

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
    """A lock that nobody holds belongs to a killed writer."""
    folder, lock = leftover(tmp_path, "dead")
    assert set(sweep(tmp_path)) == {folder, lock}
    assert list(tmp_path.iterdir()) == []


def test_the_living_are_left_alone(tmp_path):
    """A writer at work keeps its folder, whoever sweeps."""
    folder, lock = leftover(tmp_path, "alive")
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep(tmp_path) == []
        with workplace(tmp_path) as mine:
            assert sweep(tmp_path) == []
            assert mine.is_dir()
    assert folder.is_dir()


def test_a_lock_without_folder_is_swept(tmp_path):
    """A writer may die before it made its folder, or after its rename."""
    (tmp_path / ".building-x.lock").touch()
    assert len(sweep(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("durable", [True, False])
async def test_what_is_to_last_is_on_the_disk_before_it_has_its_name(tar_manifest, tmp_path, monkeypatch, durable):
    """All files and their folder, then the name. A copy waits for no disk."""
    place, target, synced = tmp_path / "place", tmp_path / "target", []
    shutil.copytree(tar_manifest.path, place)
    names = {str(path) for path in (place, *place.iterdir())}
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.readlink(f"/proc/self/fd/{number}"), target.exists()))
    )
    settle(place, target, durable=durable)
    assert set(synced) == ({(name, False) for name in names} | {(str(tmp_path), True)} if durable else set())


async def test_the_slower_of_two_writers_takes_the_others_folder(tar_manifest, tmp_path):
    """Both publish the same digest; one rename wins."""
    place = tmp_path / "place"
    place.mkdir()
    assert settle(place, tar_manifest.path) == tar_manifest.path
    open_and_verify(tar_manifest.path)
