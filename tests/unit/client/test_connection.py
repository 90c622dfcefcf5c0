"""A connection whose other end is a plain socket, which is slow, silent or closed."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamer.client.connection import Connection, DisconnectedError, read_statistics
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError
from streamer.wire.frames import encode, request_decoder
from streamer.wire.messages import PROTOCOL, Extend, Hello, Message, Ready, Welcome

# More than a socket takes by itself.
LARGE = Extend(session=1, epoch=0, chunk=bytes(4 << 20), first=b"", last=b"", complete=True)
Pair = tuple[Connection, socket.socket]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[float | None], Pair]]:
    """Makes connections, and returns with each its other end, which has sent a welcome and does no more."""
    ends: list[Connection | socket.socket] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "sock"))
    listener.listen()

    def accept() -> None:
        end = listener.accept()[0]
        ends.append(end)
        assert isinstance(next(request_decoder().feed(end.recv(65536))), Hello)
        end.sendall(encode(Welcome(PROTOCOL, "1", 1, "/", "id")))

    def made(timeout_seconds: float | None = None) -> Pair:
        accepting = threading.Thread(target=accept)
        accepting.start()
        connection = Connection(tmp_path / "sock", "job", timeout_seconds=timeout_seconds)
        accepting.join()
        end = ends[-1]
        assert isinstance(end, socket.socket)
        ends.append(connection)
        return connection, end

    yield made
    for end in (*ends, listener):
        end.close()


def heard(end: socket.socket) -> Message:
    """Returns the next message at the other end."""
    decoder = request_decoder()
    while True:
        for message in decoder.feed(end.recv(65536)):
            return message


@pytest.mark.process
def test_a_message_larger_than_the_socket_arrives_whole(connect):
    """A message larger than the socket's buffer arrives whole at a reader that comes late."""
    connection, end = connect(None)
    found: list[Message] = []

    def read() -> None:
        time.sleep(0.1)
        found.append(heard(end))

    reading = threading.Thread(target=read)
    reading.start()
    connection.send(LARGE)
    reading.join()
    assert found == [LARGE]


@pytest.mark.process
def test_an_engine_that_takes_nothing_is_gone(connect):
    """An engine that receives nothing counts as gone after the connection's timeout."""
    connection, _ = connect(0.2)
    begun = time.monotonic()
    with pytest.raises(DisconnectedError, match=r"nothing for 0\.2 s"):
        connection.send(LARGE)
    assert 0.2 <= time.monotonic() - begun < 10


@pytest.mark.process
def test_receive_waits_as_long_as_the_caller_says(connect):
    """Receiving waits not at all, for a time, or until a message comes, as the caller says."""
    connection, end = connect(None)
    assert connection.receive(0.0) == []
    begun = time.monotonic()
    assert connection.receive(0.1) == []
    assert time.monotonic() - begun >= 0.1
    event = Ready(session=1, through=3, rejects=0)
    telling = threading.Timer(0.1, end.sendall, [encode(event)])
    telling.start()
    assert connection.receive(None) == [event]
    telling.join()


@pytest.mark.process
@pytest.mark.parametrize("end_of_it", ["they close", "we hang up"])
def test_the_end_is_noticed(connect, end_of_it):
    """A connection that either side closes raises DisconnectedError for the receiver and for the next sender."""
    connection, end = connect(None)
    ending = threading.Timer(0.1, end.close if end_of_it == "they close" else connection.shut_down)
    ending.start()
    with pytest.raises(DisconnectedError):
        connection.receive(None)
    ending.join()
    with pytest.raises(DisconnectedError):
        connection.send(LARGE)


@pytest.fixture
def full_queue(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    """A socket that listens with one place in its queue, which is taken."""
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.connect(str(path))
        yield path, listener


@pytest.mark.process
def test_a_client_waits_for_room_in_the_queue(full_queue):
    """A client whose engine has a full queue of connections connects when the engine has accepted others.

    It took the engine for a dead one at once, and started another.
    """
    path, listener = full_queue
    greeted = []

    def accept() -> None:
        """Accepts the connection in the queue late, and then the client's."""
        time.sleep(0.2)
        listener.accept()[0].close()
        end = listener.accept()[0]
        with end:
            greeted.append(next(request_decoder().feed(end.recv(65536))))
            end.sendall(encode(Welcome(PROTOCOL, "1", 7, "/", "id")))

    accepting = threading.Thread(target=accept)
    accepting.start()
    connection = Connection(path, "job")
    accepting.join()
    connection.close()
    assert connection.welcome.pid == 7
    assert [hello.job for hello in greeted] == ["job"]


@pytest.mark.process
def test_a_queue_that_stays_full_ends_the_wait(full_queue):
    """An engine whose queue of connections stays full for the timeout counts as one that does not answer."""
    begun = time.monotonic()
    with pytest.raises(DisconnectedError, match=r"no further connection for 0\.2 s: its queue is full"):
        Connection(full_queue[0], "job", timeout_seconds=0.2)
    assert 0.2 <= time.monotonic() - begun < 10


def test_a_process_without_descriptors_is_told_so(tmp_path, monkeypatch):
    """A process without free descriptors gets a ConfigError from a connection, and no statistics.

    A raw OSError hid the error of the sample, while a loader asked the engine about it.
    """

    def refuse(*_):
        """Stands for a process that can open no further socket."""
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("streamer.client.connection.socket.socket", refuse)
    with pytest.raises(ConfigError, match="RLIMIT_NOFILE"):
        Connection(tmp_path / "x.sock", "job")
    assert read_statistics(ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path), 0.1) is None
