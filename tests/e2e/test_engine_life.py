"""Engine processes and their clients: one engine per folder, ended by the last connection, replaced when killed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import CacheConfig, EngineConfig
from streamer.errors import (
    CacheError,
    CacheVersionError,
    ConfigError,
    EngineUnavailableError,
    ManifestError,
    ProtocolVersionError,
    StoreError,
)
from streamer.manifest.table import Manifest
from streamer.service.lifecycle import EngineService
from streamer.wire.frames import encode, event_decoder
from streamer.wire.messages import PROTOCOL, Advance, Failed, GetManifest, GetStatistics, Hello, OpenSession, Welcome
from streamer.wire.schedule import EpochSchedule


@pytest.fixture
def settings(tmp_path) -> ClientSettings:
    return ClientSettings(
        cache_dir=tmp_path / "cache",
        runtime_dir=tmp_path / "run",
        cache_bytes=64 << 20,
        grace_seconds=0.2,
        connect_seconds=60,
    )


@pytest.fixture
def data(tmp_path) -> Path:
    random = np.random.default_rng(5)
    for number in range(40):
        path = tmp_path / "data" / "a" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(100_000))
    return tmp_path / "data"


def engine_pid(client: EngineClient) -> int:
    return client._connect().welcome.pid


def wait_gone(pid: int, seconds: float = 60.0) -> None:
    """Waits for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], seconds)[0], f"process {pid} is still there after {seconds} s"
    finally:
        os.close(handle)


def test_four_ranks_and_a_stale_socket_make_one_engine(settings):
    """Four ranks that start at once share one engine, although none was there and a stale socket file was."""
    settings.runtime_dir.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(settings.socket_path))
    dead.close()
    program = (
        "import sys; from pathlib import Path\n"
        "from streamer.client.engine_client import EngineClient\n"
        "from streamer.client.settings import ClientSettings\n"
        f"settings = ClientSettings(cache_dir=Path({str(settings.cache_dir)!r}),"
        f" runtime_dir=Path({str(settings.runtime_dir)!r}), cache_bytes=64 << 20, grace_seconds=0.2)\n"
        "client = EngineClient(settings)\n"
        "print(client._connect().welcome.pid, flush=True)\n"
        "sys.stdin.read(); client.close()\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    pids = {int(rank.stdout.readline()) for rank in ranks}
    for rank in ranks:
        rank.communicate(timeout=240)
        assert rank.returncode == 0
    assert len(pids) == 1
    wait_gone(pids.pop())
    assert not settings.socket_path.exists()


def test_a_killed_engine_is_replaced_and_its_chunks_are_found(settings, data):
    """A session goes on when its engine is killed, and the next engine does not fetch published chunks again."""
    with EngineClient(settings) as client:
        manifest = Manifest.open(client.manifest(GetManifest(0, [str(data)], "auto")))
        session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer="rank 0"))
        steps = np.arange(manifest.chunks, dtype=np.int64)
        session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))
        half = manifest.chunks // 2
        session.wait(half, 60)
        killed = engine_pid(client)
        os.kill(killed, signal.SIGKILL)
        wait_gone(killed)
        session.done(half)
        session.wait(manifest.chunks - 1, 20)
        assert engine_pid(client) != killed
        counts = client.statistics()
        assert counts["store_bytes"] < manifest.total_bytes
        assert counts["kept_chunks"] == manifest.chunks
        last = engine_pid(client)
    wait_gone(last)


def cpu_seconds(pid: int) -> float:
    """Returns user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_engine_with_nothing_to_do_does_nothing(settings, data):
    """An engine whose chunks are all local and held uses hardly any CPU in a second (2026-11-20: the scrub spun)."""
    with EngineClient(settings) as client:
        manifest = Manifest.open(client.manifest(GetManifest(0, [str(data)], "auto")))
        session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer="rank 0"))
        steps = np.zeros(manifest.chunks, np.int64)
        session.extend(EpochSchedule(0, np.arange(manifest.chunks, dtype=np.uint32), steps, steps))
        session.wait(0, 60)
        last = engine_pid(client)
        before = cpu_seconds(last)
        client.pump(1.0)
        assert cpu_seconds(last) - before < 0.5
    wait_gone(last)


def test_a_killed_rank_leaves_no_lease_and_no_process(settings, data):
    """A killed client's sessions end with its connection, and the engine leaves after its grace time."""
    program = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from streamer.client.engine_client import EngineClient\n"
        "from streamer.wire.schedule import EpochSchedule\n"
        "from streamer.client.settings import ClientSettings\n"
        "from streamer.manifest.table import Manifest\n"
        "from streamer.wire.messages import GetManifest, OpenSession\n"
        f"client = EngineClient(ClientSettings(cache_dir=Path({str(settings.cache_dir)!r}),"
        f" runtime_dir=Path({str(settings.runtime_dir)!r}), cache_bytes=64 << 20, grace_seconds=0.2))\n"
        f"manifest = Manifest.open(client.manifest(GetManifest(0, [{str(data)!r}], 'auto')))\n"
        "session = client.open_session(OpenSession(0, '', dataset=manifest.digest, consumer='rank 7'))\n"
        "steps = np.arange(manifest.chunks)\n"
        "session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))\n"
        "session.wait(2, 60)\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    rank = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert rank.stdout.readline() == b"ready\n"
    with EngineClient(settings) as client:
        assert [s["consumer"] for s in client.statistics()["sessions"]] == ["rank 7"]
        rank.kill()
        rank.communicate(timeout=240)
        deadline = time.monotonic() + 60
        while client.statistics()["sessions"]:
            assert time.monotonic() < deadline
        assert client.statistics()["open_bytes"] == 0
        last = engine_pid(client)
    wait_gone(last)
    assert not settings.socket_path.exists()


