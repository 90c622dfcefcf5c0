"""The messages between a rank and its workers: datagrams of tens of bytes, encoded by msgspec.

A worker's socket is a SOCK_SEQPACKET pair: a message arrives whole or not at all, so a worker that is
killed at any moment leaves no partial message and holds no lock. Memory is passed as a descriptor beside the message.
The current task and sample of each worker are in a page of shared memory, which is readable after a crash of the
worker. Errors come with their tracebacks. Free of torch.
"""

from __future__ import annotations

import logging
import os
import pickle
import struct
import time
import traceback

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from streamer.base.message_socket import MessageSocket
from streamer.batches.causes import Stages
from streamer.batches.ring import shared_memory as memory
from streamer.batches.rows.pieces import PackedCounts
from streamer.errors import WorkerError
from streamer.order.audit import Tally

# A row has the task, the ordinal (-1 if there is none) and the monotonic nanoseconds at which it began. Each worker has
# a cache line.
_ROW = struct.Struct("<qqq")
_ROW_BYTES = 64


class Doing(msgspec.Struct, frozen=True):
    """One worker's row.

    Attributes:
        task: number of the task.
        ordinal: the sample being loaded; -1 between samples.
        since: CLOCK_MONOTONIC, nanoseconds.
    """

    task: int
    ordinal: int
    since: int


# The row of a worker between two tasks.
NOTHING = Doing(0, -1, 0)


class StatusPage:
    """The rows of all workers; each is written by its worker and read by the rank.

    Args:
        workers: number of rows.
        descriptor: memory of an existing page, or None to create one.
    """

    def __init__(self, workers: int, descriptor: int | None = None) -> None:
        count = memory.align_to_page(workers * _ROW_BYTES)
        self.descriptor = memory.create_memfd("streamer-status-page", count) if descriptor is None else descriptor
        self._mapping = memory.map_memfd(self.descriptor, count)

    def begin(self, row: int, task: int, ordinal: int, since: int) -> None:
        """Records that the worker of this row begins a sample; `since` is the current `time.monotonic_ns`."""
        _ROW.pack_into(self._mapping, row * _ROW_BYTES, task, ordinal, since)

    def idle(self, row: int) -> None:
        """Records that the worker of this row has no task."""
        _ROW.pack_into(self._mapping, row * _ROW_BYTES, 0, -1, time.monotonic_ns())

    def read(self, row: int) -> Doing:
        """Returns the last task and sample of the worker of this row; task 0 between two tasks."""
        return Doing(*_ROW.unpack_from(self._mapping, row * _ROW_BYTES))

    def close(self) -> None:
        """Closes the descriptor; the mapping ends with the object, which a worker thread may still hold."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


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


class WorkerReady(_Message, frozen=True):
    """The source is open."""


class NotOpened(_Message, frozen=True):
    """The source cannot be opened; `error`: see `serialize_error`."""

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
        number: number of the task.
        ordinal: ordinal of the sample that failed, or -1 if it is no single sample.
        error: the error, see `serialize_error`.
    """

    number: int
    ordinal: int
    error: bytes


class Unreadable(_Message, frozen=True):
    """A chunk of the batch of task `number` is missing or wrong; for the others see `ChunkUnreadableError`."""

    number: int
    chunk: int
    reason: str


class SkippedSample(_Message, frozen=True):
    """A sample of task `number` cannot be made: another one replaces it, and the task continues."""

    number: int
    ordinal: int
    cause: str


Request = Open | Task | Forget
Report = WorkerReady | NotOpened | Made | FailedTask | Unreadable | SkippedSample
Message = Request | Report
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """One end of a worker's socket."""

    def __init__(self, end: MessageSocket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Makes a socket pair; returns its two ends."""
        ours, theirs = MessageSocket.pair()
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, descriptor: int) -> Channel:
        """Returns the end that a worker process was started with, by its descriptor."""
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
        """Returns the next message with its descriptor (-1 if it has none), or None if the other end is closed.

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


logger = logging.getLogger(__name__)


class RemoteTracebackError(Exception):
    """A worker's traceback as text: the cause of an error that was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def serialize_error(error: BaseException, limit: int) -> bytes:
    """Serializes an error with its traceback; one that cannot be pickled becomes a WorkerError with its text."""
    text = "".join(traceback.format_exception(error))[-limit // 4 :]
    for candidate in (error, WorkerError(f"{type(error).__name__}: {str(error)[: limit // 8]}")):
        try:
            data: bytes = cloudpickle.dumps((candidate, text))
            pickle.loads(data)  # noqa: S301 - made one line above; some errors cannot be unpickled
        except Exception:
            logger.debug("an error of type %s does not pickle", type(error).__name__, exc_info=True)
        else:
            if len(data) <= limit:
                return data
    return cloudpickle.dumps((WorkerError(f"{type(error).__name__}: its text is too long"), text))  # type: ignore[no-any-return]


def deserialize_error(data: bytes) -> BaseException:
    """Returns the error; its cause is the worker's traceback as text."""
    error, text = pickle.loads(data)  # noqa: S301 - from this trainer's own worker (docs/architecture.md, rule 7)
    error.__cause__ = RemoteTracebackError(text)
    assert isinstance(error, BaseException)
    return error
