"""An engine that crashes again and again: started a few times, with pauses, then an error that names its log.

The engines are real processes. A `sitecustomize` module, which every Python process imports at its start, counts the
engines and kills them with SIGKILL at a chosen point, as the kernel does with a process that takes too much memory.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from streamer.client import launcher
from streamer.client.engine_client import EngineClient
from streamer.client.launcher import MAX_RESTARTS, find_log
from streamer.client.session import Session
from streamer.client.settings import ClientSettings
from streamer.errors import EngineUnavailableError
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession, Part
from streamer.wire.schedule import EpochSchedule

_CRASH = """
import os, signal, sys

def crash():
    os.kill(os.getpid(), signal.SIGKILL)

def on_event(event, arguments):
    if {event!r} == event and {fragment!r} in str(arguments[0]):
        crash()

if "streamer.service" in sys.orig_argv:
    with open({starts!r}, "a") as starts:
        starts.write("started\\n")
    crash() if {event!r} == "start" else sys.addaudithook(on_event)
"""


class Saboteur:
    """Makes real engines crash by a `sitecustomize` module, and counts their starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "sabotage"
        self._starts = folder / "starts.txt"
        self._monkeypatch = monkeypatch

    def crash(self, event: str, fragment: str = "") -> None:
        """Every engine from now on is killed at an audit event whose first argument has a fragment; or at its start."""
        self._folder.mkdir()
        names = {"event": event, "fragment": fragment, "starts": str(self._starts)}
        (self._folder / "sitecustomize.py").write_text(_CRASH.format(**names))
        self._monkeypatch.syspath_prepend(str(self._folder))

    @property
    def starts(self) -> int:
        return len(self._starts.read_text().splitlines())


@pytest.fixture
def saboteur(tmp_path, monkeypatch) -> Saboteur:
    return Saboteur(tmp_path, monkeypatch)


@pytest.fixture
def settings(tmp_path) -> ClientSettings:
    return ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=64 << 20, grace_seconds=0.1
    )


@pytest.fixture
def manifest(settings, tmp_path) -> Manifest:
    random = np.random.default_rng(5)
    (tmp_path / "data").mkdir()
    for number in range(16):
        (tmp_path / "data" / f"{number:03}.bin").write_bytes(random.bytes(100_000))
    with EngineClient(settings) as client:
        made = Manifest.open(client.manifest(GetManifest(0, [str(tmp_path / "data")], "auto", chunk_bytes=200_000)))
    assert made.chunks > MAX_RESTARTS + 1
    await_end(settings.cache_dir)
    return made


@pytest.fixture
def short_pauses(monkeypatch) -> None:
    """A hundredth of the pauses between starts; the test of an engine that crashes at its start has them whole."""
    monkeypatch.setattr(launcher, "_FIRST_PAUSE_SECONDS", launcher._FIRST_PAUSE_SECONDS / 100)


def await_end(cache_dir: Path) -> None:
    """Waits until no engine has the folder: each holds its lock until it ends."""
    descriptor = os.open(cache_dir, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def opened(client: EngineClient, manifest: Manifest) -> Session:
    """A session that needs one chunk a step."""
    session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer="rank 0"))
    steps = np.arange(manifest.chunks, dtype=np.int64)
    session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))
    return session


def assert_gave_up(error: EngineUnavailableError, settings: ClientSettings, starts: int) -> None:
    assert find_log(settings) in str(error)
    assert error.details["log"] == find_log(settings)
    assert error.details["crashes"] == starts
    assert str(starts) in str(error)


def test_an_engine_that_crashes_at_its_start_is_given_up(settings, saboteur):
    """An engine that crashes before it listens is started five more times with pauses; then an error names its log."""
    saboteur.crash("start")
    begun = time.monotonic()
    with EngineClient(settings) as client, pytest.raises(EngineUnavailableError) as caught:
        client.statistics()
    assert saboteur.starts == MAX_RESTARTS + 1
    # 0, 0.2, 0.4, 0.8 and 1.6 s: a least time, which no slow machine makes shorter.
    assert time.monotonic() - begun >= 3.0
    assert_gave_up(caught.value, settings, saboteur.starts)


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_an_engine_that_crashes_after_the_handshake_is_given_up(settings, saboteur, manifest):
    """A session over which every engine crashes ends with EngineUnavailableError after the last restart."""
    saboteur.crash("open", manifest.digest)
    with EngineClient(settings) as client:
        session = opened(client, manifest)
        with pytest.raises(EngineUnavailableError) as caught:
            session.wait(0)
        assert saboteur.starts == MAX_RESTARTS + 1
        assert_gave_up(caught.value, settings, saboteur.starts)
        with pytest.raises(EngineUnavailableError, match="crashed 6 times in a row"):
            _ = session.ready
        assert saboteur.starts == MAX_RESTARTS + 1


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_a_question_that_crashes_every_engine_is_given_up(settings, saboteur, manifest, tmp_path):
    """A request for a manifest over which every engine crashes ends with EngineUnavailableError,
    as where a manifest takes too much memory.
    """
    saboteur.crash("os.scandir", str(tmp_path / "data"))
    with EngineClient(settings) as client, pytest.raises(EngineUnavailableError) as caught:
        client.manifest(GetManifest(0, [str(tmp_path / "data")], "auto"))
    assert_gave_up(caught.value, settings, MAX_RESTARTS + 1)


def test_an_engine_that_makes_progress_is_always_replaced(settings, saboteur, manifest):
    """An engine that is killed after each step of progress is always replaced, however many crashes there are."""
    with EngineClient(settings) as client:
        session = opened(client, manifest)
        for step in range(manifest.chunks):
            session.wait(step, 60)
            session.done(step)
            kill_engine(client)


def test_a_session_over_several_datasets_goes_on_in_the_next_engine(settings, manifest):
    """A session over several datasets goes on in the next engine with its parts, uses left, passes and values."""
    parts = tuple(Part(dataset=manifest.digest, name=name) for name in ("plain", "augmented"))
    chunks = 2 * manifest.chunks
    numbers, steps = np.arange(chunks, dtype=np.uint32), np.arange(2 * chunks, dtype=np.int64)
    with EngineClient(settings) as client:
        session = client.open_session(OpenSession(0, "", dataset="mix", consumer="rank 0", parts=parts))
        for epoch, values in enumerate([(1.0, 3.0), ()]):
            at = steps[epoch * chunks : (epoch + 1) * chunks]
            session.extend(EpochSchedule(epoch, numbers, at, at, np.full(chunks, 7 + epoch, np.uint32), values))
        session.wait(chunks + 2, 60)
        session.done(chunks + 2)
        kill_engine(client)
        session.wait(2 * chunks - 1, 60)
        values = client.statistics()
        assert {row["member"]: row["needs"] for row in values["members"]} == {
            "plain": manifest.chunks - 2,
            "augmented": manifest.chunks,
        }
        assert values["store_bytes"] == 0


def kill_engine(client: EngineClient) -> None:
    """Kills the engine of a client and waits for its end."""
    pid = client._connect().welcome.pid
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([handle], [], [], 60.0)[0]
    finally:
        os.close(handle)
