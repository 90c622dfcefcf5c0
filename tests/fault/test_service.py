"""A service under clients that idle, do not read, ask too much or send what they like: bounded, counted, logged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import CacheConfig, EngineConfig, ServiceConfig
from streamer.engine.engine import Engine
from streamer.errors import ServiceError
from streamer.manifest.table import Manifest
from streamer.service import client_connection, long_requests
from streamer.service.admission import ServiceLimits
from streamer.service.client_connection import ClientConnection
from streamer.service.server import Server
from streamer.wire.frames import encode, event_decoder
from streamer.wire.messages import (
    PROTOCOL,
    Advance,
    Extend,
    GetManifest,
    GetStatistics,
    Hello,
    OpenSession,
    Read,
    Welcome,
)
from streamer.wire.schedule import EpochSchedule

IDLE = 1000
SLOW = 50
ROUNDS = 150
HELLO = encode(Hello(PROTOCOL, "test", os.getpid()))


class Service:
    """The real engine and server on a socket, on a loop in a thread and not in a process of their own."""

    def __init__(self, root: Path, limits: ServiceLimits | None) -> None:
        self.root = root
        self.socket = root / "engine.sock"
        self._limits = limits
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="service")
        self._thread.start()
        assert self._ready.wait(60)

    async def _live(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        config = EngineConfig(
            cache=CacheConfig(directory=self.root / "cache", limit_bytes=64 << 20),
            grace_seconds=None,
            settle_seconds=0.0,
            service=ServiceConfig(),
        )
        async with Engine(config) as engine, asyncio.TaskGroup() as tasks:
            self.server = Server(config, engine, tasks, lambda: None, limits=self._limits)
            listener = await self._loop.create_unix_server(
                lambda: ClientConnection(self.server), str(self.socket), backlog=1024
            )
            self._ready.set()
            await self._end.wait()
            listener.close()
            self.server.close()
            await self.server.finish(0.0)

    def client(self) -> EngineClient:
        return EngineClient(
            ClientSettings(
                cache_dir=self.root / "cache", runtime_dir=self.root, engine=f"unix:{self.socket}", connect_seconds=60
            )
        )

    def count(self, name: str) -> float:
        async def look() -> object:
            return self.server.statistics()[name]

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)


@pytest.fixture
def make_service(tmp_path) -> Iterator[object]:
    made: list[Service] = []

    def make(limits: ServiceLimits | None = None, name: str = "service") -> Service:
        (tmp_path / name).mkdir()
        made.append(Service(tmp_path / name, limits))
        return made[-1]

    yield make
    for service in made:
        service.close()


@pytest.fixture
def data(tmp_path) -> str:
    random = np.random.default_rng(5)
    for number in range(20):
        path = tmp_path / "data" / "a" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(300_000))
    return f"{tmp_path}/data/"


@contextlib.contextmanager
def connections(path: Path, count: int, first: bytes = HELLO) -> Iterator[list[socket.socket]]:
    """Stands for clients that send some bytes and then do nothing, not even read: so many sockets."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            found[-1].connect(str(path))
            if first:
                found[-1].sendall(first)
        yield found


def until(reached, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline


def opened(client: EngineClient, url: str) -> tuple[Manifest, object]:
    manifest = Manifest.open(client.manifest(GetManifest(0, [url], "auto")))
    session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer="rank 0"))
    steps = np.arange(manifest.chunks, dtype=np.int64)
    session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))
    return manifest, session


def more_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# ---------------------------------------------------------------- idle


def test_a_thousand_idle_connections_do_no_harm(make_service, data):
    """A service with 1,000 idle connections serves a trainer, counts them, and holds at most 32 kB for each."""
    more_descriptors()
    service = make_service()
    before = service.count("anonymous_bytes")
    with connections(service.socket, IDLE):
        until(lambda: service.count("connections") == IDLE)
        assert service.count("anonymous_bytes") - before < IDLE * 32_000
        with service.client() as client:
            manifest, session = opened(client, data)
            session.wait(manifest.chunks - 1, 20)
    until(lambda: service.count("connections") == 0)


def test_more_than_the_limit_are_refused_and_the_others_stay(make_service, caplog):
    """Connections beyond a service's limit are refused and logged, and those before them are served."""
    service = make_service(
        ServiceLimits(clients=5, answer_bytes=1 << 20, request_bytes=1 << 20, schedule_bytes=1 << 20)
    )
    with service.client() as client:
        client.statistics()
        with connections(service.socket, 10, b""):
            until(lambda: service.count("connections_refused") == 6)
            assert client.statistics()["connections"] == 5
    assert "refused: 5 are connected already" in caplog.text


