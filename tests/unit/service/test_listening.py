"""The sockets of an engine in the runtime folder and the cache folder, on a real file system."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from streamer.cache.folder import ROOT_ID
from streamer.config import CACHE_SOCKET_NAME, CacheConfig, EngineConfig, ServiceConfig
from streamer.errors import ConfigError
from streamer.service import listening
from streamer.service.listening import listen


def _config(folder: Path, grace_seconds: float | None = 3.0) -> EngineConfig:
    """Makes the configuration of an engine whose folders are the test's."""
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    path = folder / "runtime" / "engine.sock"
    return EngineConfig(cache=CacheConfig(directory=cache), socket_path=path, grace_seconds=grace_seconds)


def _answers(path: Path) -> bool:
    """Returns whether a process listens at the path."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except OSError:
        return False
    return True


def _wait_for(path: Path) -> None:
    """Waits until a process listens at the path."""
    while not _answers(path):
        time.sleep(0.01)


@pytest.mark.process
async def test_an_embedded_engine_listens_in_its_cache_folder_too(tmp_path: Path) -> None:
    """An engine of a trainer listens in its cache folder too, for jobs with their own /tmp; a service does not."""
    config = _config(tmp_path)
    second = config.cache.directory / CACHE_SOCKET_NAME
    async with listen(config, asyncio.Protocol) as listeners:
        assert (_answers(tmp_path / "runtime/engine.sock"), _answers(second)) == (True, True)
        assert len(listeners.descriptors()) == 2
        assert second.stat().st_mode & 0o777 == 0o600
    assert not second.exists()
    assert not (tmp_path / "runtime/engine.sock").exists()
    async with listen(_config(tmp_path, None), asyncio.Protocol):
        assert not second.exists()


@pytest.mark.process
async def test_a_removed_socket_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that was removed with the runtime folder, as by a cleaner of temporary files, is made again."""
    monkeypatch.setattr("streamer.service.listening._LOOK_SECONDS", 0.01)
    config = _config(tmp_path)
    async with listen(config, asyncio.Protocol) as listeners:
        watching = asyncio.create_task(listeners.watch())
        shutil.rmtree(tmp_path / "runtime")
        async with asyncio.timeout(20):
            await asyncio.to_thread(_wait_for, tmp_path / "runtime/engine.sock")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert list((tmp_path / "runtime").iterdir()) == []


@pytest.mark.process
async def test_a_socket_in_the_cache_folder_is_made_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed socket in the cache folder is made again once the folder is there, and is this engine's."""
    monkeypatch.setattr("streamer.service.listening._LOOK_SECONDS", 0.01)
    config = _config(tmp_path)
    cache = config.cache.directory
    (cache / ROOT_ID).write_text("ours\n")
    async with listen(config, asyncio.Protocol) as listeners:
        watching = asyncio.create_task(listeners.watch())
        cache.rename(tmp_path / "away")
        await asyncio.sleep(0.1)
        assert not cache.exists()
        cache.mkdir()
        (cache / ROOT_ID).write_text("another\n")
        await asyncio.sleep(0.1)
        assert not (cache / CACHE_SOCKET_NAME).exists()
        (cache / ROOT_ID).write_text("ours\n")
        async with asyncio.timeout(20):
            await asyncio.to_thread(_wait_for, cache / CACHE_SOCKET_NAME)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert [path.name for path in cache.iterdir()] == [ROOT_ID]


@pytest.mark.process
async def test_a_socket_of_another_engine_stays(tmp_path: Path) -> None:
    """An engine that ends leaves the socket of another engine, or another file, that has taken its name."""
    config = _config(tmp_path)
    async with listen(config, asyncio.Protocol):
        async with listen(config, asyncio.Protocol):
            pass
        async with listen(config, asyncio.Protocol):
            (tmp_path / "runtime/engine.sock").unlink()
            (tmp_path / "runtime/engine.sock").touch()
    assert (tmp_path / "runtime/engine.sock").exists()


@pytest.mark.process
async def test_a_path_that_cannot_be_bound(tmp_path: Path) -> None:
    """A path that cannot be bound is a ConfigError; if it is the cache folder's, the engine serves without it."""
    config = _config(tmp_path)
    (config.cache.directory / CACHE_SOCKET_NAME).mkdir()
    async with listen(config, asyncio.Protocol) as listeners:
        assert len(listeners.descriptors()) == 1
    assert list((tmp_path / "runtime").iterdir()) == []
    (tmp_path / "runtime/engine.sock").mkdir()
    with pytest.raises(ConfigError, match="cannot listen at"):
        async with listen(config, asyncio.Protocol):
            pass
    assert [path.name for path in (tmp_path / "runtime").iterdir()] == ["engine.sock"]


@pytest.mark.process
async def test_a_group_that_is_removed_from_the_machine_ends_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A removed socket whose group is gone is reported once, open sockets stay, and it is made again with the group."""
    monkeypatch.setattr("streamer.service.listening._LOOK_SECONDS", 0.01)
    cache = CacheConfig(directory=_config(tmp_path).cache.directory, group=str(os.getgid()))
    config = EngineConfig(cache=cache, socket_path=tmp_path / "runtime/engine.sock", grace_seconds=None)
    tried = asyncio.Event()

    def refuse(group: str) -> int:
        if caplog.messages:
            tried.set()
        raise ConfigError(f"group={group!r} does not exist on this machine", field="group")

    async with listen(config, asyncio.Protocol) as listeners:
        watching = asyncio.create_task(listeners.watch())
        with monkeypatch.context() as gone:
            gone.setattr(listening, "group_id", refuse)
            (tmp_path / "runtime/engine.sock").unlink()
            async with asyncio.timeout(20):
                await tried.wait()
        assert [message for message in caplog.messages if "cannot be made again: group=" in message] == caplog.messages
        assert len(caplog.messages) == 1
        async with asyncio.timeout(20):
            await asyncio.to_thread(_wait_for, tmp_path / "runtime/engine.sock")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.process
async def test_who_may_connect_changes_with_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rights of the sockets' files follow a configuration that is read again; one that is refused changes none."""
    config = _config(tmp_path)
    paths = [tmp_path / "runtime/engine.sock", config.cache.directory / CACHE_SOCKET_NAME]

    def modes() -> list[int]:
        return [path.stat().st_mode & 0o777 for path in paths]

    async with listen(config, asyncio.Protocol) as listeners:
        assert modes() == [0o600, 0o600]
        group = replace(config, cache=replace(config.cache, group=str(os.getgid())))
        listeners.reload(group)
        assert modes() == [0o660, 0o660]
        listeners.reload(replace(group, service=ServiceConfig(allow_uids=(4711,))))
        assert modes() == [0o666, 0o666]

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(listening.os, "chown", refuse)
        with pytest.raises(ConfigError, match="Operation not permitted"):
            listeners.reload(group)
        assert modes() == [0o666, 0o666]
        paths[0].unlink()
        listeners.reload(config)
        await listeners._main.open_again()
        assert modes() == [0o600, 0o600]


@pytest.mark.process
async def test_a_socket_that_cannot_be_removed_leaves_no_other(tmp_path: Path) -> None:
    """If the file of one socket cannot be removed, which is an error, the other socket is closed and removed still."""
    config = _config(tmp_path)
    second = config.cache.directory / CACHE_SOCKET_NAME
    opened = listen(config, asyncio.Protocol)
    await opened.__aenter__()
    shutil.rmtree(tmp_path / "runtime")
    (tmp_path / "runtime").touch()
    with pytest.raises(NotADirectoryError):
        await opened.__aexit__(None, None, None)
    assert not second.exists()
