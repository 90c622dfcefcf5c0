"""The messages between the rank's process and its workers: datagrams of tens of bytes.

A worker's socket is a SOCK_SEQPACKET pair: a message arrives whole or not at all, so a worker killed at any moment
leaves nothing half-written, and there is no lock that it could take along. Memory travels as a descriptor.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from enum import IntEnum

import msgspec

# Below the kernel's default limit for one datagram (net.core.wmem_default = 212,992 bytes on Linux).
MESSAGE_BYTES = 1 << 17

# Slot numbers with a meaning of their own.
MEASURE = -1
"""No ring yet: make the batch, say what it takes (`NEED`), keep it until told where to (a second task)."""
SPILL = -2
"""Write to memory of its own."""
EARLY = -3
"""As SPILL, because the ring is still being built: nothing is wrong."""


class Kind(IntEnum):
    """What a message is."""

    RING = 1
    TASK = 2
    READY = 3
    NEED = 4
    DONE = 5
    SPILLED = 6
    FAILED = 7
    UNREADABLE = 8
    SKIPPED = 9
    UP = 10
    PAYLOAD = 11


class Task(msgspec.Struct, frozen=True):
    """Make this batch, write it there.

    Attributes:
        number: unique in the loader's life; a batch made again has a new one.
        ring: which ring the slot is in.
        slot: its place, or MEASURE, SPILL or EARLY.
        left_out: ordinals that are not to be loaded: they killed a worker twice.
    """

    number: int
    epoch: int
    batch: int
    ring: int
    slot: int
    left_out: tuple[int, ...] = ()

    _HEAD = struct.Struct("<B3xiqqqi4x")

    def encode(self) -> bytes:
        """The message."""
        head = self._HEAD.pack(Kind.TASK, self.slot, self.number, self.epoch, self.batch, self.ring)
        return head + struct.pack(f"<{len(self.left_out)}q", *self.left_out)

    @classmethod
    def decode(cls, raw: bytes) -> Task:
        """Reads the message."""
        _, slot, number, epoch, batch, ring = cls._HEAD.unpack_from(raw)
        rest = raw[cls._HEAD.size :]
        return cls(number, epoch, batch, ring, slot, struct.unpack(f"<{len(rest) // 8}q", rest))


class RingShape(msgspec.Struct, frozen=True):
    """A new ring; its memory comes with the message."""

    number: int
    slots: int
    slot_bytes: int

    _HEAD = struct.Struct("<B7xqqq")

    def encode(self) -> bytes:
        """The message."""
        return self._HEAD.pack(Kind.RING, self.number, self.slots, self.slot_bytes)

    @classmethod
    def decode(cls, raw: bytes) -> RingShape:
        """Reads the message."""
        _, number, slots, slot_bytes = cls._HEAD.unpack(raw)
        return cls(number, slots, slot_bytes)


class Payload(msgspec.Struct, frozen=True):
    """What to open and how batches are made; its memory comes with the message."""

    def encode(self) -> bytes:
        """The message."""
        return bytes([Kind.PAYLOAD])

    @classmethod
    def decode(cls, raw: bytes) -> Payload:
        """Reads the message."""
        return cls()


class Stages(msgspec.Struct, frozen=True):
    """Where a worker's time went for one batch, in nanoseconds.

    Attributes:
        load: all of read, decode, transform and what lies between.
        read, decode, transform: parts of `load`, 0 where the source does not tell.
        collate: putting samples together, without the copy.
        write: the copy into the slot.
    """

    load: int = 0
    read: int = 0
    decode: int = 0
    transform: int = 0
    collate: int = 0
    write: int = 0


class Made(msgspec.Struct, frozen=True):
    """A batch is in its slot, or in the memory that came with the message (`spilled`).

    Attributes:
        nbytes: what it takes.
        description: start and length of its description.
        faults: the worker's minor page faults over this batch.
        pickled_bytes: length of the description.
        samples: how many there are in it.
        repeated: one byte per sample, 1 where it repeats another to fill the batch; empty: none does.
        slowest: ordinal and nanoseconds of the sample that took longest; ordinal -1: unknown.
    """

    number: int
    nbytes: int
    description: tuple[int, int]
    stages: Stages
    faults: int
    samples: int
    repeated: bytes = b""
    spilled: bool = False
    slowest: tuple[int, int] = (-1, 0)

    _HEAD = struct.Struct("<B3xIIIqqqqqqqqqqq")

    def encode(self) -> bytes:
        """The message."""
        s = self.stages
        return (
            self._HEAD.pack(
                Kind.SPILLED if self.spilled else Kind.DONE,
                self.description[1],
                self.faults,
                self.samples,
                self.number,
                self.nbytes,
                self.description[0],
                *self.slowest,
                *(s.load, s.read, s.decode, s.transform, s.collate, s.write),
            )
            + self.repeated
        )

    @classmethod
    def decode(cls, raw: bytes) -> Made:
        """Reads the message."""
        kind, length, faults, samples, number, nbytes, start, ordinal, spent, *stages = cls._HEAD.unpack_from(raw)
        return cls(
            number=number,
            nbytes=nbytes,
            description=(start, length),
            stages=Stages(*stages),
            faults=faults,
            samples=samples,
            repeated=raw[cls._HEAD.size :],
            spilled=kind == Kind.SPILLED,
            slowest=(ordinal, spent),
        )


class Note(msgspec.Struct, frozen=True):
    """UP, READY, NEED, FAILED, UNREADABLE, SKIPPED: a number or two and a text.

    Attributes:
        number: the task; 0 for UP, READY and for a worker that could not start.
        value: bytes needed; the ordinal that failed or was skipped (-1: none); the chunk that is unreadable.
        body: a pickled error, or a reason or cause as text.
    """

    kind: Kind
    number: int = 0
    value: int = 0
    body: bytes = b""

    _HEAD = struct.Struct("<B7xqq")

    def encode(self) -> bytes:
        """The message."""
        return self._HEAD.pack(self.kind, self.number, self.value) + self.body

    @classmethod
    def decode(cls, raw: bytes) -> Note:
        """Reads the message."""
        kind, number, value = cls._HEAD.unpack_from(raw)
        return cls(Kind(kind), number, value, raw[cls._HEAD.size :])


Message = Task | RingShape | Payload | Made | Note
_READERS: dict[int, type[Task] | type[RingShape] | type[Payload] | type[Made]] = {
    Kind.TASK: Task,
    Kind.RING: RingShape,
    Kind.PAYLOAD: Payload,
    Kind.DONE: Made,
    Kind.SPILLED: Made,
}


def decode(raw: bytes) -> Message:
    """Reads any message."""
    return _READERS.get(raw[0], Note).decode(raw)


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
        """For select and for `pass_fds`."""
        return self._end.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something is there to be received."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(0))

    def set_blocking(self, blocking: bool) -> None:
        """Whether `send` and `receive` wait."""
        self._end.setblocking(blocking)

    def send(self, message: Message, descriptor: int | None = None) -> bool:
        """Sends a message, with a descriptor if given. Returns False when the other end is gone."""
        try:
            if descriptor is None:
                self._end.send(message.encode(), socket.MSG_NOSIGNAL)
            else:
                socket.send_fds(self._end, [message.encode()], [descriptor], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> tuple[Message, int | None] | None:
        """The next message with its descriptor, or None when the other end is gone.

        Raises:
            BlockingIOError: not blocking, and nothing there.
        """
        try:
            raw, descriptors, _, _ = socket.recv_fds(self._end, MESSAGE_BYTES, 1)
        except ConnectionResetError:
            return None
        if not raw:
            return None
        return decode(raw), descriptors[0] if descriptors else None

    def close(self) -> None:
        """Closes this end."""
        self._end.close()