def test_who_says_nothing_is_sent_away(make_service, monkeypatch, caplog):
    """A connection that sends no Hello within its time is closed and counted."""
    monkeypatch.setattr(client_connection, "HELLO_SECONDS", 0.05)
    service = make_service()
    with caplog.at_level(logging.WARNING), connections(service.socket, 3, b"") as silent:
        for connection in silent:
            connection.settimeout(60)
            assert connection.recv(1) == b""
    assert service.count("dropped_silent") == 3


# ---------------------------------------------------------------- do not read


@pytest.mark.slow
def test_who_does_not_read_is_dropped(make_service):
    """A client that asks without reading its answers is disconnected and counted, and others are served."""
    service = make_service()
    question = encode(GetStatistics(1)) * 1000
    with connections(service.socket, 1) as (deaf,):
        deaf.settimeout(60)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deaf.sendall(question * 1000)
    until(lambda: service.count("dropped_unread") == 1)
    with service.client() as client:
        assert client.statistics()["connections"] == 1


def test_contents_that_nobody_takes_are_bounded_and_end(make_service, data, monkeypatch):
    """Contents for fifty readers that do not read take together at most the limit, and these readers are dropped."""
    monkeypatch.setattr(long_requests, "ANSWER_SECONDS", 0.2)
    limits = ServiceLimits(clients=200, answer_bytes=2 << 20, request_bytes=1 << 20, schedule_bytes=1 << 20)
    service = make_service(limits)
    with service.client() as client:
        manifest, _ = opened(client, data)
        largest = int(manifest.chunk_local_bytes.argmax())
        size = int(manifest.chunk_local_bytes[largest])
        asks = HELLO + b"".join(encode(Read(n, manifest.digest, largest, 0, size)) for n in range(8))
        with connections(service.socket, SLOW, asks):
            until(lambda: service.count("dropped_unread") >= 3)
            assert service.server._long_requests._answers.peak <= max(limits.answer_bytes, size)
            until(lambda: service.count("dropped_unread") == SLOW)
        monkeypatch.undo()  # who reads has its time, however busy the machine
        assert client.read(manifest.digest, largest, 0, size)


# ---------------------------------------------------------------- ask too much


def answers_of(connection: socket.socket, count: int = 1) -> list:
    """The next events that are not the Welcome."""
    decoder, found = event_decoder(), []
    connection.settimeout(60)
    while len(found) < count and (received := connection.recv(1 << 16)):
        found += [event for event in decoder.feed(received) if not isinstance(event, Welcome)]
    return found


def test_schedules_without_end_are_refused(make_service, data):
    """A schedule beyond the limit of a service's memory is refused, and sessions of others go on."""
    limits = ServiceLimits(clients=100, answer_bytes=1 << 20, request_bytes=1 << 20, schedule_bytes=100_000)
    service = make_service(limits)
    with service.client() as client:
        manifest, session = opened(client, data)
        entries = 1000
        extend = Extend(
            1, 0, bytes(4 * entries), np.zeros(entries, "<i8").tobytes(), np.zeros(entries, "<i8").tobytes(), False
        )
        flood = encode(OpenSession(1, "j", manifest.digest, "greedy")) + encode(extend) * 20
        with connections(service.socket, 1, HELLO) as (greedy,):
            with contextlib.suppress(ConnectionError):  # refused and hung up before the last of it was written
                greedy.sendall(flood)
            refused = answers_of(greedy, 2)[1]
            assert (refused.kind, "100000" in refused.message) == (ServiceError.__name__, True)
        session.wait(manifest.chunks - 1, 20)


def test_questions_without_end_are_refused(make_service):
    """A request for manifests beyond the limit of bytes of urls is refused."""
    limits = ServiceLimits(clients=100, answer_bytes=1 << 20, request_bytes=10_000, schedule_bytes=1 << 20)
    service = make_service(limits)
    urls = [f"/nowhere/{number:05}/" for number in range(400)]
    asks = b"".join(encode(GetManifest(number, urls, "auto")) for number in range(3))
    with connections(service.socket, 1, HELLO + asks) as (greedy,):
        found = answers_of(greedy, 3)
    assert any("bytes of urls" in answer.message for answer in found)


