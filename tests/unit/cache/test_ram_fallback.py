"""The folder in memory that takes chunks while the disk refuses them; a temporary folder stands for /dev/shm."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamer.cache import memory_folder
from streamer.cache.folder import LOCK_NAME, CacheFolder, Permissions, open_folder
from streamer.cache.memory_folder import (
    FALLBACK_BYTES,
    RamFallback,
    make_folder_name,
    make_lock_folder,
    remove_leftover_folders,
)
from streamer.errors import CacheError

CACHE = CacheFolder(Path("/cache"), "a1b2", Permissions())


def _begun(memory: Path) -> RamFallback:
    fallback = RamFallback(CACHE, None, memory)
    fallback.begin()
    return fallback


def test_it_is_there_from_the_start(tmp_path: Path) -> None:
    """The folder in memory is private, bounded, named after the cache folder, and replaces a killed engine's."""
    fallback = _begun(tmp_path)
    assert fallback.path is not None
    assert fallback.path.is_dir()
    assert [path.name for path in fallback.path.iterdir()] == [LOCK_NAME]
    folder = fallback.open()
    assert fallback.open() is folder
    assert fallback.path.name.endswith("-a1b2")
    assert fallback.path.stat().st_mode & 0o777 == 0o700
    assert 0 < fallback.limit_bytes <= FALLBACK_BYTES
    again = _begun(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [LOCK_NAME]
    again.remove()
    fallback.remove()
    assert list(tmp_path.iterdir()) == []
    assert fallback.path == again.path
    nowhere = _begun(tmp_path / "none")
    assert (nowhere.limit_bytes, nowhere.path) == (0, None)
    with pytest.raises(CacheError, match="takes no folder"):
        nowhere.open()


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_a_name_that_another_user_took_is_not_used(tmp_path: Path, kind: str) -> None:
    """The engine takes another name where another user has made a folder, link or file, and leaves that alone."""
    taken = tmp_path / f"streamer-{os.geteuid()}-a1b2"
    if kind == "folder":
        taken.mkdir()
    elif kind == "link":
        taken.symlink_to("/")
    else:
        taken.touch()
    os.chown(taken, 65534, 65534, follow_symlinks=False)
    fallback = _begun(tmp_path)
    assert fallback.path is not None
    assert fallback.path != taken
    assert fallback.open().path == fallback.path
    fallback.remove()
    assert list(tmp_path.iterdir()) == [taken]


def test_two_threads_open_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that open the folder in memory at once open it once: opening empties it."""
    opened = list[Path]()
    both = threading.Barrier(2)

    def slowly(path: Path, group: str | None) -> CacheFolder:
        opened.append(path)
        # Whoever is here waits for the other one, who must not come.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return open_folder(path, group)

    monkeypatch.setattr(memory_folder, "open_folder", slowly)
    fallback = _begun(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(fallback.open), pool.submit(fallback.open))
    assert first.result() is second.result()
    assert len(opened) == 1
    fallback.remove()


def test_what_engines_of_other_folders_have_left_is_removed(tmp_path: Path) -> None:
    """Folders in memory of killed engines are removed by any engine's start; those whose lock is held stay."""
    dead = tmp_path / make_folder_name("dead")
    dead.mkdir()
    (dead / LOCK_NAME).touch()
    (dead / "chunk").write_bytes(bytes(100))
    earlier = tmp_path / make_folder_name("of-an-earlier-version")
    earlier.mkdir()
    foreign = tmp_path / "streamer-test"
    foreign.mkdir()
    living = _begun(tmp_path)
    assert not dead.exists()
    assert living.path is not None
    lock = make_lock_folder(tmp_path / make_folder_name("other"))
    remove_leftover_folders(tmp_path)
    assert living.path.exists()
    assert lock is not None
    os.close(lock)
    remove_leftover_folders(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {living.path.name, earlier.name, foreign.name}
    living.remove()


def test_a_folder_that_was_made_again_is_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remover that opened the lock of an ended engine leaves the folder that another engine has made since."""
    path = tmp_path / make_folder_name("other")
    dead = make_lock_folder(path)
    assert dead is not None
    os.close(dead)
    flock = fcntl.flock
    living = []

    def interleave(descriptor: int, how: int) -> None:
        monkeypatch.undo()
        shutil.rmtree(path)
        living.append(make_lock_folder(path))
        flock(descriptor, how)

    monkeypatch.setattr(memory_folder.fcntl, "flock", interleave)
    remove_leftover_folders(tmp_path)
    assert path.is_dir()
    assert living[0] is not None
    os.close(living[0])
