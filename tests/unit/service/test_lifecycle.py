"""The lock of a cache folder, held by a real process, and errors at the end of a service."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.errors import CacheError
from streamer.service import lifecycle
from streamer.service.lifecycle import EngineService, _only_engine

HOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[bytes]:
    """Starts a process that has the lock until its stdin or the process ends."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


@pytest.mark.process
def test_the_lock_is_ours_when_the_other_engine_is_killed(tmp_path: Path) -> None:
    """The lock of a cache folder is waited for and taken when the process that holds it is killed."""
    with hold(tmp_path) as holder:
        holder.kill()
        with _only_engine(tmp_path, 60.0):
            other = os.open(tmp_path, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(other)


@pytest.mark.process
def test_a_folder_in_use_is_refused_in_time(tmp_path: Path) -> None:
    """A cache folder whose lock stays held is refused in time by an error that says it is in use by another engine."""
    with hold(tmp_path) as holder:
        with pytest.raises(CacheError, match="in use by another engine"), _only_engine(tmp_path, 0.05):
            pass
        holder.kill()


async def test_an_error_of_the_drain_ends_the_service(tmp_path: Path) -> None:
    """An error while the engine drains ends the service with that error; it was dropped."""

    async def fail(seconds: float) -> None:
        raise CacheError("the disk is gone")

    config = EngineConfig(cache=CacheConfig(directory=tmp_path), grace_seconds=None)
    service = EngineService(config, lambda: None)
    engine = SimpleNamespace(drain=fail)
    server = SimpleNamespace(finish=lambda seconds: asyncio.sleep(0))
    with pytest.raises(ExceptionGroup) as caught:
        await service._drain(engine, server)  # type: ignore[arg-type]
    assert isinstance(caught.value.exceptions[0], CacheError)


async def test_a_secret_that_a_new_configuration_names_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of secrets that a reloaded configuration names is watched from then on; its revoked keys stayed in use."""
    monkeypatch.setattr(lifecycle, "LOOK_SECONDS", 0.01)
    first, second = tmp_path / "first", tmp_path / "second"
    second.write_text("old")
    config = EngineConfig(cache=CacheConfig(directory=tmp_path), secret_files=(first,))
    named = replace(config, secret_files=(first, second))
    reloads = asyncio.Queue[str]()

    async def reload(config: EngineConfig) -> None:
        reloads.put_nowait(second.read_text())

    service = EngineService(config, lambda: None, configure=lambda: named)
    engine = SimpleNamespace(reload=reload, cache=SimpleNamespace(limit_bytes=1))
    server = SimpleNamespace(reload=lambda config, admission: None)
    watches = [
        asyncio.create_task(service._reload_on_signal(engine, server)),  # type: ignore[arg-type]
        asyncio.create_task(service._reload_on_new_secrets()),
    ]
    async with asyncio.timeout(10):
        await asyncio.sleep(0.05)
        service._reload.set()
        assert await reloads.get() == "old"
        await asyncio.sleep(0.05)
        assert reloads.empty()
        second.write_text("another")
        assert await reloads.get() == "another"
        first.write_text("as before")
        await reloads.get()
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