def test_a_flood_of_messages_leaves_turns_for_others(make_service, data):
    """A session goes on while another client sends messages without a pause."""
    service = make_service()
    with service.client() as client:
        manifest, session = opened(client, data)
        stop = threading.Event()

        def pour() -> None:
            with connections(service.socket, 1, HELLO) as (loud,):
                loud.settimeout(60)
                flood = encode(Advance(77, 0, 1)) * 10_000
                while not stop.is_set():
                    loud.sendall(flood)

        flooder = threading.Thread(target=pour)
        flooder.start()
        try:
            for step in range(manifest.chunks):
                session.wait(step, 20)
                session.done(step + 1)
        finally:
            stop.set()
            flooder.join(60)


def test_an_engine_that_fails_over_a_message_reports_and_goes_on(make_service, monkeypatch, caplog):
    """A bug in the handling of a message is an error of its client and a traceback in the log; the engine goes on."""
    service = make_service()

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(service.server, "statistics", fail)
    with connections(service.socket, 1, HELLO + encode(GetStatistics(1))) as (peer,):
        (answer,) = answers_of(peer)
    assert answer.kind == "BrokenError"
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert service.count("dropped_protocol") == 1


# ---------------------------------------------------------------- measured


class Leaser:
    """Times leases of chunks that are in the cache, one at a time."""

    def __init__(self, service: Service, data: str) -> None:
        self.client = service.client()
        self.manifest, session = opened(self.client, data)
        session.wait(self.manifest.chunks - 1, 20)
        session.close()
        self.seconds: list[float] = []

    def one_round(self, name: str) -> Iterator[None]:
        """A session over all chunks; pauses after each lease."""
        session = self.client.open_session(OpenSession(0, "", dataset=self.manifest.digest, consumer=name))
        steps = np.arange(self.manifest.chunks, dtype=np.int64)
        session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))
        for step in range(self.manifest.chunks):
            begun = time.perf_counter()
            session.wait(step, 20)
            self.seconds.append(time.perf_counter() - begun)
            session.done(step + 1)
            yield
        session.close()

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


@contextlib.contextmanager
def sipping(readers: list[socket.socket]) -> Iterator[list[int]]:
    """Reads a little from each client in turn, a hundred times a second, 64 kB at most; yields the number of reads."""
    stop, sips = threading.Event(), [0]

    def sip() -> None:
        while not stop.wait(0.01):
            reader = readers[sips[0] % len(readers)]
            with contextlib.suppress(BlockingIOError):
                reader.recv(1 << 16, socket.MSG_DONTWAIT)
            sips[0] += 1

    sipper = threading.Thread(target=sip)
    sipper.start()
    try:
        yield sips
    finally:
        stop.set()
        sipper.join(60)


@pytest.mark.slow
@pytest.mark.timing
def test_lease_time_stays_within_twice(make_service, data, monkeypatch, capsys):
    """p99 of leases beside 1,000 idle connections and 50 slow readers is at most twice that without them.
    Two services, one lease at each in turn: whatever else the machine does, it does it to both.
    """
    more_descriptors()
    monkeypatch.setattr(long_requests, "ANSWER_SECONDS", 600.0)
    quiet, crowded = make_service(name="quiet"), make_service(name="crowded")
    alone, beside = Leaser(quiet, data), Leaser(crowded, data)
    chunk_bytes = int(beside.manifest.chunk_local_bytes[0])
    asks = HELLO + b"".join(encode(Read(n, beside.manifest.digest, 0, 0, chunk_bytes)) for n in range(60))
    with (
        alone.client,
        beside.client,
        connections(crowded.socket, IDLE),
        connections(crowded.socket, SLOW, asks) as readers,
        sipping(readers) as sips,
    ):
        until(lambda: crowded.count("connections") == IDLE + SLOW + 1)
        for number in range(ROUNDS):
            for _ in zip(alone.one_round(f"alone {number}"), beside.one_round(f"beside {number}"), strict=True):
                pass
            if number == 0:  # imports, first touches
                alone.seconds.clear()
                beside.seconds.clear()
        assert (crowded.count("connections"), crowded.count("dropped_unread")) == (IDLE + SLOW + 1, 0)
        assert sips[0] > 10
    ratio = beside.quantile(0.99) / alone.quantile(0.99)
    with capsys.disabled():
        for name, leaser in (("alone", alone), ("crowded", beside)):
            p50, p99 = leaser.quantile(0.5) * 1e6, leaser.quantile(0.99) * 1e6
            print(f"\n{name}: {len(leaser.seconds)} leases, p50 {p50:.0f} us, p99 {p99:.0f} us", end="")
        print(f"; p99 x {ratio:.2f}")
    assert ratio <= 2.0
