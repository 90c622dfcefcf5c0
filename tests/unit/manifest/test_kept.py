"""Files and folders that are kept beside a manifest or in a fallback folder: made once, under a lock."""

from __future__ import annotations

import errno
import fcntl
import logging
from pathlib import Path

import pytest

from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.kept import KeptFiles, find_made
from tests.read_only import refuse_writes

DIGEST = "0" * 32
NAME = f"{DIGEST}.question.test"


@pytest.fixture
def kept(tmp_path: Path) -> KeptFiles:
    """Makes the kept files of a manifest's folder, with a fallback folder."""
    return KeptFiles(tmp_path / "manifests", tmp_path / "fallback")


def read(path: Path) -> str:
    """Reads a kept file, and raises for one that is damaged or incomplete."""
    if path.is_dir():
        path /= "part"
    if not path.is_file():
        raise ManifestError("no part")
    if path.read_text() != "content":
        raise ManifestCorruptError(f"{path}: damaged")
    return path.read_text()


def write_file(path: Path) -> None:
    path.write_text("content")


def write_folder(path: Path) -> None:
    path.mkdir()
    (path / "part").write_text("content")


def fail(path: Path) -> None:
    raise AssertionError(f"made again at {path}")


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_it_is_made_once(kept, write):
    """A kept file or folder is made once beside the manifest, and only its lock is left elsewhere."""
    assert kept.open_or_make(NAME, read, write) == "content"
    assert kept.open_or_make(NAME, read, fail) == "content"
    assert find_made(kept.beside) == {DIGEST: [kept.beside / NAME]}
    assert [path.name for path in kept.beside.iterdir()] == [NAME]
    assert [path.name for path in kept.fallback_dir.iterdir()] == [f"{DIGEST}.test.lock"]


@pytest.mark.parametrize("write", [write_file, write_folder])
@pytest.mark.parametrize("damage", ["other content", "no part"])
def test_what_is_damaged_is_made_again(kept, write, damage, caplog):
    """A damaged kept file is made again with one warning; an incomplete one without."""
    kept.open_or_make(NAME, read, write)
    path = kept.beside / NAME
    part = path / "part" if path.is_dir() else path
    if damage == "no part":
        part.unlink()
    else:
        part.write_text("conte")
    with caplog.at_level(logging.WARNING):
        assert kept.open(NAME, read) is None
        assert bool(caplog.messages) is (damage == "other content")
        assert kept.open_or_make(NAME, read, write) == "content"
    assert kept.open_or_make(NAME, read, fail) == "content"


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_the_fallback_folder_is_for_read_only_ones(kept, write, monkeypatch):
    """Kept files are made in the fallback folder where the manifest's is read-only; a full disk is an error."""
    refuse_writes(monkeypatch, kept.beside)
    kept.open_or_make(NAME, read, write)
    assert not (kept.beside / NAME).exists()
    assert (kept.fallback_dir / NAME).exists()
    assert kept.open_or_make(NAME, read, fail) == "content"
    refuse_writes(monkeypatch, kept.beside, errno.ENOSPC)
    with pytest.raises(ManifestError, match="cannot write"):
        kept.open_or_make(NAME.replace("question", "other"), read, write)
    monkeypatch.undo()
    kept.write(NAME, write)
    (kept.fallback_dir / NAME).rename(kept.fallback_dir / "gone")
    refuse_writes(monkeypatch, kept.beside)
    assert kept.open_or_make(NAME, read, fail) == "content"


def test_the_folder_of_locks_may_be_refused(kept, monkeypatch, tmp_path):
    """The lock lies beside the manifest where the fallback folder cannot be made."""
    kept.beside.mkdir()
    mkdir = Path.mkdir

    def refused(path: Path, *args: object, **options: object) -> None:
        if path == kept.fallback_dir:
            raise PermissionError(errno.EACCES, "no")
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    with kept.lock(NAME), (kept.beside / f"{DIGEST}.test.lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_others_wait_for_who_makes_it(kept):
    """A process that makes a kept file holds the lock of that manifest and ending, and no other lock."""

    def make(path: Path) -> None:
        with (kept.fallback_dir / f"{DIGEST}.test.lock").open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with kept.lock(f"{DIGEST}.question.other"), kept.lock(f"{DIGEST[1:]}1.question.test"):
            write_file(path)

    assert kept.open_or_make(NAME, read, make) == "content"