def test_a_client_that_forks_does_not_share_its_socket(settings):
    """The child of a fork speaks to the engine on a connection of its own, and the parent's connection still works."""
    with EngineClient(settings) as client:
        first = client.statistics()
        child = os.fork()
        if child == 0:
            fine = client.statistics().keys() == first.keys()
            client.close()
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.statistics().keys() == first.keys()
        last = engine_pid(client)
    wait_gone(last)


# ---------------------------------------------------------------- what cannot work says so


def test_an_unwritable_cache_folder_is_a_cache_error(settings, tmp_path):
    """An engine that cannot make its cache folder gives its client a CacheError.

    A file is in the way, which stops root, too.
    """
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CacheError, match="cache"):
        EngineClient(settings).statistics()


def test_a_cache_folder_of_another_version_is_refused(settings):
    """A cache folder of another version raises CacheVersionError, and its marker is not changed."""
    with EngineClient(settings) as client:
        client.statistics()
        last = engine_pid(client)
    wait_gone(last)
    marker = settings.cache_dir / "streamer-cache"
    marker.write_text("streamer cache 9999")
    with pytest.raises(CacheVersionError, match="9999"):
        EngineClient(settings).statistics()
    assert marker.read_text() == "streamer cache 9999"


def test_no_engine_at_a_given_socket_says_what_to_check(settings, tmp_path):
    """With STREAMER_ENGINE a client starts no engine, and the error names the variable if none is at the socket."""
    external = ClientSettings(
        cache_dir=settings.cache_dir,
        runtime_dir=settings.runtime_dir,
        engine=f"unix:{tmp_path}/nobody.sock",
        connect_seconds=0.3,
    )
    with pytest.raises(EngineUnavailableError, match="STREAMER_ENGINE"):
        EngineClient(external).statistics()
    assert not settings.cache_dir.exists()


@pytest.mark.parametrize("engine", ["tcp:localhost:80", "unix:relative", "unix:/" + "x" * 200])
def test_an_engine_address_that_cannot_be_is_a_config_error(settings, engine):
    """An engine address that is no unix socket, is relative or is too long for the kernel raises ConfigError."""
    external = ClientSettings(cache_dir=settings.cache_dir, runtime_dir=settings.runtime_dir, engine=engine)
    with pytest.raises(ConfigError, match=r"engine='|the socket path /x"):
        EngineClient(external).statistics()


def test_the_longest_socket_path_that_the_kernel_takes_serves(settings, tmp_path):
    """An engine serves on a socket path of all 107 bytes: the name under which it binds is no longer than that."""
    folder = tmp_path / ("r" * (107 - len(f"{tmp_path}//{settings.engine_id}.sock")))
    longest = dataclasses.replace(settings, runtime_dir=folder)
    assert len(os.fsencode(longest.socket_path)) == 107
    with EngineClient(longest) as client:
        last = engine_pid(client)
    wait_gone(last)
    assert not longest.socket_path.exists()


def test_a_service_refuses_a_socket_path_that_is_too_long(settings):
    """A service refuses a socket path of over 107 bytes with a ConfigError, because no client could connect to it."""
    config = EngineConfig(cache=CacheConfig(directory=settings.cache_dir), socket_path=Path("/" + "x" * 107))
    with pytest.raises(ConfigError, match="has 108 bytes, the kernel takes 107"):
        asyncio.run(EngineService(config, lambda: None).run())


def test_an_empty_prefix_is_a_manifest_error(settings, tmp_path):
    """A prefix without objects raises a ManifestError that names the prefix."""
    (tmp_path / "empty").mkdir()
    with EngineClient(settings) as client:
        with pytest.raises(ManifestError, match="empty"):
            client.manifest(GetManifest(0, [str(tmp_path / "empty")], "auto"))
        last = engine_pid(client)
    wait_gone(last)


