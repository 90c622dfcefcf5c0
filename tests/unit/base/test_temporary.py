"""Temporary folders of runs, of which killed ones have left some: real folders, locks and kills."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamer.base.temporary import open_temporary_folder


@pytest.mark.process
def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock on the folder tells whether its run goes on, however long nothing in it has changed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os\n"
        "from streamer.base.temporary import open_temporary_folder\n"
        "with open_temporary_folder('pack'):\n"
        "    os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], check=False, env=environment).returncode == -9
    (killed,) = tmp_path.iterdir()
    with open_temporary_folder("index") as running:
        assert not killed.exists()
        (running / "manifest").write_text("kept")
        os.utime(running, (0, 0))
        with open_temporary_folder("verify") as other:
            assert sorted(tmp_path.iterdir()) == [running, other]
        assert (running / "manifest").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_locks_no_folders_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS locks only what is open for writing: a run goes on without a lock, and no other one removes its folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refuse(file: object, how: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with open_temporary_folder("pack") as running, open_temporary_folder("pack") as other:
        assert sorted(tmp_path.iterdir()) == sorted([running, other])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_run_took_at_once_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is opened, and before it is locked, no lock tells another run that it is in use."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken: list[str] = []

    def take_first(call: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
        def take(*arguments: Any, **options: Any) -> Any:
            made = call(*arguments, **options) if after else None
            if len(taken) < 1 + (not after):
                for folder in tmp_path.iterdir():
                    folder.rmdir()
                    taken.append(folder.name)
            return made if after else call(*arguments, **options)

        return take

    monkeypatch.setattr(tempfile, "mkdtemp", take_first(tempfile.mkdtemp, after=True))
    monkeypatch.setattr(fcntl, "flock", take_first(fcntl.flock, after=False))
    with open_temporary_folder("pack") as running:
        assert list(tmp_path.iterdir()) == [running]
    assert len(taken) == 2
