"""The messages between a rank and its fork server: datagrams, with descriptors beside them; no pickles.

The rank has one control socket, and a socket of its own for each pool of workers.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from streamer.base import linux
from streamer.base.child import absolute_import_paths
from streamer.base.message_socket import MessageSocket

# The socket of a pool, or the descriptors of a worker.
_DESCRIPTORS = 4


class Settings(msgspec.Struct, frozen=True):
    """The settings of a fork server at its start.

    Names of files are bytes, as the system has them: not all are UTF-8, and messages hold UTF-8 only.

    Attributes:
        parent: pid of the rank.
        path: the rank's `sys.path`.
        modules: imported before the first worker is forked.
    """

    parent: int
    path: list[bytes]
    modules: list[str]


class ProcessContext(msgspec.Struct, frozen=True):
    """Working directory, `sys.path` and environment of workers: the rank's when it makes their pool.

    All are bytes, as the system has them; see `Settings`.
    """

    folder: bytes
    path: list[bytes]
    environment: dict[bytes, bytes]


class Import(msgspec.Struct, frozen=True, tag=True):
    """Import these modules before the next worker is forked (control socket)."""

    modules: list[str]


class Connect(msgspec.Struct, frozen=True, tag=True):
    """Serve another pool; its socket and a memory file with its `ProcessContext` come along (control socket)."""


class StartWorker(msgspec.Struct, frozen=True, tag=True):
    """Fork a worker; its channel and its status page come with the message.

    Attributes:
        process: number of the process, unique in its pool.
        number: of the worker.
        workers: their number; the status page has a row for each.
    """

    process: int
    number: int
    workers: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End a worker by SIGKILL."""

    process: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """A worker was forked."""

    process: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker has ended.

    Attributes:
        process: its number.
        code: its exit code, or minus the signal that ended it.
        peak_bytes: its largest resident size.
    """

    process: int
    code: int
    peak_bytes: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A worker was not forked, because forks of this server are not safe.

    Attributes:
        process: its number.
        reason: the module that prevents it, and how.
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
    """Sends a message. Returns False if the other end is closed."""
    return end.send(msgspec.msgpack.encode(message), descriptors or ())


def receive(end: MessageSocket, decoder: msgspec.msgpack.Decoder[_Message]) -> tuple[_Message, list[int]] | None:
    """Returns the next message with its descriptors, or None if the other end is closed.

    Raises:
        BlockingIOError: the socket does not block, and there is no message.
    """
    if (received := end.receive(max_descriptors=_DESCRIPTORS)) is None:
        return None
    raw, descriptors = received
    return decoder.decode(raw), descriptors


def memory_file(name: str, content: msgspec.Struct) -> int:
    """Writes settings to anonymous memory, because they may exceed a datagram; returns its descriptor."""
    descriptor = linux.memory_file(name)
    os.pwrite(descriptor, msgspec.msgpack.encode(content), 0)
    return descriptor


def read_memory_file(descriptor: int) -> bytes:
    """Reads the whole memory, and closes the descriptor."""
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.close(descriptor)
    return content


def current_context() -> ProcessContext:
    """Returns working directory, `sys.path` ("" is the current directory) and environment of this process."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed, or a folder above it may not be looked into
        folder = ""
    return ProcessContext(os.fsencode(folder), list(map(os.fsencode, absolute_import_paths())), dict(os.environb))