def test_the_file_of_a_trainer_sets_how_long_a_store_is_waited_for(settings, tmp_path, monkeypatch, unused_tcp_port):
    """The file that STREAMER_CONFIG names sets how long an engine waits for a store; a misspelt setting is refused.

    A relative path counts from the trainer's folder; the default is a minute.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMER_CONFIG", "streamer.toml")
    Path("streamer.toml").write_text("[fetch]\noutage_seconds = 0.2\n")
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{unused_tcp_port}"}
    file = ClientSettings.from_environment().config
    with EngineClient(dataclasses.replace(settings, storage_options=options, config=file)) as client:
        with pytest.raises(StoreError, match="larger outage_seconds in the file") as caught:
            client.manifest(GetManifest(0, ["s3://bucket/train/"], "auto"))
        last = engine_pid(client)
    assert float(caught.value.details["elapsed_seconds"]) < 30
    wait_gone(last)
    Path("streamer.toml").write_text("[fetch]\noutage = 5\n")
    with pytest.raises(ConfigError, match="has no setting 'outage'"):
        EngineClient(dataclasses.replace(settings, config=file)).statistics()


def test_an_engine_ends_while_it_waits_for_a_store(settings, unused_tcp_port):
    """An engine whose last client goes away while it lists ends, and does not wait for the store any longer."""
    program = (
        "from pathlib import Path\n"
        "from streamer.client.engine_client import EngineClient\n"
        "from streamer.client.settings import ClientSettings\n"
        "from streamer.wire.messages import GetManifest, OpenSession\n"
        f"options = {{'key': 'k', 'secret': 's', 'endpoint_url': 'http://127.0.0.1:{unused_tcp_port}'}}\n"
        f"settings = ClientSettings(cache_dir=Path({str(settings.cache_dir)!r}), storage_options=options,"
        f" runtime_dir=Path({str(settings.runtime_dir)!r}), cache_bytes=64 << 20, grace_seconds=0.2)\n"
        "client = EngineClient(settings)\n"
        "print(client._connect().welcome.pid, flush=True)\n"
        "client.manifest(GetManifest(0, ['s3://bucket/train/'], 'auto'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        last = int(waiting.stdout.readline())
        # The engine's notice says that it has begun to wait.
        assert b"waiting for s3://bucket" in waiting.stderr.readline()
        waiting.kill()
    wait_gone(last, 30.0)


# ---------------------------------------------------------------- hostile peers


@pytest.fixture
def engine(settings):
    """Yields the socket path of a running engine that a client keeps."""
    with EngineClient(settings) as client:
        client.statistics()
        yield settings.socket_path
        assert client.statistics()["sessions"] == []
        last = engine_pid(client)
    wait_gone(last)


def converse(path: Path, sent: bytes) -> list:
    """Sends bytes; returns what the engine answers until it closes."""
    decoder, answers = event_decoder(), []
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(str(path))
        try:
            peer.sendall(sent)
            while received := peer.recv(65536):
                answers += decoder.feed(received)
        except ConnectionError:
            return answers
    return answers


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x01\xc1", encode(Advance(1, 1, 1)), encode(GetStatistics(1))],
)
def test_garbage_gets_an_error_and_the_door(engine, garbage):
    """Bytes that are no protocol, and messages before Hello, get one Failed and a closed connection.

    The engine lives on.
    """
    answers = converse(engine, garbage)
    assert [type(answer) for answer in answers] == [Failed]
    assert answers[0].kind == "ProtocolError"


def test_another_protocol_version_is_named(engine):
    """A client of another protocol version gets a ProtocolVersionError that names its version."""
    (answer,) = converse(engine, encode(Hello(PROTOCOL + 1, "9.9", 1)))
    assert answer.kind == ProtocolVersionError.__name__
    assert "9.9" in answer.message


def test_a_second_hello_is_out_of_turn(engine):
    """An engine answers a client's first Hello, and ends the connection at a second."""
    answers = converse(engine, encode(Hello(PROTOCOL, "0", 1)) * 2)
    assert [type(answer) for answer in answers] == [Welcome, Failed]


def test_a_hundred_peers_that_vanish_leave_nothing(engine, settings):
    """A hundred connections cut in the middle of a frame leave no session or connection, and the engine answers."""
    with EngineClient(settings) as client:
        open_before = len(os.listdir(f"/proc/{engine_pid(client)}/fd"))
        for _ in range(100):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(engine))
                peer.sendall(encode(Hello(PROTOCOL, "0", 1))[:9])
        assert client.statistics()["sessions"] == []
        deadline = time.monotonic() + 60
        while len(os.listdir(f"/proc/{engine_pid(client)}/fd")) > open_before:
            assert time.monotonic() < deadline, "connections are still open"
            time.sleep(0.01)
