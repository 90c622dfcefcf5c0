"""What the runtime folder keeps of engines that have ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

from streamer.client import launcher
from streamer.client.runtime_folder import LOG_SECONDS, remove_old_logs
from streamer.client.settings import ClientSettings


def test_logs_go_after_a_week(tmp_path: Path) -> None:
    """Of embedded engines that have ended; other files of the folder stay."""
    old, new, other = (tmp_path / name for name in ("0123456789ab.log", "ba9876543210.log", "mine.log"))
    for path in (old, new, other):
        path.write_text("x")
    past = time.time() - LOG_SECONDS - 60
    for path in (old, other):
        os.utime(path, (past, past))
    remove_old_logs(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])


def test_the_lock_of_a_start_leaves_no_file(tmp_path: Path) -> None:
    """It is removed while it is held: who waited for it locks the file that is there then."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)
    with launcher._spawn_lock(settings):
        assert [path.name for path in tmp_path.iterdir()] == [f"{settings.engine_id}.spawn.lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path, monkeypatch) -> None:
    """The holder removed the file between the opening and the lock of another one: that one opens the new file."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)
    path = tmp_path / f"{settings.engine_id}.spawn.lock"
    lock, first = launcher.fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not first:
            first.append(descriptor)
            path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(launcher.fcntl, "flock", flock)
    with launcher._spawn_lock(settings):
        assert path.exists()
    assert list(tmp_path.iterdir()) == []
