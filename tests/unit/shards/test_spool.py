"""Temporary files of shards."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from streamer.shards.spool import spooled, sweep_other_jobs


def test_what_a_killed_task_has_left_is_removed(tmp_path: Path) -> None:
    """Not what another task writes, nor a receipt that the local store is just writing beside it."""
    (tmp_path / "000001-dead.spool").write_bytes(b"half a shard")
    (tmp_path / "000002.json.4711.part").write_bytes(b"half a receipt")
    with spooled(tmp_path, 3) as other, spooled(tmp_path, 4) as path:
        assert {p.name for p in tmp_path.iterdir()} == {other.name, path.name, "000002.json.4711.part"}
    assert [p.name for p in tmp_path.iterdir()] == ["000002.json.4711.part"]


def test_what_packs_of_other_jobs_have_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed pack of a bucket left a shard for each process in /tmp until the same pack was run again, if ever."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, running, waiting = (tmp_path / f"streamer-pack-{name}" for name in ("killed", "running", "waiting"))
    for folder in (killed, running, waiting):
        (folder / "rules").mkdir(parents=True)
    (killed / "000001-dead.spool").write_bytes(b"half a shard")
    (tmp_path / "other").mkdir()
    with spooled(running, 0) as held:
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
    """Between its creation and its lock another task may sweep; the file that is written is there to the end."""
    lost = []

    def write(number: int) -> None:
        for _ in range(150):
            with spooled(tmp_path, number) as path:
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
