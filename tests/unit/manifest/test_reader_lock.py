"""Readers lock a manifest's folder: it is not removed meanwhile, and a killed reader leaves no lock.
Locks are those of the kernel; one reader is a process that is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamer.errors import ConfigError, ManifestError
from streamer.manifest import reader_lock
from streamer.manifest.reader_lock import open_held, remove_unread, sweep_leftovers
from streamer.manifest.table import Manifest

HOLD = """
import sys
from pathlib import Path
from streamer.manifest.reader_lock import open_held
held = open_held(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def path(build_it, store) -> Path:
    """Builds a manifest that no reader holds, and returns its folder."""
    return (await build_it(store({"s3://b/a/1.bin": b"1", "s3://b/a/2.bin": b"22"}), "s3://b/a/")).path


def test_a_manifest_stays_while_somebody_holds_it(path: Path) -> None:
    """A manifest is removed only when its last reader is gone."""
    one, other = open_held(path), open_held(path)
    assert not remove_unread(path)
    del one
    assert not remove_unread(path)
    assert other.samples == 2
    del other
    assert remove_unread(path)
    assert not path.exists()
    assert remove_unread(path), "what is gone is gone"


def test_one_that_only_looks_does_not_hold(path: Path) -> None:
    """Plain `Manifest.open` does not hold a manifest; its mapping stays readable after the files are removed."""
    looked = Manifest.open(path)
    assert remove_unread(path)
    assert looked.name(1).object_key == "2.bin"
    with pytest.raises(ManifestError, match="no manifest at"):
        open_held(path)


@pytest.mark.process
def test_a_killed_reader_holds_nothing(path: Path) -> None:
    """A killed reader holds no lock, because the kernel releases it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "held\n"
        assert not remove_unread(path)
        reader.kill()
        reader.wait()
        assert remove_unread(path)


def test_a_reader_that_comes_during_the_removal_finds_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits for the lock during a removal finds no manifest, and not half of one."""
    waits, failed = threading.Event(), []
    flock = fcntl.flock

    def told(descriptor: int, operation: int) -> None:
        waits.set()
        flock(descriptor, operation)

    def read() -> None:
        try:
            open_held(path)
        except ManifestError as error:
            failed.append(str(error))

    remover = os.open(path, os.O_RDONLY)
    flock(remover, fcntl.LOCK_EX)
    monkeypatch.setattr(reader_lock.fcntl, "flock", told)
    reader = threading.Thread(target=read)
    reader.start()
    assert waits.wait(20)
    shutil.move(path, path.with_name("nameless"))
    os.close(remover)
    reader.join(20)
    assert len(failed) == 1


def _write_again(path: Path) -> None:
    """Removes a folder and writes it again, as another remover and another writer do."""
    kept = path.with_name("kept")
    shutil.move(path, kept)
    shutil.copytree(kept, path)


def test_a_folder_that_is_written_again_before_its_lock_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader holds the folder that its path leads to, also if that was written again after the reader opened it."""
    flock = fcntl.flock

    def interleave(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        _write_again(path)
        flock(descriptor, operation)

    monkeypatch.setattr(reader_lock.fcntl, "flock", interleave)
    held = open_held(path)
    assert not remove_unread(path)
    assert held.samples == 2
    assert path.is_dir()


def test_a_remover_leaves_a_folder_that_is_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remover whose folder was written again before its lock does not remove the new one, which a reader holds."""
    flock = fcntl.flock
    held = []

    def interleave(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        _write_again(path)
        held.append(open_held(path))
        flock(descriptor, operation)

    monkeypatch.setattr(reader_lock.fcntl, "flock", interleave)
    assert not remove_unread(path)
    assert open_held(path).samples == 2


def test_a_folder_of_another_number_at_each_look_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on a file system that gives it another number at each look is opened after some tries."""
    monkeypatch.setattr(reader_lock.os.path, "samestat", lambda one, other: False)
    before = len(os.listdir("/proc/self/fd"))
    held = open_held(path)
    assert held.samples == 2
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_a_reader_without_descriptors_names_the_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that may open no more files says how to raise the limit, and not that there is no manifest."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(reader_lock.os, "open", refuse)
    with pytest.raises(ConfigError, match="ulimit -n"):
        open_held(path)


def test_what_a_killed_remover_left_is_swept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest whose remover was killed after its rename is found by no reader, and the next sweep removes it."""

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(reader_lock.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_unread(path)
    with pytest.raises(ManifestError, match="no manifest at"):
        open_held(path)
    assert sweep_leftovers(path.parent) == 1
    assert [left.suffix for left in path.parent.iterdir()] == [".checked"]


def test_a_mount_without_locks_is_read_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest on a mount without locks, as some virtual machines have, is read without one."""

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(reader_lock.fcntl, "flock", unsupported)
    assert open_held(path).samples == 2


def test_a_holder_has_one_descriptor(path: Path) -> None:
    """A reader holds one descriptor for a manifest, and none when it is gone."""
    before = os.listdir("/proc/self/fd")
    hold_folder = open_held(path)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del hold_folder
    assert len(os.listdir("/proc/self/fd")) == len(before)
