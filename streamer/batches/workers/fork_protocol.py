"""Defines the messages between a rank and its fork server: datagrams with file descriptors beside them, no pickles.

The rank has one control socket, and one more socket for each pool of workers. `fork_server.py` beside it is the rank's
side, and `fork_server_main.py` the server's. The workers also take their `ProcessContext` from here.
"""

from __future__ import annotations

import mmap
import os
from typing import TypeVar

import msgspec

from streamer.base import linux
from streamer.base.child import absolute_import_paths
from streamer.base.message_socket import MessageSocket

# Largest number of descriptors with one message. `Connect` and `StartWorker` have two.
_DESCRIPTORS = 4


class Settings(msgspec.Struct, frozen=True):
    """The settings of a fork server at its start.

    Names of files are bytes, as the system has them: not all are UTF-8, and messages hold UTF-8 only.

    Attributes:
        parent: pid of the rank.
        path: the rank's `sys.path`.
        modules: names of the modules that are imported before the first worker is forked.
    """

    parent: int
    path: list[bytes]
    modules: list[str]


class ProcessContext(msgspec.Struct, frozen=True):
    """Working directory, `sys.path` and environment of workers, as the rank has them when it makes their pool.

    All are bytes, as the system has them; see `Settings`.

    Attributes:
        folder: working directory, or b"" if it is not known.
        path: `sys.path`.
        environment: environment variables.
    """

    folder: bytes
    path: list[bytes]
    environment: dict[bytes, bytes]


class Import(msgspec.Struct, frozen=True, tag=True):
    """Asks the server to import these modules before it forks the next worker. Sent on the control socket."""

    modules: list[str]


class Connect(msgspec.Struct, frozen=True, tag=True):
    """Asks the server to serve another pool. Sent on the control socket.

    The socket of the pool and a memory file with its `ProcessContext` come with the message.
    """


class StartWorker(msgspec.Struct, frozen=True, tag=True):
    """Asks the server to fork a worker. Its status page and its channel come with the message, in this order.

    Attributes:
        process: number of the process, unique in its pool.
        number: number of the worker, and its row in the status page.
        workers: number of rows in the status page.
    """

    process: int
    number: int
    workers: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Asks the server to end a worker by SIGKILL. `process` is the number of its `StartWorker`."""

    process: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """Tells the rank that a worker was forked, with the number of its `StartWorker` and its pid."""

    process: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """Tells the rank that a worker has ended.

    Attributes:
        process: number of its `StartWorker`.
        code: exit code, or minus the signal that ended the worker.
        peak_bytes: largest resident size of the worker.
    """

    process: int
    code: int
    peak_bytes: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Tells the rank that a worker was not forked, because forks of this server are not safe or a fork failed.

    Attributes:
        process: number of its `StartWorker`.
        reason: text that names the module that prevents forks, or the error of the fork.
    """

    process: int
    reason: str


Control = Import | Connect
Request = StartWorker | Kill
Reply = Started | Exited | Refused
CONTROL: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)
REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLY: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_Message = TypeVar("_Message")


def send(end: MessageSocket, message: Control | Request | Reply, descriptors: list[int] | None = None) -> bool:
    """Sends a message. Returns False if the other end is closed.

    Raises:
        BlockingIOError: the socket does not block, and the other end has not read what was sent before.
        OSError: the message is longer than the kernel takes.
    """
    return end.send(msgspec.msgpack.encode(message), descriptors or ())


def receive(end: MessageSocket, decoder: msgspec.msgpack.Decoder[_Message]) -> tuple[_Message, list[int]] | None:
    """Returns the next message with its descriptors, or None if the other end is closed.

    Raises:
        BlockingIOError: the socket does not block, and there is no message.
        ConfigError: this process can take no further descriptor.
    """
    if (received := end.receive(max_descriptors=_DESCRIPTORS)) is None:
        return None
    raw, descriptors = received
    return decoder.decode(raw), descriptors


def memory_file(name: str, content: msgspec.Struct) -> int:
    """Writes a message to a nameless memory file, since it may be larger than a datagram; returns its descriptor.

    Raises:
        ConfigError: no such file can be made.
        OSError: this process may have no more descriptors, or there is no memory.
    """
    descriptor = linux.memory_file(name)
    os.pwrite(descriptor, msgspec.msgpack.encode(content), 0)
    return descriptor


def read_memory_file(descriptor: int) -> bytes:
    """Returns the whole content of a memory file, which is not empty, and closes its descriptor."""
    # A read(2) ends after 2 GiB. A mapping does not move the position in the file, which other processes share.
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapping:
        content = mapping[:]
    os.close(descriptor)
    return content


def current_context() -> ProcessContext:
    """Returns working directory, `sys.path` ("" is the current directory) and environment of this process."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed, or a folder above it may not be looked into
        folder = ""
    return ProcessContext(os.fsencode(folder), list(map(os.fsencode, absolute_import_paths())), dict(os.environb))
