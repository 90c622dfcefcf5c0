"""The messages between a rank and its workers: datagrams of tens of bytes, encoded by msgspec.

A worker's socket is a SOCK_SEQPACKET pair: a message arrives whole or not at all, so a worker killed at any moment
leaves nothing half-written, and holds no lock. Memory travels as a descriptor beside the message.
"""

from __future__ import annotations

import os
import socket

import msgspec

from streamer.loader.stages import Stages

# Below the kernel's default limit for one datagram (net.core.wmem_default = 212,992 bytes on Linux).
MESSAGE_BYTES = 1 << 17

# The number of a slot that there is not: the batch gets memory of its own.
NO_SLOT = -1


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Root of all messages."""


# ---------------------------------------------------------------- to the worker


class Open(_Message, frozen=True):
    """Open the source; what it is and how batches are made lies in the memory that comes with the message."""


class Task(_Message, frozen=True):
    """Make this batch, and write it to a slot.

    Attributes:
        number: unique in the loader's life; a batch made again has a new one.
        epoch: of the batch.
        batch: its number in the epoch.
        slot: number of the slot. Its memory comes with the message when the worker does not have it yet; a slot that
            has none, or too little for the batch, gets memory from the worker. NO_SLOT: memory for this batch only.
        left_out: ordinals that are not to be loaded: they killed a worker twice.
    """

    number: int
    epoch: int
    batch: int
    slot: int = NO_SLOT
    left_out: tuple[int, ...] = ()


class Forget(_Message, frozen=True):
    """The memory of a slot is not used any more."""

    slot: int


# ---------------------------------------------------------------- from the worker


class Ready(_Message, frozen=True):
    """The source is open."""


class NotOpened(_Message, frozen=True):
    """The source cannot be opened; the error, pickled."""

    error: bytes


class Made(_Message, frozen=True):
    """A batch is written: to its slot, or to new memory whose descriptor comes with the message.

    Attributes:
        number: of the task.
        nbytes: what the batch takes.
        description: start and length of its description.
        stages: where the time went.
        faults: the worker's minor page faults over this batch.
        samples: how many there are in it.
        repeated: one byte per sample, 1 where it repeats another to fill the batch; empty: none does.
        memory_bytes: size of the new memory.
        slowest: ordinal and nanoseconds of the sample that took longest; ordinal -1: unknown.
    """

    number: int
    nbytes: int
    description: tuple[int, int]
    stages: Stages
    faults: int
    samples: int
    repeated: bytes = b""
    memory_bytes: int = 0
    slowest: tuple[int, int] = (-1, 0)


class Failed(_Message, frozen=True):
    """A batch cannot be made.

    Attributes:
        number: of the task.
        ordinal: of the sample that failed; -1: none did.
        error: pickled.
    """

    number: int
    ordinal: int
    error: bytes


class Unreadable(_Message, frozen=True):
    """A chunk of a batch is not there, or has wrong bytes.

    Attributes:
        number: of the task.
        chunk: in the manifest.
        reason: for people.
    """

    number: int
    chunk: int
    reason: str


class Skipped(_Message, frozen=True):
    """Another sample takes the place of one that cannot be made; the task goes on.

    Attributes:
        number: of the task.
        ordinal: of the sample.
        cause: for people.
    """

    number: int
    ordinal: int
    cause: str


Request = Open | Task | Forget
Report = Ready | NotOpened | Made | Failed | Unreadable | Skipped
Message = Request | Report
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """One end of a worker's socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, descriptor: int) -> Channel:
        """The end that a worker process was started with."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """For select and for passing it on."""
        return self._end.fileno()

    def set_blocking(self, blocking: bool) -> None:
        """Whether `send` and `receive` wait."""
        self._end.setblocking(blocking)

    def send(self, message: Message, descriptor: int = -1) -> bool:
        """Sends a message, with a descriptor if given. Returns False when the other end is gone."""
        try:
            if descriptor < 0:
                self._end.send(_encode(message), socket.MSG_NOSIGNAL)
            else:
                socket.send_fds(self._end, [_encode(message)], [descriptor], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> tuple[Message, int] | None:
        """The next message with its descriptor (-1: none), or None when the other end is gone.

        Raises:
            BlockingIOError: not blocking, and nothing there.
        """
        try:
            raw, descriptors, _, _ = socket.recv_fds(self._end, MESSAGE_BYTES, 1)
        except ConnectionResetError:
            return None
        if not raw:
            return None
        return _DECODER.decode(raw), descriptors[0] if descriptors else -1

    def close(self) -> None:
        """Closes this end."""
        self._end.close()
