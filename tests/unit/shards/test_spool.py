"""Temporary files of packs, of which killed processes have left some: real files, locks and kills."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamer.errors import PackError
from streamer.shards.spool import open_spool, spool_folder, sweep_other_jobs


def test_what_a_killed_task_has_left_is_removed(tmp_path: Path) -> None:
    """The next task removes the spool file of a killed one, and neither one that is written nor a receipt."""
    (tmp_path / "000001-dead.spool").write_bytes(b"half a shard")
    (tmp_path / "000002.json.4711.part").write_bytes(b"half a receipt")
    with open_spool(tmp_path, 3) as other, open_spool(tmp_path, 4) as path:
        assert {p.name for p in tmp_path.iterdir()} == {other.name, path.name, "000002.json.4711.part"}
    assert [p.name for p in tmp_path.iterdir()] == ["000002.json.4711.part"]


def test_what_packs_of_other_jobs_have_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack removes spool files and old folders that killed packs of other jobs left in /tmp.
    (They stayed until the same pack was run again, if ever.)"""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, running, waiting = (tmp_path / f"streamer-pack-{name}" for name in ("killed", "running", "waiting"))
    for folder in (killed, running, waiting):
        folder.mkdir(mode=0o700)
        (folder / "rules").mkdir()
    (killed / "000001-dead.spool").write_bytes(b"half a shard")
    (tmp_path / "other").mkdir()
    with open_spool(running, 0) as held:
        for folder in (killed, running, tmp_path / "other"):
            os.utime(folder, (0, 0))
        sweep_other_jobs()
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == ["other", "streamer-pack-killed", "streamer-pack-running", "streamer-pack-waiting"]
        assert [path.name for path in killed.iterdir()] == ["rules"]  # a moment ago there was a file
        os.utime(killed, (0, 0))
        sweep_other_jobs()
        assert sorted(path.name for path in tmp_path.iterdir()) == [*left[:1], *left[2:]]
        assert held.exists()


def test_a_sweep_takes_no_file_that_is_just_made(tmp_path: Path) -> None:
    """A sweep by another task never removes a spool file between its creation and its lock."""
    lost = []

    def write(number: int) -> None:
        for _ in range(150):
            with open_spool(tmp_path, number) as path:
                path.write_bytes(b"shard")
                if not path.exists():
                    lost.append(path)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert list(tmp_path.iterdir()) == []


def _job(url: str = "s3://b/x/") -> Any:
    return SimpleNamespace(url=url, id="a1b2", folder=".streamer/pack/a1b2/")


def test_the_folder_of_uploads_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of one job share a private spool folder, and one that other users may read is not used."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = spool_folder(_job())
    assert folder.parent == tmp_path
    assert spool_folder(_job()) == folder
    with open_spool(folder, 0) as path:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.parent == folder
    folder.chmod(0o755)
    with pytest.raises(PackError, match="is not private"), open_spool(folder, 0):
        pytest.fail("it was written")
    assert spool_folder(_job()) != folder


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
def test_what_other_users_put_there_is_neither_used_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of another user with the job's name is not used, and a pipe in place of a file is not waited for."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = [tmp_path / f"streamer-pack-{name}" for name in ("a1b2", "a1b2-0", "evil")]
    for folder in theirs:
        folder.mkdir(mode=0o755)
        os.mkfifo(folder / "x.spool", 0o644)
        os.chown(folder / "x.spool", 65534, 65534)
        os.chown(folder, 65534, 65534)
    os.symlink(theirs[0], tmp_path / "streamer-pack-a1b2-00")
    sweep_other_jobs()
    mine = spool_folder(_job())
    assert mine not in theirs
    os.mkfifo(mine / "y.spool")
    with open_spool(mine, 1) as path:
        assert path.parent == mine
    assert all((folder / "x.spool").exists() for folder in theirs)
