"""Defines the messages between a rank and its workers: datagrams, encoded by msgspec.

The worker (`batches/workers/worker.py`) is one end; the feeder (`loader/feed/feeder.py`) is the other one.

A worker's socket is a SOCK_SEQPACKET pair: a message arrives whole or not at all, so a worker that is killed at any
moment leaves no partial message and holds no lock. Memory is passed as a descriptor beside the message. The current
task and sample of each worker are in a page of shared memory, which is readable after a crash of the worker. Errors
come with their tracebacks. Free of torch.
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

# A row of the status page: task, code of the sample, and the monotonic nanoseconds at which the sample began, see
# `Doing`. Each worker has a cache line.
_ROW = struct.Struct("<qqq")
_ROW_BYTES = 64


class Doing(msgspec.Struct, frozen=True):
    """What a worker does, as its row in the status page says.

    Attributes:
        task: number of the task, or 0 between two tasks.
        ordinal: code of the sample that is loaded, or -1 between samples.
        since: monotonic nanoseconds at which it began.
    """

    task: int
    ordinal: int
    since: int


# Stands for a worker between two tasks.
NOTHING = Doing(0, -1, 0)


class StatusPage:
    """The rows of all workers in shared memory. Each row is written by its worker and read by the rank.

    Args:
        workers: number of rows.
        descriptor: file descriptor of an existing page, or None to create one.

    Attributes:
        descriptor: file descriptor of the memory, or -1 after `close`.

    Raises:
        ConfigError: there is no shared memory for a new page.
    """

    def __init__(self, workers: int, descriptor: int | None = None) -> None:
        count = memory.align_to_page(workers * _ROW_BYTES)
        self.descriptor = memory.create_memfd("streamer-status-page", count) if descriptor is None else descriptor
        self._mapping = memory.map_memfd(self.descriptor, count)

    def begin(self, row: int, task: int, ordinal: int, since: int) -> None:
        """Records that the worker of a row begins a sample of a task at `since`, in monotonic nanoseconds.

        `ordinal` is the code of the sample, or -1 when the samples are made and the batch is collated.
        """
        _ROW.pack_into(self._mapping, row * _ROW_BYTES, task, ordinal, since)

    def idle(self, row: int) -> None:
        """Records that the worker of a row has no task."""
        _ROW.pack_into(self._mapping, row * _ROW_BYTES, 0, -1, time.monotonic_ns())

    def read(self, row: int) -> Doing:
        """Returns what the worker of a row does, or did last if it has ended."""
        return Doing(*_ROW.unpack_from(self._mapping, row * _ROW_BYTES))

    def close(self) -> None:
        """Closes the descriptor. The mapping ends with the object, which a worker thread may still hold."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


# The number of a slot in `Task.slot` that means: the batch has no slot, and gets memory of its own.
NO_SLOT = -1


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of all messages."""


# ---------------------------------------------------------------- to the worker


class Open(_Message, frozen=True):
    """Tells the worker to open its source. A descriptor of memory with the pickled recipe and rules comes with it."""


class Task(_Message, frozen=True):
    """Tells the worker to make a batch, and to write it to a slot.

    The memory of the slot comes with the message if the worker does not have it yet. Where the slot has no memory, or
    too little for the batch, the worker makes memory for it.

    Attributes:
        number: number of the task, unique in the loader. A batch that is made again has a new one.
        epoch: epoch of the batch.
        batch: number of the batch in the epoch.
        slot: number of the slot, or NO_SLOT.
        left_out: codes of samples that are not loaded, because workers crashed on them twice.
        rounds: rounds of the batch of a growing dataset, see `StreamReader.set_rounds`, else ().
    """

    number: int
    epoch: int
    batch: int
    slot: int = NO_SLOT
    left_out: tuple[int, ...] = ()
    rounds: tuple[tuple[int, ...], ...] = ()


class Forget(_Message, frozen=True):
    """Tells the worker to unmap the memory of the slot with this number."""

    slot: int


# ---------------------------------------------------------------- from the worker


class WorkerReady(_Message, frozen=True):
    """Tells the rank that the source is open."""


class NotOpened(_Message, frozen=True):
    """Tells the rank that the source cannot be opened. `error` is serialized by `serialize_error`."""

    error: bytes


class Made(_Message, frozen=True):
    """Tells the rank that a batch is written: to its slot, or to new memory whose descriptor comes with the message.

    Attributes:
        number: number of the task.
        nbytes: bytes of the batch with its description.
        description: start and length of the description in the memory, see `WritableBatch`.
        stages: times of the batch by stage.
        faults: minor page faults of the worker process while it made the batch.
        samples: number of samples, or rows.
        repeated: a byte for each sample, 1 where it repeats another one to fill the batch, or b"" if none does.
        memory_bytes: bytes of the new memory, or 0 if there is none.
        slowest: code and nanoseconds of the slowest sample, or (-1, 0) if it is not known.
        packed: counts of packed rows, or None if samples are not packed.
        tallies: the samples, or rows, without repeats, for the audit of an epoch.
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
    """Tells the rank that a batch cannot be made.

    Attributes:
        number: number of the task.
        ordinal: code of the sample that failed, or -1 if it is no single sample.
        error: the error, serialized by `serialize_error`.
    """

    number: int
    ordinal: int
    error: bytes


class Unreadable(_Message, frozen=True):
    """Tells the rank that the batch of a task needs a chunk that is missing or wrong.

    Attributes:
        number: number of the task.
        chunk: number of the chunk in the session with the engine.
        reason: text for the engine's log.
    """

    number: int
    chunk: int
    reason: str


class SkippedSample(_Message, frozen=True):
    """Tells the rank that a sample cannot be made and is skipped. The task continues.

    Attributes:
        number: number of the task.
        ordinal: code of the sample.
        cause: text of the error.
    """

    number: int
    ordinal: int
    cause: str


Request = Open | Task | Forget
Report = WorkerReady | NotOpened | Made | FailedTask | Unreadable | SkippedSample
Message = Request | Report
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """One end of a worker's socket, which sends and receives messages with their descriptors."""

    def __init__(self, end: MessageSocket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Makes a socket pair, and returns its two ends."""
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
        """Sends a message, with a descriptor unless that is -1. Returns False if the other end is closed.

        Raises:
            BlockingIOError: the channel does not block, and the other end has not read what was sent before.
            OSError: the message is longer than the kernel takes.
        """
        return self._end.send(_encode(message), (descriptor,) if descriptor >= 0 else ())

    def receive(self) -> tuple[Message, int] | None:
        """Returns the next message with its descriptor (-1 if it has none), or None if the other end is closed.

        Raises:
            BlockingIOError: the channel does not block, and there is no message.
            ConfigError: this process can take no further descriptor.
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
    """A worker's traceback as text. It is the cause (`__cause__`) of an error that was raised in a worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def serialize_error(error: BaseException, limit: int) -> bytes:
    """Serializes an error with its traceback, in at most about `limit` bytes.

    An error that cannot be pickled, or is too large, becomes a WorkerError with its text. Long texts are cut.
    """
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
    """Returns the error that `serialize_error` has serialized. Its cause is a `RemoteTracebackError`."""
    error, text = pickle.loads(data)  # noqa: S301 - from this trainer's own worker (docs/architecture.md, rule 7)
    error.__cause__ = RemoteTracebackError(text)
    assert isinstance(error, BaseException)
    return error
