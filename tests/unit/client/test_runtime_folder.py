"""What the runtime folder keeps of engines that have ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path

import pytest

from streamer.client import launcher
from streamer.client.held_files import HeldFiles
from streamer.client.launcher import Restarts
from streamer.client.runtime_folder import LOG_SECONDS, find_engines, remove_leftovers, remove_old_logs
from streamer.client.settings import ClientSettings
from streamer.config import Environment
from streamer.errors import ConfigError


def test_logs_go_after_a_week(tmp_path: Path) -> None:
    """Logs of embedded engines are removed after a week; other files of the folder stay."""
    old, new, other = (tmp_path / name for name in ("0123456789ab.log", "ba9876543210.log", "mine.log"))
    for path in (old, new, other):
        path.write_text("x")
    past = time.time() - LOG_SECONDS - 60
    for path in (old, other):
        os.utime(path, (past, past))
    remove_old_logs(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])


def test_the_lock_of_a_start_leaves_no_file(tmp_path: Path) -> None:
    """The lock of a start is removed while it is held and leaves no file."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)
    with launcher._spawn_lock(settings):
        assert [path.name for path in tmp_path.iterdir()] == [f"{settings.engine_id}.spawn.lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path, monkeypatch) -> None:
    """A lock whose file its holder has removed between opening and locking is taken again on the new file."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)
    path = tmp_path / f"{settings.engine_id}.spawn.lock"
    lock, first = launcher.fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        """Removes the file of the lock before the first call, as its former holder may."""
        if not first:
            first.append(descriptor)
            path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(launcher.fcntl, "flock", flock)
    with launcher._spawn_lock(settings):
        assert path.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_what_dead_processes_have_left_goes(tmp_path: Path) -> None:
    """Sockets and locks that killed processes have left are removed; those in use and other files stay."""
    with contextlib.ExitStack() as on_exit:
        for number in range(2):
            listener = on_exit.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / f"{number:012x}.sock"))
            if number:
                listener.listen()
        other = on_exit.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(str(tmp_path / "mine.sock"))
        being_made = on_exit.enter_context(socket.socket(socket.AF_UNIX))
        being_made.bind(str(tmp_path / f"{2:012x}.sock.{os.getpid()}"))
        never_made = on_exit.enter_context(socket.socket(socket.AF_UNIX))
        never_made.bind(str(tmp_path / f"{3:012x}.sock.{1 << 30}"))
        (tmp_path / f"{4:012x}.spawn.lock").touch()
        held = on_exit.enter_context((tmp_path / f"{5:012x}.spawn.lock").open("wb"))
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_leftovers(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"{1:012x}.sock",
            f"{2:012x}.sock.{os.getpid()}",
            f"{5:012x}.spawn.lock",
            "mine.sock",
        ]


@pytest.mark.process
def test_an_engine_with_a_full_queue_keeps_its_socket(tmp_path: Path) -> None:
    """An engine whose queue of connections is full is listed as running, and its socket stays.

    Linux refuses such a connection at once (EAGAIN), which was taken for a dead engine.
    """
    path = tmp_path / f"{6:012x}.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        remove_leftovers(tmp_path)
        assert path.is_socket()
        assert find_engines(tmp_path) == [path]


def test_a_runtime_folder_that_takes_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime folder on a read-only file system is a ConfigError that names STREAMER_RUNTIME_DIR."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)

    def refuse(_path: Path) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(launcher, "_open_lock", refuse)
    with pytest.raises(ConfigError, match=r"Read-only file system; set STREAMER_RUNTIME_DIR"):
        launcher._connect_or_start(settings, Restarts())


def test_a_read_only_tmp_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime folder is in /dev/shm where /tmp is read-only, as in a hardened container, unless both are."""
    read_only = {"/", "/tmp", "/var/tmp", f"/tmp/streamer-{os.getuid()}", f"/var/tmp/streamer-{os.getuid()}"}
    monkeypatch.setattr("streamer.config._is_read_only", lambda path: str(path) in read_only)
    assert Environment.read({}).runtime_dir == Path(f"/dev/shm/streamer-{os.getuid()}")
    read_only.add("/dev/shm")
    assert Environment.read({}).runtime_dir == Path(f"/tmp/streamer-{os.getuid()}")


@pytest.mark.parametrize("nameless", [True, False], ids=["O_TMPFILE", "no O_TMPFILE"])
def test_a_file_that_is_restored_has_no_other_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    """A file is restored without another name where the file system can, as a kill left a file that stayed for ever."""
    (tmp_path / "a").write_bytes(b"some")
    held = HeldFiles([tmp_path / "a"])
    monkeypatch.setattr("streamer.client.held_files.ENGINE_SECONDS", 0.0)
    replace = os.replace
    names = []
    monkeypatch.setattr(os, "replace", lambda *paths: (names.append(paths), replace(*paths)))
    (tmp_path / "a").unlink()
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE")
    held.restore()
    assert (tmp_path / "a").read_bytes() == b"some"
    assert len(names) == (0 if nameless else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
