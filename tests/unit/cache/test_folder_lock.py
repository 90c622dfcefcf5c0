"""One engine per cache folder: real locks of the kernel, held in this process and by another user's process."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from streamer.cache.folder import LOCK_NAME, MARKER, open_folder
from streamer.cache.folder_guard import take_locks
from streamer.errors import CacheError


@contextmanager
def _flock(path: Path) -> Iterator[None]:
    """Locks the folder itself, as versions up to 0.2 do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def test_a_second_engine_is_kept_out(tmp_path: Path) -> None:
    """A second engine gets no lock on a cache folder until the first one ends; the lock file has mode 0600."""
    with ExitStack() as first:
        assert take_locks(tmp_path, first)
        assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o600
        open_folder(tmp_path)
        with ExitStack() as second:
            assert take_locks(tmp_path, second) is None
    with ExitStack() as second:
        assert take_locks(tmp_path, second)


def test_engines_of_earlier_versions_exclude_and_are_excluded(tmp_path: Path) -> None:
    """An engine and one of a version up to 0.2, which locks the folder itself, exclude each other."""
    open_folder(tmp_path)
    with ExitStack() as ours:
        with _flock(tmp_path):
            assert take_locks(tmp_path, ours) is None
        assert take_locks(tmp_path, ours)
        with pytest.raises(BlockingIOError), _flock(tmp_path):
            pytest.fail("both have the folder")


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
def test_a_reader_keeps_no_engine_out(tmp_path: Path) -> None:
    """A reader of another user who locks the folder keeps no engine out, because it cannot open the lock file."""
    open_folder(tmp_path)
    program = (
        "import fcntl, os, sys; fcntl.flock(3, fcntl.LOCK_EX); os.setuid(65534); "
        "print('held', flush=True); sys.stdin.read()"
    )
    folder = os.open(tmp_path, os.O_RDONLY)
    with subprocess.Popen(
        [sys.executable, "-c", program.replace("flock(3", f"flock({folder}")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[folder],
    ) as reader:
        os.close(folder)
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == b"held\n"
        with ExitStack() as ours, ExitStack() as second:
            assert take_locks(tmp_path, ours)
            assert take_locks(tmp_path, second) is None
        reader.stdin.close()


@pytest.mark.parametrize("kind", ["link", "pipe", "open to all"])
def test_another_thing_in_the_place_of_the_lock_is_refused(tmp_path: Path, kind: str) -> None:
    """A link, pipe or file open to all in place of the lock file is refused, neither followed nor waited for."""
    open_folder(tmp_path)
    if kind == "link":
        (tmp_path / LOCK_NAME).symlink_to(tmp_path / MARKER)
    elif kind == "pipe":
        os.mkfifo(tmp_path / LOCK_NAME, 0o600)
    else:
        (tmp_path / LOCK_NAME).touch(0o644)
    with ExitStack() as ours, pytest.raises(CacheError, match=LOCK_NAME):
        take_locks(tmp_path, ours)


def test_nothing_is_written_into_a_folder_that_is_no_cache(tmp_path: Path) -> None:
    """Taking the locks writes nothing into a folder that is not a cache."""
    (tmp_path / "photos").mkdir()
    with ExitStack() as ours:
        assert take_locks(tmp_path, ours)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
