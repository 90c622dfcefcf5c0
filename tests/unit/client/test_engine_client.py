"""The engine's client with a real engine process: its descriptor, its errors, and forks of its process."""

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamer.client import launcher
from streamer.client.engine_client import EngineClient
from streamer.client.pending_requests import ManifestAsk
from streamer.client.settings import ClientSettings
from streamer.errors import ClosedError, ConfigError, EngineUnavailableError, ObjectNotFoundError
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule


@pytest.fixture
def client(tmp_path):
    """A client whose engine has a cache of 8 MiB in a folder of the test."""
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=8 << 20, grace_seconds=0.1
    )
    with EngineClient(settings) as made:
        yield made


@pytest.mark.process
def test_the_descriptor_to_watch_outlives_the_engine(client):
    """The client's descriptor becomes readable when the engine dies, and stays the same for the next engine."""
    watched = client.fileno()
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    for _ in range(2):
        os.kill(client._connect().welcome.pid, signal.SIGKILL)
        assert poll.poll(60_000)
        client.pump(0.0)
        assert client.fileno() == watched
        assert not poll.poll(0)
        assert client.statistics()["needs"] == 0


@pytest.mark.process
def test_a_closed_client_says_so(client):
    """A client that is used after it was closed raises ClosedError; closing it twice is no error."""
    client.statistics()
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.statistics()


@pytest.mark.process
def test_several_manifests_are_asked_for_together(client, tmp_path):
    """Manifests asked for together come in order, even if the engine dies; a missing one is an error in its turn."""
    folders = [tmp_path / f"data{number:02}" for number in range(20)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "a.bin").write_bytes(bytes([number]) * 100)
    asks = [ManifestAsk(GetManifest(0, [str(folder)], "auto")) for folder in (*folders, tmp_path / "missing")]
    found = client.manifests(asks)
    first = [Manifest.open(next(found)).object(0).url for _ in range(3)]
    os.kill(client.welcome.pid, signal.SIGKILL)
    rest = [Manifest.open(next(found)).object(0).url for _ in folders[3:]]
    assert [Path(url.removeprefix("file://")).parent for url in first + rest] == folders
    with pytest.raises(ObjectNotFoundError, match="missing"):
        next(found)


def test_options_that_cannot_travel_are_a_config_error(tmp_path):
    """A storage option that is an object is refused before an engine is started."""
    settings = ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path, storage_options={"session": object()})
    with pytest.raises(ConfigError, match="plain values"):
        settings.encode_options()


def test_secrets_are_not_in_the_repr(tmp_path):
    """The repr of client settings does not show storage options, as settings are printed in logs and tracebacks."""
    settings = ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path, storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(settings)


@pytest.mark.process
def test_a_selector_notices_that_the_peer_closed(client):
    """A client that was shut down wakes its selector once and raises ClosedError to its user."""
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    client.shut_down()
    client.shut_down()
    assert poll.poll(60_000)
    with pytest.raises(ClosedError):
        client.pump(0.0)
    assert not poll.poll(0)
    with pytest.raises(ClosedError):
        client.fileno()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_engine_starts_while_somebody_forks(client, monkeypatch):
    """An engine starts while another thread forks: a child that lives on holds no pipe or lock of the start."""
    begun, children, start = threading.Event(), [], subprocess.Popen

    def slow(*arguments: object, **options: object) -> object:
        process = start(*arguments, **options)
        begun.set()
        time.sleep(0.3)
        return process

    def fork() -> None:
        assert begun.wait(20)
        if (child := os.fork()) == 0:
            signal.pause()
        children.append(child)

    monkeypatch.setattr("streamer.client.launcher.subprocess.Popen", slow)
    forking = threading.Thread(target=fork)
    forking.start()
    try:
        os.kill(client._connect().welcome.pid, signal.SIGKILL)
        forking.join()
        assert client.statistics()["needs"] == 0
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.process
def test_another_limit_than_the_running_engines_is_said_once(client, tmp_path, caplog):
    """A cache limit that differs from that of the running engine is logged once a process, with both limits."""
    client.statistics()
    other = replace(client.settings, cache_bytes=32 << 20)
    for _ in range(2):
        with EngineClient(other) as second:
            second.statistics()
    lines = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(lines) == 1
    assert f"cache_bytes={32 << 20} (33.6 MB) is not used" in lines[0]
    assert str(tmp_path / "cache") in lines[0]
    assert "limit of 8.4 MB" in lines[0]
    with EngineClient(replace(client.settings, cache_bytes=None)) as third:
        third.statistics()
    assert "None" not in caplog.text


@pytest.mark.process
def test_a_cache_folder_that_is_removed_is_mended_under_its_readers(client, tmp_path, caplog):
    """A cache folder removed under its readers is made again: sessions and manifest go on, one line is logged."""
    (tmp_path / "data").mkdir()
    for number in range(8):
        (tmp_path / "data" / f"{number}.bin").write_bytes(bytes([number]) * 100_000)
    made = client.manifest(GetManifest(0, [str(tmp_path / "data")], "auto", chunk_bytes=200_000))
    manifest = Manifest.open(made)
    with EngineClient(client.settings) as second:
        sessions = [reading(one, manifest) for one in (client, second)]
        for session in sessions:
            session.wait(0, 60)
        shutil.rmtree((tmp_path / "cache").rename(tmp_path / "gone"))
        with EngineClient(client.settings) as third:
            assert third.roots()[0] == tmp_path / "cache"
        for session in sessions:
            session.reject(0, "missing")
            session.wait(manifest.chunks - 1, 60)
        assert Manifest.open(made).digest == manifest.digest
        keys = {key.tobytes().hex() for key in manifest.chunk_keys}
        assert {path.stem for path in (tmp_path / "cache").glob("chunks/*/*.chunk")} == keys
        for session in sessions:
            session.close()
    lines = [
        record.getMessage() for record in caplog.records if "was removed by another program" in record.getMessage()
    ]
    assert len(lines) == 1


def reading(client, manifest):
    """Opens a session that needs every chunk until its end."""
    session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer="rank 0"))
    first = np.arange(manifest.chunks, dtype=np.int64)
    session.extend(EpochSchedule(0, first.astype(np.uint32), first, np.full(manifest.chunks, manifest.chunks - 1)))
    return session


def test_an_engine_that_is_waited_for_is_said_once(tmp_path, caplog, monkeypatch):
    """Waiting for a service that is down is logged once, and is an error after the time that the line names."""
    monkeypatch.setattr(launcher, "_QUIET_SECONDS", 0.3)
    settings = ClientSettings(
        cache_dir=tmp_path, runtime_dir=tmp_path, engine=f"unix:{tmp_path}/engine.sock", connect_seconds=1.0
    )
    with pytest.raises(EngineUnavailableError, match="after 1 s"):
        EngineClient(settings).statistics()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert lines[0].startswith(f"waiting for the engine at {tmp_path}/engine.sock, which has not answered for 0.")
    assert lines[0].endswith("After 1 s this is an error")
