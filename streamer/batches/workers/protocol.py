"""The messages between a rank and its workers: datagrams of tens of bytes, encoded by msgspec.

A worker's socket is a SOCK_SEQPACKET pair: a message arrives whole or not at all, so a worker that is
killed at any moment leaves no partial message and holds no lock. Memory is passed as a descriptor beside the message.
"""

from __future__ import annotations

import msgspec

from streamer.base.message_socket import MessageSocket
from streamer.batches.causes import Stages
from streamer.batches.rows.counts import PackedCounts
from streamer.order.audit.tallies import Tally

# Stands for no slot: the batch gets memory of its own.
NO_SLOT = -1


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Root of all messages."""


# ---------------------------------------------------------------- to the worker


class Open(_Message, frozen=True):
    """Open the source; recipe and rules are in the memory that comes with the message."""


class Task(_Message, frozen=True):
    """Make this batch, and write it to a slot.

    Attributes:
        number: unique in the loader; a batch that is made again has a new one.
        epoch: of the batch.
        batch: its number in the epoch.
        slot: number of the slot. Its memory comes with the message if the worker does not have it yet; a slot without
            memory, or with too little for the batch, gets memory from the worker. NO_SLOT: memory for this batch only.
        left_out: ordinals that are not loaded, because workers crashed on them twice.
        rounds: of a growing dataset, the rounds of the batch; see `StreamReader.set_rounds`.
    """

    number: int
    epoch: int
    batch: int
    slot: int = NO_SLOT
    left_out: tuple[int, ...] = ()
    rounds: tuple[tuple[int, ...], ...] = ()


class Forget(_Message, frozen=True):
    """Unmap the memory of a slot."""

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
        nbytes: of the batch.
        description: start and length of its description.
        stages: the time by stage.
        faults: the worker's minor page faults over this batch.
        samples: their number.
        repeated: one byte per sample, 1 where it repeats another to fill the batch; empty: none.
        memory_bytes: size of the new memory.
        slowest: ordinal and nanoseconds of the slowest sample; ordinal -1: unknown.
        packed: counts of packed rows; None: samples are not packed.
        tallies: its samples, without repeats.
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
    packed: PackedCounts | None = None
    tallies: tuple[Tally, ...] = ()


class FailedTask(_Message, frozen=True):
    """A batch cannot be made.

    Attributes:
        number: of the task.
        ordinal: of the sample that failed; -1: no single sample.
        error: pickled.
    """

    number: int
    ordinal: int
    error: bytes


class Unreadable(_Message, frozen=True):
    """A chunk of a batch is missing, or has wrong bytes."""

    number: int
    chunk: int
    reason: str


class Skipped(_Message, frozen=True):
    """Another sample replaces one that cannot be made; the task continues."""

    number: int
    ordinal: int
    cause: str


Request = Open | Task | Forget
Report = Ready | NotOpened | Made | FailedTask | Unreadable | Skipped
Message = Request | Report
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """One end of a worker's socket."""

    def __init__(self, end: MessageSocket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two ends."""
        ours, theirs = MessageSocket.pair()
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, descriptor: int) -> Channel:
        """The end that a worker process was started with."""
        return cls(MessageSocket.adopt(descriptor))

    def fileno(self) -> int:
        """Returns the descriptor, for select and for passing it on."""
        return self._end.fileno()

    def set_blocking(self, blocking: bool) -> None:
        """Sets whether `send` and `receive` wait."""
        self._end.set_blocking(blocking)

    def send(self, message: Message, descriptor: int = -1) -> bool:
        """Sends a message, with a descriptor if given. Returns False if the other end is closed."""
        return self._end.send(_encode(message), (descriptor,) if descriptor >= 0 else ())

    def receive(self) -> tuple[Message, int] | None:
        """The next message with its descriptor (-1: none), or None if the other end is closed.

        Raises:
            BlockingIOError: the channel does not block, and there is no message.
        """
        if (received := self._end.receive(max_descriptors=1)) is None:
            return None
        raw, descriptors = received
        return _DECODER.decode(raw), descriptors[0] if descriptors else -1

    def close(self) -> None:
        """Closes this end."""
        self._end.close()
